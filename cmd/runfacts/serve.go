package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/record"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/transport/api"
	"github.com/runfacts/runfacts/transport/blobfolder"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
	"github.com/runfacts/runfacts/transport/metrics"
)

// Shutdown takes at most --drain and 5 s more, 10 s in all by default: event
// streams end within the first of these; owned runs finish within --drain, or are
// stopped behind it; the rest is for what is further in.
const (
	drainStreams = 4 * time.Second
	drainRuns    = 4 * time.Second // beyond --drain
)

// surveyTime is how long a start waits for the store, to learn its bounds.
const surveyTime = 3 * time.Second

// pushLeases is how many leases a pushed run may be silent, if nothing else is
// said: a producer waits for models and tools, or is a person who tries things
// out, and knows nothing of heartbeats.
const pushLeases = 40

// pushIdle is the least time that a push may be open without a byte.
const pushIdle = 30 * time.Second

// maxOpen is how many open runs one instance answers for, beside those that it
// adopts from a dead one: some MB of memory, and as many bytes of heartbeats in each
// seven leases.
const maxOpen = 10_000

type serveCmd struct {
	dataFlags
	logFlags
	rehearseFlags
	blobFlags
	Listen         string        `default:"127.0.0.1:8080" env:"RUNFACTS_LISTEN" help:"Address to listen on."`
	InsecureListen bool          `env:"RUNFACTS_INSECURE_LISTEN" help:"Listen beyond loopback although there is no authentication."`
	Eventstore     string        `env:"RUNFACTS_EVENTSTORE" placeholder:"esdb://…" help:"Connection string of an EventStoreDB; empty: the embedded node."`
	MaxAppend      int           `default:"1000000" env:"RUNFACTS_MAX_APPEND" help:"Bytes of one append; lower it with the cluster's MaxAppendSize."`
	StorePatience  time.Duration `default:"10s" env:"RUNFACTS_STORE_PATIENCE" help:"How long a request waits for the store before it answers 503."`
	Config         string        `env:"RUNFACTS_CONFIG" placeholder:"runfacts.yaml" help:"File that configures agents."`
	Demo           bool          `env:"RUNFACTS_DEMO" help:"Add an agent to look around with: demo_agent."`
	Lease          time.Duration `default:"15s" env:"RUNFACTS_LEASE" help:"An instance silent this long is taken for dead, and its runs are ended."`
	PushLease      time.Duration `env:"RUNFACTS_PUSH_LEASE" help:"A pushed run whose producers are silent this long is ended; 0: 40 leases."`
	Drain          time.Duration `default:"5s" env:"RUNFACTS_DRAIN" help:"How long owned runs may go on after SIGTERM."`
	MaxRuns        int           `default:"64" env:"RUNFACTS_MAX_RUNS" help:"Runs driven at once."`
	MaxQueue       int           `default:"256" env:"RUNFACTS_MAX_QUEUE" help:"Runs started that wait for their turn; beyond them a start is refused."`
	QueueTime      time.Duration `default:"1m" env:"RUNFACTS_QUEUE_TIME" help:"How long a run may wait for its turn."`
	InlineLimit    int           `default:"49152" env:"RUNFACTS_INLINE_LIMIT" help:"Bytes of a value that an event holds, as JSON; longer ones are kept beside it. More than the default may make lines of over 64 KiB."`
	MaxArtifact    int64         `default:"268435456" env:"RUNFACTS_MAX_ARTIFACT" help:"Bytes of one artifact."`
	KeepAlive      time.Duration `default:"15s" env:"RUNFACTS_KEEP_ALIVE" help:"An event stream without an event shows this often that it lives; less than any proxy's read timeout."`
	PublicURL      string        `name:"public-url" env:"RUNFACTS_PUBLIC_URL" placeholder:"https://…" help:"By which people reach this server through a proxy: on loopback no other name is answered."`
	CORSOrigin     []string      `name:"cors-origin" env:"RUNFACTS_CORS_ORIGIN" help:"Origins whose pages may read; repeat or separate by commas."`
	CORSWriter     []string      `name:"cors-origin-write" env:"RUNFACTS_CORS_ORIGIN_WRITE" help:"Origins whose pages may read, start runs, push, answer, cancel and erase."`
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
	switch _, err := c.rehearsal(); {
	case err != nil:
		faults = append(faults, err)
	case c.Rehearse != "" && (!c.Demo || c.Eventstore != ""):
		faults = append(faults, errors.New("--rehearse makes the embedded node lose and refuse things on purpose: it goes with --demo only, and without --eventstore"))
	}
	if c.StorePatience <= 0 {
		faults = append(faults, fmt.Errorf("--store-patience must be positive, not %s", c.StorePatience))
	}
	if c.Lease < 500*time.Millisecond {
		faults = append(faults, fmt.Errorf("--lease must be at least 500ms, not %s", c.Lease))
	}
	if c.PushLease != 0 && c.PushLease < c.Lease {
		faults = append(faults, fmt.Errorf("--push-lease must be 0 or at least the lease, not %s", c.PushLease))
	}
	if c.Drain < 0 {
		faults = append(faults, fmt.Errorf("--drain must not be negative, not %s", c.Drain))
	}
	if c.InlineLimit < 1024 {
		faults = append(faults, fmt.Errorf("--inline-limit must be at least 1024, not %d", c.InlineLimit))
	}
	if c.MaxArtifact < 1 {
		faults = append(faults, fmt.Errorf("--max-artifact must be positive, not %d", c.MaxArtifact))
	}
	if c.KeepAlive < time.Second {
		faults = append(faults, fmt.Errorf("--keep-alive must be at least 1s, not %s", c.KeepAlive))
	}
	faults = append(faults, c.origins()...)
	if c.MaxRuns < 1 || c.MaxQueue < 0 || c.QueueTime <= 0 {
		faults = append(faults, errors.New("--max-runs and --queue-time must be positive, --max-queue must not be negative"))
	}
	return errors.Join(faults...)
}

// origins brings what browsers are told by into their spelling.
func (c *serveCmd) origins() (faults []error) {
	parse := func(flag, text string) string {
		origin, err := api.ParseOrigin(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", flag, err))
		}
		return origin
	}
	for i, text := range c.CORSOrigin {
		c.CORSOrigin[i] = parse("--cors-origin", text)
	}
	for i, text := range c.CORSWriter {
		c.CORSWriter[i] = parse("--cors-origin-write", text)
	}
	if c.PublicURL != "" {
		c.PublicURL = parse("--public-url", strings.TrimSuffix(c.PublicURL, "/"))
	}
	return faults
}

// Run serves until ctx ends, or a part does: then with that part's error. What is further in outlives what is further out:
// the HTTP server ends first, then the writers and tails, then the store's
// client, then the embedded node.
func (c *serveCmd) Run(ctx context.Context, s streams) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	log := c.logger(s)
	agents, err := c.agents(ctx, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // closed by the HTTP server already, where that ran

	url := c.Eventstore
	if url == "" {
		rehearsal, err := c.rehearsal()
		if err != nil {
			return err
		}
		address := "unix:" + filepath.Join(c.DataDir, "socket") // nobody else's business
		if rehearsal != nil {
			address = "127.0.0.1:0" // what plays a cluster sends its clients to addresses
		}
		node, err := embedded.Open(embedded.Config{Addr: address, DataDir: c.store(), Log: log, Rehearse: rehearsal})
		if err != nil {
			return err
		}
		url = node.ConnectionString()
		defer supervise(&err, fail, part("the embedded node", node.Run))()
	}
	store, err := eventstore.Open(eventstore.Config{ConnectionString: url, MaxAppend: c.MaxAppend, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return c.serve(ctx, listener, store, agents, log)
}

// agents returns what is configured.
func (c *serveCmd) agents(ctx context.Context, log zerolog.Logger) (agents []supervisor.Agent, err error) {
	if c.Config != "" {
		if agents, err = readAgents(ctx, c.Config, c.MaxArtifact, log); err != nil {
			return nil, err
		}
	}
	if c.Demo && slices.ContainsFunc(agents, func(a supervisor.Agent) bool { return a.ID == demoID }) {
		return nil, fmt.Errorf("%s configures %s, which --demo adds", c.Config, demoID)
	}
	if c.Demo {
		demo, err := demoAgent(ctx, c.MaxArtifact, log)
		if err != nil {
			return nil, err
		}
		agents = append(agents, demo)
	}
	return agents, nil
}

// part names a long-running part of the process. None may end before it is told
// to, with an error or without: a process that lacks one would go on answering,
// and never serve.
func part(name string, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("it ended by itself")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

// supervise starts a part and returns the call that ends it and waits for it.
// When it fails, fail is told at once.
func supervise(into *error, fail context.CancelCauseFunc, part func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error {
		err := part(ctx)
		if err != nil {
			fail(err)
		}
		return err
	})
	return func() {
		cancel()
		*into = errors.Join(*into, g.Wait())
	}
}

func (c *serveCmd) serve(ctx context.Context, listener net.Listener, store *eventstore.Store, agents []supervisor.Agent, log zerolog.Logger) error {
	c.MaxAppend = c.bound(ctx, store)
	inline := min(c.InlineLimit, c.MaxAppend/4) // an event holds several
	kept, err := blobfolder.Open(c.blobs(c.dataFlags))
	if err != nil {
		return err
	}
	instance := newName("instance_")
	log = log.With().Str("instance", instance).Logger()
	m := metrics.New()
	blobs := &watchedBlobs{Store: kept, most: c.MaxArtifact, metrics: m, log: log}
	seen := &observer{metrics: m, log: log}
	leases := lease.New(lease.Config{
		Side: store, Instance: instance, Lease: c.Lease, PushLease: c.pushLease(),
		Most: maxOpen, MaxAppend: c.MaxAppend, Now: time.Now, Observer: seen,
	})
	work := record.NewRuns(record.Config{Ledger: store, MaxAppend: c.MaxAppend, Now: time.Now, Nonce: nonce, Watcher: leases, Observer: seen})
	owner := supervisor.New(supervisor.Config{
		Runs: work, Reader: store, Follower: store, Side: store, Watch: leases, Observer: seen, Agents: agents, Instance: instance,
		Blobs: blobs, Inline: inline,
		MaxRuns: c.MaxRuns, MaxQueue: c.MaxQueue, QueueTime: c.QueueTime,
	})
	m.Own(owner.Counts, leases.Holds)
	m.Tend(store.Untended)
	tails := tail.New(store, api.AppendFrame)
	watch := &watch{store: store, metrics: m, log: log}
	server, err := api.New(api.Config{
		Runs: work, Supervisor: owner, Blobs: blobs, Inline: inline, MaxArtifact: c.MaxArtifact, Reader: store, Tails: tails, Metrics: m, Log: log, NewID: func() runs.ID { return runs.ID(newName("run_")) },
		Ready: watch.ready, Patience: c.StorePatience, KeepAlive: c.KeepAlive, PushIdle: max(c.pushLease(), pushIdle),
		AnyHost: !loopback(listener.Addr().String()), PublicOrigin: c.PublicURL, CORSOrigins: c.CORSOrigin, CORSWriters: c.CORSWriter,
	})
	if err != nil {
		return err
	}
	web := &http.Server{
		Handler:           server.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          plain(log),
	}

	inner, stop := context.WithCancel(context.Background())
	defer stop()
	parts, inner := errgroup.WithContext(inner)
	for name, run := range map[string]func(context.Context) error{
		"the writers": work.Run, "the viewers": tails.Run, "the supervisor": owner.Run, "the watch over the store": watch.Run,
		"the leases": func(ctx context.Context) error { return leases.Run(ctx, owner) },
	} {
		parts.Go(func() error { return part(name, run)(inner) })
	}
	parts.Go(func() error {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("the HTTP server: %w", err)
		}
		return nil
	})
	log.Info().Str("url", "http://"+listener.Addr().String()).Bool("embedded", c.Eventstore == "").Msg("serving")

	select {
	case <-ctx.Done():
	case <-inner.Done(): // a part has failed
	}
	if err := errors.Join(failure(ctx), failure(inner)); err != nil {
		log.Error().Err(err).Msg("stopping, since a part has failed")
	} else {
		log.Info().Msg("stopping")
	}
	server.Drain(drainStreams)
	bound, cancel := context.WithTimeout(context.Background(), c.Drain+drainRuns)
	defer cancel()
	var drained errgroup.Group
	drained.Go(func() error {
		owner.Drain(bound, c.Drain)
		return nil
	})
	if err := web.Shutdown(bound); err != nil {
		log.Warn().Err(err).Msg("requests cut")
		_ = web.Close() // what it could say, Shutdown has said
	}
	_ = drained.Wait() // it has no error
	stop()
	return parts.Wait()
}

// failure is why a context was ended; nil: it was not, or by who made it.
func failure(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// bound is how much one append may have: what was asked for, or less where the
// store takes less. A store that is away is not waited for; if it turns out to
// take less, what is too large for it is refused.
func (c *serveCmd) bound(ctx context.Context, store *eventstore.Store) int {
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	if seen, err := store.Survey(ctx); err == nil {
		return seen.MaxAppend
	}
	return c.MaxAppend
}

// pushLease is how long a pushed run may be silent.
func (c *serveCmd) pushLease() time.Duration {
	if c.PushLease == 0 {
		return pushLeases * c.Lease
	}
	return c.PushLease
}

// nonce makes each append one of its kind: 128 random bits.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// newName names a run that came without a name, or this process. Version 7 keeps
// the names of one day together in an operator's listing.
func newName(prefix string) string {
	id := uuid.Must(uuid.NewV7())
	return prefix + hex.EncodeToString(id[:])
}
