package record

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// maxIdle bounds the folded states that are kept of runs that nobody is
// writing or asking about at the moment, in bytes. The least recently used go;
// they are read from the store again when they are wanted.
const maxIdle = 64 << 20

// Config is what Runs needs from the world. All of it must be set.
type Config struct {
	Ledger    ledger.Ledger
	MaxAppend int              // bytes of one append: data, metadata and types
	Now       func() time.Time // stands in where an event has no time of its own
	Nonce     func() string    // random, new on each call
	Watcher   Watcher
	Observer  Observer
}

// Watcher answers for pushed runs, whose producers may fall silent (lease.Leases).
// It must be told: a run that nobody watches has nobody who ends it. Its methods
// must not block.
type Watcher interface {
	// Heard tells that a producer of a pushed run was heard, whose end is now at
	// last; the run has not ended. Stored: the store shows it as well.
	Heard(id run.ID, last run.Seq, stored bool)

	// Ended tells that a pushed run has ended, by whomever.
	Ended(id run.ID)
}

// Observer is told what happens, for metrics; it may do nothing. Its methods must
// not block.
type Observer interface {
	Appended(o Outcome, events int, took time.Duration)
	Started()
	Ended(id run.ID, owned bool, status run.Status)
}

// Outcome is what became of an append.
type Outcome string

// The three outcomes, and the refusal that is not an error.
const (
	Stored     Outcome = "stored"
	Conflicted Outcome = "conflict"
	Refused    Outcome = "refused"
	Unknown    Outcome = "unknown"
)

func outcome(err error) Outcome {
	var conflict *ledger.ConflictError
	var unknown *ledger.UnknownError
	switch {
	case err == nil:
		return Stored
	case errors.As(err, &conflict):
		return Conflicted
	case errors.As(err, &unknown):
		return Unknown
	}
	return Refused
}

// Runs holds the Recorders of the runs in use, and the states of those used
// lately. Safe for concurrent use. Everything but Start needs Run to be running.
type Runs struct {
	config  Config
	ready   chan func(context.Context)
	stopped chan struct{}

	mu        sync.Mutex
	recorders map[run.ID]*Recorder
	idle      *list.List // of *Recorder without users, least recently used first
	places    map[*Recorder]place
	weight    int // of the idle ones
	most      int // that the idle ones may weigh
}

// place is where a Recorder stands among the idle ones.
type place struct {
	*list.Element
	weight int
}

// NewRuns returns Runs over a ledger.
func NewRuns(c Config) *Runs {
	return &Runs{
		config: c, ready: make(chan func(context.Context)), stopped: make(chan struct{}),
		most:      maxIdle,
		recorders: make(map[run.ID]*Recorder), idle: list.New(), places: make(map[*Recorder]place),
	}
}

// Run starts a writer for each run that has something to write, and returns
// when ctx has ended and all of them have. What was not committed by then is
// answered with ErrStopping.
func (r *Runs) Run(ctx context.Context) error {
	var writers sync.WaitGroup
	defer writers.Wait()
	defer close(r.stopped)
	for {
		select {
		case write := <-r.ready:
			writers.Go(func() { write(ctx) })
		case <-ctx.Done():
			return nil
		}
	}
}

// start brings a recorder's writer, which calls release when it has ended; false:
// Run has ended.
func (r *Runs) start(recorder *Recorder, release func()) bool {
	write := func(ctx context.Context) {
		defer release()
		recorder.writer.run(ctx)
	}
	select {
	case r.ready <- write:
		return true
	case <-r.stopped:
		return false
	}
}

// Use returns the run's Recorder. The caller must call release when done.
func (r *Runs) Use(id run.ID) (recorder *Recorder, release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	recorder = r.recorders[id]
	if recorder == nil {
		recorder = newRecorder(id, r)
		r.recorders[id] = recorder
	}
	return recorder, r.use(recorder)
}

// hold makes somebody one more user of a recorder, until release is called.
func (r *Runs) hold(recorder *Recorder) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.use(recorder)
}

func (r *Runs) use(recorder *Recorder) (release func()) {
	r.remove(recorder)
	recorder.users++
	return func() { r.release(recorder) }
}

// release gives a recorder up. The last one's leaves it idle: nobody writes it. Of
// one that has learnt nothing (no such run, or no store) nothing is kept.
func (r *Runs) release(recorder *Recorder) {
	for _, full := range r.giveUp(recorder) {
		full.letGo()
	}
}

func (r *Runs) giveUp(recorder *Recorder) (full []*Recorder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	recorder.users--
	if recorder.users > 0 || r.recorders[recorder.id] != recorder {
		return nil
	}
	weight, known := recorder.public.kept()
	if !known {
		delete(r.recorders, recorder.id)
		return nil
	}
	r.places[recorder] = place{r.idle.PushBack(recorder), weight}
	r.weight += weight
	return r.evict()
}

// evict drops idle states, oldest first, while there are too many. Those in which
// half a character waits, which was acknowledged, are returned: they have to be
// let go before, and are in use until then.
func (r *Runs) evict() (full []*Recorder) {
	for r.weight > r.most && r.idle.Len() > 0 {
		recorder := r.idle.Front().Value.(*Recorder)
		if !recorder.public.holds() {
			r.drop(recorder)
			continue
		}
		r.use(recorder)
		full = append(full, recorder)
	}
	return full
}

// remove takes a recorder from among the idle ones.
func (r *Runs) remove(recorder *Recorder) {
	if place, idle := r.places[recorder]; idle {
		r.idle.Remove(place.Element)
		delete(r.places, recorder)
		r.weight -= place.weight
	}
}

func (r *Runs) drop(recorder *Recorder) {
	r.remove(recorder)
	if r.recorders[recorder.id] == recorder {
		delete(r.recorders, recorder.id)
	}
}

// Kept is how many recorders there are, in use and idle.
func (r *Runs) Kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.recorders)
}
