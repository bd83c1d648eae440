package eventstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
)

// errClosed: the store was closed by its owner.
var errClosed = errors.New("the store's client is closed")

// errBroken: the connection broke under a call.
var errBroken = errors.New("the connection to the store broke")

// lateError: the store did not answer within our own deadline.
type lateError struct{ after time.Duration }

func (e lateError) Error() string   { return fmt.Sprintf("the store did not answer within %s", e.after) }
func (e lateError) Is(t error) bool { return t == context.DeadlineExceeded }

// Dialing that failed is tried again after a time that doubles up to the most;
// a store that is back is found within that.
const (
	redialFirst = 100 * time.Millisecond
	redialMost  = time.Second
)

// redirects is how often a call follows a node that names the leader.
const redirects = 3

// conn is one connection to the store that outlives its clients. Safe for
// concurrent use.
type conn struct {
	dial  func(follow bool) (*esdb.Client, error) // follow: to where the node says that the leader is
	doubt func()                                  // called when a call was not answered: other connections may be dead too
	frail bool                                    // a call that was not answered breaks the session for everybody on it

	mu      sync.Mutex
	current *session      // nil: not connected
	dialing chan struct{} // closed when the dialing under way is over; nil: none is
	refusal error         // why the last dialing failed
	failed  int           // dialings in a row that did
	next    time.Time     // no dialing before
	away    bool          // the node that was dialed has sent us to the leader
	met     bool          // there has been a session
	closed  bool
	calls   sync.WaitGroup // dialing and calls
	closing chan struct{}
}

func newConn(dial func(follow bool) (*esdb.Client, error), doubt func(), frail bool) *conn {
	return &conn{dial: dial, doubt: doubt, frail: frail, closing: make(chan struct{})}
}

// BUG(eventstore): A call that got its session just before another call found
// the connection broken makes the client connect anew by itself, and the client
// then forgets to close the broken connection. It stays idle, with some 20 kB,
// until the process ends: 24 of them were left by 600 cuts under load.

// session is one client and who uses it. A client may only be closed once
// nobody does, since it would panic.
type session struct {
	client *esdb.Client
	users  int
	stale  bool
	broken chan struct{} // closed when nothing on it will be answered any more
}

// acquire returns a session, dialing if there is none. Each must be released.
// Only one caller ever waits inside a client's discovery: where it fails, the
// others would hang there.
func (c *conn) acquire(ctx context.Context) (*session, error) {
	c.mu.Lock()
	for c.current == nil {
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed
		}
		if c.dialing == nil {
			c.dialing = make(chan struct{})
			c.calls.Go(c.connect)
		}
		dialing, known := c.dialing, c.refusal
		c.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
			if known != nil { // says more than that time has passed
				return nil, known
			}
			return nil, ctx.Err()
		}
		c.mu.Lock()
		if c.current == nil && c.refusal != nil {
			defer c.mu.Unlock()
			return nil, c.refusal
		}
	}
	defer c.mu.Unlock()
	c.current.users++
	return c.current, nil
}

// connect dials once, when it is time. The client connects with its first call.
func (c *conn) connect() {
	c.mu.Lock()
	wait, follow := time.Until(c.next), c.away || !c.met
	c.mu.Unlock()
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closing:
		}
	}
	client, err := c.dial(follow)
	if err == nil {
		if _, err = client.GetServerVersion(); err != nil {
			client.Close()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.dialing)
	c.dialing, c.refusal = nil, err
	switch {
	case err != nil:
		most := min(redialFirst<<min(c.failed, 10), redialMost)
		c.failed++
		c.next = time.Now().Add(most/2 + rand.N(most/2))
	case c.closed:
		client.Close()
	default:
		c.failed, c.met = 0, true
		c.current = &session{client: client, broken: make(chan struct{})}
	}
}

// trouble is why there is no connection; nil: there is one, or none was wanted.
func (c *conn) trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		return nil
	}
	return c.refusal
}

func (c *conn) release(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.users--
	if s.stale && s.users == 0 {
		s.client.Close()
	}
}

// discard makes the next caller dial anew. Who uses the session still may go
// on, unless it is broken: then everybody on it is told at once.
func (c *conn) discard(s *session, broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if broken {
		select {
		case <-s.broken:
		default:
			close(s.broken)
		}
	}
	if s.stale {
		return
	}
	if c.current == s {
		c.current = nil
	}
	s.stale = true
	if s.users == 0 {
		s.client.Close()
	}
}

// sentAway makes the next caller dial the leader. The client does so by itself
// too, but where that fails it forgets to close what it has opened.
func (c *conn) sentAway(s *session) {
	c.mu.Lock()
	c.away = true
	c.mu.Unlock()
	c.discard(s, false)
}

func (c *conn) wasSentAway() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away
}

// close ends the connection and waits for its calls, as long as ctx allows.
func (c *conn) close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		close(c.closing)
	}
	c.closed = true
	s := c.current
	c.mu.Unlock()
	if s != nil {
		c.discard(s, false)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.calls.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("calls to the store are still under way")
	}
}

// call runs f on a session and returns its result, or an error as soon as ctx
// ends, the limit is over or the connection breaks: discovery inside the client
// ignores all three. What f still brings then is dropped. A call that ran into
// the limit (0: it has none) gives its session up, since nothing tells a store
// that is slow from one that is dead: the next call dials anew. A node that
// names the leader is followed.
func call[T any](ctx context.Context, c *conn, limit time.Duration, f func(context.Context, *esdb.Client) (T, error), drop func(T)) (T, error) {
	own := ctx
	if limit > 0 {
		var cancel func()
		own, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for redirected := 0; ; redirected++ {
		value, err := try(own, c, f, drop)
		switch {
		case err == nil:
		case faultOf(err) == elsewhere && redirected < redirects && pause(own, redirected):
			continue
		case own.Err() != nil && ctx.Err() == nil && c.doubt != nil:
			c.doubt()
		}
		if err != nil && own.Err() != nil && ctx.Err() == nil && faultOf(err) == late {
			err = lateError{limit}
		}
		return value, err
	}
}

// try is call without a second try. ctx ends with the limit.
func try[T any](ctx context.Context, c *conn, f func(context.Context, *esdb.Client) (T, error), drop func(T)) (T, error) {
	var none T
	s, err := c.acquire(ctx)
	if err != nil {
		return none, &notSentError{err}
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	c.calls.Go(func() {
		defer c.release(s)
		value, err := guard(func() (T, error) { return f(ctx, s.client) })
		switch faultOf(err) {
		case away:
			c.discard(s, true)
		case elsewhere:
			c.sentAway(s)
		}
		done <- result{value, err}
	})
	leave := func(err error) (T, error) {
		if drop != nil {
			c.calls.Go(func() {
				if r := <-done; r.err == nil {
					drop(r.value)
				}
			})
		}
		return none, err
	}
	select {
	case r := <-done:
		if r.err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.discard(s, c.frail)
		}
		return r.value, r.err
	case <-s.broken:
		select {
		case r := <-done: // it is this call that found out
			return r.value, r.err
		default:
		}
		return leave(errBroken)
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.discard(s, c.frail)
		}
		return leave(ctx.Err())
	}
}

// guard turns the client's panics on answers that it does not know into errors.
func guard[T any](f func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the store's client gave up: %v", p)
		}
	}()
	return f()
}

// notSentError: there was no connection, so nothing was asked.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return "no connection: " + e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }
