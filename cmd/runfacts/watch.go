package main

import (
	"context"
	"strings"
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

// tell writes the one line of a change.
func (w *watch) tell(err error) {
	if err == nil {
		w.log.Info().Bool("up", true).Msg("store")
		return
	}
	line := w.log.Warn().Err(err).Bool("up", false)
	if hint := hintOf(err); hint != "" {
		line.Str("hint", hint)
	}
	line.Msg("store")
}

// hintOf says what may help, where the error is one that newcomers meet. There are
// no types for these: they come through the client as text.
func hintOf(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "the store speaks no TLS: say ?tls=false in the connection string"
	case strings.Contains(text, "error reading server preface"):
		return "the store may speak TLS: leave ?tls=false out of the connection string"
	case strings.Contains(text, "certificate signed by unknown authority"):
		return "name the store's CA: ?tlsCAFile=… in the connection string"
	}
	return ""
}

type pinger interface {
	Ping(ctx context.Context) error
}

// watch knows whether the store answers. The zero value has not asked yet.
type watch struct {
	store   pinger
	metrics *metrics.Metrics
	log     zerolog.Logger

	reached, up atomic.Bool
	told        bool // the log knows whether it is up; Run's
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
		if was := w.up.Swap(err == nil); was != (err == nil) || !w.told {
			w.told = true
			w.tell(err)
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
