package eventstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// errGap: the subscription passed over an event.
var errGap = errors.New("an event is missing in the subscription")

// finalError is one that a new subscription would not mend.
type finalError struct{ error }

// Follow implements ledger.Follower.
func (s *Store) Follow(ctx context.Context, id run.ID, after run.Seq, deliver func(run.Event) error) error {
	gone := func(last run.Seq) error {
		// Gone from the store, or only from the subscription?
		_, err := s.Read(ctx, id, last, ledger.Page{Events: 1, Bytes: 1})
		var truncated *ledger.TruncatedError
		if errors.As(err, &truncated) {
			return err
		}
		return nil
	}
	return s.follow(ctx, id.Stream(), after, gone, func(one run.Stored) error {
		e, err := decode(id, one)
		if err != nil {
			return err
		}
		return deliver(e)
	})
}

// follow is Follow for any stream. Where the subscription passes over an event
// it asks gone, whose error ends it; a stream that may have gaps has none.
func (s *Store) follow(ctx context.Context, stream string, after run.Seq, gone func(last run.Seq) error, deliver func(run.Stored) error) error {
	last := after
	for attempt := 0; ; attempt++ {
		before := last
		err := s.subscription(ctx, stream, &last, gone != nil, deliver)
		var final finalError
		if errors.As(err, &final) {
			return final.error
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, errGap) {
			if err := gone(last); err != nil {
				return err
			}
		}
		if last != before {
			attempt = 0
		}
		s.log.Debug().Err(err).Str("stream", stream).Uint64("seq", uint64(last)).Msg("subscription dropped")
		if !pause(ctx, attempt) {
			return ctx.Err()
		}
	}
}

// pause waits before another try, longer each time and never the same for all:
// after an outage everybody comes back.
func pause(ctx context.Context, attempt int) bool {
	most := min(100*time.Millisecond<<min(attempt, 4), time.Second)
	timer := time.NewTimer(most/2 + rand.N(most/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// subscription follows until the subscription drops, and moves last along.
// Whole: a gap is an error.
func (s *Store) subscription(ctx context.Context, stream string, last *run.Seq, whole bool, deliver func(run.Stored) error) error {
	c, leave := s.subs.join()
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := s.subscribe(ctx, cancel, c, stream, *last)
	if err != nil {
		if faultOf(err) == deleted {
			return finalError{ledger.ErrErased}
		}
		return err
	}
	defer sub.close()
	for {
		news, err := guard(func() (*esdb.SubscriptionEvent, error) { return sub.Recv(), nil })
		switch {
		case err != nil:
			return err
		case news.SubscriptionDropped != nil:
			return sub.dropped(news.SubscriptionDropped.Error)
		case news.EventAppeared == nil || news.EventAppeared.OriginalEvent() == nil:
			continue
		}
		original := news.EventAppeared.OriginalEvent()
		if original.EventType == tombstone {
			return finalError{ledger.ErrErased}
		}
		one := stored(original)
		switch {
		case one.Seq <= *last:
			continue
		case whole && one.Seq != *last+1:
			return errGap
		}
		if err := deliver(one); err != nil {
			return finalError{err}
		}
		*last = one.Seq
	}
}

// tombstone is the type of the event that ends a stream for ever.
const tombstone = "$streamDeleted"

// subscription is the client's, with the session that it lives on.
type subscription struct {
	*esdb.Subscription
	conn    *conn
	session *session
}

func (s *subscription) close() {
	// Close only ends the call and has no error to tell.
	_ = s.Close()
	s.conn.release(s.session)
}

// dropped says what a drop means; the client does not reconnect after one.
func (s *subscription) dropped(err error) error {
	switch faultOf(err) {
	case deleted:
		return finalError{ledger.ErrErased}
	case away:
		s.conn.discard(s.session)
	}
	return err
}

// subscribe opens a subscription behind seq last. cancel ends its context: a
// confirmation that does not come would be waited for without end.
func (s *Store) subscribe(ctx context.Context, cancel func(), c *conn, stream string, last run.Seq) (*subscription, error) {
	options := esdb.SubscribeToStreamOptions{From: esdb.Start{}}
	if last > 0 {
		options.From = esdb.Revision(uint64(last) - 1)
	}
	late := time.AfterFunc(confirmTime, cancel)
	defer late.Stop()
	held, err := c.acquire(ctx)
	if err != nil {
		return nil, &notSentError{err}
	}
	sub, err := call(ctx, c, func(client *esdb.Client) (*esdb.Subscription, error) {
		return client.SubscribeToStream(ctx, stream, options)
	}, func(sub *esdb.Subscription) { _ = sub.Close() })
	if err != nil {
		c.release(held)
		return nil, err
	}
	return &subscription{sub, c, held}, nil
}
