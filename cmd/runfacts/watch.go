package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/transport/api"
	"github.com/runfacts/runfacts/transport/eventstore"
	"github.com/runfacts/runfacts/transport/metrics"
)

// How often the store is asked whether it is there: often until it was reached
// for the first time, since nothing is served before; seldom where what is wrong
// will not pass by itself, since each look at a password costs a store a fifth
// of a second.
const (
	watchFirst = 100 * time.Millisecond
	watchThen  = 2 * time.Second
	watchMost  = 5 * time.Second // between two looks while nothing was ever reached
	watchLook  = 3 * time.Second // more than the store has for its answer
)

type watched interface {
	Ping(ctx context.Context) error
	Trouble() error
	Survey(ctx context.Context) (eventstore.Survey, error)
	Log(seen eventstore.Survey)
}

// watch knows whether the store answers, and what is wrong if it does not. The
// zero value has not asked yet.
type watch struct {
	store   watched
	metrics *metrics.Metrics
	log     zerolog.Logger

	mu    sync.Mutex
	state api.Readiness
}

func (w *watch) ready() api.Readiness {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Run asks until ctx ends.
func (w *watch) Run(ctx context.Context) error {
	for failed := 0; ; {
		err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := watchThen
		if err != nil {
			if failed++; !w.ready().Reached {
				pause = min(watchFirst<<min(failed, 10), watchMost)
			}
		} else {
			failed = 0
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// look asks once, and says in a line of the log what has changed.
func (w *watch) look(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, watchLook)
	defer cancel()
	err := w.store.Ping(limited)
	if err == nil {
		err = w.store.Trouble() // what it denies us although it answers
	}
	if ctx.Err() != nil {
		return err
	}
	before := w.ready()
	now := api.Readiness{Reached: before.Reached || err == nil, Up: err == nil}
	if err != nil {
		now.Cause = err.Error()
	}
	w.mu.Lock()
	w.state = now
	w.mu.Unlock()
	w.metrics.StoreUp(err == nil)
	if now.Up && !before.Up {
		w.survey(ctx)
	}
	if now.Cause != before.Cause && err != nil {
		w.log.Warn().Str("cause", now.Cause).Bool("up", false).Msg("store")
	}
	return err
}

// survey says what the store is that has come, or has come back.
func (w *watch) survey(ctx context.Context) {
	seen, err := w.store.Survey(ctx)
	if err != nil {
		w.log.Info().Bool("up", true).Msg("store") // what is wrong, the next look tells
		return
	}
	w.store.Log(seen)
}
