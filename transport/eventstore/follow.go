package eventstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// silent is after how long without an event a subscription is compared with its
// stream's end: they are known to fall silent, and a stream that somebody
// deletes says nothing at all.
const silent = 15 * time.Second

var (
	errGap    = errors.New("an event is missing in the subscription")
	errSilent = errors.New("the subscription fell silent")
)

// finalError is one that a new subscription would not mend.
type finalError struct{ error }

// check tells what is wrong with a subscription that has brought nothing behind
// last for a while: nil, errSilent, or a final error.
type check func(ctx context.Context, last run.Seq) error

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
	look := func(ctx context.Context, last run.Seq) error {
		s.ends.raise(id.Stream(), last)
		end, err := s.Last(ctx, id)
		var away *ledger.UnavailableError
		switch {
		case err == nil && end.Seq > last:
			return errSilent
		case err == nil, errors.As(err, &away), errors.Is(err, ledger.ErrNotFound) && last == 0:
			return nil // as it should be, or to be seen another time
		}
		return finalError{err}
	}
	return s.follow(ctx, id.Stream(), after, gone, look, func(one run.Stored) error {
		e, err := decode(id, one)
		if err != nil {
			return err
		}
		return deliver(e)
	})
}

// follow is Follow for any stream. Where the subscription passes over an event
// it asks gone, whose error ends it; a stream that may have gaps has none.
func (s *Store) follow(ctx context.Context, stream string, after run.Seq, gone func(last run.Seq) error, look check, deliver func(run.Stored) error) error {
	last := after
	for attempt := 0; ; attempt++ {
		before := last
		err := s.subscription(ctx, stream, &last, gone != nil, look, deliver)
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
	return pauseFor(ctx, most/2+rand.N(most/2))
}

func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
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
func (s *Store) subscription(ctx context.Context, stream string, last *run.Seq, whole bool, look check, deliver func(run.Stored) error) error {
	c, leave := s.subs.join()
	defer leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sub, err := s.subscribe(ctx, cancel, c, stream, *last)
	if err != nil {
		if faultOf(err) == deleted {
			return finalError{ledger.ErrErased}
		}
		return s.gates.note(right{read, stream}, err)
	}
	defer sub.close()
	var at atomic.Uint64
	at.Store(uint64(*last))
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer cancel(nil)
	watcher.Go(func() { sub.watch(ctx, cancel, &at, look) })
	for {
		news, err := guard(func() (*esdb.SubscriptionEvent, error) { return sub.Recv(), nil })
		switch {
		case err != nil:
			return err
		case news.SubscriptionDropped != nil:
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				return cause
			}
			return sub.dropped(news.SubscriptionDropped.Error)
		case news.EventAppeared == nil || news.EventAppeared.OriginalEvent() == nil:
			continue // hints, which say nothing certain
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
		at.Store(uint64(one.Seq))
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

// watch ends the subscription when its connection turns out to be dead, or when
// its stream is not what it was although the subscription says nothing.
func (s *subscription) watch(ctx context.Context, cancel context.CancelCauseFunc, at *atomic.Uint64, look check) {
	tick := time.NewTicker(silent)
	defer tick.Stop()
	for seen := at.Load(); ; {
		select {
		case <-ctx.Done():
			return
		case <-s.session.broken:
			cancel(errBroken)
			return
		case <-tick.C:
		}
		if now := at.Load(); now != seen {
			seen = now
			continue
		}
		err := look(ctx, run.Seq(seen))
		if err != nil && at.Load() == seen {
			cancel(err)
			return
		}
	}
}

// dropped says what a drop means; the client does not reconnect after one.
func (s *subscription) dropped(err error) error {
	switch faultOf(err) {
	case deleted:
		return finalError{ledger.ErrErased}
	case away:
		s.conn.discard(s.session, true)
	}
	return err
}

// subscribe opens a subscription behind seq last. cancel ends its context: a
// confirmation that does not come would be waited for without end.
func (s *Store) subscribe(ctx context.Context, cancel context.CancelCauseFunc, c *conn, stream string, last run.Seq) (*subscription, error) {
	if err := s.gates.closed(right{read, stream}); err != nil {
		return nil, err
	}
	options := esdb.SubscribeToStreamOptions{From: esdb.Start{}}
	if last > 0 {
		options.From = esdb.Revision(uint64(last) - 1)
	}
	late := time.AfterFunc(confirmTime, func() { cancel(lateError{confirmTime}) })
	defer late.Stop()
	held, err := c.acquire(ctx)
	if err != nil {
		return nil, &notSentError{err}
	}
	sub, err := call(ctx, c, 0, func(ctx context.Context, client *esdb.Client) (*esdb.Subscription, error) {
		return client.SubscribeToStream(ctx, stream, options)
	}, func(sub *esdb.Subscription) { _ = sub.Close() })
	if err != nil {
		if ctx.Err() != nil { // no confirmation came: nothing else will either
			c.discard(held, true)
		}
		c.release(held)
		return nil, err
	}
	return &subscription{sub, c, held}, nil
}
