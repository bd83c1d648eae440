package lease

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// peer is another instance, as its heartbeats show it.
type peer struct {
	heard time.Time // when the last heartbeat came; at first: when it was met
	seq   uint64    // its place in the stream
	beat  uint64
	lease time.Duration
	names       // what it answers for
	next  names // what it does as far as a whole heartbeat has told in parts
	part  int   // the last of these; 0: there is none

	died    time.Time // zero: it is not known to have
	again   time.Time // when what it left is looked at next
	adopted bool      // its pushed runs are this instance's too

	stop context.CancelFunc
}

// names is the runs that heartbeats name.
type names struct{ owned, open map[run.ID]struct{} }

func newNames() names { return names{make(map[run.ID]struct{}), make(map[run.ID]struct{})} }

func (n *names) add(h *heartbeat) {
	for _, id := range h.Owned {
		n.owned[id] = struct{}{}
	}
	for _, id := range h.Open {
		n.open[id] = struct{}{}
	}
}

func newPeer(now time.Time, stop context.CancelFunc) *peer {
	return &peer{heard: now, names: newNames(), stop: stop}
}

// fold takes a heartbeat in. One that is older than what is known, since its
// sender gave it up and the store did not, changes nothing.
func (p *peer) fold(h *heartbeat, seq uint64, now time.Time) {
	p.heard, p.seq = now, max(p.seq, seq)
	p.died, p.again, p.adopted = time.Time{}, time.Time{}, false
	if h.Beat <= p.beat {
		return
	}
	p.beat, p.lease = h.Beat, time.Duration(h.LeaseMS)*time.Millisecond
	if !h.Whole {
		for _, id := range h.GoneOwned {
			delete(p.owned, id)
		}
		for _, id := range h.GoneOpen {
			delete(p.open, id)
		}
		p.part = 0 // a whole one whose rest did not come was given up
		p.add(h)
		return
	}
	p.add(h) // until the last part is there, nothing of before is dropped
	if h.Part <= 1 {
		p.next, p.part = newNames(), 0
	}
	if h.Part > 1 && h.Part != p.part+1 {
		p.part = 0
		return // one was missed: its sender gave it up
	}
	p.next.add(h)
	p.part = h.Part
	if h.Part == h.Parts {
		p.names, p.part = p.next, 0
	}
}

// leaseOf is the longer of both: who is configured to be slower is not dead.
func (l *Leases) leaseOf(p *peer) time.Duration { return max(l.config.Lease, p.lease) }

// attend reads who is there and listens to each of them.
func (l *Leases) attend(ctx context.Context) {
	names := make(map[string]bool)
	after := uint64(0)
	for {
		notes, err := l.config.Side.Notes(ctx, Registry, after, 1000)
		if err != nil {
			if !pause(ctx, l.config.Lease/10) {
				return
			}
			continue
		}
		if len(notes) == 0 {
			break
		}
		for _, n := range notes {
			after = n.Seq
			if name, ok := named(n); ok {
				names[name] = n.Type == joinedType
			}
		}
	}
	var listeners sync.WaitGroup
	defer listeners.Wait()
	for name, there := range names {
		if there {
			l.meet(ctx, &listeners, name)
		}
	}
	l.mu.Lock()
	l.known = true
	l.mu.Unlock()
	_ = l.config.Side.Listen(ctx, Registry, after, func(n ledger.Note) error { // ends with ctx
		name, ok := named(n)
		switch {
		case !ok:
		case name == l.config.Instance:
			l.seeSelf(n)
		case n.Type == joinedType:
			l.meet(ctx, &listeners, name)
		default:
			l.part(name)
		}
		l.refresh(n.Seq)
		return nil
	})
}

func named(n ledger.Note) (string, bool) {
	var m member
	if n.Type != joinedType && n.Type != leftType || json.Unmarshal(n.Data, &m) != nil {
		return "", false // somebody else's
	}
	return m.Instance, m.Instance != ""
}

// seeSelf joins again when somebody took this instance for dead.
func (l *Leases) seeSelf(n ledger.Note) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.Type == leftType && n.Seq > l.joinSeq {
		l.joined = false
		l.hint()
	}
}

// refresh joins again before this instance's joining is trimmed.
func (l *Leases) refresh(end uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.joined && end > l.joinSeq+rejoinAfter {
		l.joined = false
	}
}

// meet begins to listen to an instance, until ctx ends or the instance parts.
func (l *Leases) meet(ctx context.Context, listeners *sync.WaitGroup, name string) {
	if name == l.config.Instance {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers[name] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	p := newPeer(l.config.Now(), stop)
	l.peers[name] = p
	l.config.Observer.Joined(name)
	listeners.Go(func() {
		_ = l.config.Side.Listen(ctx, HeartbeatStream(name), 0, func(n ledger.Note) error { // ends with ctx
			l.hear(p, n)
			return nil
		})
	})
}

// part stops listening to an instance.
func (l *Leases) part(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.peers[name]; p != nil {
		p.stop()
		delete(l.peers, name)
		l.config.Observer.Left(name)
	}
}

// hear takes a heartbeat in.
func (l *Leases) hear(p *peer, n ledger.Note) {
	var h heartbeat
	if n.Type != beatType || json.Unmarshal(n.Data, &h) != nil {
		return // somebody else's
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.config.Now()
	p.fold(&h, n.Seq, now)
	for _, id := range h.Heard {
		if mine := l.holds[key{id, Open}]; mine != nil {
			mine.heard = now
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
