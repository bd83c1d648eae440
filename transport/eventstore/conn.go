package eventstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
)

// errClosed: the store was closed by its owner.
var errClosed = errors.New("the store's client is closed")

// conn is one connection to the store that outlives its clients. Safe for
// concurrent use.
type conn struct {
	dial func() (*esdb.Client, error)

	mu      sync.Mutex
	current *session      // nil: not connected
	dialing chan struct{} // closed when the dialing under way is over; nil: none is
	refusal error         // why the last dialing failed
	closed  bool
	calls   sync.WaitGroup // dialing and calls
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
		dialing := c.dialing
		c.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
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

// connect dials once. The client connects with its first call.
func (c *conn) connect() {
	client, err := c.dial()
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
	case c.closed:
		client.Close()
	default:
		c.current = &session{client: client}
	}
}

func (c *conn) release(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.users--
	if s.stale && s.users == 0 {
		s.client.Close()
	}
}

// discard makes the next caller dial anew. Who uses the session still may go on.
func (c *conn) discard(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// close ends the connection and waits for its calls, as long as ctx allows.
func (c *conn) close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	s := c.current
	c.mu.Unlock()
	if s != nil {
		c.discard(s)
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

// call runs f on a session and returns its result, or ctx's error as soon as
// ctx ends: discovery inside the client ignores it. What f still brings then is
// dropped.
func call[T any](ctx context.Context, c *conn, f func(*esdb.Client) (T, error), drop func(T)) (T, error) {
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
		value, err := guard(func() (T, error) { return f(s.client) })
		if lost(err) {
			c.discard(s)
		}
		done <- result{value, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		if drop != nil {
			c.calls.Go(func() {
				if r := <-done; r.err == nil {
					drop(r.value)
				}
			})
		}
		return none, ctx.Err()
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
