package tail

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"

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

	bytes atomic.Int64 // in all rings

	mu     sync.Mutex
	byRun  map[run.ID]*tail
	recent *list.List // of *tail, the one that was quiet longest first
}

// New returns Tails that follow source and keep frames as encode makes them.
func New(source Source, encode Encode) *Tails {
	return &Tails{
		source: source, encode: encode, started: make(chan *tail),
		stopped: make(chan struct{}), byRun: make(map[run.ID]*tail), recent: list.New(),
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
func (t *Tails) Open(after run.Seq, v *view.View, last *run.Event) (*Viewer, error) {
	viewer := &Viewer{tails: t, id: last.RunID, at: after, view: v, projector: v.New(), end: last.Seq}
	if run.Terminal(last.Type) {
		return viewer, nil // nothing more comes: the store is all there is
	}
	t.mu.Lock()
	one, fresh := t.byRun[viewer.id], false
	if one == nil || !one.join() {
		one, fresh = newTail(t, last), true
		t.byRun[viewer.id] = one
		one.rank = t.recent.PushBack(one)
	}
	t.mu.Unlock()
	viewer.tail = one
	if fresh {
		select {
		case t.started <- one:
		case <-t.stopped:
			viewer.Close()
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
	if one.rank != nil {
		t.recent.Remove(one.rank)
		one.rank = nil
	}
}

// spare keeps the rings within their bound, at the cost of the runs that were
// quiet longest; active has just grown.
func (t *Tails) spare(active *tail) {
	if t.bytes.Load() < maxRings/2 {
		return // who was quiet longest does not matter yet
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if active.rank != nil {
		t.recent.MoveToBack(active.rank)
	}
	for place := t.recent.Front(); place != nil && t.bytes.Load() > maxRings; place = place.Next() {
		one := place.Value.(*tail)
		one.mu.Lock()
		one.ring.shrink()
		one.mu.Unlock()
	}
}

// Held is what the rings of all runs take, in bytes.
func (t *Tails) Held() int64 { return t.bytes.Load() }
