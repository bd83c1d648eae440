package blobfolder_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/transport/blobfolder"
)

func open(t *testing.T, path string) *blobfolder.Folder {
	t.Helper()
	f, err := blobfolder.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func put(t *testing.T, f *blobfolder.Folder, id run.ID, text string) string {
	t.Helper()
	checksum, size, err := f.Put(context.Background(), id, strings.NewReader(text), 100)
	if err != nil || size != int64(len(text)) || checksum != run.Checksum([]byte(text)) {
		t.Errorf("%s, %d, %v", checksum, size, err)
	}
	return checksum
}

func read(t *testing.T, f *blobfolder.Folder, checksum string) (string, error) {
	t.Helper()
	r, err := f.Open(context.Background(), checksum)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

func files(t *testing.T, path string) (n int) {
	t.Helper()
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBlobsLiveAsLongAsARunRefersToThem(t *testing.T) {
	path := t.TempDir()
	f := open(t, path)
	shared, own := put(t, f, "one", "shared"), put(t, f, "one", "")
	put(t, f, "two", "shared")
	put(t, f, "two", "shared")
	f = open(t, path) // again
	if text, err := read(t, f, shared); err != nil || text != "shared" {
		t.Errorf("%q, %v", text, err)
	}
	if err := errors.Join(f.Release(t.Context(), "one"), f.Release(t.Context(), "one"), f.Release(t.Context(), "nobody")); err != nil {
		t.Fatal(err)
	}
	if text, err := read(t, f, shared); err != nil || text != "shared" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := read(t, f, own); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if err := f.Release(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	if n := files(t, path); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

func TestWhatIsRefusedLeavesNothing(t *testing.T) {
	path := t.TempDir()
	f := open(t, path)
	var large *blob.TooLargeError
	if _, _, err := f.Put(t.Context(), "one", strings.NewReader(strings.Repeat("x", 101)), 100); !errors.As(err, &large) || large.Limit != 100 {
		t.Errorf("%v", err)
	}
	cut := errors.New("cut")
	if _, _, err := f.Put(t.Context(), "one", io.MultiReader(strings.NewReader("x"), failing{cut}), 100); !errors.Is(err, cut) {
		t.Errorf("%v", err)
	}
	for _, wrong := range []string{"", "sha256:", "sha256:../../../../etc/passwd", "md5:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("A", 64)} {
		if _, err := f.Open(t.Context(), wrong); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if n := files(t, path); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Runs that come and go with the same content, by way of two openings of the
// folder: whoever holds it can read it.
func TestPutAgainstRelease(t *testing.T) {
	path := t.TempDir()
	var all sync.WaitGroup
	for n := range 8 {
		f := open(t, path)
		all.Go(func() {
			id := run.ID(fmt.Sprint("run_", n))
			for range 50 {
				checksum := put(t, f, id, "content")
				if text, err := read(t, f, checksum); err != nil || text != "content" {
					t.Errorf("%q, %v", text, err)
				}
				if err := f.Release(context.Background(), id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := files(t, path); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

func sumOf(text string) string { return run.Checksum([]byte(text)) }
