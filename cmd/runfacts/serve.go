package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/domain/ledger"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/transport/api"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
	"github.com/runfacts/runfacts/transport/metrics"
)

// Shutdown takes at most 10 s in all: event streams end within the first part,
// requests within the second, the rest is for what is behind them.
const (
	drainStreams  = 4 * time.Second
	drainRequests = 7 * time.Second
)

type serveCmd struct {
	dataFlags
	logFlags
	Listen         string        `default:"127.0.0.1:8080" env:"RUNFACTS_LISTEN" help:"Address to listen on."`
	InsecureListen bool          `env:"RUNFACTS_INSECURE_LISTEN" help:"Listen beyond loopback although there is no authentication."`
	Eventstore     string        `env:"RUNFACTS_EVENTSTORE" placeholder:"esdb://…" help:"Connection string of an EventStoreDB; empty: the embedded node."`
	MaxAppend      int           `default:"1000000" env:"RUNFACTS_MAX_APPEND" help:"Bytes of one append; lower it with the cluster's MaxAppendSize."`
	StorePatience  time.Duration `default:"10s" env:"RUNFACTS_STORE_PATIENCE" help:"How long a request waits for the store before it answers 503."`
	CORSOrigin     []string      `name:"cors-origin" env:"RUNFACTS_CORS_ORIGIN" help:"Origins that may read from a browser; repeat or separate by commas."`
}

// Validate is called by kong: what is wrong here is a wrong command line.
func (c *serveCmd) Validate() error {
	var faults []error
	if err := checkListen(c.Listen, c.InsecureListen); err != nil {
		faults = append(faults, err)
	}
	if c.MaxAppend < 64<<10 || c.MaxAppend > 16<<20 {
		faults = append(faults, fmt.Errorf("--max-append must be between 65536 and 16777216, not %d", c.MaxAppend))
	}
	if c.StorePatience <= 0 {
		faults = append(faults, fmt.Errorf("--store-patience must be positive, not %s", c.StorePatience))
	}
	return errors.Join(faults...)
}

// Run serves until ctx ends. What is further in outlives what is further out:
// the HTTP server ends first, then the writers and tails, then the store's
// client, then the embedded node.
func (c *serveCmd) Run(ctx context.Context, s streams) (err error) {
	log := c.logger(s)
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // closed by the HTTP server already, where that ran

	url := c.Eventstore
	if url == "" {
		node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: c.store(), Log: log})
		if err != nil {
			return err
		}
		url = node.ConnectionString()
		defer supervise(&err, func(ctx context.Context) error { return node.Run(ctx) })()
	}
	m := metrics.New()
	store, err := eventstore.Open(eventstore.Config{ConnectionString: url, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return c.serve(ctx, listener, store, m, log)
}

// supervise starts a long-running part and returns the call that ends it and
// waits for it.
func supervise(into *error, part func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return part(ctx) })
	return func() {
		cancel()
		*into = errors.Join(*into, g.Wait())
	}
}

func (c *serveCmd) serve(ctx context.Context, listener net.Listener, store *eventstore.Store, m *metrics.Metrics, log zerolog.Logger) error {
	work := ledger.NewRuns(ledger.Config{Ledger: store, MaxAppend: c.MaxAppend, Now: time.Now, Nonce: nonce, Observer: m})
	tails := tail.New(store, api.Frame)
	watch := &watch{store: store, metrics: m, log: log}
	server := api.New(api.Config{
		Runs: work, Reader: store, Tails: tails, Metrics: m, Log: log, NewID: newID,
		Ready: watch.ready, Patience: c.StorePatience, CORSOrigins: c.CORSOrigin,
	})
	web := &http.Server{
		Handler:           server.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}

	inner, stop := context.WithCancel(context.Background())
	defer stop()
	parts, inner := errgroup.WithContext(inner)
	parts.Go(func() error { return work.Run(inner) })
	parts.Go(func() error { return tails.Run(inner) })
	parts.Go(func() error { return watch.Run(inner) })
	parts.Go(func() error {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	log.Info().Str("url", "http://"+listener.Addr().String()).Bool("embedded", c.Eventstore == "").Msg("serving")

	select {
	case <-ctx.Done():
	case <-inner.Done(): // a part has failed
	}
	log.Info().Msg("stopping")
	server.Drain(drainStreams)
	bound, cancel := context.WithTimeout(context.Background(), drainRequests)
	defer cancel()
	if err := web.Shutdown(bound); err != nil {
		log.Warn().Err(err).Msg("requests cut")
		_ = web.Close() // what it could say, Shutdown has said
	}
	stop()
	return parts.Wait()
}

// nonce makes each append one of its kind: 128 random bits.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// newID names a run that came without a name. Version 7 keeps the ids of one
// day together in an operator's listing.
func newID() runs.ID {
	id := uuid.Must(uuid.NewV7())
	return runs.ID("run_" + hex.EncodeToString(id[:]))
}
