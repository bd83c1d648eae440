package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runtime is an agent's runtime that a test moves by hand, one task at a time.
type runtime struct {
	begun  chan agent.Task
	events chan agent.Event
	exit   chan error
	deaf   bool       // it does not stop when it is told to
	stops  chan error // why, each time it was told to
}

// rejoinable is a runtime that outlives its driver.
type rejoinable struct{ *runtime }

func (rejoinable) Rejoins() {}

func newRuntime() *runtime {
	return &runtime{begun: make(chan agent.Task, 16), events: make(chan agent.Event), exit: make(chan error), stops: make(chan error, 16)}
}

// Run implements agent.Runner.
func (r *runtime) Run(ctx context.Context, task agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	r.begun <- task
	told := ctx.Done()
	for {
		select {
		case e := <-r.events:
			if emit(e) != nil && !r.deaf {
				return agent.Stop{Proof: "it was refused"}, nil
			}
		case err := <-r.exit:
			return agent.Stop{Proof: "it ended"}, err
		case <-told:
			told = nil
			r.stops <- context.Cause(ctx)
			if !r.deaf {
				return agent.Stop{Proof: "it was told to stop"}, nil
			}
		}
	}
}

// says returns when what it says is taken.
func (r *runtime) says(text string) {
	defer synctest.Wait()
	r.events <- agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(text)}
}

// world is instances over the same store, in a synctest bubble.
type world struct {
	t     *testing.T
	mem   *ledgertest.Memory
	notes *ledgertest.Notes
	blobs noBlobs
}

// noBlobs keeps nothing: what these runs say fits their events.
type noBlobs struct{ blob.Store }

// instance is one of them, and what watches over it.
type instance struct {
	*supervisor.Supervisor
	world   *world
	name    string
	runtime *runtime
	line    *ledgertest.Line
	runs    *record.Runs
	task    agent.Task // of the run that was started last
	stop    func()     // ends the supervisor
	end     func()     // ends what is left

	mu     sync.Mutex
	named  map[named]int // how often announced; there: 100 more
	failed []error
	dead   map[string]bool // others
}

func (i *instance) Announce(_ context.Context, id run.ID, kind lease.Kind) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.named[named{id, kind}]++
	if len(i.world.mem.Events(id)) > 0 && i.world.mem.Events(id)[0].Owner == i.name {
		i.world.t.Errorf("run %s was named when it had begun", id)
	}
	return nil
}
func (i *instance) Alive(name string) bool                      { i.mu.Lock(); defer i.mu.Unlock(); return !i.dead[name] }
func (i *instance) Reported(agent.Type)                         {}
func (i *instance) Lost(run.ID, string, time.Duration)          {}
func (i *instance) Appended(record.Outcome, int, time.Duration) {}
func (i *instance) TakenOver(run.ID, string)                    {}
func (i *instance) Started()                                    {}
func (i *instance) Ended(run.ID, bool, run.Status)              {}

// named is a run as an instance answers for it.
type named struct {
	id   run.ID
	kind lease.Kind
}

const there = 100

func (i *instance) Confirm(id run.ID, kind lease.Kind, _ run.Seq) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.named[named{id, kind}] = there
}

func (i *instance) Withdraw(id run.ID, kind lease.Kind) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.named[named{id, kind}]--; i.named[named{id, kind}] <= 0 {
		delete(i.named, named{id, kind})
	}
}

func (i *instance) Forget(id run.ID, kind lease.Kind) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.named, named{id, kind})
}

// watcher is what its recorders tell.
type watcher struct{ *instance }

func (w watcher) Ended(id run.ID) { w.Forget(id, lease.Open) }

func (i *instance) Heard(id run.ID, _ run.Seq, _ bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.named[named{id, lease.Open}] = there
}
func (i *instance) RuntimeFailed(_ run.ID, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.failed = append(i.failed, err)
}

var config = []byte(`{"agent_id":"robot","runtime":"test"}`)

func (w *world) join(name string, change func(*supervisor.Config)) *instance {
	i := &instance{world: w, name: name, runtime: newRuntime(), line: w.notes.For(), named: make(map[named]int), dead: make(map[string]bool)}
	var nonces atomic.Int64
	i.runs = record.NewRuns(record.Config{Ledger: w.mem, MaxAppend: 100_000, Now: time.Now, Watcher: watcher{i}, Observer: i,
		Nonce: func() string { return fmt.Sprint(name, nonces.Add(1)) }})
	c := supervisor.Config{
		Runs: i.runs, Reader: w.mem, Follower: w.mem, Side: i.line, Blobs: w.blobs, Inline: 64 << 10, Watch: i, Observer: i, Instance: name,
		Agents:  []supervisor.Agent{{ID: "robot", Runtime: "test", Runner: i.runtime, Config: config, Limits: supervisor.Limits{Duration: time.Hour, Silence: 10 * time.Minute}}},
		MaxRuns: 2, MaxQueue: 2, QueueTime: time.Minute,
	}
	if change != nil {
		change(&c)
	}
	i.Supervisor = supervisor.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	owning, stop := context.WithCancel(ctx)
	var recorders, owner sync.WaitGroup
	recorders.Go(func() { _ = i.runs.Run(ctx) })
	owner.Go(func() { _ = i.Run(owning) })
	i.stop = sync.OnceFunc(func() { stop(); owner.Wait() })
	i.end = sync.OnceFunc(func() { cancel(); i.stop(); recorders.Wait() })
	return i
}

func here(t *testing.T, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(&world{t: t, mem: ledgertest.NewMemory(t), notes: ledgertest.NewNotes()})
	})
}

func patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Second)
}

// start starts a run and waits until its runtime has begun.
func (i *instance) start(id run.ID) {
	i.world.t.Helper()
	ctx, cancel := patience()
	defer cancel()
	s, created, err := i.Start(ctx, run.Start{ID: id, AgentID: "robot", Input: json.RawMessage(`{"q":1}`), RequestChecksum: "r"})
	if err != nil || !created || s.Owner == "" || s.Epoch != 1 {
		i.world.t.Fatalf("start: %+v, %v, %v", s, created, err)
	}
	i.task = <-i.runtime.begun
	if i.task.RunID != string(id) || string(i.task.Input) != `{"q":1}` {
		i.world.t.Fatalf("task %+v", i.task)
	}
}

// story is the types of a run's events, and what its end says.
func (w *world) story(id run.ID) string {
	synctest.Wait()
	var types []string
	for _, e := range w.mem.Events(id) {
		types = append(types, e.Type)
		if run.Terminal(e.Type) && e.Type != run.TypeRunCompleted {
			types = append(types, string(e.Payload))
		}
	}
	return strings.Join(types, " ")
}

func (w *world) tells(id run.ID, want string) {
	w.t.Helper()
	if got := w.story(id); got != want {
		w.t.Errorf("run %s:\n%s\nwant\n%s", id, got, want)
	}
}

const (
	begun = "run.started "
	said  = "run.started message.started message.delta "
)

func TestRunsEndForTheReasonThatIsTrue(t *testing.T) {
	for name, c := range map[string]struct {
		when func(*instance)
		then string
	}{
		"it comes to its end": {func(i *instance) { i.runtime.says("hi"); i.runtime.exit <- nil }, said + "message.completed run.completed"},
		"it says that it is done": {func(i *instance) { i.runtime.events <- agent.Event{Type: agent.Done, Answer: agent.Unicode("yes")} },
			"run.started message.started message.completed run.completed"},
		"it says that it failed": {func(i *instance) {
			i.runtime.events <- agent.Event{Type: agent.Error, ErrorCode: "E", ErrorMessage: "m", Retryable: true}
		}, begun + `run.failed {"error":{"code":"E","message":"m","retryable":true}}`},
		"it fails for a reason": {func(i *instance) {
			i.runtime.says("hi")
			i.runtime.exit <- &agent.Failure{Code: "sandbox_failed", Message: "exit status 3"}
		}, said + `run.failed {"error":{"code":"sandbox_failed","message":"exit status 3","retryable":false}}`},
		"it fails for a reason that strangers are not told": {func(i *instance) { i.runtime.exit <- errors.New("password in here") },
			begun + `run.failed {"error":{"code":"runtime_failed","message":"the runtime failed","retryable":false}}`},
		"it takes too long": {func(i *instance) {
			for range 10 {
				time.Sleep(7 * time.Minute)
				select {
				case i.runtime.events <- agent.Event{Type: agent.StateChange, State: "thinking"}:
				case <-i.runtime.stops:
					return
				}
			}
		}, begun + `run.failed {"error":{"code":"run_timeout","message":"the run took longer than 1h0m0s","retryable":false}}`},
		"it says nothing": {func(*instance) { time.Sleep(11 * time.Minute) },
			begun + `run.failed {"error":{"code":"run_silent","message":"the runtime reported nothing for 10m0s","retryable":true}}`},
		"it reports what cannot be stored": {func(i *instance) {
			i.runtime.says("hi")
			i.runtime.says(strings.Repeat("x", 200_000))
		}, said + `run.failed {"error":{"code":"event_too_large","message":"the runtime reported an event that does not fit one append","retryable":false}}`},
		"the store refuses its end": {func(i *instance) {
			i.runtime.says("hi")
			i.world.mem.Fail(ledgertest.Forbidden)
			i.runtime.events <- agent.Event{Type: agent.Done}
		}, said + `run.failed {"error":{"code":"store_refused","message":"the store refused an event of the runtime","retryable":false}}`},
		"the instance is told to stop": {func(i *instance) { i.runtime.says("hi"); i.Drain(context.Background(), time.Minute) },
			said + `run.failed {"error":{"code":"instance_stopped","message":"the instance that ran it was stopped","retryable":true}}`},
		"somebody cancels it": {func(i *instance) { i.runtime.says("hi"); i.cancels("run_1", run.Cancelled) },
			said + `run.cancelled {"external_stop_confirmed":true,"proof":"it was told to stop","reason":"enough"}`},
		"somebody cancels it and it does not obey": {func(i *instance) {
			i.runtime.deaf = true
			i.cancels("run_1", run.Cancelled)
			i.runtime.says("more, which nobody takes")
			i.runtime.exit <- nil
		}, begun + `run.cancelled {"external_stop_confirmed":false,"proof":null,"reason":"enough"}`},
	} {
		t.Run(name, func(t *testing.T) {
			here(t, func(w *world) {
				i := w.join("a", nil)
				defer i.end()
				i.start("run_1")
				c.when(i)
				w.tells("run_1", c.then)
				synctest.Wait()
				if driven, waiting := i.Counts(); driven+waiting > 0 || len(i.named) > 0 {
					t.Errorf("left: %d driven, %d waiting, %v named", driven, waiting, i.named)
				}
				for _, e := range w.mem.Events("run_1") {
					if e.Owner != "a" || e.Epoch != 1 {
						t.Errorf("event %d is of owner %q, epoch %d", e.Seq, e.Owner, e.Epoch)
					}
				}
			})
		})
	}
}

func (i *instance) cancels(id run.ID, want run.Status) {
	i.world.t.Helper()
	ctx, cancel := patience()
	defer cancel()
	s, err := i.Cancel(ctx, id, "enough")
	if s.Status != want || want == run.Cancelled && err != nil {
		i.world.t.Errorf("cancel: %s, %v", s.Status, err)
	}
}

func TestCancelFindsTheOwner(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", nil), w.join("b", nil)
		defer a.end()
		defer b.end()
		a.start("run_1")
		a.runtime.says("hi")
		began := time.Now()
		b.cancels("run_1", run.Cancelled)
		b.cancels("run_1", run.Cancelled) // again
		a.cancels("run_1", run.Cancelled)
		if took := time.Since(began); took > 0 {
			t.Errorf("took %s, while nobody had to wait", took)
		}
		w.tells("run_1", said+`run.cancelled {"external_stop_confirmed":true,"proof":"it was told to stop","reason":"enough"}`)
		a.start("run_2")
		a.runtime.exit <- nil
		synctest.Wait()
		var ended *run.EndedError
		ctx, cancel := patience()
		defer cancel()
		if _, err := b.Cancel(ctx, "run_2", "enough"); !errors.As(err, &ended) || ended.Status != run.Completed {
			t.Errorf("a completed run: %v", err)
		}
		if _, err := b.Cancel(ctx, "nobody", "enough"); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("no run: %v", err)
		}
	})
}

func TestCancelOfADeafOwnerIsRecordedUnconfirmed(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", nil), w.join("b", nil)
		defer a.end()
		defer b.end()
		a.line.Away(true) // it hears nothing
		b.dead["a"] = false
		synctest.Wait()
		func() {
			a.line.Away(false)
			a.start("run_1")
			a.line.Away(true)
		}()
		stop := make(chan struct{})
		talked := make(chan struct{})
		go func() { // and goes on talking
			defer close(talked)
			for {
				select {
				case a.runtime.events <- agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode("on and on ")}:
					time.Sleep(50 * time.Millisecond)
				case <-stop:
					return
				}
			}
		}()
		b.cancels("run_1", run.Cancelled)
		<-a.runtime.stops // with its next event
		close(stop)
		<-talked
		if story := w.story("run_1"); !strings.HasSuffix(story, `run.cancelled {"external_stop_confirmed":false,"proof":null,"reason":"enough"}`) || !strings.Contains(story, "delta") {
			t.Errorf("%s", story)
		}
	})
}

func TestCancelOfADeadOwnerDoesNotWait(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", nil), w.join("b", nil)
		defer b.end()
		a.start("run_1")
		a.end()
		b.dead["a"] = true
		began := time.Now()
		b.cancels("run_1", run.Cancelled)
		if time.Since(began) > 0 {
			t.Errorf("took %s", time.Since(began))
		}
		w.tells("run_1", begun+`run.cancelled {"external_stop_confirmed":false,"proof":null,"reason":"enough"}`)
	})
}

func TestWhatTheDeadLeave(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", nil), w.join("b", nil)
		defer b.end()
		a.start("lost")
		a.runtime.says("hi")
		a.start("cancelled")
		synctest.Wait()
		a.end()
		inherit := func(id run.ID, owner string, last run.Seq) lease.Verdict {
			t.Helper()
			v, _, err := b.Adopt(context.Background(), id, lease.Expiry{Holder: owner, Silence: 15250 * time.Millisecond, LastSeq: last})
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			return v
		}
		if v := inherit("lost", "somebody else", 0); v != lease.Closed {
			t.Errorf("a run of another owner: %d", v)
		}
		if v := inherit("lost", "a", 0); v != lease.Closed {
			t.Errorf("%d", v)
		}
		w.tells("lost", said+`run.failed {"error":{"code":"runtime_lost","message":"the run's owner gave no sign of life for 15.25s","retryable":true},`+
			`"evidence":{"owner":"a","observer":"b","silence_ms":15250,"last_seq":3}}`)
		// Its cancel was on its way when the owner died.
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		if _, err := b.Cancel(ctx, "cancelled", "enough"); err == nil {
			t.Error("a cancel that nobody answers was answered")
		}
		stop()
		if v := inherit("cancelled", "a", 0); v != lease.Closed {
			t.Errorf("%d", v)
		}
		w.tells("cancelled", begun+`run.cancelled {"external_stop_confirmed":false,"proof":null,"reason":"enough"}`)
		if v := inherit("never_begun", "a", 0); v != lease.Missing {
			t.Errorf("%d", v)
		}
		if v := inherit("lost", "a", 0); v != lease.Closed {
			t.Errorf("again: %d", v)
		}
		// A pushed run is lost where it was last heard of, and nowhere else.
		if _, _, err := b.Push(context.Background(), run.Start{ID: "pushed", AgentID: "x", Runtime: "push"}); err != nil {
			t.Fatal(err)
		}
		if v := inherit("pushed", "", 7); v != lease.Moving {
			t.Errorf("%d", v)
		}
		if v := inherit("pushed", "", 1); v != lease.Closed || !strings.Contains(w.story("pushed"), `"evidence":{"owner":null,"observer":"b","silence_ms":15250,"last_seq":1}`) {
			t.Errorf("%d, %s", v, w.story("pushed"))
		}
	})
}

func TestAnOwnerThatWasTakenForDeadWritesNothing(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", nil), w.join("b", nil)
		defer a.end()
		defer b.end()
		a.start("talks")
		a.start("is_quiet")
		for _, id := range []run.ID{"talks", "is_quiet"} {
			if v, _, err := b.Adopt(context.Background(), id, lease.Expiry{Holder: "a", Silence: time.Minute}); v != lease.Closed || err != nil {
				t.Fatalf("%d, %v", v, err)
			}
		}
		a.runtime.says("am I late?")
		<-a.runtime.stops
		a.Lapsed()
		<-a.runtime.stops
		for _, id := range []run.ID{"talks", "is_quiet"} {
			if story := w.story(id); strings.Contains(story, "delta") || !strings.Contains(story, "runtime_lost") {
				t.Errorf("%s: %s", id, story)
			}
		}
	})
}

func TestMoreRunsThanThereIsRoomFor(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", nil)
		defer a.end()
		start := func(id run.ID) error {
			ctx, cancel := patience()
			defer cancel()
			_, _, err := a.Start(ctx, run.Start{ID: id, AgentID: "robot", RequestChecksum: "r"})
			return err
		}
		for _, id := range []run.ID{"one", "two", "three", "four"} {
			if err := start(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := start("five"); !errors.Is(err, supervisor.ErrBusy) {
			t.Errorf("%v", err)
		}
		if err := start("four"); err != nil {
			t.Errorf("the same again: %v", err)
		}
		synctest.Wait()
		if driven, waiting := a.Counts(); driven != 2 || waiting != 2 || len(a.runtime.begun) != 2 {
			t.Errorf("%d driven, %d waiting", driven, waiting)
		}
		a.runtime.exit <- nil // whichever
		synctest.Wait()
		if driven, waiting := a.Counts(); driven != 2 || waiting != 1 {
			t.Errorf("%d driven, %d waiting", driven, waiting)
		}
		waits := map[run.ID]bool{"one": true, "two": true, "three": true, "four": true}
		for range 3 {
			delete(waits, run.ID((<-a.runtime.begun).RunID))
		}
		var queued run.ID
		for queued = range waits {
		}
		time.Sleep(time.Minute)
		w.tells(queued, begun+`run.failed {"error":{"code":"queue_timeout","message":"the run waited too long for its turn","retryable":true}}`)
		// One that waits is cancelled with certainty.
		if err := start("six"); err != nil {
			t.Fatal(err)
		}
		a.cancels("six", run.Cancelled)
		w.tells("six", begun+`run.cancelled {"external_stop_confirmed":true,"proof":"the runtime was never started","reason":"enough"}`)
	})
}

func TestTheSameStartIsOneRun(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", nil)
		defer a.end()
		release := w.mem.Hold()
		answers := make(chan bool, 2)
		for range 2 {
			go func() {
				ctx, cancel := patience()
				defer cancel()
				s, created, err := a.Start(ctx, run.Start{ID: "run_1", AgentID: "robot", RequestChecksum: "r"})
				if err != nil || s.RunID != "run_1" {
					t.Errorf("%+v, %v", s, err)
				}
				answers <- created
			}()
		}
		<-w.mem.Arrived()
		synctest.Wait()
		release()
		if one, two := <-answers, <-answers; one == two {
			t.Error("both or neither were told that they created it")
		}
		synctest.Wait()
		if len(a.runtime.begun) != 1 {
			t.Errorf("%d runtimes", len(a.runtime.begun))
		}
		ctx, cancel := patience()
		defer cancel()
		var exists *record.ExistsError
		if _, _, err := a.Start(ctx, run.Start{ID: "run_1", AgentID: "robot", RequestChecksum: "other"}); !errors.As(err, &exists) {
			t.Errorf("another start: %v", err)
		}
		var unknown *supervisor.UnknownAgentError
		for _, s := range []run.Start{{ID: "x", AgentID: "stranger"}, {ID: "x", AgentID: "robot", Runtime: "langgraph"}} {
			if _, _, err := a.Start(ctx, s); !errors.As(err, &unknown) {
				t.Errorf("%+v: %v", s, err)
			}
		}
	})
}

// A start that meets another run of its id leaves that one watched.
func TestAnotherRunsIDStaysWatched(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", nil)
		defer a.end()
		ctx, cancel := patience()
		defer cancel()
		if _, created, err := a.Push(ctx, run.Start{ID: "open", AgentID: "x", Runtime: "push", RequestChecksum: "r"}); err != nil || !created {
			t.Fatal(created, err)
		}
		var exists *record.ExistsError
		if _, _, err := a.Push(ctx, run.Start{ID: "open", AgentID: "y", Runtime: "push", RequestChecksum: "other"}); !errors.As(err, &exists) {
			t.Errorf("%v", err)
		}
		if _, _, err := a.Start(ctx, run.Start{ID: "open", AgentID: "robot", RequestChecksum: "other"}); !errors.As(err, &exists) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.named[named{"open", lease.Open}] < there || a.named[named{"open", lease.Owned}] > 0 {
			t.Error("nobody watches over the run any more")
		}
	})
}

// A start whose outcome is unknown when its request gives up may still happen;
// then the run is driven.
func TestAStartInDoubtIsCarriedThrough(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", nil)
		defer a.end()
		w.mem.Fail(ledgertest.NotStored, ledgertest.NotStored, ledgertest.StoredUnseen)
		w.mem.Away(true)
		ctx, cancel := patience()
		defer cancel()
		var unknown *ledger.UnknownError
		if _, _, err := a.Start(ctx, run.Start{ID: "run_1", AgentID: "robot", RequestChecksum: "r"}); !errors.As(err, &unknown) {
			t.Fatalf("%v", err)
		}
		w.mem.Away(false)
		<-a.runtime.begun
		a.runtime.exit <- nil
		w.tells("run_1", "run.started message.started message.completed run.completed")
	})
}

func TestDrain(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", func(c *supervisor.Config) { c.MaxRuns = 1 })
		defer a.end()
		a.start("driven")
		ctx, cancel := patience()
		defer cancel()
		if _, _, err := a.Start(ctx, run.Start{ID: "queued", AgentID: "robot"}); err != nil {
			t.Fatal(err)
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			a.Drain(context.Background(), 5*time.Second)
		}()
		synctest.Wait()
		if !strings.Contains(w.story("queued"), run.InstanceStopped) {
			t.Errorf("%s", w.story("queued"))
		}
		if _, _, err := a.Start(ctx, run.Start{ID: "new", AgentID: "robot"}); !errors.Is(err, record.ErrStopping) {
			t.Errorf("%v", err)
		}
		if _, _, err := a.Push(ctx, run.Start{ID: "new", AgentID: "x", Runtime: "push"}); !errors.Is(err, record.ErrStopping) {
			t.Errorf("%v", err)
		}
		a.runtime.exit <- nil // it finishes in time
		<-drained
		w.tells("driven", "run.started message.started message.completed run.completed")
	})
}

func TestSnapshotsAreStoredOnceAndReadBack(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", nil)
		defer a.end()
		checksum := run.Checksum(config)
		if _, err := a.Snapshot(context.Background(), checksum); !errors.Is(err, supervisor.ErrNoSnapshot) {
			t.Errorf("before: %v", err)
		}
		a.start("run_1")
		a.start("run_2")
		if got, err := a.Snapshot(context.Background(), checksum); err != nil || string(got) != string(config) {
			t.Errorf("%s, %v", got, err)
		}
		if e := w.mem.Events("run_1")[0]; e.Snapshot != checksum {
			t.Errorf("run.started says %s", e.Snapshot)
		}
		for _, wrong := range []string{"", "sha256:", "sha256:" + strings.Repeat("g", 64), strings.Repeat("0", 64), "sha256:../" + strings.Repeat("0", 61)} {
			if _, err := a.Snapshot(context.Background(), wrong); !errors.Is(err, supervisor.ErrNoSnapshot) {
				t.Errorf("%q: %v", wrong, err)
			}
		}
	})
}

// A cancel against a finish, again and again: one end, and the answer names it.
func TestCancelAgainstFinish(t *testing.T) {
	for range 50 {
		here(t, func(w *world) {
			a, b := w.join("a", nil), w.join("b", nil)
			defer a.end()
			defer b.end()
			a.start("run_1")
			var both sync.WaitGroup
			both.Go(func() {
				select {
				case a.runtime.exit <- nil:
				case <-a.runtime.stops:
				}
			})
			both.Go(func() {
				ctx, cancel := patience()
				defer cancel()
				s, err := b.Cancel(ctx, "run_1", "enough")
				var ended *run.EndedError
				if err != nil && (!errors.As(err, &ended) || ended.Status != run.Completed) || err == nil && s.Status != run.Cancelled {
					t.Errorf("%s, %v", s.Status, err)
				}
			})
			both.Wait()
			if events := w.mem.Events("run_1"); !run.Terminal(events[len(events)-1].Type) {
				t.Errorf("%s", w.story("run_1"))
			}
		})
	}
}
