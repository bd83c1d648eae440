// Package supervisor drives the runs of configured agents. Each has one owner,
// the instance that started it; whatever happens to the runtime, the owner or
// the store, the run ends exactly once, for a reason that its stream shows.
//
// Viewers own nothing: they come and go without a run noticing.
package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// Agent is one configured agent.
type Agent struct {
	ID      string
	Runtime string
	Runner  agent.Runner
	Config  []byte // the effective configuration, as JSON without secrets: the snapshot
	Limits  Limits
}

// Limits bound one run. Each that is reached ends it.
type Limits struct {
	Duration time.Duration // from the runtime's start; 0: none
	Silence  time.Duration // between two AgentEvents, while it waits for nobody; 0: none
	Wait     time.Duration // for answers from outside; 0: none. Duration does not count meanwhile
}

// Watch is what the supervisor needs of the leases (lease.Leases).
type Watch interface {
	Announce(ctx context.Context, id run.ID, kind lease.Kind) error
	Confirm(id run.ID, kind lease.Kind, last run.Seq)
	Withdraw(id run.ID, kind lease.Kind)
	Forget(id run.ID, kind lease.Kind)
	Alive(instance string) bool
}

// Observer is told what happens, for logs and metrics. It must not block.
type Observer interface {
	Reported(t agent.Type)
	RuntimeFailed(id run.ID, err error) // with the text that strangers do not get
	Lost(id run.ID, owner string, silence time.Duration)
	TakenOver(id run.ID, owner string)
}

// Config is what a Supervisor needs. All of it must be set, but for Agents.
type Config struct {
	Runs     *record.Runs
	Reader   ledger.Reader
	Follower ledger.Follower
	Side     ledger.Side
	Blobs    blob.Store
	Watch    Watch
	Observer Observer
	Agents   []Agent
	Instance string // this process's name, new with each start

	Inline    int           // bytes of a value that an event holds; longer ones are kept as blobs
	MaxRuns   int           // driven at once
	MaxQueue  int           // started, waiting for their turn
	QueueTime time.Duration // a run may wait for its turn
}

// How long a cancel waits. An API that waits for 5 s then still answers with
// what was recorded.
const (
	stopTime   = 3 * time.Second // for a runtime to stop and prove it
	answerTime = 4 * time.Second // for another owner to record the stop
)

// Supervisor owns runs. Safe for concurrent use. All but reading what is
// configured needs Run to be running.
type Supervisor struct {
	config  Config
	agents  map[string]Agent
	slots   chan struct{} // holds a token for each runtime that runs
	ready   chan func(context.Context)
	absent  chan struct{} // holds a hint that others may have closed what is ours
	stopped chan struct{}

	mu         sync.Mutex
	runs       map[run.ID]*owned
	owning     sync.WaitGroup           // one for each of runs
	cancelling map[run.ID]chan struct{} // runs of others; closed when answered
	kept       map[string]bool          // snapshots that are stored
	draining   bool
}

// UnknownAgentError refuses a run of an agent that is not configured.
type UnknownAgentError struct{ AgentID, Runtime string }

func (e *UnknownAgentError) Error() string {
	if e.Runtime != "" {
		return fmt.Sprintf("no agent %q with runtime %q is configured", e.AgentID, e.Runtime)
	}
	return fmt.Sprintf("no agent %q is configured", e.AgentID)
}

// ErrBusy refuses a run since there are as many as there may be.
var ErrBusy = errors.New("as many runs as this instance may have are running and waiting")

// New returns a Supervisor.
func New(c Config) *Supervisor {
	s := &Supervisor{
		config: c, agents: make(map[string]Agent), slots: make(chan struct{}, c.MaxRuns),
		ready: make(chan func(context.Context)), absent: make(chan struct{}, 1), stopped: make(chan struct{}),
		runs: make(map[run.ID]*owned), cancelling: make(map[run.ID]chan struct{}), kept: make(map[string]bool),
	}
	for _, a := range c.Agents {
		s.agents[a.ID] = a
	}
	return s
}

// Agents returns what is configured, by id.
func (s *Supervisor) Agents() []Agent {
	agents := slices.Clone(s.config.Agents)
	slices.SortFunc(agents, func(a, b Agent) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return agents
}

// Counts returns how many runs this instance drives, and how many wait.
func (s *Supervisor) Counts() (driven, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		if r.driven {
			driven++
		} else {
			waiting++
		}
	}
	return driven, waiting
}

// Run drives runs and answers cancels until ctx ends, and returns when all of
// that has ended. Runs that have not are left to the other instances; Drain
// before.
func (s *Supervisor) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	defer close(s.stopped)
	parts.Go(func() { s.obey(ctx) })
	for {
		select {
		case part := <-s.ready:
			parts.Go(func() { part(ctx) })
		case <-s.absent:
			parts.Go(func() { s.review(ctx) })
		case <-ctx.Done():
			return nil
		}
	}
}

// spawn makes Run carry part on; false: Run has ended.
func (s *Supervisor) spawn(part func(context.Context)) bool {
	select {
	case s.ready <- part:
		return true
	case <-s.stopped:
		return false
	}
}

// Push starts a run whose events somebody pushes. Errors as for record.Start,
// and lease.ErrFull.
func (s *Supervisor) Push(ctx context.Context, start run.Start) (record.Summary, bool, error) {
	if s.isDraining() {
		return record.Summary{}, false, record.ErrStopping
	}
	start.Snapshot = run.UnconfiguredSnapshot(start.AgentID, start.Runtime)
	if err := s.config.Watch.Announce(ctx, start.ID, lease.Open); err != nil {
		return record.Summary{}, false, fmt.Errorf("announce run %s: %w", start.ID, err)
	}
	summary, created, err := s.commit(ctx, start)
	if err == nil && summary.Owner == "" && summary.EndedAt.IsZero() || unknown(err) {
		s.config.Watch.Confirm(start.ID, lease.Open, summary.LastSeq)
	} else { // what is there under that id has those who answer for it
		s.config.Watch.Withdraw(start.ID, lease.Open)
	}
	return summary, created, err
}

func unknown(err error) bool {
	var u *ledger.UnknownError
	return errors.As(err, &u)
}

func (s *Supervisor) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// Start starts a run of a configured agent; its runtime begins as soon as there
// is room. The same start again finds the same run. Errors as for record.Start,
// *UnknownAgentError, ErrBusy, record.ErrStopping. An *ledger.UnknownError means
// that the run may still start.
func (s *Supervisor) Start(ctx context.Context, start run.Start) (record.Summary, bool, error) {
	a, ok := s.agents[start.AgentID]
	if !ok || start.Runtime != "" && start.Runtime != a.Runtime {
		return record.Summary{}, false, &UnknownAgentError{start.AgentID, start.Runtime}
	}
	start.Runtime, start.Snapshot, start.Owner = a.Runtime, run.Checksum(a.Config), s.config.Instance
	for {
		r, mine, err := s.register(start.ID, a, start.Input)
		if err != nil {
			return record.Summary{}, false, err
		}
		if mine && !s.spawn(func(hard context.Context) { s.begin(hard, ctx, r, start) }) {
			s.unregister(r)
			return record.Summary{}, false, record.ErrStopping
		}
		select {
		case <-r.started:
		case <-ctx.Done():
			return record.Summary{}, false, &ledger.UnknownError{Run: start.ID, Err: context.Cause(ctx)}
		}
		if mine {
			return r.summary, r.created, r.err
		}
		if r.created { // by another request of this instance: the same one?
			return s.commit(ctx, start)
		}
	}
}

// register makes room for a run; mine is false where this instance has it.
func (s *Supervisor) register(id run.ID, a Agent, input json.RawMessage) (r *owned, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		return r, false, nil
	}
	switch {
	case s.draining:
		return nil, false, record.ErrStopping
	case len(s.runs) >= s.config.MaxRuns+s.config.MaxQueue:
		return nil, false, ErrBusy
	}
	r = s.newOwned(id, a, input)
	s.runs[id] = r
	s.owning.Add(1)
	return r, true, nil
}

func (s *Supervisor) unregister(r *owned) {
	s.mu.Lock()
	delete(s.runs, r.id)
	s.mu.Unlock()
	s.owning.Done()
	r.finish()
}

func (s *Supervisor) owned(id run.ID) *owned {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// begin commits a run's start and drives it to its end. Before the start is on
// its way it gives up with the request that asked for it.
func (s *Supervisor) begin(hard, request context.Context, r *owned, start run.Start) {
	defer s.unregister(r)
	if r.err = s.keep(request, r.agent); r.err == nil {
		r.err = s.config.Watch.Announce(request, r.id, lease.Owned)
	}
	if r.err != nil {
		close(r.started)
		return
	}
	select {
	case s.slots <- struct{}{}: // nobody waits before it: its turn comes with its start
		r.placed = true
	default:
		start.Queued = true
	}
	r.summary, r.created, r.err = s.commit(hard, start)
	switch {
	case r.created || unknown(r.err): // the latter as the process ends
		s.config.Watch.Confirm(r.id, lease.Owned, 0)
	default:
		s.config.Watch.Withdraw(r.id, lease.Owned)
	}
	close(r.started)
	var over bool
	switch {
	case r.created && r.err == nil:
		over = s.drive(hard, r)
	case r.created: // it was stored, and then could not be read
		r.summary.Epoch = 1
		over = s.finish(hard, r, nil, result{err: r.err})
	}
	if r.placed { // and was not driven
		<-s.slots
	}
	if over { // else it stays named, so that somebody else ends it
		s.config.Watch.Forget(r.id, lease.Owned)
	}
}

// Drain takes no new runs, lets the owned ones finish within grace, then stops
// them. It returns when none is left or ctx ends.
func (s *Supervisor) Drain(ctx context.Context, grace time.Duration) {
	stop := &limit{run.InstanceStopped, "the instance that ran it was stopped", true}
	s.mu.Lock()
	s.draining = true
	for _, r := range s.runs {
		if !r.driven {
			r.end(stop)
		}
	}
	s.mu.Unlock()
	none := make(chan struct{})
	go func() { // ends with the last run, at the latest with Run
		defer close(none)
		s.owning.Wait()
	}()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-none:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	for _, r := range s.runs {
		r.end(stop)
	}
	s.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}
