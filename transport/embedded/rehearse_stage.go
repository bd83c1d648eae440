package embedded

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stage is where a rehearsal is played. A node without one has none of the
// hooks below. Safe for concurrent use.
type stage struct {
	node  *Node
	index *lagging
	scene atomic.Pointer[scene]
	cores chan struct{} // who checks a password holds one

	mu    sync.Mutex
	conns map[*fragile]struct{}
}

// scene is one rehearsal from its beginning on.
type scene struct {
	Rehearsal
	began time.Time

	mu   sync.Mutex
	dice map[string]*rand.Rand // by behaviour: so each draws by itself
}

// passwordChecks is how many of them a node does at once: it has that many
// cores (a check is computing, on a real node).
const passwordChecks = 2

func newStage(n *Node, r Rehearsal) *stage {
	s := &stage{node: n, cores: make(chan struct{}, passwordChecks), conns: make(map[*fragile]struct{})}
	s.index = newLagging(n.store, s)
	s.play(r)
	return s
}

func (s *stage) play(r Rehearsal) {
	if r.text != "" {
		s.node.log.Warn().Str("rehearse", r.text).Msg("rehearsing: this node does on purpose what a real one may do")
	}
	s.scene.Store(&scene{Rehearsal: r, began: time.Now(), dice: make(map[string]*rand.Rand)})
	s.index.hint() // what was hidden may be shown now
}

// Rehearse plays another rehearsal from now on, on a node that was opened with
// one; the zero value ends it. It reports whether the node was.
func (n *Node) Rehearse(r Rehearsal) bool {
	if n.stage == nil {
		return false
	}
	n.stage.play(r)
	return true
}

// SetBack drops the end of the log, as a restored backup would, as many events
// as the rehearsal says, and cuts every connection. It does so once in each
// rehearsal. It reports how many events were dropped.
func (n *Node) SetBack(ctx context.Context) (uint64, error) {
	if n.stage == nil {
		return 0, nil
	}
	now := n.stage.scene.Load()
	now.mu.Lock()
	drop := now.setBack
	now.setBack = 0
	now.mu.Unlock()
	if drop == 0 {
		return 0, nil
	}
	dropped, err := n.store.SetBack(ctx, drop)
	n.stage.index.horizon.Store(min(n.stage.index.horizon.Load(), n.store.Position()))
	n.log.Warn().Err(err).Uint64("events", dropped).Msg("rehearsing: the store was set back")
	n.stage.cutAll()
	return dropped, err
}

// roll returns a number below n that follows from the seed, the behaviour and
// how often it was asked.
func (c *scene) roll(behaviour string, n int64) int64 {
	if n <= 1 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	die := c.dice[behaviour]
	if die == nil {
		die = rand.New(rand.NewPCG(c.seed, mix(behaviour)))
		c.dice[behaviour] = die
	}
	return die.Int64N(n)
}

// mix makes a number of a name, the same in each process.
func mix(name string) (h uint64) {
	h = 14695981039346656037 // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

// once reports whether this is the one time in n; n 0: never.
func (c *scene) once(behaviour string, n int) bool {
	return n > 0 && c.roll(behaviour, int64(n)) == 0
}

func (c *scene) within(behaviour string, s span) time.Duration {
	return s.from + time.Duration(c.roll(behaviour, int64(s.to-s.from)+1))
}

func (c *scene) number(behaviour string, n numbers) int {
	return n.from + int(c.roll(behaviour, int64(n.to-n.from)+1))
}

// open is for how much longer a window is open now.
func (c *scene) open(w window) time.Duration { return w.open(time.Since(c.began)) }

// asked is what a call wants.
type asked struct {
	right  byte // as in denial; 0: none is needed
	stream string
	leader bool // only the leader may answer
}

// judge answers a call in the node's place, or waits, or lets it through (nil).
func (s *stage) judge(ctx context.Context, a asked) error {
	now := s.scene.Load()
	if now.slowAuth > 0 {
		select {
		case s.cores <- struct{}{}:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		s.rest(ctx, now.slowAuth)
		<-s.cores
	}
	if err := now.refuse(ctx, a); err != nil {
		return err
	}
	if !a.leader {
		return nil
	}
	if now.open(now.election) > 0 {
		if now.once("no leader", 2) {
			return status.Error(codes.Unavailable, "Server Is Not Ready")
		}
		return status.Error(codes.Unknown, "No leader info available in response")
	}
	if now.once("not-leader", now.notLeader) {
		return s.notLeader(ctx, now)
	}
	return nil
}

// refuse answers what the caller has no right to.
func (c *scene) refuse(ctx context.Context, a asked) error {
	for _, d := range c.denials {
		if d.window != (window{}) && c.open(d.window) <= 0 {
			continue
		}
		for i := range len(d.rights) {
			switch right := d.rights[i]; {
			case right == 'a':
				return status.Error(codes.Unauthenticated, "Unauthenticated")
			case right == a.right && hasPrefix(a.stream, d.prefix):
				trailer(ctx, "exception", "access-denied")
				return status.Error(codes.PermissionDenied, "Access Denied")
			}
		}
	}
	return nil
}

func hasPrefix(stream, prefix string) bool {
	return len(stream) >= len(prefix) && stream[:len(prefix)] == prefix
}

// notLeader sends a caller away, as a follower does that was told to (wire 2.9).
func (s *stage) notLeader(ctx context.Context, now *scene) error {
	host, port := s.node.advertised(), strconv.Itoa(s.node.Addr().Port)
	if now.leader != "" {
		host, port, _ = net.SplitHostPort(now.leader)
	} else if now.once("no leader's address", 2) {
		return status.Error(codes.Unknown, "No leader info available in response")
	}
	trailer(ctx, "exception", "not-leader", "leader-endpoint-host", host, "leader-endpoint-port", port)
	return status.Error(codes.NotFound, "Leader info available")
}

// rest waits, unless the call or the node ends before; it reports whether it
// has waited to the end.
func (s *stage) rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.node.stopping:
		return false
	}
}

// listen breaks connections.
func (s *stage) listen(l net.Listener) net.Listener { return &fragileListener{l, s} }

func (s *stage) cutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Conn.Close() //nolint:errcheck // it is to break
	}
}

type fragileListener struct {
	net.Listener
	stage *stage
}

func (l *fragileListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f := &fragile{Conn: conn, stage: l.stage}
	if now := l.stage.scene.Load(); now.cut.to > 0 {
		f.left, f.breaks = now.number("cut", now.cut), true
	}
	l.stage.mu.Lock()
	defer l.stage.mu.Unlock()
	l.stage.conns[f] = struct{}{}
	return f, nil
}

// fragile is a connection that may break in the middle of a message.
type fragile struct {
	net.Conn
	stage  *stage
	breaks bool
	left   int // bytes until it does; the writer's
}

func (f *fragile) Write(b []byte) (int, error) {
	if f.breaks && len(b) > f.left {
		n, err := f.Conn.Write(b[:f.left])
		f.left -= n
		if err == nil {
			err = net.ErrClosed
		}
		f.Close() //nolint:errcheck // it is broken
		return n, err
	}
	n, err := f.Conn.Write(b)
	f.left -= n
	return n, err
}

func (f *fragile) Close() error {
	f.stage.mu.Lock()
	delete(f.stage.conns, f)
	f.stage.mu.Unlock()
	return f.Conn.Close()
}
