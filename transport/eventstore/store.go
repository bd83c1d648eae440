package eventstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc/metadata"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Bounds of calls to the store. A leader that is frozen is found out by them,
// and another one leads after a second or two.
const (
	appendTime  = 2500 * time.Millisecond // until its outcome counts as unknown
	readTime    = 2500 * time.Millisecond
	confirmTime = 2500 * time.Millisecond // until a subscription must be confirmed
	pingTime    = 1500 * time.Millisecond // until the store counts as silent
	doubtTime   = time.Second             // until a connection that is doubted must answer
	closeTime   = time.Second

	// maxReads is how many reads run at once; a server takes a hundred calls
	// on a connection. The others wait.
	maxReads = 64
)

// The client's discovery ignores contexts and blocks who waits for it, so it
// is kept short; who needs the store dials again.
const (
	discoverAttempts = 1
	gossipSeconds    = 2
)

// Config is where the store is.
type Config struct {
	ConnectionString string // esdb:// or esdb+discover://, TLS and credentials are the user's; or unix:PATH, an embedded node's socket
	MaxAppend        int    // bytes of one append that are wished for; 0: a million
	Log              zerolog.Logger
}

// Store is the ledger on EventStoreDB. Safe for concurrent use.
type Store struct {
	config  Config
	log     zerolog.Logger
	target  target
	appends *conn
	reads   *conn
	reading chan struct{} // holds a token for each read under way
	subs    *pool
	ends    ends
	gates   gates
	bounds  sync.Map // of side streams, by name: how many notes they keep

	untended atomic.Int64 // what was to keep a side stream small and was refused

	leads   atomic.Pointer[string] // the leader that a follower has named to us; nil: none has
	bound   atomic.Int64           // bytes that one append may have
	setBack atomic.Int64           // when the store was last found set back, in Unix nanoseconds; 0: never
}

var _ ledger.Ledger = (*Store)(nil)

// Open reads the connection string; it does not connect. Errors never quote
// the string, which may hold a password.
func Open(c Config) (*Store, error) {
	if c.MaxAppend == 0 {
		c.MaxAppend = 1_000_000
	}
	at, err := parseTarget(c.ConnectionString)
	if err != nil {
		return nil, err
	}
	s := &Store{
		config: c, log: c.Log, target: at, reading: make(chan struct{}, maxReads),
		ends: ends{known: make(map[string]run.Seq)}, gates: gates{log: c.Log, shut: make(map[string]*gate)},
	}
	s.bound.Store(int64(c.MaxAppend))
	s.appends = newConn(s.dialer(true), s.doubt, false)
	s.reads = newConn(s.dialer(true), s.doubt, false)
	s.subs = newPool(s.dialer(false))
	return s, nil
}

// dialer makes clients. What is written, and what decides, is asked of the
// leader, whatever the connection string prefers; subscriptions may be fed by
// anybody.
func (s *Store) dialer(leader bool) func(follow bool) (*esdb.Client, error) {
	return func(follow bool) (*esdb.Client, error) {
		// Parsed for each client, since it keeps what it is given, and since
		// certificates are files that come and go.
		config, err := s.target.configuration()
		if err != nil {
			return nil, err
		}
		if leader {
			config.NodePreference = esdb.NodePreferenceLeader
		}
		if follow && leader && !s.target.many {
			ctx, cancel := context.WithTimeout(context.Background(), gossipSeconds*time.Second)
			defer cancel()
			seen, err := identity(ctx, config, config.Address)
			if err == nil && seen.Leader != "" && seen.Leader != config.Address && (seen.follows || s.appends.wasSentAway() || s.reads.wasSentAway()) {
				config.Address = seen.Leader
				s.leads.Store(&seen.Leader)
			}
		}
		config.MaxDiscoverAttempts = discoverAttempts
		config.GossipTimeout = gossipSeconds
		config.Logger = func(level esdb.LogLevel, format string, args ...any) {
			s.log.Debug().Str("client", level).Msgf(format, args...)
		}
		return esdb.NewClient(config)
	}
}

// doubt asks the connections of subscriptions whether they live, since a call on
// another one was not answered: nothing comes over a dead one, and nothing tells.
func (s *Store) doubt() { s.subs.check() }

// Close ends the connections. Callers must have ended before; calls that hang
// inside the client are left behind after a moment.
func (s *Store) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return errors.Join(s.appends.close(ctx), s.reads.close(ctx), s.subs.close(ctx))
}

// nobody is a run that cannot be started: the id is too long. What is asked of
// its stream tells of the store, and changes nothing.
const nobody run.ID = "runfacts_is_anybody_there_0123456789012345678901234567890123456789"

// Ping returns nil if the store answers; else why not, in words.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.readWithin(ctx, pingTime, nobody.Stream(), esdb.ReadStreamOptions{
		Direction: esdb.Backwards, From: esdb.End{}, RequiresLeader: true,
	}, ledger.Page{Events: 1, Bytes: 1})
	if err != nil && faultOf(err) != notFound {
		return s.inWords(err)
	}
	return nil
}

// MaxAppend is how many bytes one append may have: data, metadata and two a
// character of the type, of all its events.
func (s *Store) MaxAppend() int { return int(s.bound.Load()) }

// atLeader makes a follower refuse what only the leader knows. The client has
// an option for it that it never sends.
func atLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "requires-leader", "true")
}

// append is an append to any stream, at the leader, within appendTime.
func (s *Store) append(ctx context.Context, stream string, at esdb.ExpectedRevision, events ...esdb.EventData) (*esdb.WriteResult, error) {
	return gated(&s.gates, right{write, stream}, func() (*esdb.WriteResult, error) {
		return call(atLeader(ctx), s.appends, appendTime, func(ctx context.Context, c *esdb.Client) (*esdb.WriteResult, error) {
			return c.AppendToStream(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: at}, events...)
		}, nil)
	})
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
	result, err := s.append(ctx, id.Stream(), expected(after), data...)
	if faultOf(err) == cut && len(events) > 1 {
		// The server ended the call before it had all of it, and the client has
		// lost its reason, which does not depend on how many events there are.
		if _, reason := s.append(ctx, id.Stream(), expected(ledger.Impossible), data[0]); faultOf(reason) == forbidden || faultOf(reason) == unauthenticated {
			err = reason
		}
	}
	end := after + run.Seq(len(events))
	switch {
	case err != nil:
		if faultOf(err) == conflicted {
			s.ends.raise(id.Stream(), currentOf(err))
		}
		return appendError(id, after, err)
	case run.Seq(result.NextExpectedVersion)+1 != end:
		return s.undo(ctx, id, run.Seq(result.NextExpectedVersion)+1)
	}
	s.ends.raise(id.Stream(), end)
	return nil
}

// undo ends a stream that took an append somewhere else than asked: it had been
// deleted by hand, and its numbers go on. What stands there now has no beginning.
func (s *Store) undo(ctx context.Context, id run.ID, last run.Seq) error {
	s.log.Warn().Str("run_id", string(id)).Uint64("seq", uint64(last)).
		Msg("the stream of this run had been deleted on the store, which numbers on: tombstoned")
	err := s.Erase(ctx, id, last)
	var moved *ledger.ConflictError
	if errors.As(err, &moved) { // another one appended behind it
		err = s.Erase(ctx, id, moved.Current)
	}
	if err != nil && !errors.Is(err, ledger.ErrErased) {
		return err
	}
	return ledger.ErrDeleted
}

// Erase implements ledger.Appender.
func (s *Store) Erase(ctx context.Context, id run.ID, last run.Seq) error {
	_, err := gated(&s.gates, right{remove, id.Stream()}, func() (*esdb.DeleteResult, error) {
		return call(atLeader(ctx), s.appends, appendTime, func(ctx context.Context, c *esdb.Client) (*esdb.DeleteResult, error) {
			return c.TombstoneStream(ctx, id.Stream(), esdb.TombstoneStreamOptions{ExpectedRevision: expected(last)})
		}, nil)
	})
	if err != nil {
		if faultOf(err) == conflicted {
			s.ends.raise(id.Stream(), currentOf(err))
		}
		return appendError(id, last, fmt.Errorf("erase: %w", err))
	}
	s.ends.forget(id.Stream())
	return nil
}

// expected is the revision of the event at seq after.
func expected(after run.Seq) esdb.ExpectedRevision {
	if after == 0 {
		return esdb.NoStream{}
	}
	return esdb.Revision(uint64(after) - 1)
}

// notice says once in a while that the store was set back: each run that meets
// it finds out by itself.
func (s *Store) notice(err *ledger.SetBackError) {
	const once = int64(time.Minute)
	now, before := time.Now().UnixNano(), s.setBack.Load()
	if (before == 0 || now-before > once) && s.setBack.CompareAndSwap(before, now) {
		s.log.Error().Err(err).Msg("the store was set back: it ends before what it had acknowledged")
	}
}
