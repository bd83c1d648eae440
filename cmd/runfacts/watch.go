package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/transport/api"
	"github.com/runfacts/runfacts/transport/metrics"
)

// How often the store is asked whether it is there: often until it was reached
// for the first time, since nothing is served before.
const (
	watchFirst = 100 * time.Millisecond
	watchThen  = 5 * time.Second
)

type pinger interface {
	Ping(ctx context.Context) error
}

// watch knows whether the store answers. The zero value has not asked yet.
type watch struct {
	store   pinger
	metrics *metrics.Metrics
	log     zerolog.Logger

	reached, up atomic.Bool
}

func (w *watch) ready() api.Readiness {
	return api.Readiness{Reached: w.reached.Load(), Up: w.up.Load()}
}

// Run asks until ctx ends.
func (w *watch) Run(ctx context.Context) error {
	for {
		err := w.store.Ping(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if was := w.up.Swap(err == nil); was != (err == nil) || err != nil && !w.reached.Load() {
			w.log.Info().Err(err).Bool("up", err == nil).Msg("store")
		}
		w.metrics.StoreUp(err == nil)
		pause := watchFirst
		if err == nil {
			w.reached.Store(true)
		}
		if w.reached.Load() {
			pause = watchThen
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}
