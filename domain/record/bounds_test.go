package record_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// here runs a test of a house in a synctest bubble: it knows when everybody waits.
func here(t *testing.T, test func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, open(t, ledgertest.NewMemory(t))) })
}

// What a store that is slow has not taken yet is bounded, whether it waits or is
// in the writer's hands; the producer is read as fast as the store commits.
func TestWhatWaitsIsBounded(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		id := h.start(t)
		recorder, free := h.Use(id)
		defer free()
		const size, events = 32 << 10, 600 // 20 MB
		release := h.mem.Hold()
		p := recorder.Push(run.Origin{})
		var sent atomic.Int64
		finished := make(chan error, 1)
		go func() {
			for range events {
				if err := p.Send(context.Background(), 1, delta(0, strings.Repeat("x", size))); err != nil {
					finished <- err
					return
				}
				sent.Add(1)
			}
			finished <- nil
		}()
		seen, committed := 0, 0
		for appends := 0; ; appends++ {
			synctest.Wait()
			for _, e := range h.mem.Events(id)[seen:] {
				committed += len(deltaOf(t, &e))
				seen++
			}
			waits := int(sent.Load())*size - committed
			if waits > record.MaxReported+size {
				t.Fatalf("%d bytes wait after %d appends", waits, appends)
			}
			if sent.Load() == events {
				break
			}
			if waits < record.MaxReported/2 {
				t.Fatalf("only %d bytes wait after %d appends, and the producer does too", waits, appends)
			}
			again := h.mem.Hold() // the next append waits again
			release()
			release = again
		}
		release()
		if err := <-finished; err != nil {
			t.Error(err)
		}
		if r, err := p.Wait(within(t)); err != nil || r.Accepted != events {
			t.Errorf("%+v, %v", r, err)
		}
		if n := len(h.text(t, id)); n != size*events {
			t.Errorf("%d bytes of text", n)
		}
	})
}

// A cancel, or a question, comes through while producers fill the queue.
func TestACancelFindsRoom(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		id := h.start(t)
		recorder, free := h.Use(id)
		defer free()
		release := h.mem.Hold()
		p := recorder.Push(run.Origin{})
		full, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		for p.Send(full, 1, delta(0, strings.Repeat("x", 50_000))) == nil {
		}
		ended := make(chan error, 1)
		go func() {
			_, err := h.Cancel(context.Background(), id, 0, run.Cancellation{Reason: "enough"})
			ended <- err
		}()
		synctest.Wait()
		release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

const half = "\xed\xa0\xbd"

// Producers are named by strangers: those whose half character waits longest are
// not waited for when there are too many.
func TestHalvesOfManyProducersAreBounded(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		id := h.start(t)
		const producers = 300
		for n := range producers {
			r, err := h.pushAs(t, id, fmt.Sprint("p", n), delta(0, strings.Repeat("x", 20_000)+half))
			if err != nil || r.Accepted != 1 {
				t.Fatalf("%d: %+v, %v", n, r, err)
			}
		}
		text := h.text(t, id)
		waiting := producers - strings.Count(text, "x\uFFFD")
		if waiting < 30 || waiting*20_000 > 1<<20 {
			t.Errorf("%d wait", waiting)
		}
		// The newest still gets its other half.
		if _, err := h.pushAs(t, id, fmt.Sprint("p", producers-1), delta(0, "\xed\xb8\x80")); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(h.text(t, id), "x\U0001F600") {
			t.Error("the newest half was not joined")
		}
		if _, err := h.push(t, id, done(0)); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(h.text(t, id), "\uFFFD"); n != producers-1 {
			t.Errorf("%d halves are in the facts", n)
		}
	})
}

// A half character that was acknowledged is not forgotten with the state of an
// idle run.
func TestAnIdleRunLetsItsHalfGo(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		h.KeepIdle(3000)
		for n := range 5 {
			id := run.ID(fmt.Sprint("run_", n))
			if _, _, err := h.Start(within(t), run.Start{ID: id, AgentID: "a", Runtime: "push"}); err != nil {
				t.Fatal(err)
			}
			if _, err := h.push(t, id, delta(0, "x"+half)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := h.text(t, "run_0"); got != "x\uFFFD" {
			t.Errorf("text %q", got)
		}
		if n := h.Kept(); n > 3 {
			t.Errorf("%d recorders are kept", n)
		}
	})
}

// Nothing is left of what was asked while the store was away, and nobody goes on
// asking it.
func TestAnOutageLeavesNoRecorders(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		id := h.start(t)
		synctest.Wait()
		h.mem.Away(true)
		for n := range 50 {
			over, stop := context.WithTimeout(context.Background(), time.Second)
			other := run.ID(fmt.Sprint("other_", n))
			var away *ledger.UnavailableError
			if _, err := h.Summary(over, other, ""); !errors.As(err, &away) {
				t.Errorf("summary: %v", err)
			}
			recorder, free := h.Use(other)
			p := recorder.Push(run.Origin{})
			_ = p.Send(over, 1, delta(1, "x"))
			if _, err := p.Wait(over); err == nil {
				t.Error("a push was acknowledged")
			}
			free()
			stop()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := h.Kept(); n != 1 {
			t.Errorf("%d recorders are kept", n)
		}
		asked := h.mem.Count("read")
		time.Sleep(time.Minute)
		if n := h.mem.Count("read"); n != asked {
			t.Errorf("the store was asked %d times for nobody", n-asked)
		}
		h.mem.Away(false)
		if _, err := h.push(t, id, done(1)); err != nil {
			t.Error(err)
		}
	})
}

// Who gives up on an answer shares nothing with the writer, which goes on.
func TestGivingUpDoesNotRaceWithTheWriter(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	call := agent.Event{Type: agent.ToolCall, ToolName: "ask", ToolCallID: "q", ToolArgs: []byte("{}"), External: true}
	if _, err := h.push(t, id, call, agent.Event{Type: agent.Artifact, Artifact: []byte(`{"artifact_id":"a","name":"n"}`)}); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		over, stop := context.WithTimeout(context.Background(), 20*time.Microsecond)
		_, _, _ = h.Answer(over, id, 0, agent.Answer{ToolCallID: "q", Result: []byte("1")}, true)
		a, err := h.Artifact(over, id, "a")
		if err == nil && a.Name != "n" {
			t.Errorf("%+v", a)
		}
		stop()
	}
}

// A producer's mark is told by every answer, also to who gave up.
func TestWhoGivesUpIsToldTheMark(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		id := h.start(t)
		if _, err := h.pushAs(t, id, "p", delta(1, "a"), delta(2, "b")); err != nil {
			t.Fatal(err)
		}
		h.mem.Away(true)
		recorder, free := h.Use(id)
		defer free()
		p := recorder.Push(run.Origin{Producer: "p"})
		over, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = p.Send(over, 1, delta(3, "c"))
		if r, err := p.Wait(over); err == nil || r.ProducerSeq != 2 || r.LastSeq != 3 {
			t.Errorf("%+v, %v", r, err)
		}
		h.mem.Away(false)
	})
}

// What ends or takes over a run by evidence comes to nothing with its time: who was
// silent in an outage may live.
func TestEvidenceIsNotTrueForEver(t *testing.T) {
	here(t, func(t *testing.T, h *house) {
		id := h.start(t)
		if _, err := h.Summary(within(t), id, ""); err != nil {
			t.Fatal(err)
		}
		h.mem.Away(true)
		over, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		var away *ledger.UnavailableError
		var unknown *ledger.UnknownError
		if _, err := h.Lose(over, id, run.Evidence{LastSeq: 1}); !errors.As(err, &unknown) {
			t.Errorf("%v", err)
		}
		if _, err := h.Lose(over, "not_read_yet", run.Evidence{LastSeq: 1}); !errors.As(err, &away) {
			t.Errorf("%v", err)
		}
		if _, err := h.Resume(over, "not_read_yet", "me", run.Evidence{LastSeq: 1}); !errors.As(err, &away) {
			t.Errorf("%v", err)
		}
		// A cancel is a wish, and stays one.
		if s, err := h.Cancel(over, id, 0, run.Cancellation{Reason: "enough"}); !errors.As(err, &away) || s.RunID != id {
			t.Errorf("%+v, %v", s, err)
		}
		h.mem.Away(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if events := h.mem.Events(id); len(events) != 2 || events[1].Type != run.TypeRunCancelled {
			t.Errorf("%d events", len(events))
		}
		// On its way it cannot be given up: whoever asks is told what came of it.
		if _, _, err := h.Start(within(t), run.Start{ID: "other", AgentID: "a", Runtime: "r", Owner: "dead"}); err != nil {
			t.Fatal(err)
		}
		release := h.mem.Hold()
		go func() {
			<-h.mem.Arrived()
			time.Sleep(time.Minute)
			release()
		}()
		brief, end := context.WithTimeout(context.Background(), time.Second)
		defer end()
		if s, err := h.Resume(brief, "other", "me", run.Evidence{LastSeq: 1}); err != nil || s.Owner != "me" {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// ears is a Watcher that counts what it is told without an event.
type ears struct {
	noWatch
	heard atomic.Int64
}

func (e *ears) Heard(_ run.ID, _ run.Seq, stored bool) {
	if !stored {
		e.heard.Add(1)
	}
}

// Producers whose events the store does not take are alive all the same.
func TestWhoIsRefusedWasHeard(t *testing.T) {
	for name, trouble := range map[string]func(*ledgertest.Memory){
		"refused": func(m *ledgertest.Memory) { m.Fail(ledgertest.Forbidden) },
		"away":    func(m *ledgertest.Memory) { m.Away(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, watcher := ledgertest.NewMemory(t), &ears{}
				runs := record.NewRuns(record.Config{Ledger: mem, MaxAppend: 100_000, Now: time.Now, Nonce: func() string { return "n" },
					Watcher: watcher, Observer: &counts{outcomes: make(map[record.Outcome]int), ended: make(map[run.Status]int)}})
				ctx, cancel := context.WithCancel(context.Background())
				finished := make(chan error, 1)
				go func() { finished <- runs.Run(ctx) }()
				h := &house{runs, mem, nil}
				id := h.start(t)
				if _, err := h.Summary(within(t), id, ""); err != nil {
					t.Fatal(err)
				}
				trouble(mem)
				recorder, free := h.Use(id)
				p := recorder.Push(run.Origin{})
				over, stop := context.WithTimeout(context.Background(), 5*time.Second)
				defer stop()
				_ = p.Send(over, 1, delta(1, "x"))
				if _, err := p.Wait(over); err == nil || watcher.heard.Load() == 0 {
					t.Errorf("%v, heard %d times", err, watcher.heard.Load())
				}
				free()
				cancel()
				if err := <-finished; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
