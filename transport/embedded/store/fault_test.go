package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openStore opens a store and lets it run until stop is called.
func openStore(t *testing.T, dir string, fs vfs.FS) (s *Store, stop func()) {
	t.Helper()
	s, err := Open(dir, fs, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func batch(s *Store, n int) (all []Proposed) {
	for range n {
		all = append(all, Proposed{ID: s.newID(), Type: "t", JSON: true, Data: []byte(strings.Repeat("x", 100))})
	}
	return all
}

func count(t *testing.T, s *Store, stream string) int {
	t.Helper()
	w, err := s.Window(stream)
	if errors.Is(err, ErrNoStream) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return int(w.Last) + 1
}

// A machine that loses its memory loses what was not synced, in any mixture:
// what was acknowledged is there all the same, and no append is there in part.
func TestALostPageCacheLosesNothingAcknowledged(t *testing.T) {
	const each = 3
	for seed := range int64(40) {
		fs := vfs.NewCrashableMem()
		s, stop := openStore(t, "db", fs)
		acked := 0
		for range 20 {
			if _, err := s.Append(context.Background(), "a", Any, batch(s, each)); err != nil {
				t.Fatal(err)
			}
			acked += each
		}
		// One more is on its way when the power fails.
		late := make(chan struct{})
		go func() {
			defer close(late)
			_, _ = s.Append(context.Background(), "a", Any, batch(s, each)) // its answer is not waited for
		}()
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed*7) % 101, RNG: seeded(seed)})
		<-late
		stop()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again, stop := openStore(t, "db", crashed)
		got := count(t, again, "a")
		if got < acked || got%each != 0 {
			t.Errorf("seed %d: %d events acknowledged, %d there", seed, acked, got)
		}
		r, err := again.Append(context.Background(), "a", Expected(got-1), batch(again, 1))
		if err != nil || r.Last != int64(got) || r.Position <= uint64(got) {
			t.Errorf("seed %d: numbers and positions do not go on: %+v, %v", seed, r, err)
		}
		stop()
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Check("db", crashed); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// A full disk refuses appends with its reason and goes on serving reads.
func TestAFullDiskRefusesAppendsAndServesReads(t *testing.T) {
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSync) {
			return syscall.ENOSPC
		}
		return nil
	}))
	s, stop := openStore(t, "db", fs)
	if _, err := s.Append(context.Background(), "a", Any, batch(s, 5)); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	for i := range 3 {
		var unwritable *UnwritableError
		_, err := s.Append(context.Background(), "a", Any, batch(s, 1))
		if !errors.As(err, &unwritable) || !strings.Contains(err.Error(), "space") {
			t.Fatalf("append %d: %v", i, err)
		}
	}
	if s.Failed() == nil {
		t.Error("the store does not say that it has failed")
	}
	w, err := s.Window("a")
	if err != nil {
		t.Fatal(err)
	}
	events, _, err := s.Forward(w, 0, 100)
	if err != nil || len(events) != 5 {
		t.Errorf("read: %d events, %v", len(events), err)
	}
	if all, err := s.All(1, 100); err != nil || len(all) != 6 {
		t.Errorf("$all: %d events, %v", len(all), err)
	}
	stop()
	full.Store(false)
	_ = s.Close() // it says what failed before
}

// A flipped bit is found on read, and the error says where.
func TestAFlippedBitIsNamed(t *testing.T) {
	fs := vfs.NewMem()
	s, stop := openStore(t, "db", fs)
	if _, err := s.Append(context.Background(), "victim", Any, batch(s, 3)); err != nil {
		t.Fatal(err)
	}
	h, err := s.head("victim")
	if err != nil {
		t.Fatal(err)
	}
	key := eventKey(h.id, 1)
	value, closer, err := s.db.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	damaged := append([]byte(nil), value...)
	closer.Close()
	damaged[len(damaged)-20] ^= 4
	if err := s.db.Set(key, damaged, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	w, err := s.Window("victim")
	if err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	events, _, err := s.Forward(w, 0, 10)
	if !errors.As(err, &corrupt) || corrupt.Stream != "victim" || corrupt.Number != 1 || len(events) != 1 {
		t.Errorf("%d events, %v", len(events), err)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Check("db", fs); !errors.As(err, &corrupt) || corrupt.Number != 1 {
		t.Errorf("check: %v", err)
	}
}

// Two processes cannot write the same folder.
func TestASecondOwnerIsRefused(t *testing.T) {
	dir := t.TempDir()
	s, stop := openStore(t, dir, nil)
	if _, err := Open(dir, nil, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("%v", err)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "LOCK")); err != nil {
		t.Errorf("the lock is %v", err)
	}
	if _, err := Check(filepath.Join(dir, "nothing"), nil); err == nil {
		t.Error("a folder that is not there is in order")
	}
}
