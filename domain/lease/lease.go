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
// runfacts_heartbeat_<instance> holds an instance's heartbeats.
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
	Closed  Verdict = iota // it has ended, or another instance answers for it now
	Moving                 // somebody writes it
	Missing                // there is no such run (yet)
)

// Expiry is why a run is to be adopted.
type Expiry struct {
	Holder  string        // the dead instance; "": the run is a pushed one
	Silence time.Duration // as measured
	LastSeq run.Seq       // of a pushed run: where it ended when last heard of; 0: not known
	Look    bool          // of a pushed run: it is not to be ended yet, only looked at
}

// Adopter sees to the runs whose leases expired. Errors mean: try again.
type Adopter interface {
	// Adopt ends the run or takes it over. With Moving it returns where the run
	// ends.
	Adopt(ctx context.Context, id run.ID, e Expiry) (v Verdict, last run.Seq, err error)

	// Lapsed tells that this instance was not heard for a lease: others may
	// have adopted its own runs. It must not block.
	Lapsed()
}

// Observer is told what happens, for logs and metrics; it may do nothing. It must
// not block.
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
	Most      int           // runs that may be announced here; adopted ones come on top
	MaxAppend int           // bytes of one heartbeat; one that names more runs is several
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
	holds     map[key]*hold
	fresh     map[key]struct{}    // holds that no acknowledged heartbeat has named
	gone      map[key]struct{}    // named by one, and no longer held
	mentions  map[run.ID]struct{} // pushed runs heard of without an event since the last one
	waiters   []*waiter
	peers     map[string]*peer
	known     bool // the registry was read
	joined    bool
	bounded   bool // the streams were told how much they keep, or may not be told; the beat's own
	joinSeq   uint64
	beats     uint64    // heartbeats composed
	sent      time.Time // when the last acknowledged one was
	trimmable int       // heartbeats since the last whole one
}

// New returns Leases, which do nothing before Run.
func New(c Config) *Leases {
	return &Leases{
		config: c, kick: make(chan struct{}, 1), holds: make(map[key]*hold), fresh: make(map[key]struct{}),
		gone: make(map[key]struct{}), mentions: make(map[run.ID]struct{}), peers: make(map[string]*peer),
	}
}

// Run beats, listens and sees to what expired until ctx ends, and returns when all
// of that has ended.
func (l *Leases) Run(ctx context.Context, adopter Adopter) error {
	var parts sync.WaitGroup
	parts.Go(func() { l.beat(ctx, adopter) })
	parts.Go(func() { l.attend(ctx) })
	parts.Go(func() { l.watch(ctx, adopter) })
	parts.Wait()
	l.leave()
	return nil
}

// Alive reports whether an instance may be alive, as far as this one knows.
func (l *Leases) Alive(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[instance]
	return !l.known || p != nil && l.silence(p.heard) < l.leaseOf(p)
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
