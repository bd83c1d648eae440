package eventstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc/metadata"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Bounds of calls to the store.
const (
	appendTime  = 10 * time.Second // until its outcome counts as unknown
	readTime    = 10 * time.Second
	confirmTime = 10 * time.Second // until a subscription must be confirmed
	closeTime   = time.Second

	// maxReads is how many reads run at once; a server takes a hundred calls
	// on a connection. The others wait.
	maxReads = 64
)

// The client's discovery ignores contexts and blocks who waits for it, so it
// is kept short; who needs the store dials again.
const (
	discoverAttempts = 3
	gossipSeconds    = 2
)

// Config is where the store is.
type Config struct {
	ConnectionString string // esdb:// or esdb+discover://; TLS and credentials are the user's
	Log              zerolog.Logger
}

// Store is the ledger on EventStoreDB. Safe for concurrent use.
type Store struct {
	log     zerolog.Logger
	appends *conn
	reads   *conn
	reading chan struct{} // holds a token for each read under way
	subs    *pool
}

var _ ledger.Ledger = (*Store)(nil)

// Open reads the connection string; it does not connect. Errors never quote
// the string, which may hold a password.
func Open(c Config) (*Store, error) {
	// Parsed once here for its errors, and again for each client: the client
	// keeps what it is given.
	if _, err := esdb.ParseConnectionString(c.ConnectionString); err != nil {
		return nil, errors.New("the EventStoreDB connection string cannot be read (esdb://host:port?tls=false, for instance)")
	}
	dial := func() (*esdb.Client, error) {
		config, err := esdb.ParseConnectionString(c.ConnectionString)
		if err != nil {
			return nil, err
		}
		config.MaxDiscoverAttempts = discoverAttempts
		config.GossipTimeout = gossipSeconds
		config.Logger = func(level esdb.LogLevel, format string, args ...any) {
			c.Log.Debug().Str("client", level).Msgf(format, args...)
		}
		return esdb.NewClient(config)
	}
	return &Store{
		log: c.Log, appends: &conn{dial: dial}, reads: &conn{dial: dial},
		reading: make(chan struct{}, maxReads), subs: &pool{dial: dial},
	}, nil
}

// Close ends the connections. Callers must have ended before; calls that hang
// inside the client are left behind after a moment.
func (s *Store) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return errors.Join(s.appends.close(ctx), s.reads.close(ctx), s.subs.close(ctx))
}

// Ping returns nil if the store answers.
func (s *Store) Ping(ctx context.Context) error {
	// A run of this name cannot be started: the id is too long.
	const nobody = "runfacts_is_anybody_there_0123456789012345678901234567890123456789"
	if _, err := s.Last(ctx, nobody); !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	return nil
}

// atLeader makes a follower refuse what only the leader knows. The client has
// an option for it that it never sends.
func atLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "requires-leader", "true")
}

// Append implements ledger.Appender.
func (s *Store) Append(ctx context.Context, id run.ID, after run.Seq, events []run.Event) error {
	if len(events) == 0 {
		return &ledger.RefusedError{Run: id, Err: errors.New("an append has at least one event")}
	}
	data := make([]esdb.EventData, len(events))
	for i := range events {
		e := &events[i]
		data[i] = esdb.EventData{
			EventID: uuid.UUID(e.EventID()), EventType: e.Type, ContentType: esdb.ContentTypeJson,
			Data: e.Payload, Metadata: e.Metadata(),
		}
	}
	options := esdb.AppendToStreamOptions{ExpectedRevision: expected(after)}
	ctx, cancel := context.WithTimeout(atLeader(ctx), appendTime)
	defer cancel()
	_, err := call(ctx, s.appends, func(c *esdb.Client) (*esdb.WriteResult, error) {
		return c.AppendToStream(ctx, id.Stream(), options, data...)
	}, nil)
	return appendError(id, after, err)
}

// Erase implements ledger.Appender.
func (s *Store) Erase(ctx context.Context, id run.ID, last run.Seq) error {
	options := esdb.TombstoneStreamOptions{ExpectedRevision: expected(last)}
	ctx, cancel := context.WithTimeout(atLeader(ctx), appendTime)
	defer cancel()
	_, err := call(ctx, s.appends, func(c *esdb.Client) (*esdb.DeleteResult, error) {
		return c.TombstoneStream(ctx, id.Stream(), options)
	}, nil)
	if err != nil {
		err = fmt.Errorf("erase: %w", err)
	}
	return appendError(id, last, err)
}

// expected is the revision of the event at seq after.
func expected(after run.Seq) esdb.ExpectedRevision {
	if after == 0 {
		return esdb.NoStream{}
	}
	return esdb.Revision(uint64(after) - 1)
}
