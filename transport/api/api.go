// Package api is the HTTP surface (protocol sections 5 and 6): it decodes a
// request, calls a room further in, and encodes what came of it. It decides
// nothing about runs. Every error leaves through one table (problem.go).
package api

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/transport/metrics"
)

// Config is what the API stands on. All of it must be set, but for what says
// otherwise.
type Config struct {
	Runs        *record.Runs
	Supervisor  *supervisor.Supervisor
	Reader      ledger.Reader
	Tails       *tail.Tails
	Blobs       blob.Store
	Inline      int   // bytes of a value that an event holds; longer ones are kept as blobs
	MaxArtifact int64 // bytes
	Metrics     *metrics.Metrics
	Log         zerolog.Logger
	NewID       func() run.ID
	Ready       func() Readiness
	Patience    time.Duration // how long a request waits for the store
	KeepAlive   time.Duration // a stream without an event shows that it lives
	PushIdle    time.Duration // between two reads of a push; after it the request is cut

	// Who may ask, as far as browsers tell (guard.go); all optional.
	AnyHost      bool     // answer to any Host: the listener is open to others than this machine
	PublicOrigin string   // by which people reach this server
	CORSOrigins  []string // origins whose pages may read
	CORSWriters  []string // origins whose pages may read and write
}

// Readiness is what /readyz shows.
type Readiness struct {
	Reached bool `json:"store_reached"` // the store has answered since the start
	Up      bool `json:"store_up"`      // it answered the last time it was asked
	// Cause is what is wrong with the store, in words; "": nothing.
	Cause string `json:"store_cause,omitempty"`
}

// Server answers HTTP requests. Safe for concurrent use.
type Server struct {
	config Config
	reader ledger.Reader // the config's, for as long as a request waits
	echo   *echo.Echo
	paces  paces

	draining context.Context // ended by Drain
	drain    context.CancelFunc
	spread   atomic.Int64 // the time over which streams end, in nanoseconds
	streams  atomic.Int64 // open ones
}

// New returns a Server. The error is an origin that is none (ParseOrigin).
func New(c Config) (*Server, error) {
	g, err := newGuard(c)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, reader: patient{c.Reader}, echo: echo.New(), paces: usual}
	s.draining, s.drain = context.WithCancel(context.Background())
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	// What a stranger writes into X-Forwarded-For is not an address.
	e.IPExtractor = echo.ExtractIPDirect()
	e.HTTPErrorHandler = s.answer
	// The router would see some paths decoded and some not: param decodes all.
	e.Pre(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			u := c.Request().URL
			u.RawPath = u.EscapedPath()
			return next(c)
		}
	})
	e.Use(identify, s.access, s.recovers(), steadily)
	e.Use(cors(c.CORSOrigins, c.CORSWriters)...)
	e.Use(g.check, s.bodies)
	for _, r := range s.routes() {
		handler := r.handler
		e.Add(r.method, r.path, handler)
		if r.method == http.MethodGet {
			e.HEAD(r.path, handler)
		}
	}
	return s, nil
}

// Handler returns the server as net/http knows it.
func (s *Server) Handler() http.Handler { return s.echo }

// ready is GET /readyz. An outage of the store after it was first reached shows
// in the body only: a load balancer that took instances out for it would turn
// a blip into closed pages.
func (s *Server) ready(c echo.Context) error {
	state := struct {
		Readiness
		Draining bool `json:"draining"`
	}{s.config.Ready(), s.draining.Err() != nil}
	if state.Draining || !state.Reached {
		return s.fresh(c, http.StatusServiceUnavailable, state)
	}
	return s.fresh(c, http.StatusOK, state)
}

// patience bounds how long a request waits for the store.
func (s *Server) patience(c echo.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Request().Context(), s.config.Patience)
}

// Drain ends what would go on for ever. Pushes stop reading and answer; event
// streams end, each at a frame boundary, spread over a time that grows with
// their number up to most: clients that come back all at once would meet the
// next instance as one wave. It returns at once.
func (s *Server) Drain(most time.Duration) {
	s.spread.Store(int64(min(most, time.Duration(s.streams.Load())*20*time.Millisecond)))
	s.drain()
}
