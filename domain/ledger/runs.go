package ledger

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/run"
)

// maxIdle bounds the folded states that are kept of runs that nobody is
// writing or asking about at the moment, in bytes. The least recently used go;
// they are read from the store again when they are wanted.
const maxIdle = 64 << 20

// Config is what Runs needs from the world. All of it must be set.
type Config struct {
	Ledger    Ledger
	MaxAppend int              // bytes of one append: data, metadata and types
	Now       func() time.Time // stands in where an event has no time of its own
	Nonce     func() string    // random, new on each call
	Observer  Observer
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
	var conflict *ConflictError
	var unknown *UnknownError
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

// Observer is told what happens, for metrics. Its methods must not block.
type Observer interface {
	Appended(o Outcome, events int, took time.Duration)
	Started()
	Ended(id run.ID, owned bool, status run.Status)
	// Heard tells that a producer of a pushed run was heard, whose end is now
	// at last. Stored: the store shows it as well.
	Heard(id run.ID, last run.Seq, stored bool)
}

// Runs holds the Recorders of the runs in use, and the states of those used
// lately. Safe for concurrent use. Everything but Start needs Run to be running.
type Runs struct {
	config  Config
	ready   chan *Recorder
	stopped chan struct{}

	mu        sync.Mutex
	recorders map[run.ID]*Recorder
	idle      *list.List // of *Recorder without users, least recently used first
	places    map[*Recorder]*list.Element
	weight    int // of the idle ones
}

// NewRuns returns Runs over a ledger.
func NewRuns(c Config) *Runs {
	return &Runs{
		config: c, ready: make(chan *Recorder), stopped: make(chan struct{}),
		recorders: make(map[run.ID]*Recorder), idle: list.New(), places: make(map[*Recorder]*list.Element),
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
		case recorder := <-r.ready:
			writers.Go(func() { recorder.write(ctx) })
		case <-ctx.Done():
			return nil
		}
	}
}

// write asks for a writer; false: Run has ended.
func (r *Runs) write(recorder *Recorder) bool {
	select {
	case r.ready <- recorder:
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
		recorder = &Recorder{id: id, runs: r, received: make(map[string]uint64), held: make(map[string]*entry)}
		r.recorders[id] = recorder
	}
	if place := r.places[recorder]; place != nil {
		r.idle.Remove(place)
		delete(r.places, recorder)
		r.weight -= recorder.weight
	}
	recorder.users++
	return recorder, func() { r.release(recorder) }
}

func (r *Runs) release(recorder *Recorder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	recorder.users--
	if recorder.users > 0 || r.recorders[recorder.id] != recorder {
		return
	}
	recorder.mu.Lock()
	known, busy := recorder.state != nil, recorder.writing || len(recorder.held) > 0
	if known {
		recorder.weight = recorder.state.Weight()
	}
	recorder.mu.Unlock()
	if !known && !busy {
		delete(r.recorders, recorder.id) // nothing was learnt: no such run, or no store
		return
	}
	r.places[recorder] = r.idle.PushBack(recorder)
	r.weight += recorder.weight
	r.evict()
}

// evict drops idle states, oldest first, while there are too many. One that
// still writes, or holds half a character, goes to the back instead.
func (r *Runs) evict() {
	for range r.idle.Len() {
		if r.weight <= maxIdle {
			return
		}
		place := r.idle.Front()
		recorder := place.Value.(*Recorder)
		recorder.mu.Lock()
		busy := recorder.writing || len(recorder.held) > 0
		recorder.mu.Unlock()
		if busy {
			r.idle.MoveToBack(place)
			continue
		}
		r.drop(recorder)
	}
}

func (r *Runs) drop(recorder *Recorder) {
	if place := r.places[recorder]; place != nil {
		r.idle.Remove(place)
		delete(r.places, recorder)
		r.weight -= recorder.weight
	}
	if r.recorders[recorder.id] == recorder {
		delete(r.recorders, recorder.id)
	}
}
