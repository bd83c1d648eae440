package blobfolder_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/transport/blobfolder"
)

// content is where a blob's bytes are.
func content(path, checksum string) string {
	sum := strings.TrimPrefix(checksum, "sha256:")
	return filepath.Join(path, sum[:2], sum, "content")
}

func TestBringingBytesAgainMendsThem(t *testing.T) {
	path := t.TempDir()
	f := open(t, path)
	sum := put(t, f, "one", "right")
	for _, wrong := range []string{"", "wrong", "rig", "right and more"} {
		if err := os.WriteFile(content(path, sum), []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		put(t, f, "two", "right")
		if got, err := read(t, f, sum); got != "right" || err != nil {
			t.Errorf("%q stays %q, %v", wrong, got, err)
		}
	}
	if err := os.Remove(content(path, sum)); err != nil {
		t.Fatal(err)
	}
	put(t, f, "three", "right")
	if got, err := read(t, f, sum); got != "right" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCheckNamesWhatIsDamaged(t *testing.T) {
	path := t.TempDir()
	f := open(t, path)
	good, altered, gone, empty := put(t, f, "one", "good"), put(t, f, "one", "altered"), put(t, f, "two", "gone"), put(t, f, "two", "")
	put(t, f, "three", "altered")
	report, err := blobfolder.Check(path)
	if err != nil || report.Blobs != 4 || len(report.Faults) != 0 || report.Bytes != 15 || report.Unreferenced != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if err := errors.Join(os.WriteFile(content(path, altered), []byte("ALTERED"), 0o600), os.Remove(content(path, gone)),
		os.WriteFile(content(path, empty), []byte("x"), 0o600), os.Remove(filepath.Join(filepath.Dir(content(path, good)), "run-one")),
		os.Mkdir(filepath.Join(path, "ab"), 0o700), os.Mkdir(filepath.Join(path, "ab", "stray"), 0o700)); err != nil {
		t.Fatal(err)
	}
	report, err = blobfolder.Check(path)
	all := strings.Join(report.Faults, "\n")
	if err != nil || report.Blobs != 4 || len(report.Faults) != 4 || report.Unreferenced != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	for _, want := range []string{altered + ": its 7 bytes are others (of runs: one, three)", gone + ": its content is missing (of runs: two)", empty + ": its 1 bytes", "ab/stray"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s\nlacks %s", all, want)
		}
	}
	if report, err := blobfolder.Check(filepath.Join(path, "nowhere")); err != nil || report.Blobs != 0 || len(report.Faults) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

// Each byte of a blob flipped in turn, and each length of it: no reader gets it
// whole, and check names it.
func TestNoDamageIsPassedOver(t *testing.T) {
	path := t.TempDir()
	f := open(t, path)
	good := []byte("some bytes that somebody relies on")
	sum := put(t, f, "one", string(good))
	try := func(what string, at int, bad []byte) {
		t.Helper()
		if err := os.WriteFile(content(path, sum), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := f.Open(t.Context(), sum)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var damaged *blob.DamagedError
		if got, err := io.ReadAll(blob.NewReader(r, sum)); !errors.As(err, &damaged) || len(got) > 0 {
			t.Errorf("%s %d: %q, %v", what, at, got, err)
		}
		if report, err := blobfolder.Check(path); err != nil || len(report.Faults) != 1 || !strings.Contains(report.Faults[0], sum) {
			t.Errorf("%s %d: %+v, %v", what, at, report, err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		try("flipped", i, bad)
		try("cut", i, good[:i])
	}
	if got, err := read(t, f, put(t, f, "two", string(good))); got != string(good) || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// What a crash left half written goes with the next opening; what another
// instance is writing stays.
func TestLeftoversAreSwept(t *testing.T) {
	path := t.TempDir()
	open(t, path)
	left := filepath.Join(path, "tmp", "left")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		_, _, err := f.Put(t.Context(), "one", r, 100)
		done <- err
	}()
	if _, err := w.Write([]byte("half")); err != nil { // the file is there now
		t.Fatal(err)
	}
	open(t, path)
	if _, err := w.Write([]byte(" and half")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, f, sumOf("half and half")); got != "half and half" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if n, err := os.ReadDir(filepath.Join(path, "tmp")); len(n) != 0 || err != nil {
		t.Errorf("%v, %v", n, err)
	}
}

func cause(err error) blob.Cause {
	var failed *blob.StoreError
	if !errors.As(err, &failed) {
		return ""
	}
	return failed.Cause
}

func TestAFolderThatIsGoneSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blobs")
	f := open(t, path)
	sum := put(t, f, "one", "content")
	if err := os.Rename(path, path+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	_, _, put := f.Put(t.Context(), "one", strings.NewReader("x"), 100)
	_, opened := f.Open(t.Context(), sum)
	for what, err := range map[string]error{"put": put, "open": opened, "release": f.Release(t.Context(), "one"), "release of nothing": f.Release(t.Context(), "two")} {
		if cause(err) != blob.Missing {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("it was made again, perhaps on another disk")
	}
	if err := os.Rename(path+"-elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, f, sum); got != "content" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Small disks fill up and are made read-only; reading goes on, and so does writing
// once there is room.
func TestFullAndReadOnlyDisks(t *testing.T) {
	path := t.TempDir()
	mount := func(flags uintptr, data string) error { return syscall.Mount("tmpfs", path, "tmpfs", flags, data) }
	if err := mount(0, "size=256k,nr_inodes=64"); err != nil {
		t.Skip("a test that may not mount cannot make a small disk: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f := open(t, path)
	sum := put(t, f, "one", "kept")
	large := bytes.Repeat([]byte("x"), 300<<10)
	if _, _, err := f.Put(t.Context(), "two", bytes.NewReader(large), 1<<20); cause(err) != blob.Full {
		t.Errorf("bytes: %v", err)
	}
	if got, err := read(t, f, sum); got != "kept" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	put(t, f, "two", "there is room again")
	var names []string
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		name := filepath.Join(path, "filler"+strings.Repeat("x", i))
		if err = os.WriteFile(name, nil, 0o600); err == nil {
			names = append(names, name)
		}
	}
	if _, _, err := f.Put(t.Context(), "three", strings.NewReader("no inode"), 100); cause(err) != blob.Full {
		t.Errorf("inodes: %v", err)
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	put(t, f, "three", "no inode")
	if err := mount(syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Put(t.Context(), "four", strings.NewReader("x"), 100); cause(err) != blob.ReadOnly {
		t.Errorf("read-only: %v", err)
	}
	if got, err := read(t, f, sum); got != "kept" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
