package tail_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/projection/view"
)

// history is a projector whose every frame depends on all events before it: what
// front ends' protocols are like, at their worst.
type history struct {
	sum   string
	steps *atomic.Int64
}

func (h *history) Step(e *run.Event) []view.Frame {
	h.steps.Add(1)
	h.sum = run.Checksum([]byte(h.sum + e.ChainChecksum))[7:15]
	if e.Seq%5 == 0 {
		return nil // not every event is something in every view
	}
	return []view.Frame{{ID: e.Seq, Event: "step", Data: []byte(h.sum)}}
}

func (h *history) Prelude() []view.Frame {
	return []view.Frame{{Event: "prelude", Data: []byte(h.sum)}}
}

func newHistory() (*view.View, *atomic.Int64) {
	steps := new(atomic.Int64)
	return &view.View{Name: "history", Project: func() view.Projector { return &history{steps: steps} }}, steps
}

// plain is what a viewer that joins at a cursor must see in a view.
func plain(v *view.View, events []run.Event, after run.Seq) string {
	var b strings.Builder
	projector := v.New()
	show := func(frames []view.Frame) {
		for _, f := range frames {
			fmt.Fprintf(&b, "%s %d %s\n", f.Event, f.ID, f.Data)
		}
	}
	for i := range events {
		frames := projector.Step(&events[i])
		if events[i].Seq == after {
			show(projector.Prelude())
		} else if events[i].Seq > after {
			show(frames)
		}
	}
	return b.String()
}

// all reads a viewer to the run's end.
func all(t *testing.T, v *tail.Viewer, pace func()) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b strings.Builder
	for {
		batch, more, err := v.Next(ctx)
		if err != nil {
			t.Errorf("after %q: %v", b.String()[max(0, b.Len()-80):], err)
			return b.String()
		}
		for _, f := range batch.Frames {
			b.Write(f)
		}
		if batch.Terminal {
			return b.String()
		}
		pace()
		if len(batch.Frames) == 0 {
			select {
			case <-more:
			case <-ctx.Done():
				t.Error("nothing more comes")
				return b.String()
			}
		}
	}
}

// Whenever viewers of a stateful view come, at whatever cursor, however slow:
// each sees what the whole run would have shown it, and the tail projects once
// for those that keep up.
func TestStatefulViews(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	tails := tail.New(mem, func(b []byte, f view.Frame) ([]byte, error) {
		return fmt.Appendf(b, "%s %d %s\n", f.Event, f.ID, f.Data), nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tails.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	script, events := ledgertest.NewScript("lanes")
	commit := func(events []run.Event) {
		if err := mem.Append(context.Background(), script.ID, events[0].Seq-1, events); err != nil {
			t.Fatal(err)
		}
	}
	commit(events)
	v, steps := newHistory()
	type seen struct {
		after run.Seq
		text  string
	}
	results := make(chan seen, 100)
	var viewers sync.WaitGroup
	look := func() {
		last, err := mem.Last(context.Background(), script.ID)
		if err != nil {
			t.Fatal(err)
		}
		after := run.Seq(rand.IntN(int(last.Seq) + 1))
		viewer, err := tails.Open(after, v, &last)
		if err != nil {
			t.Fatal(err)
		}
		slow := rand.IntN(3) == 0
		viewers.Go(func() {
			defer viewer.Close()
			results <- seen{after, all(t, viewer, func() {
				for range rand.IntN(2000) {
					if slow { // many more come meanwhile
						runtime.Gosched()
					}
				}
			})}
		})
	}
	const rounds = 80
	for i := range rounds {
		if i%4 == 0 {
			look()
		}
		commit(script.Deltas(strings.Repeat("x", rand.IntN(15_000)), "y", "z"))
	}
	look()
	commit(script.Done())
	viewers.Wait()
	close(results)
	whole := mem.Events(script.ID)
	for one := range results {
		if want := plain(v, whole, one.after); one.text != want {
			t.Errorf("behind %d: %d bytes, want %d", one.after, len(one.text), len(want))
		}
	}
	t.Logf("%d steps for %d events and %d viewers", steps.Load(), len(whole), rounds/4+1)
}

// Viewers that keep up cost one step an event, whatever the view.
func TestAnEventIsSteppedOnceForAll(t *testing.T) {
	s := open(t)
	v, steps := newHistory()
	last, err := s.mem.Last(context.Background(), s.script.ID)
	if err != nil {
		t.Fatal(err)
	}
	var viewers []*tail.Viewer
	for range 20 {
		viewer, err := s.tails.Open(0, v, &last)
		if err != nil {
			t.Fatal(err)
		}
		defer viewer.Close()
		s.sees(viewer, 1, 1)
		if _, _, err := viewer.Next(context.Background()); err != nil { // joins
			t.Fatal(err)
		}
		viewers = append(viewers, viewer)
	}
	before := steps.Load()
	s.commit("a", "b") // message.started and two deltas
	for _, viewer := range viewers {
		s.sees(viewer, 2, 4)
	}
	if n := steps.Load() - before; n != 3 {
		t.Errorf("%d steps of 3 events", n)
	}
}

// A store that was set back under its viewers shows them nothing that does not
// follow what they have seen: live, behind a silent subscription, and in a replay.
func TestAStoreThatWasSetBackEndsItsViewers(t *testing.T) {
	broken := func(t *testing.T, v *tail.Viewer) {
		t.Helper()
		var chain *run.BrokenChainError
		for {
			batch, more, err := v.Next(t.Context())
			switch {
			case errors.As(err, &chain):
				return
			case err != nil:
				t.Fatal(err)
			case len(batch.Frames) > 0:
				t.Fatalf("saw %s", batch.Frames)
			}
			<-more
		}
	}
	other := func(s *stage, n int) []run.Event { // the first n events, and another future
		script, events := ledgertest.NewScript("tail")
		return append(s.mem.Events(s.script.ID)[:n:n], append(append(events, script.Deltas("another", "time")...), script.Done()...)[n:]...)
	}
	t.Run("live", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t)
			v := s.view(0)
			defer v.Close()
			s.commit("a", "b")
			s.sees(v, 1, 4)
			s.mem.SetBack(s.script.ID, other(s, 1))
			broken(t, v)
		})
	})
	t.Run("shorter", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t)
			v := s.view(0)
			defer v.Close()
			s.commit("a", "b")
			s.sees(v, 1, 4)
			s.mem.SetBack(s.script.ID, s.mem.Events(s.script.ID)[:2])
			broken(t, v)
		})
	})
	t.Run("as long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t)
			v := s.view(0)
			defer v.Close()
			s.commit("a", "b")
			s.sees(v, 1, 4)
			s.mem.SetBack(s.script.ID, other(s, 1)[:4])
			broken(t, v)
		})
	})
}

// The rings of all runs have one bound: those of quiet runs give way.
func TestRingsShareOneBound(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	tails := tail.New(mem, func(b []byte, f view.Frame) ([]byte, error) { return append(b, f.Data...), nil })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tails.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	big := make([]string, 16)
	for i := range big {
		big[i] = strings.Repeat("x", 15_000)
	}
	for n := range 200 { // of some 500 kB each
		script, started := ledgertest.NewScript(fmt.Sprint("ring", n))
		if err := mem.Append(context.Background(), script.ID, 0, started); err != nil {
			t.Fatal(err)
		}
		viewer, err := tails.Open(1, view.Client, &started[0])
		if err != nil {
			t.Fatal(err)
		}
		defer viewer.Close()
		events := script.Deltas(big...)
		if err := mem.Append(context.Background(), script.ID, 1, events); err != nil {
			t.Fatal(err)
		}
		for seen := run.Seq(1); seen < script.Last(); {
			batch, more, err := viewer.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if seen = max(seen, batch.Last); len(batch.Frames) == 0 {
				<-more
			}
		}
		if held := tails.Held(); held > 65<<20 {
			t.Fatalf("%d bytes are held after %d runs", held, n+1)
		}
	}
	if held := tails.Held(); held < 32<<20 {
		t.Errorf("only %d bytes are held", held)
	}
}
