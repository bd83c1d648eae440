package eventstore

import (
	"context"
	"errors"
	"sync"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
)

// maxSubscriptions is how many subscriptions share a connection: a server
// takes a hundred calls on each, and a call beyond that hangs.
const maxSubscriptions = 90

// pool holds as many connections as the subscriptions need. Safe for
// concurrent use.
type pool struct {
	dial func() (*esdb.Client, error)

	mu    sync.Mutex
	lines []*line
}

// line is one connection and how many subscriptions it carries.
type line struct {
	conn
	carries int
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
		free = &line{conn: conn{dial: p.dial}}
		p.lines = append(p.lines, free)
	}
	free.carries++
	return &free.conn, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		free.carries--
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
