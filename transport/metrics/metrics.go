// Package metrics counts what the process does, for Prometheus. Labels come
// from fixed sets: no run, agent or producer becomes a time series.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// Metrics implements what the rooms want to be told to. Safe for concurrent use.
type Metrics struct {
	registry      *prometheus.Registry
	started       prometheus.Counter
	ended         *prometheus.CounterVec
	heard         *prometheus.CounterVec
	appends       *prometheus.CounterVec
	events        prometheus.Counter
	conflicts     prometheus.Counter
	appendSeconds prometheus.Histogram
	viewers       *prometheus.GaugeVec
	frames        prometheus.Counter
	writeSeconds  prometheus.Histogram
	storeUp       prometheus.Gauge
	lost          *prometheus.CounterVec
	heartbeats    *prometheus.CounterVec
	deaths        prometheus.Counter
	taken         prometheus.Counter
	blobs         *prometheus.CounterVec
}

// New returns metrics in a registry of their own, with Go's and the process's.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		started: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runfacts_runs_started_total", Help: "Runs whose run.started this instance committed."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runfacts_runs_ended_total", Help: "Runs whose terminal event this instance committed, by state."}, []string{"state"}),
		heard: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runfacts_agent_events_total", Help: "AgentEvents received, by type."}, []string{"type"}),
		appends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runfacts_appends_total", Help: "Appends to run streams, by outcome; an unknown one is sent again."}, []string{"outcome"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runfacts_events_stored_total", Help: "Canonical events stored."}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runfacts_conflicts_total", Help: "Appends that met another writer, read on and decided again."}),
		appendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "runfacts_append_seconds", Help: "From sending an append to its final outcome.", Buckets: seconds}),
		viewers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runfacts_viewers", Help: "SSE streams open, by view."}, []string{"view"}),
		frames: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runfacts_frames_sent_total", Help: "SSE frames with an event, written to viewers."}),
		writeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "runfacts_commit_to_write_seconds", Help: "From the store's commit of an event to its write to a live viewer, by both clocks.", Buckets: seconds}),
		storeUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "runfacts_store_up", Help: "1 while the store answers."}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runfacts_runs_lost_total", Help: "Runs that this instance ended as runtime_lost, by kind: owned or pushed."}, []string{"kind"}),
		heartbeats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runfacts_heartbeats_total", Help: "Heartbeats of this instance, by whether the store acknowledged them."}, []string{"acknowledged"}),
		taken: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runfacts_runs_taken_over_total", Help: "Runs of other instances that this one went on with."}),
		blobs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runfacts_blob_errors_total", Help: "What failed with artifacts' bytes, by cause; damaged: they are not those that were brought."}, []string{"cause"}),
		deaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runfacts_instance_deaths_total", Help: "Leases of other instances that this one saw expire."}),
	}
	m.registry.MustRegister(m.started, m.ended, m.heard, m.appends, m.events, m.conflicts, m.appendSeconds,
		m.viewers, m.frames, m.writeSeconds, m.storeUp, m.lost, m.heartbeats, m.deaths, m.taken, m.blobs,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, state := range []run.Status{run.Completed, run.Failed, run.Cancelled} {
		m.ended.WithLabelValues(string(state))
	}
	for _, cause := range []blob.Cause{blob.Full, blob.ReadOnly, blob.Denied, blob.Missing, blob.Failed, damaged} {
		m.blobs.WithLabelValues(string(cause))
	}
	for _, kind := range []string{"owned", "pushed"} {
		m.lost.WithLabelValues(kind)
	}
	for _, o := range []record.Outcome{record.Stored, record.Conflicted, record.Refused, record.Unknown} {
		m.appends.WithLabelValues(string(o))
	}
	return m
}

// seconds spans a fast local disk to a store that is nearly away.
var seconds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Appended counts an append.
func (m *Metrics) Appended(o record.Outcome, events int, took time.Duration) {
	m.appends.WithLabelValues(string(o)).Inc()
	if o == record.Unknown {
		return
	}
	m.appendSeconds.Observe(took.Seconds())
	switch o {
	case record.Stored:
		m.events.Add(float64(events))
	case record.Conflicted:
		m.conflicts.Inc()
	}
}

// Started counts a run's start.
func (m *Metrics) Started() { m.started.Inc() }

// Ended counts a run's end.
func (m *Metrics) Ended(status run.Status) { m.ended.WithLabelValues(string(status)).Inc() }

// Reported counts an AgentEvent that arrived, a valid one.
func (m *Metrics) Reported(t agent.Type) { m.heard.WithLabelValues(string(t)).Inc() }

// Viewing counts a viewer in, and returns the call that counts it out.
func (m *Metrics) Viewing(view string) (left func()) {
	g := m.viewers.WithLabelValues(view)
	g.Inc()
	return g.Dec
}

// Sent counts frames that were written to a viewer.
func (m *Metrics) Sent(frames int) { m.frames.Add(float64(frames)) }

// Lag observes the time from an event's commit to its write to a live viewer.
func (m *Metrics) Lag(d time.Duration) { m.writeSeconds.Observe(max(d, 0).Seconds()) }

// StoreUp notes whether the store answers.
func (m *Metrics) StoreUp(up bool) {
	if up {
		m.storeUp.Set(1)
	} else {
		m.storeUp.Set(0)
	}
}

// Lost counts a run that was ended as lost.
func (m *Metrics) Lost(owned bool) {
	kind := "pushed"
	if owned {
		kind = "owned"
	}
	m.lost.WithLabelValues(kind).Inc()
}

// Beat counts a heartbeat.
func (m *Metrics) Beat(acknowledged bool) {
	m.heartbeats.WithLabelValues(strconv.FormatBool(acknowledged)).Inc()
}

// TakenOver counts a run that was taken over.
func (m *Metrics) TakenOver() { m.taken.Inc() }

// damaged is a cause beside those of a store's failure.
const damaged blob.Cause = "damaged"

// BlobFailed counts a failure of the blob store.
func (m *Metrics) BlobFailed(cause blob.Cause) { m.blobs.WithLabelValues(string(cause)).Inc() }

// BlobDamaged counts a blob that was found damaged.
func (m *Metrics) BlobDamaged() { m.BlobFailed(damaged) }

// Died counts an instance that was found dead.
func (m *Metrics) Died() { m.deaths.Inc() }

// Tend shows how often a side stream could not be kept small.
func (m *Metrics) Tend(refused func() int) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "runfacts_side_refused_total", Help: "Bounds, trims and drops of side streams that the store did not do.",
	}, func() float64 { return float64(refused()) }))
}

// Own shows how many runs this instance drives, lets wait and answers for.
func (m *Metrics) Own(counts func() (driven, waiting int), watched func() int) {
	gauge := func(name, help string, f func() int) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f()) }))
	}
	gauge("runfacts_runs_driven", "Runs whose runtime this instance drives.", func() int { d, _ := counts(); return d })
	gauge("runfacts_runs_queued", "Runs of this instance that wait for their turn.", func() int { _, w := counts(); return w })
	gauge("runfacts_runs_watched", "Open runs that this instance names in its heartbeats.", watched)
}
