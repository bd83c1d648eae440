package tail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/run"
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

	mu      sync.Mutex
	ring    ring
	head    run.Seq       // the last event that is in the ring, or before it
	more    chan struct{} // closed and replaced when the ring grows
	err     error         // why no more comes; nil: it does, or the run has ended
	viewers int
}

func newTail(t *Tails, id run.ID, head run.Seq) *tail {
	return &tail{tails: t, id: id, head: head, viewers: 1, idle: make(chan struct{}), more: make(chan struct{})}
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
		// An error here is the store's being away, which the subscription outlives.
		if last, err := t.tails.source.Last(ctx, t.id); err == nil && last.Seq > t.position() {
			return true, nil
		}
	}
}

func (t *tail) position() run.Seq {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head
}

// deliver takes the next event in and wakes the viewers.
func (t *tail) deliver(e run.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Seq != t.head+1 {
		return fmt.Errorf("run %s: event %d does not follow event %d", t.id, e.Seq, t.head)
	}
	t.head = e.Seq
	t.ring.push(e)
	t.wake()
	if run.Terminal(e.Type) {
		return errDone
	}
	return nil
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
