package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
)

// chatter reports as fast as it is taken, until quiet is called, and answers when it
// waits.
func (i *instance) chatter() (quiet func()) {
	over := make(chan struct{})
	go func() {
		for {
			select {
			case i.runtime.events <- agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(strings.Repeat("x", 90_000))}:
			case <-over:
				return
			}
		}
	}()
	synctest.Wait()
	return func() { close(over) }
}

// terminals is how many ends a run has.
func (w *world) terminals(id run.ID) (n int) {
	for _, e := range w.mem.Events(id) {
		if run.Terminal(e.Type) {
			n++
		}
	}
	return n
}

// Whatever ends a run while its runtime waits for room, since the store takes
// nothing, ends it: once, and in the store.
func TestAnEndComesThroughAFullQueue(t *testing.T) {
	for name, c := range map[string]struct {
		when func(*instance)
		code string
	}{
		"a limit": {func(*instance) { time.Sleep(2 * time.Hour) }, run.RunTimeout},
		"a drain": {func(i *instance) {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			i.Drain(ctx, time.Second)
		}, run.InstanceStopped},
		"a cancel": {func(i *instance) {
			ctx, cancel := patience()
			defer cancel()
			var away *ledger.UnavailableError
			if s, err := i.Cancel(ctx, "run_1", "enough"); !errors.As(err, &away) || s.RunID != "run_1" {
				i.world.t.Errorf("%+v, %v", s, err)
			}
		}, "enough"},
	} {
		t.Run(name, func(t *testing.T) {
			here(t, func(w *world) {
				a := w.join("a", nil)
				defer a.end()
				a.start("run_1")
				release := w.mem.Hold()
				defer a.chatter()()
				c.when(a)
				release()
				if story := w.story("run_1"); w.terminals("run_1") != 1 || !strings.Contains(story, c.code) {
					t.Errorf("%s", story[max(0, len(story)-300):])
				}
				if driven, waiting := a.Counts(); driven+waiting > 0 || len(a.named) > 0 {
					t.Errorf("left: %d driven, %d waiting, %v named", driven, waiting, a.named)
				}
			})
		})
	}
}

// A cancel stops the runtime at once, whether the store answers or not.
func TestCancelStopsFirst(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", nil)
		defer a.end()
		a.start("run_1")
		w.mem.Away(true)
		a.line.Away(true)
		ctx, cancel := patience()
		defer cancel()
		began := time.Now()
		answered := make(chan error, 1)
		go func() {
			_, err := a.Cancel(ctx, "run_1", "enough")
			answered <- err
		}()
		<-a.runtime.stops
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %s", took)
		}
		var away *ledger.UnavailableError
		if err := <-answered; !errors.As(err, &away) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Hour)
		w.mem.Away(false)
		a.line.Away(false)
		time.Sleep(10 * time.Second)
		w.tells("run_1", begun+`run.cancelled {"external_stop_confirmed":true,"proof":"it was told to stop","reason":"enough"}`)
		if s, err := a.Cancel(context.Background(), "run_1", "enough"); err != nil || s.Status != run.Cancelled {
			t.Errorf("again: %+v, %v", s, err)
		}
	})
}

// A runtime that ends while its last facts are being stored is ended by its own
// word, however long that takes.
func TestASlowStoreIsNotASilentRuntime(t *testing.T) {
	for name, end := range map[string]func(*instance){
		"it returns": func(i *instance) { i.runtime.exit <- nil },
		"it is done": func(i *instance) { i.runtime.events <- agent.Event{Type: agent.Done} },
	} {
		t.Run(name, func(t *testing.T) {
			here(t, func(w *world) {
				a := w.join("a", func(c *supervisor.Config) { c.Agents[0].Limits.Silence, c.Agents[0].Limits.Duration = time.Minute, 0 })
				defer a.end()
				a.start("run_1")
				release := w.mem.Hold()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for range 60 { // more than may wait
						a.runtime.events <- agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(strings.Repeat("x", 90_000))}
					}
					end(a)
				}()
				time.Sleep(10 * time.Minute)
				release()
				<-ended
				if story := w.story("run_1"); !strings.HasSuffix(story, "run.completed") {
					t.Errorf("%s", story[max(0, len(story)-300):])
				}
			})
		})
	}
}

// slowBlobs takes its time.
type slowBlobs struct {
	*blobs
	wait time.Duration
}

// Put implements blob.Store.
func (b slowBlobs) Put(ctx context.Context, id run.ID, content io.Reader, limit int64) (string, int64, error) {
	time.Sleep(b.wait)
	return b.blobs.Put(ctx, id, content, limit)
}

// A question stops the clocks before anybody can hear of it, however long it is and
// however long it takes to be kept.
func TestAQuestionStopsTheClocksFirst(t *testing.T) {
	here(t, func(w *world) {
		kept := slowBlobs{newBlobs(), 2 * time.Minute}
		a := w.join("a", func(c *supervisor.Config) {
			c.Blobs = kept
			c.Agents[0].Limits = supervisor.Limits{Duration: time.Minute, Silence: time.Minute, Wait: 5 * time.Hour}
		})
		defer a.end()
		a.start("run_1")
		long, _ := json.Marshal(map[string]string{"q": strings.Repeat("x", 70<<10)})
		a.runtime.events <- agent.Event{Type: agent.ToolCall, ToolName: "ask", ToolCallID: "q", ToolArgs: long, External: true}
		time.Sleep(4 * time.Hour)
		if story := w.story("run_1"); strings.Contains(story, "run.failed") || !strings.Contains(story, "tool.call.started") {
			t.Errorf("%s", story)
		}
		time.Sleep(2 * time.Hour)
		if story := w.story("run_1"); !strings.Contains(story, run.WaitTimeout) {
			t.Errorf("%s", story)
		}
	})
}

// What a human answers reaches the runtime whole, here and after a take-over.
func TestALongAnswerArrivesWhole(t *testing.T) {
	text, _ := json.Marshal(strings.Repeat("ä", 100_000))
	object, _ := json.Marshal(map[string]string{"answer": strings.Repeat("y", 200_000)})
	here(t, func(w *world) {
		kept := newBlobs()
		withBlobs := func(c *supervisor.Config) {
			c.Blobs = kept
			c.Agents[0].Runner = rejoinable{c.Agents[0].Runner.(*runtime)}
		}
		a, b := w.join("a", withBlobs), w.join("b", withBlobs)
		defer b.end()
		a.start("run_1")
		task := a.task
		a.runtime.asks("q1")
		a.runtime.asks("q2")
		ctx, stop := patience()
		defer stop()
		for id, result := range map[string]json.RawMessage{"q1": text, "q2": object} {
			if _, err := b.Answer(ctx, "run_1", agent.Answer{ToolCallID: id, Result: result}); err != nil {
				t.Fatal(err)
			}
		}
		whole := func(task agent.Task) {
			t.Helper()
			for id, want := range map[string]json.RawMessage{"q1": text, "q2": object} {
				if got, err := task.Answer(ctx, id); err != nil || string(got.Result) != string(want) || got.Full != nil {
					t.Errorf("%s: %d bytes, %v, want %d", id, len(got.Result), err, len(want))
				}
			}
		}
		whole(task)
		a.end()
		if v := b.inherits("run_1", "a"); v != lease.Closed {
			t.Fatal(v)
		}
		whole(<-b.runtime.begun)
		kept.lose()
		var failure *agent.Failure
		if _, err := task.Answer(ctx, "q1"); !errors.As(err, &failure) {
			t.Errorf("%v", err)
		}
	})
}

// An answer that is committed after whoever gave it has gone reaches the runtime.
func TestAnAnswerThatNobodyWaitsForArrives(t *testing.T) {
	here(t, func(w *world) {
		a := w.rejoins("a")
		defer a.end()
		a.start("run_1")
		a.runtime.asks("q")
		release := w.mem.Hold()
		ctx, stop := patience()
		defer stop()
		var away *ledger.UnavailableError
		for range 3 {
			over, cancel := context.WithTimeout(ctx, time.Second)
			if _, err := a.Answer(over, "run_1", agent.Answer{ToolCallID: "q", Result: json.RawMessage("1")}); !errors.As(err, &away) {
				t.Errorf("%v", err)
			}
			cancel()
		}
		release()
		got, err := a.task.Answer(ctx, "q")
		if err != nil || string(got.Result) != "1" {
			t.Errorf("%s, %v", got.Result, err)
		}
		if s, err := a.Answer(ctx, "run_1", agent.Answer{ToolCallID: "q", Result: json.RawMessage("1")}); err != nil || s.Status != run.Running {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// What a Go program reports passes the same gate as what is pushed.
func TestEventsOfARunnerAreChecked(t *testing.T) {
	for field, e := range map[string]agent.Event{
		"type":         {Type: "nonsense"},
		"tool_call_id": {Type: agent.ToolCall, ToolName: "t"},
		"artifact":     {Type: agent.Artifact},
		"tool_result":  {Type: agent.ToolResult, ToolCallID: "c", ToolResult: json.RawMessage(`{"half`)},
		"block":        {Type: agent.Delta, BlockType: "chart"},
		"occurred_at":  {Type: agent.Delta, OccurredAt: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"error_code":   {Type: agent.Error},
	} {
		t.Run(field, func(t *testing.T) {
			here(t, func(w *world) {
				a := w.join("a", nil)
				defer a.end()
				a.start("run_1")
				a.runtime.says("hi")
				a.runtime.events <- e
				if story := w.story("run_1"); !strings.Contains(story, `"code":"invalid_event"`) || !strings.Contains(story, field) || w.terminals("run_1") != 1 {
					t.Errorf("%s", story)
				}
			})
		})
	}
	here(t, func(w *world) { // absent is null
		a := w.join("a", nil)
		defer a.end()
		a.start("run_1")
		a.runtime.events <- agent.Event{Type: agent.ToolResult, ToolCallID: "c"}
		a.runtime.exit <- &agent.Failure{} // a failure without a code
		if story := w.story("run_1"); !strings.Contains(story, "tool.call.completed run.failed") || !strings.Contains(story, run.RuntimeFailed) {
			t.Errorf("%s", story)
		}
	})
}

// Everybody who waits for a cancel is answered where the instance stops meanwhile.
func TestACancelWhileStopping(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", nil), w.join("b", nil)
		defer a.end()
		a.start("run_1")
		s, err := b.runs.Summary(context.Background(), "run_1", "")
		if err != nil || s.Owner != "a" {
			t.Fatal(s, err)
		}
		b.stop() // its recorders go on
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				_, err := b.Cancel(context.Background(), "run_1", "enough")
				var away *ledger.UnavailableError
				if !errors.Is(err, record.ErrStopping) && !errors.As(err, &away) {
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		b.end()
	})
}

// Models reuse ids: the second question of a name has its own answer.
func TestAQuestionOfTheSameNameIsAnother(t *testing.T) {
	here(t, func(w *world) {
		a := w.rejoins("a")
		defer a.end()
		a.start("run_1")
		ctx, stop := patience()
		defer stop()
		for n, canonical := range []string{"q", "q~2"} {
			args, _ := json.Marshal(map[string]int{"n": n})
			a.runtime.events <- agent.Event{Type: agent.ToolCall, ToolName: "ask", ToolCallID: "q", ToolArgs: args, External: true}
			synctest.Wait()
			got := make(chan agent.Answer, 1)
			go func() {
				answer, err := a.task.Answer(ctx, "q")
				if err != nil {
					t.Error(err)
				}
				got <- answer
			}()
			synctest.Wait()
			if len(got) > 0 {
				t.Errorf("question %d has the answer to another", n)
			}
			if s, err := a.Answer(ctx, "run_1", agent.Answer{ToolCallID: canonical, Result: args}); err != nil || s.Status != run.Running {
				t.Fatalf("%+v, %v", s, err)
			}
			if answer := <-got; string(answer.Result) != string(args) {
				t.Errorf("question %d: %s", n, answer.Result)
			}
		}
		time.Sleep(2 * time.Minute) // nothing waits any more, and the runtime is silent
		if story := w.story("run_1"); !strings.Contains(story, run.RunSilent) {
			t.Errorf("%s", story)
		}
	})
}
