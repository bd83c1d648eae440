package lease

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// judge looks for expired leases until ctx ends.
func (l *Leases) judge(ctx context.Context, heir Heir) {
	tick := time.NewTicker(min(max(l.config.Lease/20, 10*time.Millisecond), 500*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, name := range l.expired() {
			l.bury(ctx, heir, name)
		}
		for _, id := range l.silent() {
			l.lose(ctx, heir, id)
		}
	}
}

// expired returns the instances whose lease is over.
func (l *Leases) expired() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.peers {
		if l.silence(p.heard) >= l.leaseOf(p) && !l.config.Now().Before(p.again) {
			names = append(names, name)
		}
	}
	return names
}

// silent returns the pushed runs whose producers were not heard for too long.
func (l *Leases) silent() (ids []run.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, h := range l.holds {
		if h.kind == Open && l.silence(h.heard) >= l.config.PushLease {
			ids = append(ids, id)
		}
	}
	return ids
}

// bury settles what a dead instance leaves, and takes it off the registry once
// nothing is left. It stops where the instance turns out to live, and goes on
// another time where the store is away.
func (l *Leases) bury(ctx context.Context, heir Heir, name string) {
	l.mu.Lock()
	p := l.peers[name]
	if p == nil {
		l.mu.Unlock()
		return
	}
	seq := p.seq
	l.mu.Unlock()
	// Not heard, or not there? The leader knows.
	notes, err := l.config.Side.Notes(ctx, HeartbeatStream(name), seq, 1)
	if err != nil {
		return
	}
	if len(notes) > 0 {
		l.hear(p, notes[0])
		return
	}
	l.mu.Lock()
	now := l.config.Now()
	d := Death{Owner: name, Silence: l.silence(p.heard)}
	if d.Silence < l.leaseOf(p) { // deaf meanwhile
		l.mu.Unlock()
		return
	}
	if p.died.IsZero() {
		p.died = now
		l.config.Observer.Died(name, d.Silence)
	}
	p.again = now.Add(l.config.Lease / 3)
	late := now.Sub(p.died) > strays
	owned := slices.Collect(maps.Keys(p.owned))
	for id := range p.open {
		if !p.adopted && l.holds[id] == nil {
			l.hold(id, Open, 0)
		}
	}
	p.adopted = true
	l.mu.Unlock()
	for _, id := range owned {
		l.mu.Lock()
		d.Silence = l.silence(p.heard)
		dead := d.Silence >= l.leaseOf(p)
		l.mu.Unlock()
		if !dead {
			return // heard of, or deaf, meanwhile
		}
		verdict, _, err := heir.Inherit(ctx, id, d)
		var away *ledger.UnavailableError
		if errors.As(err, &away) || ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		switch {
		case err != nil: // another time; it must not hold up the others
		case verdict == Settled, verdict == Missing && late:
			delete(p.owned, id)
		case verdict == Alive:
			p.heard = l.config.Now()
		}
		l.mu.Unlock()
		if err == nil && verdict == Alive {
			return
		}
	}
	l.strike(ctx, name, p)
}

// strike takes a dead instance off the registry, if nothing of it is left and
// this instance's heartbeats have named what it took over.
func (l *Leases) strike(ctx context.Context, name string, p *peer) {
	l.mu.Lock()
	left := len(p.owned) > 0 || p.died.IsZero() // heard of meanwhile
	for id := range p.open {
		_, fresh := l.fresh[id]
		left = left || fresh
	}
	seq := p.seq
	l.mu.Unlock()
	if left {
		return
	}
	if seq > 0 {
		err := l.config.Side.Drop(ctx, HeartbeatStream(name), seq)
		var conflict *ledger.ConflictError
		if errors.As(err, &conflict) && l.reappeared(ctx, name, p, seq) || err != nil && conflict == nil {
			return
		}
	}
	if _, err := l.config.Side.Note(ctx, Registry, note(leftType, member{name})); err != nil {
		return
	}
	l.clean(ctx, name)
	l.part(name)
}

// reappeared reports whether a conflict behind seq means a living instance;
// otherwise another observer was faster.
func (l *Leases) reappeared(ctx context.Context, name string, p *peer, seq uint64) bool {
	notes, err := l.config.Side.Notes(ctx, HeartbeatStream(name), seq, 1)
	if err == nil && len(notes) > 0 {
		l.hear(p, notes[0])
	}
	return err != nil || len(notes) > 0
}

// lose settles a pushed run whose producers have fallen silent.
func (l *Leases) lose(ctx context.Context, heir Heir, id run.ID) {
	l.mu.Lock()
	h := l.holds[id]
	if h == nil {
		l.mu.Unlock()
		return
	}
	d := Death{Silence: l.silence(h.heard), LastSeq: h.last}
	l.mu.Unlock()
	if d.Silence < l.config.PushLease {
		return // heard of, or deaf, meanwhile
	}
	verdict, last, err := heir.Inherit(ctx, id, d)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch verdict {
	case Settled:
		l.forget(id)
	case Alive:
		h.heard, h.last = l.config.Now(), last
	case Missing: // being started, or it never was
		h.heard = l.config.Now()
		if h.misses++; h.misses > 2 {
			l.forget(id)
		}
	}
}
