package eventstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
)

// maxSubscriptions is how many subscriptions share a connection: a server
// takes a hundred calls on each, and a call beyond that hangs.
const maxSubscriptions = 90

// pool holds as many connections as the subscriptions need. Safe for
// concurrent use.
type pool struct {
	dial func(follow bool) (*esdb.Client, error)

	mu    sync.Mutex
	lines []*line
}

func newPool(dial func(follow bool) (*esdb.Client, error)) *pool { return &pool{dial: dial} }

// line is one connection and how many subscriptions it carries.
type line struct {
	*conn
	carries  int
	checking atomic.Bool
}

// join returns a connection with room for a subscription, and the call that
// gives its place back.
func (p *pool) join() (c *conn, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var free *line
	for _, l := range p.lines {
		if l.carries < maxSubscriptions {
			free = l
			break
		}
	}
	if free == nil {
		free = &line{conn: newConn(p.dial, nil, true)}
		p.lines = append(p.lines, free)
	}
	free.carries++
	return free.conn, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		free.carries--
	}
}

// check asks each connection that carries something whether it lives; one that
// does not answer breaks for all it carries. It returns at once.
func (p *pool) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if l.carries == 0 || !l.checking.CompareAndSwap(false, true) {
			continue
		}
		l.calls.Go(func() {
			defer l.checking.Store(false)
			// Only whether an answer comes counts, not which one.
			_, _ = call(context.Background(), l.conn, doubtTime, func(ctx context.Context, c *esdb.Client) (struct{}, error) {
				open, err := c.ReadStream(ctx, nobody.Stream(), esdb.ReadStreamOptions{Direction: esdb.Backwards, From: esdb.End{}}, 1)
				if err != nil {
					return struct{}{}, err
				}
				defer open.Close()
				_, err = open.Recv()
				return struct{}{}, err
			}, nil)
		})
	}
}

func (p *pool) close(ctx context.Context) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		err = errors.Join(err, l.close(ctx))
	}
	return err
}
