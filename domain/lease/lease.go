// Package lease finds dead instances, and the runs that they leave.
//
// Each instance appends a heartbeat to a side stream of its own, three times in
// each lease, that names the runs it answers for. Everybody else listens and
// counts silence by its own clock, from when it received the last one; clocks
// are never compared. While an instance's own heartbeats are not acknowledged
// it judges nobody, and afterwards every count starts afresh: an outage of the
// store must not look like everybody's death.
//
// A run is named before it exists. So whatever happens to the instance that
// started it, somebody knows of it.
//
// The streams: runfacts_instances tells who joined and who left;
// runfacts_heartbeat-<instance> holds an instance's heartbeats.
package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Kind says how an instance answers for a run.
type Kind int

// Kinds.
const (
	Owned Kind = iota // it drives the runtime
	Open              // somebody pushes it; any instance may be pushed to
)

// strays is for how long a run that was named is looked for before it counts as
// never started: its owner may be paused just before it starts it.
const strays = time.Hour

// Verdict is what became of a run whose lease expired.
type Verdict int

// Verdicts.
const (
	Settled Verdict = iota // it ended, or another instance answers for it now
	Alive                  // somebody writes it
	Missing                // there is no such run (yet)
)

// Death is why a run is to be settled.
type Death struct {
	Owner   string        // the dead instance; "": the run is a pushed one
	Silence time.Duration // as measured
	LastSeq run.Seq       // of a pushed run: where it ended when last heard of; 0: not known
}

// Heir settles the runs that the dead leave. Errors mean: try again.
type Heir interface {
	// Inherit closes the run or takes it over. With Alive it returns where the
	// run ends.
	Inherit(ctx context.Context, id run.ID, d Death) (v Verdict, last run.Seq, err error)

	// Absent tells that this instance was not heard for a lease: others may
	// have settled its own runs. It must not block.
	Absent()
}

// Observer is told what happens, for logs and metrics. It must not block.
type Observer interface {
	Beat(err error, took time.Duration) // a heartbeat was acknowledged, or not
	Joined(instance string)
	Died(instance string, silence time.Duration)
	Left(instance string)
}

// Config is what Leases need. All of it must be set.
type Config struct {
	Side      ledger.Side
	Instance  string        // this process's name, new with each start
	Lease     time.Duration // silence after which an instance is dead
	PushLease time.Duration // silence after which a pushed run is lost
	Most      int           // runs that one instance answers for, at most
	Now       func() time.Time
	Observer  Observer
}

// ErrFull: this instance answers for as many runs as it may.
var ErrFull = errors.New("this instance has as many open runs as it can watch")

// Leases is this instance among the others. Safe for concurrent use.
type Leases struct {
	config Config
	kick   chan struct{} // holds a hint that a heartbeat is due

	mu        sync.Mutex
	attention attention
	holds     map[run.ID]*hold
	fresh     map[run.ID]struct{} // holds that no acknowledged heartbeat has named
	gone      map[run.ID]struct{} // named by one, and no longer held
	mentions  map[run.ID]struct{} // pushed runs heard of without an event since the last one
	waiters   []waiter
	peers     map[string]*peer
	known     bool // the registry was read
	joined    bool
	joinSeq   uint64
	beats     uint64    // heartbeats sent
	sent      time.Time // when the last acknowledged one was
	trimmable int       // heartbeats since the last whole one
}

// hold is a run that this instance answers for.
type hold struct {
	kind   Kind
	heard  time.Time // of a pushed run: its last event or mention
	last   run.Seq   // of a pushed run: its end then; 0: not known
	misses int       // how often it was not found
}

// waiter waits for a run to be named.
type waiter struct {
	id   run.ID
	done chan struct{}
}

// New returns Leases, which do nothing before Run.
func New(c Config) *Leases {
	return &Leases{
		config: c, kick: make(chan struct{}, 1), holds: make(map[run.ID]*hold), fresh: make(map[run.ID]struct{}),
		gone: make(map[run.ID]struct{}), mentions: make(map[run.ID]struct{}), peers: make(map[string]*peer),
	}
}

// Run beats, listens and judges until ctx ends, and returns when all of that
// has ended.
func (l *Leases) Run(ctx context.Context, heir Heir) error {
	var parts sync.WaitGroup
	parts.Go(func() { l.beat(ctx, heir) })
	parts.Go(func() { l.attend(ctx) })
	parts.Go(func() { l.judge(ctx, heir) })
	parts.Wait()
	l.leave()
	return nil
}

// Announce names the run in a heartbeat and returns once that is acknowledged:
// from here on the run is not lost whatever happens to this instance. The
// caller must Forget it when it has ended, or was not started after all.
// Errors: ErrFull, ctx's.
func (l *Leases) Announce(ctx context.Context, id run.ID, kind Kind) error {
	l.mu.Lock()
	if _, held := l.holds[id]; !held && len(l.holds) >= l.config.Most {
		l.mu.Unlock()
		return ErrFull
	}
	w := waiter{id, make(chan struct{})}
	l.waiters = append(l.waiters, w)
	l.hold(id, kind, 0)
	l.fresh[id] = struct{}{} // named again, so that there is an acknowledgement to wait for
	l.mu.Unlock()
	l.hint()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hold answers for a run from now on.
func (l *Leases) hold(id run.ID, kind Kind, last run.Seq) {
	if l.holds[id] == nil {
		l.holds[id] = &hold{}
		l.fresh[id] = struct{}{}
		delete(l.gone, id)
	}
	h := l.holds[id]
	h.kind, h.heard, h.last = kind, l.config.Now(), max(h.last, last)
}

// Forget ends this instance's answering for a run.
func (l *Leases) Forget(id run.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(id)
}

func (l *Leases) forget(id run.ID) {
	if l.holds[id] != nil {
		delete(l.holds, id)
		delete(l.fresh, id)
		delete(l.mentions, id)
		l.gone[id] = struct{}{}
	}
}

// Ended notes that a pushed run has ended.
func (l *Leases) Ended(id run.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[id]; h != nil && h.kind == Open {
		l.forget(id)
	}
}

// Heard notes that a pushed run's producer was heard by this instance, which
// answers for the run from here on, if it has room. Stored: the run's stream
// shows it too.
func (l *Leases) Heard(id run.ID, last run.Seq, stored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds[id] == nil && len(l.holds) >= l.config.Most {
		return // whoever has it already goes on answering for it
	}
	l.hold(id, Open, last)
	if !stored {
		l.mentions[id] = struct{}{}
	}
}

// Breathes reports whether an instance may be alive, as far as this one knows.
func (l *Leases) Breathes(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[instance]
	return !l.known || p != nil && l.silence(p.heard) < l.leaseOf(p)
}

// Holds is how many runs this instance answers for.
func (l *Leases) Holds() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds)
}

func (l *Leases) hint() {
	select {
	case l.kick <- struct{}{}:
	default: // one hint is enough
	}
}

// silence is for how long nothing came since heard, as far as this instance was
// able to hear; 0 while it is not.
func (l *Leases) silence(heard time.Time) time.Duration {
	return l.attention.silence(heard, l.config.Now(), l.config.Lease)
}
