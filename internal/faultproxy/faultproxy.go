// Package faultproxy is a TCP proxy for tests, which cuts, stalls, delays and
// throttles what goes through it.
package faultproxy

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards connections to one address. Safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	open    map[net.Conn]struct{}
	refuse  bool
	stalled chan struct{} // bytes wait for it to be closed; nil: they flow
	delay   time.Duration // of each piece
	rate    int           // bytes a second of each direction; 0: any
}

// Listen binds a free port on loopback; connections go to target.
func Listen(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &Proxy{listener: listener, target: target, open: make(map[net.Conn]struct{})}, nil
}

// Start runs a proxy to target until the test ends.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Run forwards until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	var pipes sync.WaitGroup
	defer pipes.Wait()
	defer context.AfterFunc(ctx, func() {
		_ = p.listener.Close() // Run ends either way
		p.Flow()
		p.Cut()
	})()
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			p.Cut()
			return nil
		}
		if err != nil {
			return err
		}
		pipes.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(client, server) {
		client.Close()
		if err == nil {
			server.Close()
		}
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pipe(server, client) })
	both.Go(func() { p.pipe(client, server) })
	both.Wait()
	p.mu.Lock()
	delete(p.open, client)
	delete(p.open, server)
	p.mu.Unlock()
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.open[c] = struct{}{}
	}
	return !p.refuse
}

// pipe copies until one side ends, and then ends both.
func (p *Proxy) pipe(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		stalled, delay, rate := p.stalled, p.delay, p.rate
		p.mu.Unlock()
		if stalled != nil {
			<-stalled
		}
		if rate > 0 {
			delay += time.Duration(n) * time.Second / time.Duration(rate)
		}
		if delay > 0 {
			<-time.After(delay)
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Cut ends all connections that are open.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
}

// Refuse makes new connections end at once, or not any more.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Stall makes connections half-open: they stay, and nothing goes through.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled == nil {
		p.stalled = make(chan struct{})
	}
}

// Flow ends a stall.
func (p *Proxy) Flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled != nil {
		close(p.stalled)
		p.stalled = nil
	}
}

// Delay holds each piece up for d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Throttle lets at most rate bytes a second through each connection and
// direction; 0: any.
func (p *Proxy) Throttle(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}
