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

// watch looks for expired leases until ctx ends.
func (l *Leases) watch(ctx context.Context, adopter Adopter) {
	tick := time.NewTicker(min(max(l.config.Lease/20, 10*time.Millisecond), 500*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, name := range l.expired() {
			l.expire(ctx, adopter, name)
		}
		for _, id := range l.silent() {
			l.expireOpen(ctx, adopter, id)
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

// silent returns the pushed runs whose producers were not heard for too long, and
// those of which it is not known where they end.
func (l *Leases) silent() (ids []run.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, h := range l.holds {
		if k.kind == Open && (l.silence(h.heard) >= l.config.PushLease || h.look && l.silence(time.Time{}) > 0) {
			ids = append(ids, k.id)
		}
	}
	return ids
}

// expire adopts what a dead instance leaves, and takes it off the registry once
// nothing is left. It stops where the instance turns out to live, and goes on
// another time where the store is away.
func (l *Leases) expire(ctx context.Context, adopter Adopter, name string) {
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
	e := Expiry{Holder: name, Silence: l.silence(p.heard)}
	if e.Silence < l.leaseOf(p) { // deaf meanwhile
		l.mu.Unlock()
		return
	}
	if p.died.IsZero() {
		p.died = now
		l.config.Observer.Died(name, e.Silence)
	}
	p.again = now.Add(l.config.Lease / 3)
	late := now.Sub(p.died) > strays
	l.adoptOpen(p)
	owned := slices.Collect(maps.Keys(p.owned))
	l.mu.Unlock()
	for _, id := range owned {
		l.mu.Lock()
		e.Silence = l.silence(p.heard)
		dead := e.Silence >= l.leaseOf(p)
		l.mu.Unlock()
		if !dead {
			return // heard of, or deaf, meanwhile
		}
		verdict, _, err := adopter.Adopt(ctx, id, e)
		var away *ledger.UnavailableError
		if errors.As(err, &away) || ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		switch {
		case err != nil: // another time; it must not hold up the others
		case verdict == Closed, verdict == Missing && late:
			delete(p.owned, id)
		case verdict == Moving:
			p.heard = l.config.Now()
		}
		l.mu.Unlock()
		if err == nil && verdict == Moving {
			return
		}
	}
	l.strike(ctx, name, p)
}

// adoptOpen makes a dead instance's pushed runs this one's too. Their producers may
// live: what counts is when they could last have been heard there.
func (l *Leases) adoptOpen(p *peer) {
	if p.adopted {
		return
	}
	p.adopted = true
	for id := range p.open {
		if k := (key{id, Open}); l.holds[k] == nil {
			h := l.hold(k)
			h.there, h.heard, h.look = true, p.heard, true
		}
	}
}

// strike takes a dead instance off the registry, if nothing of it is left and
// this instance's heartbeats have named what it adopted.
func (l *Leases) strike(ctx context.Context, name string, p *peer) {
	l.mu.Lock()
	left := len(p.owned) > 0 || p.died.IsZero() // heard of meanwhile
	for id := range p.open {
		_, fresh := l.fresh[key{id, Open}]
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

// expireOpen sees to a pushed run whose producers have fallen silent, or finds out
// where it ends.
func (l *Leases) expireOpen(ctx context.Context, adopter Adopter, id run.ID) {
	k := key{id, Open}
	l.mu.Lock()
	h := l.holds[k]
	if h == nil {
		l.mu.Unlock()
		return
	}
	e := Expiry{Silence: l.silence(h.heard), LastSeq: h.last, Look: h.look}
	l.mu.Unlock()
	if e.Silence < l.config.PushLease && !e.Look {
		return // heard of, or deaf, meanwhile
	}
	verdict, last, err := adopter.Adopt(ctx, id, e)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h.look = false
	switch {
	case verdict == Closed:
		l.forget(k)
	case verdict == Moving && e.Look:
		h.last = max(h.last, last)
	case verdict == Moving:
		h.heard, h.last = l.config.Now(), last
	case verdict == Missing: // being started, or it never was
		h.heard = l.config.Now()
		if h.misses++; h.misses > 2 {
			l.forget(k)
		}
	}
}
