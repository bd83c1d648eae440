package embedded

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"
)

// preface is how an HTTP/2 connection with prior knowledge begins (RFC 9113,
// section 3.4); its first bytes are no HTTP/1.1 request.
const preface = "PRI * HTTP/2.0"

// prefaceTime is how long a connection may take to say what it is.
const prefaceTime = 10 * time.Second

// splitter hands the connections of one port to two servers: gRPC's own
// transport, which is faster than gRPC over net/http, and HTTP/1.1 (wire 0).
type splitter struct {
	net.Listener
	http1, http2 *half
	looking      sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]struct{} // connections that have not said what they are
	closed bool
}

func newSplitter(l net.Listener) *splitter {
	return &splitter{Listener: l, http1: newHalf(l.Addr()), http2: newHalf(l.Addr()), open: make(map[net.Conn]struct{})}
}

// Run accepts connections until the listener is closed, and returns when all
// of them have been handed over.
func (s *splitter) Run() error {
	defer s.looking.Wait()
	defer s.http1.Close()
	defer s.http2.Close()
	for {
		conn, err := s.Accept()
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			conn.Close()
			return net.ErrClosed
		}
		s.open[conn] = struct{}{}
		s.mu.Unlock()
		s.looking.Go(func() { s.look(conn) })
	}
}

// Close ends Run; connections that have not been handed over are closed.
func (s *splitter) Close() error {
	s.mu.Lock()
	s.closed = true
	for conn := range s.open {
		conn.Close()
	}
	s.mu.Unlock()
	return s.Listener.Close()
}

func (s *splitter) look(conn net.Conn) {
	reader := bufio.NewReaderSize(conn, len(preface))
	// A deadline that cannot be set shows in the read.
	_ = conn.SetReadDeadline(time.Now().Add(prefaceTime))
	first, err := reader.Peek(1)
	if err == nil && first[0] == preface[0] {
		first, err = reader.Peek(len("PRI"))
	}
	_ = conn.SetReadDeadline(time.Time{})
	s.mu.Lock()
	delete(s.open, conn)
	s.mu.Unlock()
	if err != nil {
		conn.Close()
		return
	}
	to := s.http1
	if string(first) == "PRI" {
		to = s.http2
	}
	buffered := make([]byte, reader.Buffered())
	if _, err := io.ReadFull(reader, buffered); err != nil || !to.give(&looked{Conn: conn, read: buffered}) {
		conn.Close()
	}
}

// looked is a connection whose first bytes were read.
type looked struct {
	net.Conn
	read []byte
}

func (c *looked) Read(b []byte) (int, error) {
	if len(c.read) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.read)
	c.read = c.read[n:]
	return n, nil
}

// half is the listener of one of the servers.
type half struct {
	addr  net.Addr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newHalf(addr net.Addr) *half {
	return &half{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *half) give(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.done:
		return false
	}
}

func (h *half) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *half) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *half) Addr() net.Addr { return h.addr }
