package supervisor_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
)

// A run that waits for its turn says so, and when its turn has come.
func TestAQueuedRunTellsItsTurn(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", func(c *supervisor.Config) { c.MaxRuns = 1 })
		defer a.end()
		a.start("first")
		ctx, cancel := patience()
		defer cancel()
		s, _, err := a.Start(ctx, run.Start{ID: "second", AgentID: "robot"})
		if err != nil || s.Status != run.Queued {
			t.Errorf("%+v, %v", s, err)
		}
		if first := string(w.mem.Events("first")[0].Payload); strings.Contains(first, "queued") {
			t.Errorf("%s", first)
		}
		time.Sleep(30 * time.Second)
		a.runtime.exit <- nil
		<-a.runtime.begun
		w.tells("second", begun+"run.dequeued")
		if turn := string(w.mem.Events("second")[1].Payload); turn != `{"queued_ms":30000}` {
			t.Errorf("%s", turn)
		}
		// One whose turn cannot be recorded, since the store is away, can be stopped.
		again, stop := patience()
		defer stop()
		if _, _, err := a.Start(again, run.Start{ID: "third", AgentID: "robot"}); err != nil {
			t.Fatal(err)
		}
		w.mem.Away(true)
		a.runtime.exit <- nil // the second, whose end waits for the store
		time.Sleep(time.Second)
		a.cancels("third", run.Queued) // as it is known
		w.mem.Away(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if story := w.story("third"); !strings.Contains(story, `"proof":"the runtime was never started"`) || len(a.runtime.begun) > 0 {
			t.Errorf("%s, %d begun", story, len(a.runtime.begun))
		}
	})
}

// Whoever inherits a run whose turn had not come starts its runtime.
func TestAQueuedRunIsStartedByItsHeir(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.rejoins("a"), w.rejoins("b")
		defer b.end()
		a.start("one")
		a.start("two")
		ctx, cancel := patience()
		defer cancel()
		if _, _, err := a.Start(ctx, run.Start{ID: "queued", AgentID: "robot"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a.end()
		if v := b.inherits("queued", "a"); v != lease.Closed {
			t.Fatal(v)
		}
		if task := <-b.runtime.begun; task.RunID != "queued" || task.Rejoin != nil {
			t.Errorf("%+v", task)
		}
		b.runtime.exit <- nil
		w.tells("queued", "run.started run.resumed run.dequeued message.started message.completed run.completed")
	})
}
