package tail

import (
	"context"
	"errors"
	"sync"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

// ErrStopped: no viewer can follow any more.
var ErrStopped = errors.New("tails are stopped")

// Source is what tails need of a ledger.
type Source interface {
	ledger.Reader
	ledger.Follower
}

// Tails holds one tail for each run that somebody follows. Safe for concurrent
// use.
type Tails struct {
	source  Source
	encode  Encode
	started chan *tail
	stopped chan struct{} // closed when Run begins to end

	mu    sync.Mutex
	byRun map[run.ID]*tail
}

// New returns Tails that follow source and keep frames as encode makes them.
func New(source Source, encode Encode) *Tails {
	return &Tails{
		source: source, encode: encode, started: make(chan *tail),
		stopped: make(chan struct{}), byRun: make(map[run.ID]*tail),
	}
}

// Run follows runs while they have viewers. It returns when ctx has ended and
// every subscription has.
func (t *Tails) Run(ctx context.Context) error {
	var followers sync.WaitGroup
	defer followers.Wait()
	defer close(t.stopped)
	for {
		select {
		case one := <-t.started:
			followers.Go(func() { one.run(ctx) })
		case <-ctx.Done():
			return nil
		}
	}
}

// Open returns a viewer of what comes behind seq after. last is the run's
// newest event as the leader has it, read just now. The viewer must be closed.
// Error: ErrStopped.
func (t *Tails) Open(id run.ID, after run.Seq, v view.View, last *run.Event) (*Viewer, error) {
	viewer := &Viewer{tails: t, id: id, at: after, view: v, end: last.Seq}
	if run.Terminal(last.Type) {
		return viewer, nil // nothing more comes: the store is all there is
	}
	t.mu.Lock()
	one, fresh := t.byRun[id], false
	if one == nil || !one.join() {
		one, fresh = newTail(t, id, last.Seq), true
		t.byRun[id] = one
	}
	t.mu.Unlock()
	viewer.tail = one
	if fresh {
		select {
		case t.started <- one:
		case <-t.stopped:
			return nil, ErrStopped
		}
	}
	return viewer, nil
}

// forget drops a tail that nobody follows, or that has failed.
func (t *Tails) forget(one *tail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byRun[one.id] == one {
		delete(t.byRun, one.id)
	}
}
