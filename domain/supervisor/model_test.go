package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
)

// The model: instances with real leases, whose runtimes and callers do what comes
// to mind, while stores and lines fail and instances die. Whatever happened, within
// peace after the last fault each run has exactly one end, and nobody holds
// anything any more.

const (
	modelLease = 6 * time.Second
	modelPush  = 20 * time.Second
	modelQueue = 10 * time.Second
	// The longest way to an end: a lease and a heartbeat until somebody adopts what
	// a dead instance left; then limits that begin afresh, a stop, and a pause
	// before a refused end is tried again; and some outages' backoff.
	modelPeace = 2*modelLease + 90*time.Second + modelPush + 30*time.Second
)

var modelLimits = supervisor.Limits{Duration: 40 * time.Second, Silence: 10 * time.Second, Wait: 30 * time.Second}

// model is one round.
type model struct {
	t     *testing.T
	dice  *rand.Rand
	mem   *ledgertest.Memory
	notes *ledgertest.Notes
	blobs *blobs
	live  []*member
	born  int
	runs  []run.ID
	calls sync.WaitGroup // whoever asks for something
	heal  func()         // ends a Hold

	refuses bool // the store refuses appends, now and then; else it may be late

	mu    sync.Mutex
	asked map[string]run.ID // open questions
	given map[string]string // what was answered, once it was acknowledged
	log   []string
}

// member is one instance.
type member struct {
	*supervisor.Supervisor
	name   string
	runs   *record.Runs
	leases *lease.Leases
	line   *ledgertest.Line
	end    func()
}

func (m *model) roll(n int) int { m.mu.Lock(); defer m.mu.Unlock(); return m.dice.IntN(n) }

func (m *model) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

// silent hears what happens and does nothing.
type silent struct{}

func (silent) Appended(record.Outcome, int, time.Duration) {}
func (silent) Started()                                    {}
func (silent) Ended(run.ID, bool, run.Status)              {}
func (silent) Reported(agent.Type)                         {}
func (silent) RuntimeFailed(run.ID, error)                 {}
func (silent) Lost(run.ID, string, time.Duration)          {}
func (silent) TakenOver(run.ID, string)                    {}
func (silent) Beat(error, time.Duration)                   {}
func (silent) Joined(string)                               {}
func (silent) Died(string, time.Duration)                  {}
func (silent) Left(string)                                 {}

func (m *model) join() {
	m.born++
	i := &member{name: fmt.Sprint("instance_", m.born), line: m.notes.For()}
	i.leases = lease.New(lease.Config{Side: i.line, Instance: i.name, Lease: modelLease, PushLease: modelPush,
		Most: 50, MaxAppend: 4096, Now: time.Now, Observer: silent{}})
	nonces := 0
	var mu sync.Mutex
	i.runs = record.NewRuns(record.Config{Ledger: m.mem, MaxAppend: 20_000, Now: time.Now, Watcher: i.leases, Observer: silent{},
		Nonce: func() string {
			mu.Lock()
			defer mu.Unlock()
			nonces++
			return fmt.Sprint(i.name, nonces)
		}})
	i.Supervisor = supervisor.New(supervisor.Config{
		Runs: i.runs, Reader: m.mem, Follower: m.mem, Side: i.line, Blobs: m.blobs, Inline: 500, Watch: i.leases, Observer: silent{}, Instance: i.name,
		Agents: []supervisor.Agent{
			{ID: "robot", Runtime: "test", Runner: erratic{m}, Config: config, Limits: modelLimits},
			{ID: "server", Runtime: "test", Runner: rejoined{erratic{m}}, Config: config, Limits: modelLimits},
		},
		MaxRuns: 4, MaxQueue: 3, QueueTime: modelQueue,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { _ = i.runs.Run(ctx) })
	parts.Go(func() { _ = i.Run(ctx) })
	parts.Go(func() { _ = i.leases.Run(ctx, i) })
	i.end = func() { cancel(); parts.Wait() }
	m.live = append(m.live, i)
}

// erratic is a runtime that does what comes to mind.
type erratic struct{ m *model }

// rejoined is one that outlives its driver.
type rejoined struct{ erratic }

func (rejoined) Rejoins() {}

// Run implements agent.Runner.
func (r erratic) Run(ctx context.Context, task agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	m := r.m
	leave := func() agent.Stop {
		switch m.roll(4) {
		case 0: // it takes its time, longer than it has
			time.Sleep(5 * time.Second)
		case 1:
			time.Sleep(time.Second)
		}
		return agent.Stop{Proof: "it stopped"}
	}
	for n := 0; n < 200; n++ {
		var e agent.Event
		switch m.roll(24) {
		case 0:
			e = agent.Event{Type: agent.Done, Answer: agent.Unicode(strings.Repeat("a", m.roll(1000)))}
		case 1:
			e = agent.Event{Type: agent.Error, ErrorCode: "E"}
		case 2:
			return leave(), nil
		case 3:
			return leave(), &agent.Failure{Code: "F", Message: "m"}
		case 4:
			e = agent.Event{Type: agent.ToolCall} // not allowed
		case 5:
			e = agent.Event{Type: agent.Delta, Content: agent.Unicode(strings.Repeat("x", 30_000))} // fits no append
		case 6: // silence
			select {
			case <-time.After(time.Duration(m.roll(15)) * time.Second):
			case <-ctx.Done():
			}
			continue
		case 7, 8, 9: // a question
			id := fmt.Sprintf("%s_q%d_%d", task.RunID, n, m.roll(1_000_000))
			args, _ := json.Marshal(strings.Repeat("?", m.roll(2000)))
			if emit(agent.Event{Type: agent.ToolCall, ToolName: "ask", ToolCallID: id, ToolArgs: args, External: true}) != nil {
				return leave(), nil
			}
			m.mu.Lock()
			m.asked[id] = run.ID(task.RunID)
			m.mu.Unlock()
			a, err := task.Answer(ctx, id)
			if err != nil {
				return leave(), err
			}
			m.mu.Lock()
			if want, ok := m.given[id]; ok && want != string(a.Result) || a.Full != nil {
				m.t.Errorf("%s was answered with %d bytes, not %d", id, len(a.Result), len(want))
			}
			m.mu.Unlock()
			continue
		case 10: // much at once
			for range 30 {
				if emit(agent.Event{Type: agent.Delta, Content: agent.Unicode(strings.Repeat("y", 5000))}) != nil {
					return leave(), nil
				}
			}
			continue
		default:
			e = agent.Event{Type: agent.Delta, Content: agent.Unicode(fmt.Sprint(n, " "))}
		}
		if emit(e) != nil {
			return leave(), nil
		}
		select {
		case <-time.After(time.Duration(m.roll(2000)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return leave(), nil
}

// any returns one that lives.
func (m *model) any() *member { return m.live[m.roll(len(m.live))] }

// ask has somebody ask for something, who waits as long as an API's caller may.
func (m *model) ask(call func(ctx context.Context)) {
	m.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		call(ctx)
	})
}

// step does something.
func (m *model) step() {
	i := m.any()
	known := run.ID("nobody")
	if len(m.runs) > 0 {
		known = m.runs[m.roll(len(m.runs))]
	}
	switch what := m.roll(22); what {
	case 0, 1, 2, 3: // a run
		id, a := run.ID(fmt.Sprint("run_", len(m.runs))), []string{"robot", "server"}[m.roll(2)]
		m.runs = append(m.runs, id)
		m.note("%s starts %s (%s)", i.name, id, a)
		m.ask(func(ctx context.Context) {
			_, _, _ = i.Start(ctx, run.Start{ID: id, AgentID: a, RequestChecksum: "r"})
		})
	case 4: // one that is pushed
		id := run.ID(fmt.Sprint("run_", len(m.runs)))
		m.runs = append(m.runs, id)
		m.note("%s starts %s (pushed)", i.name, id)
		m.ask(func(ctx context.Context) {
			_, _, _ = i.Push(ctx, run.Start{ID: id, AgentID: "p", Runtime: "push", RequestChecksum: "p"})
		})
	case 5: // one whose id is taken, or will be
		m.note("%s starts %s again", i.name, known)
		m.ask(func(ctx context.Context) {
			_, _, _ = i.Push(ctx, run.Start{ID: known, AgentID: "x", Runtime: "push", RequestChecksum: "x"})
		})
		m.ask(func(ctx context.Context) {
			_, _, _ = i.Start(ctx, run.Start{ID: known, AgentID: "robot", RequestChecksum: "y"})
		})
	case 6: // a push
		m.ask(func(ctx context.Context) {
			recorder, release := i.runs.Use(known)
			defer release()
			p := recorder.Push(run.Origin{Producer: "p"})
			_ = p.Send(ctx, 1, agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: "pushed \xed\xa0\xbd"})
			_, _ = p.Wait(ctx)
		})
	case 7, 8: // a cancel
		m.note("%s cancels %s", i.name, known)
		m.ask(func(ctx context.Context) {
			if s, err := i.Cancel(ctx, known, "enough"); err == nil && s.Status != run.Cancelled {
				m.t.Errorf("the cancel of %s answers %s", known, s.Status)
			}
		})
	case 9, 10, 11, 12: // answers
		m.mu.Lock()
		open := m.asked
		m.asked = make(map[string]run.ID)
		m.mu.Unlock()
		for call, id := range open {
			value, _ := json.Marshal(strings.Repeat("!", m.roll(15_000)))
			i := m.any()
			m.ask(func(ctx context.Context) {
				if _, err := i.Answer(ctx, id, agent.Answer{ToolCallID: call, Result: value}); err == nil {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.given[call] = string(value)
				}
			})
		}
	case 13: // the store is away
		m.note("the store is away")
		m.mem.Away(true)
		time.Sleep(time.Duration(m.roll(12)) * time.Second)
		m.mem.Away(false)
	case 14: // or slow
		m.note("the store waits")
		m.heal = m.mem.Hold()
		time.Sleep(time.Duration(m.roll(12)) * time.Second)
		m.heal()
	case 15, 16: // or loses answers, or refuses
		faults := []ledgertest.Fault{ledgertest.NotStored, ledgertest.StoredUnseen, ledgertest.Ended, ledgertest.Late}
		if m.refuses {
			faults = []ledgertest.Fault{ledgertest.StoredUnseen, ledgertest.Forbidden, ledgertest.TooLarge}
		}
		fault := faults[m.roll(len(faults))]
		m.note("fault %d", fault)
		m.mem.Fail(fault)
	case 17: // somebody hears nothing
		m.note("%s is deaf", i.name)
		i.line.Away(true)
		time.Sleep(time.Duration(m.roll(20)) * time.Second)
		i.line.Away(false)
	case 18: // somebody dies
		m.note("%s dies", i.name)
		if m.roll(2) == 0 {
			i.line.Away(true)
		}
		m.bury(i)
		m.join()
	case 19: // or is told to stop
		m.note("%s stops", i.name)
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
		i.Drain(ctx, 3*time.Second)
		cancel()
		m.bury(i)
		m.join()
	default:
		time.Sleep(time.Duration(m.roll(5000)) * time.Millisecond)
	}
	m.mem.Deliver()
}

func (m *model) bury(i *member) {
	for n, one := range m.live {
		if one == i {
			m.live = append(m.live[:n:n], m.live[n+1:]...)
		}
	}
	i.end()
}

// judge looks at what is left.
func (m *model) judge() {
	for _, id := range m.runs {
		events := m.mem.Events(id)
		ends := 0
		for _, e := range events {
			if run.Terminal(e.Type) {
				ends++
			}
		}
		if len(events) > 0 && (ends != 1 || !run.Terminal(events[len(events)-1].Type)) {
			var types []string
			for _, e := range events {
				if e.Type != run.TypeMessageDelta {
					types = append(types, fmt.Sprintf("%s(%s/%d)", e.Type, e.Owner, e.Epoch))
				}
			}
			m.t.Errorf("run %s has %d ends: %s", id, ends, strings.Join(types, " "))
		}
	}
	for _, i := range m.live {
		if driven, waiting := i.Counts(); driven+waiting > 0 || i.leases.Holds() > 0 {
			m.t.Errorf("%s drives %d runs, %d wait, it answers for %d", i.name, driven, waiting, i.leases.Holds())
		}
	}
	if m.t.Failed() {
		m.t.Log(strings.Join(m.log, "\n"))
	}
}

// RUNFACTS_MODEL=rounds makes it a long one; RUNFACTS_MODEL_SEED begins elsewhere.
func TestWhateverHappensEachRunEndsOnce(t *testing.T) {
	rounds, seed := 25, rand.Uint64()
	if n, err := strconv.Atoi(os.Getenv("RUNFACTS_MODEL")); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv("RUNFACTS_MODEL_SEED"), 10, 64); err == nil {
		seed = n
	}
	for round := range uint64(rounds) {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed+round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{
					t: t, dice: rand.New(rand.NewPCG(seed, round)), mem: ledgertest.NewMemory(t), notes: ledgertest.NewNotes(), blobs: newBlobs(),
					refuses: round%2 == 1,
					asked:   make(map[string]run.ID), given: make(map[string]string),
				}
				for range 3 {
					m.join()
				}
				for range 60 {
					m.step()
				}
				time.Sleep(modelPeace)
				synctest.Wait()
				m.calls.Wait()
				m.judge()
				for _, i := range m.live {
					i.end()
				}
			})
		})
	}
}
