package lease

import (
	"context"
	"slices"
	"time"

	"github.com/runfacts/runfacts/domain/run"
)

// key names what an instance answers for: a run may be held in both ways at once,
// for as long as it is not clear which of them it is.
type key struct {
	id   run.ID
	kind Kind
}

// hold is a run that this instance answers for. It is there while the run is, or
// while somebody who has announced it does not know yet.
type hold struct {
	announced int       // by how many who do not know yet
	there     bool      // the run is there
	heard     time.Time // of a pushed run: its last event or mention
	last      run.Seq   // of a pushed run: its end then; 0: not known
	look      bool      // of a pushed run: its end is to be found out, since it was adopted
	misses    int       // how often it was not found
}

// waiter waits for a run to be named.
type waiter struct {
	key
	done chan struct{}
}

// Announce names the run in a heartbeat and returns once that is acknowledged:
// from here on the run is not lost whatever happens to this instance. The caller
// must tell what came of it: Confirm or Withdraw. After an error it need not.
// Errors: ErrFull, ctx's.
func (l *Leases) Announce(ctx context.Context, id run.ID, kind Kind) error {
	k := key{id, kind}
	w := &waiter{k, make(chan struct{})}
	l.mu.Lock()
	if l.holds[k] == nil && len(l.holds) >= l.config.Most {
		l.mu.Unlock()
		return ErrFull
	}
	h := l.hold(k)
	h.announced++
	h.heard = l.config.Now()
	l.fresh[k] = struct{}{} // named again, so that there is an acknowledgement to wait for
	l.waiters = append(l.waiters, w)
	l.mu.Unlock()
	l.hint()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters = slices.DeleteFunc(l.waiters, func(other *waiter) bool { return other == w })
	l.settle(k)
	return ctx.Err()
}

// Confirm tells that an announced run is there, or may be; last is where it ends,
// 0 where that is not known.
func (l *Leases) Confirm(id run.ID, kind Kind, last run.Seq) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.holds[key{id, kind}]; h != nil {
		h.there, h.heard, h.last = true, l.config.Now(), max(h.last, last)
		l.settle(key{id, kind})
	}
}

// Withdraw tells that an announced run was not started. If this instance answers
// for it for another reason, it goes on to.
func (l *Leases) Withdraw(id run.ID, kind Kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(key{id, kind})
}

// settle ends one announcement.
func (l *Leases) settle(k key) {
	if h := l.holds[k]; h != nil {
		h.announced = max(h.announced-1, 0)
		l.drop(k)
	}
}

// Forget tells that a run has ended, or is another instance's.
func (l *Leases) Forget(id run.ID, kind Kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(key{id, kind})
}

// Ended tells that a pushed run has ended.
func (l *Leases) Ended(id run.ID) { l.Forget(id, Open) }

// Heard tells that a pushed run's producer was heard by this instance, which
// answers for the run from here on, if it has room. Stored: the run's stream
// shows it too.
func (l *Leases) Heard(id run.ID, last run.Seq, stored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{id, Open}
	if l.holds[k] == nil && len(l.holds) >= l.config.Most {
		return // whoever has it already goes on answering for it
	}
	h := l.hold(k)
	h.there, h.heard, h.last = true, l.config.Now(), max(h.last, last)
	if !stored {
		l.mentions[id] = struct{}{}
	}
}

// Holds is how many runs this instance answers for.
func (l *Leases) Holds() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds)
}

// hold answers for a run from now on.
func (l *Leases) hold(k key) *hold {
	h := l.holds[k]
	if h == nil {
		h = &hold{}
		l.holds[k] = h
		l.fresh[k] = struct{}{}
		delete(l.gone, k)
	}
	return h
}

func (l *Leases) forget(k key) {
	if h := l.holds[k]; h != nil {
		h.there = false
		l.drop(k)
	}
}

// drop ends a hold that nobody needs any more.
func (l *Leases) drop(k key) {
	if h := l.holds[k]; h.there || h.announced > 0 {
		return
	}
	delete(l.holds, k)
	delete(l.fresh, k)
	l.gone[k] = struct{}{}
	if k.kind == Open {
		delete(l.mentions, k.id)
	}
}
