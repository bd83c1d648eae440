package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/run"
)

// A create that is refused, since its id names a run that is driven here, leaves
// that run watched over.
func TestARefusedCreateLeavesTheRunWatched(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer b.stop()
		a.announce("driven", lease.Owned)
		if err := a.Announce(context.Background(), "driven", lease.Open); err != nil {
			t.Fatal(err)
		}
		a.Withdraw("driven", lease.Open)
		a.announce("pushed", lease.Open)
		if err := a.Announce(context.Background(), "pushed", lease.Open); err != nil { // another create, refused
			t.Fatal(err)
		}
		a.Withdraw("pushed", lease.Open)
		if err := a.Announce(context.Background(), "pushed", lease.Owned); err != nil {
			t.Fatal(err)
		}
		a.Withdraw("pushed", lease.Owned)
		w.wait(10 * time.Second)
		if a.Holds() != 2 {
			t.Errorf("%d runs are held", a.Holds())
		}
		a.kill()
		w.wait(time.Minute)
		if w.fate("driven") == "" || w.fate("pushed") == "" {
			t.Errorf("driven %q, pushed %q", w.fate("driven"), w.fate("pushed"))
		}
		if n := w.asked["pushed"]; n.Holder != "" {
			t.Errorf("the pushed run was adopted as one of %q", n.Holder)
		}
	})
}

// Whoever announces a run whose end comes in between is answered.
func TestAnAnnouncementOutlivesAnEnd(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", 0)
		defer a.stop()
		a.announce("run", lease.Open)
		a.line.Away(true)
		answered := make(chan error, 1)
		go func() { answered <- a.Announce(context.Background(), "run", lease.Open) }()
		synctest.Wait()
		a.Ended("run")
		w.wait(time.Second)
		a.line.Away(false)
		w.wait(time.Minute)
		select {
		case err := <-answered:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("nobody answers")
		}
		a.Withdraw("run", lease.Open)
		if a.Holds() != 0 {
			t.Errorf("%d runs are held", a.Holds())
		}
	})
}

func TestWhoGivesUpAnnouncingHoldsNothing(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", 0)
		defer a.stop()
		w.wait(time.Second)
		a.line.Away(true)
		for n := range 300 { // of 100
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if err := a.Announce(ctx, run.ID(fmt.Sprint("run_", n)), lease.Owned); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
		}
		if a.Holds() != 0 {
			t.Errorf("%d runs are held", a.Holds())
		}
		a.line.Away(false)
	})
}

// An instance with more runs than one append can name tells of them in several, and
// is alive; who listens from the start or later knows them all.
func TestHeartbeatsFitTheirAppends(t *testing.T) {
	here(t, func(w *world) {
		small := func(c *lease.Config) { c.MaxAppend, c.Most, c.PushLease = 4096, 1000, 15*time.Minute }
		a, b := w.joinWith("a", small), w.joinWith("b", small)
		defer b.stop()
		const runs = 1000
		for n := range runs {
			a.Heard(run.ID(fmt.Sprintf("a_run_with_a_long_name_%040d", n)), 1, false)
		}
		w.wait(10 * time.Minute) // several whole heartbeats
		if !b.Alive("a") || a.lapsed > 0 {
			t.Fatalf("a is taken for dead, or lapsed %d times", a.lapsed)
		}
		late := w.joinWith("late", small)
		defer late.stop()
		for n := range runs { // they live
			a.Heard(run.ID(fmt.Sprintf("a_run_with_a_long_name_%040d", n)), 1, true)
		}
		w.wait(time.Second)
		a.kill()
		w.wait(10 * time.Second)
		if b.Holds() != runs || late.Holds() != runs {
			t.Errorf("b adopted %d, late %d", b.Holds(), late.Holds())
		}
		w.wait(15 * time.Minute)
		if len(w.settled) != runs {
			t.Errorf("%d ended", len(w.settled))
		}
	})
}

// Two full instances make one that goes on beating, and nobody follows into death.
func TestAFullInstanceAdoptsAFullOne(t *testing.T) {
	here(t, func(w *world) {
		small := func(c *lease.Config) { c.MaxAppend, c.Most, c.PushLease = 2048, 100, time.Hour }
		a, b, c := w.joinWith("a", small), w.joinWith("b", small), w.joinWith("c", small)
		defer b.stop()
		defer c.stop()
		for n := range 100 {
			a.announce(run.ID(fmt.Sprintf("of_a_%040d", n)), lease.Open)
			b.announce(run.ID(fmt.Sprintf("of_b_%040d", n)), lease.Open)
		}
		w.wait(10 * time.Second)
		a.kill()
		w.wait(10 * time.Minute)
		if b.Holds() != 200 || c.died("b") > 0 || b.lapsed+c.lapsed > 0 {
			t.Errorf("b holds %d, died %d times", b.Holds(), c.died("b"))
		}
		if err := b.Announce(context.Background(), "one_more", lease.Owned); !errors.Is(err, lease.ErrFull) {
			t.Errorf("%v", err)
		}
	})
}
