package main

import (
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/record"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/transport/metrics"
)

// observer tells metrics and the log what happens further in.
type observer struct {
	metrics *metrics.Metrics
	log     zerolog.Logger
	deaf    atomic.Bool // the last heartbeat was not acknowledged
}

var (
	_ record.Observer     = (*observer)(nil)
	_ lease.Observer      = (*observer)(nil)
	_ supervisor.Observer = (*observer)(nil)
)

// Appended implements record.Observer.
func (o *observer) Appended(outcome record.Outcome, events int, took time.Duration) {
	o.metrics.Appended(outcome, events, took)
}

// Started implements record.Observer.
func (o *observer) Started() { o.metrics.Started() }

// Ended implements record.Observer.
func (o *observer) Ended(id runs.ID, _ bool, status runs.Status) {
	o.metrics.Ended(status)
	o.log.Info().Str("run_id", string(id)).Str("status", string(status)).Msg("run ended")
}

// Beat implements lease.Observer.
func (o *observer) Beat(err error, took time.Duration) {
	o.metrics.Beat(err == nil)
	if deaf := err != nil; o.deaf.Swap(deaf) != deaf {
		level := zerolog.InfoLevel
		if deaf {
			level = zerolog.WarnLevel
		}
		o.log.WithLevel(level).Err(err).Dur("took_ms", took).Bool("acknowledged", !deaf).Msg("heartbeat")
	}
}

// Joined implements lease.Observer.
func (o *observer) Joined(instance string) {
	o.log.Info().Str("peer", instance).Msg("instance met")
}

// Left implements lease.Observer.
func (o *observer) Left(instance string) { o.log.Info().Str("peer", instance).Msg("instance left") }

// Died implements lease.Observer.
func (o *observer) Died(instance string, silence time.Duration) {
	o.metrics.Died()
	o.log.Warn().Str("peer", instance).Dur("silence", silence).Msg("instance lost")
}

// Reported implements supervisor.Observer.
func (o *observer) Reported(t agent.Type) { o.metrics.Reported(t) }

// RuntimeFailed implements supervisor.Observer.
func (o *observer) RuntimeFailed(id runs.ID, err error) {
	o.log.Error().Err(err).Str("run_id", string(id)).Msg("runtime failed")
}

// TakenOver implements supervisor.Observer.
func (o *observer) TakenOver(id runs.ID, owner string) {
	o.metrics.TakenOver()
	o.log.Warn().Str("run_id", string(id)).Str("owner", owner).Msg("run taken over")
}

// Lost implements supervisor.Observer.
func (o *observer) Lost(id runs.ID, owner string, silence time.Duration) {
	o.metrics.Lost(owner != "")
	o.log.Warn().Str("run_id", string(id)).Str("owner", owner).Dur("silence", silence).Msg("run lost")
}
