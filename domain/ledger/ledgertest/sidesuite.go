package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
)

// RunSide puts a Side through what its users rely on. Streams begin with prefix,
// so that the suite can share a store.
func RunSide(t *testing.T, side ledger.Side, prefix string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	note := func(text string) ledger.Note { return ledger.Note{Type: "t", Data: fmt.Appendf(nil, "%q", text)} }
	write := func(t *testing.T, stream string, texts ...string) (last uint64) {
		t.Helper()
		var notes []ledger.Note
		for _, text := range texts {
			notes = append(notes, note(text))
		}
		last, err := side.Note(ctx, stream, notes...)
		if err != nil {
			t.Fatal(err)
		}
		return last
	}
	read := func(t *testing.T, stream string, after uint64) (texts string) {
		t.Helper()
		notes, err := side.Notes(ctx, stream, after, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range notes {
			texts += fmt.Sprintf("%d:%s ", n.Seq, n.Data)
		}
		return texts
	}
	// listen collects n notes behind after.
	listen := func(t *testing.T, stream string, after uint64, n int, begun func()) (texts string) {
		t.Helper()
		enough := errors.New("enough")
		done := make(chan error, 1)
		go func() {
			done <- side.Listen(ctx, stream, after, func(one ledger.Note) error {
				texts += fmt.Sprintf("%d:%s ", one.Seq, one.Data)
				if n--; n == 0 {
					return enough
				}
				return nil
			})
		}()
		if begun != nil {
			begun()
		}
		if err := <-done; !errors.Is(err, enough) {
			t.Fatalf("%v after %q", err, texts)
		}
		return texts
	}

	t.Run("notes are numbered from 1 and read back", func(t *testing.T) {
		stream := prefix + "_notes"
		if got := read(t, stream, 0); got != "" {
			t.Errorf("a stream that does not exist has %q", got)
		}
		if last := write(t, stream, "a", "b"); last != 2 {
			t.Errorf("last %d", last)
		}
		if last := write(t, stream, "c"); last != 3 {
			t.Errorf("last %d", last)
		}
		if got := read(t, stream, 1); got != `2:"b" 3:"c" ` {
			t.Errorf("%q", got)
		}
		if got := read(t, stream, 3); got != "" {
			t.Errorf("behind the end: %q", got)
		}
	})
	t.Run("keep stores once", func(t *testing.T) {
		stream := prefix + "_keep"
		for _, text := range []string{"first", "second"} {
			if err := side.Keep(ctx, stream, note(text)); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(t, stream, 0); got != `1:"first" ` {
			t.Errorf("%q", got)
		}
	})
	t.Run("listening waits for the stream, and goes on behind a seq", func(t *testing.T) {
		stream := prefix + "_listen"
		got := listen(t, stream, 0, 3, func() { write(t, stream, "a", "b"); write(t, stream, "c") })
		if got != `1:"a" 2:"b" 3:"c" ` {
			t.Errorf("%q", got)
		}
		if got := listen(t, stream, 2, 2, func() { write(t, stream, "d") }); got != `3:"c" 4:"d" ` {
			t.Errorf("%q", got)
		}
	})
	t.Run("what is trimmed is passed over", func(t *testing.T) {
		stream := prefix + "_trim"
		write(t, stream, "a", "b", "c", "d")
		if err := side.Trim(ctx, stream, 3); err != nil {
			t.Fatal(err)
		}
		if got := read(t, stream, 0); got != `3:"c" 4:"d" ` {
			t.Errorf("%q", got)
		}
		if got := listen(t, stream, 1, 2, nil); got != `3:"c" 4:"d" ` {
			t.Errorf("%q", got)
		}
	})
	t.Run("a bounded stream keeps the newest, trimmed or not", func(t *testing.T) {
		stream := prefix + "_bound"
		if err := side.Bound(ctx, stream, 3); err != nil {
			t.Fatal(err)
		}
		write(t, stream, "a", "b", "c", "d", "e")
		if got := read(t, stream, 0); got != `3:"c" 4:"d" 5:"e" ` {
			t.Errorf("%q", got)
		}
		if err := side.Trim(ctx, stream, 5); err != nil {
			t.Fatal(err)
		}
		write(t, stream, "f", "g", "h")
		if got := read(t, stream, 0); got != `6:"f" 7:"g" 8:"h" ` {
			t.Errorf("behind a trim: %q", got)
		}
	})
	t.Run("a stream is dropped at its end only, and may begin again", func(t *testing.T) {
		stream := prefix + "_drop"
		write(t, stream, "a", "b")
		var conflict *ledger.ConflictError
		if err := side.Drop(ctx, stream, 1); !errors.As(err, &conflict) {
			t.Errorf("dropped in the middle: %v", err)
		}
		if err := side.Drop(ctx, stream, 2); err != nil {
			t.Fatal(err)
		}
		if got := read(t, stream, 0); got != "" {
			t.Errorf("%q", got)
		}
		if last := write(t, stream, "c"); last != 3 {
			t.Errorf("last %d", last)
		}
		if got := read(t, stream, 0); got != `3:"c" ` {
			t.Errorf("%q", got)
		}
		if got := listen(t, stream, 0, 2, func() { write(t, stream, "d") }); got != `3:"c" 4:"d" ` {
			t.Errorf("%q", got)
		}
	})
}
