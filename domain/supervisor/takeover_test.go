package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
)

// rejoins makes an instance's runtime one that can be joined again.
func (w *world) rejoins(name string) *instance {
	return w.join(name, func(c *supervisor.Config) {
		c.Agents[0].Runner = rejoinable{c.Agents[0].Runner.(*runtime)}
		c.Agents[0].Limits = supervisor.Limits{Duration: time.Hour, Silence: time.Minute, Wait: 5 * time.Hour}
	})
}

func (r *runtime) asks(id string) {
	defer synctest.Wait()
	cursor := "behind the question"
	r.events <- agent.Event{Type: agent.ToolCall, ToolName: "request_input", ToolCallID: id, ToolArgs: json.RawMessage("{}"), External: true, Cursor: &cursor}
}

func (i *instance) inherits(id run.ID, owner string) lease.Verdict {
	i.world.t.Helper()
	v, _, err := i.Adopt(context.Background(), id, lease.Expiry{Holder: owner, Silence: time.Minute})
	if err != nil {
		i.world.t.Errorf("inherit %s: %v", id, err)
	}
	return v
}

func TestARuntimeThatOutlivesItsOwnerGoesOn(t *testing.T) {
	here(t, func(w *world) {
		a, b, c := w.rejoins("a"), w.rejoins("b"), w.rejoins("c")
		defer a.end()
		defer b.end()
		defer c.end()
		a.start("run_1")
		a.runtime.says("one ")
		a.runtime.asks("q1")
		a.runtime.asks("q2")
		ctx, stop := patience()
		defer stop()
		if s, err := c.Answer(ctx, "run_1", agent.Answer{ToolCallID: "q1", Result: json.RawMessage(`"yes"`)}); err != nil || s.Status != run.Waiting {
			t.Errorf("%+v, %v", s, err)
		}
		// a is paused: it hears nothing, and what it is told stays undone.
		a.line.Away(true)
		late, end := context.WithTimeout(context.Background(), time.Second)
		defer end()
		if _, err := c.Answer(late, "run_1", agent.Answer{ToolCallID: "q2", Result: json.RawMessage(`2`)}); err == nil {
			t.Error("an answer that nobody took was acknowledged")
		}
		if v := b.inherits("run_1", "a"); v != lease.Closed {
			t.Fatalf("%d", v)
		}
		task := <-b.runtime.begun
		if task.RunID != "run_1" || string(task.Input) != `{"q":1}` || task.Rejoin == nil || *task.Rejoin.Cursor != "behind the question" {
			t.Errorf("%+v", task)
		}
		for id, want := range map[string]string{"q1": `"yes"`, "q2": "2"} {
			if got, err := task.Answer(ctx, id); err != nil || string(got.Result) != want {
				t.Errorf("%s: %s, %v", id, got.Result, err)
			}
		}
		// The old owner wakes up: it leaves the runtime alone and writes nothing.
		a.line.Away(false)
		a.runtime.says("from the past ")
		if cause := <-a.runtime.stops; !errors.Is(cause, agent.ErrTakenOver) {
			t.Errorf("told to stop since %v", cause)
		}
		b.runtime.says("two")
		b.runtime.exit <- nil
		want := said + "tool.call.started tool.call.started tool.call.completed run.resumed tool.call.completed message.delta message.completed run.completed"
		w.tells("run_1", want)
		for _, e := range w.mem.Events("run_1") {
			if owner, epoch := "a", uint64(1); e.Seq >= 7 {
				owner, epoch = "b", 2
				if e.Owner != owner || e.Epoch != epoch {
					t.Errorf("event %d is of %s, epoch %d", e.Seq, e.Owner, e.Epoch)
				}
			} else if e.Owner != owner || e.Epoch != epoch {
				t.Errorf("event %d is of %s, epoch %d", e.Seq, e.Owner, e.Epoch)
			}
			if e.Type == run.TypeRunResumed && !strings.HasPrefix(string(e.Payload), `{"owner":"b","previous_owner":"a","epoch":2,"evidence":{"owner":"a","observer":"b","silence_ms":60000,"last_seq":6}}`) {
				t.Errorf("%s", e.Payload)
			}
		}
	})
}

// Two that inherit the same run: one drives it.
func TestTwoHeirs(t *testing.T) {
	here(t, func(w *world) {
		a, b, c := w.rejoins("a"), w.rejoins("b"), w.rejoins("c")
		defer b.end()
		defer c.end()
		a.start("run_1")
		a.end()
		verdicts := make(chan lease.Verdict, 2)
		for _, i := range []*instance{b, c} {
			go func() { verdicts <- i.inherits("run_1", "a") }()
		}
		<-verdicts
		<-verdicts
		synctest.Wait()
		if n := len(b.runtime.begun) + len(c.runtime.begun); n != 1 {
			t.Fatalf("%d drive it", n)
		}
		if v := b.inherits("run_1", "a"); v != lease.Closed {
			t.Errorf("%d", v)
		}
		if !strings.HasSuffix(w.story("run_1"), "run.started run.resumed") {
			t.Errorf("%s", w.story("run_1"))
		}
	})
}

// While somebody outside is asked, silence and duration do not count; the wait
// does, in the end.
func TestWaiting(t *testing.T) {
	here(t, func(w *world) {
		a := w.rejoins("a")
		defer a.end()
		a.start("answered")
		a.runtime.asks("q")
		time.Sleep(4 * time.Hour)
		ctx, stop := patience()
		defer stop()
		if s, err := a.Answer(ctx, "answered", agent.Answer{ToolCallID: "q", Result: json.RawMessage("1")}); err != nil || s.Status != run.Running {
			t.Errorf("%+v, %v", s, err)
		}
		time.Sleep(59 * time.Second)
		a.runtime.says("thanks")
		time.Sleep(2 * time.Minute)
		if story := w.story("answered"); !strings.Contains(story, run.RunSilent) {
			t.Errorf("%s", story)
		}
		<-a.runtime.stops
		a.start("forgotten")
		a.runtime.asks("q")
		time.Sleep(6 * time.Hour)
		if story := w.story("forgotten"); !strings.Contains(story, `"wait_timeout","message":"nobody answered within 5h0m0s"`) {
			t.Errorf("%s", story)
		}
	})
}
