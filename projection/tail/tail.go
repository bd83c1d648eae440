package tail

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

// idleCheck is how long a subscription may say nothing before it is held
// against the leader: subscriptions are known to fall silent.
const idleCheck = 15 * time.Second

// errDone ends a subscription that has brought the terminal event.
var errDone = errors.New("the run has ended")

// tail follows one run for its viewers.
type tail struct {
	tails *Tails
	id    run.ID
	idle  chan struct{} // closed when the last viewer has left
	rank  *list.Element // among the recent ones; Tails' lock guards it

	mu      sync.Mutex
	ring    ring
	lanes   map[*view.View]*lane
	head    run.Seq       // the last event that is in the ring, or before it
	chain   string        // its chain checksum
	ahead   place         // the last event that a viewer has read from the store, if that is behind head
	more    chan struct{} // closed and replaced when the ring grows
	err     error         // why no more comes; nil: it does, or the run has ended
	viewers int
}

// place is an event by its number and its chain checksum.
type place struct {
	seq   run.Seq
	chain string
}

func newTail(t *Tails, last *run.Event) *tail {
	return &tail{
		tails: t, id: last.RunID, head: last.Seq, chain: last.ChainChecksum, viewers: 1, ring: ring{total: &t.bytes},
		lanes: make(map[*view.View]*lane), idle: make(chan struct{}), more: make(chan struct{}),
	}
}

// join counts a viewer in, unless the tail has no more to give.
func (t *tail) join() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.viewers == 0 || t.err != nil {
		return false
	}
	t.viewers++
	return true
}

func (t *tail) leave() {
	t.mu.Lock()
	t.viewers--
	last := t.viewers == 0
	if last {
		t.ring.clear()
	}
	t.mu.Unlock()
	if last {
		close(t.idle)
		t.tails.forget(t)
	}
}

// run follows until the run ends, nobody views it any more, or ctx ends.
func (t *tail) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		again, err := t.follow(ctx)
		if again {
			continue
		}
		if err != nil && !errors.Is(err, errDone) {
			t.fail(err)
		}
		return
	}
}

// follow keeps one subscription. again: it fell silent and is to be replaced.
func (t *tail) follow(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	var follower sync.WaitGroup
	defer follower.Wait()
	defer cancel()
	from := t.position()
	follower.Go(func() { ended <- t.tails.source.Follow(ctx, t.id, from, t.deliver) })
	clock := time.NewTicker(idleCheck)
	defer clock.Stop()
	for seen := from; ; {
		select {
		case err := <-ended:
			return false, err
		case <-t.idle:
			return false, errDone
		case <-clock.C:
		}
		if now := t.position(); now != seen {
			seen = now
			continue
		}
		if again, err := t.lookAgain(ctx); again || err != nil {
			return again, err
		}
	}
}

// lookAgain holds a silent subscription against the leader. The store's being away
// is outlived; a run that is gone, or that ends before what was shown, is not.
func (t *tail) lookAgain(ctx context.Context) (again bool, err error) {
	last, err := t.tails.source.Last(ctx, t.id)
	t.mu.Lock()
	defer t.mu.Unlock()
	var away *ledger.UnavailableError
	switch {
	case errors.As(err, &away), ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, err
	case last.Seq > t.head:
		return true, nil
	case last.Seq < max(t.head, t.ahead.seq), last.ChainChecksum != t.chain:
		return false, &run.BrokenChainError{Run: t.id, Seq: last.Seq}
	}
	return false, nil
}

func (t *tail) position() run.Seq {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head
}

// deliver takes the next event in, which must follow the one before it, and wakes
// the viewers.
func (t *tail) deliver(e run.Event) error {
	if err := t.take(&e); err != nil {
		return err
	}
	t.tails.spare(t)
	if run.Terminal(e.Type) {
		return errDone
	}
	return nil
}

func (t *tail) take(e *run.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.Seq != t.head+1:
		return fmt.Errorf("run %s: event %d does not follow event %d", t.id, e.Seq, t.head)
	case !run.Verify(e, t.chain), e.Seq == t.ahead.seq && e.ChainChecksum != t.ahead.chain:
		return &run.BrokenChainError{Run: t.id, Seq: e.Seq}
	case t.viewers == 0: // the last one has left meanwhile
		return errDone
	}
	f, err := t.project(e)
	if err != nil {
		return err
	}
	t.head, t.chain = e.Seq, e.ChainChecksum
	t.ring.push(f)
	t.wake()
	return nil
}

// read notes what a viewer has read from the store: what comes must agree.
func (t *tail) read(to place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if to.seq > max(t.head, t.ahead.seq) {
		t.ahead = to
	}
}

func (t *tail) fail(err error) {
	t.tails.forget(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	t.wake()
}

func (t *tail) wake() {
	close(t.more)
	t.more = make(chan struct{})
}
