package ledger

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/run"
)

// maxWaiting bounds what waits for one run, in bytes. A push that finds the
// queue fuller than this stops reading its request until an append has taken
// what waits.
const maxWaiting = 4 << 20

// ErrStopping: the process is ending; what was not committed is the producer's
// to send again.
var ErrStopping = errors.New("the server is stopping")

// Recorder writes one run. While one append is in flight, what arrives waits;
// the next append takes all of it. There are no timers: an idle run pays no
// delay, a fast one pays few appends. Safe for concurrent use.
//
// A Recorder holds the run's folded state. Only its writer touches it, which
// Runs starts when something waits and which ends when nothing does.
type Recorder struct {
	id   run.ID
	runs *Runs

	mu      sync.Mutex
	waiting []*entry
	queued  int           // bytes in waiting
	space   chan struct{} // closed when waiting was taken; nil: nobody is blocked
	writing bool          // a writer is running, or asked for
	users   int           // who may still enqueue; Runs counts them under its own lock
	weight  int           // the state's, as Runs last counted it

	state *run.State // written by the writer under mu; nil: not read yet

	held map[string]*entry // by producer: a delta that ends in half a pair; written as state is

	received map[string]uint64 // by producer: the highest number taken; the writer's own
}

// enqueue appends e to the queue, and waits while that is too full.
func (r *Recorder) enqueue(ctx context.Context, e *entry) error {
	r.mu.Lock()
	for r.queued >= maxWaiting {
		if r.space == nil {
			r.space = make(chan struct{})
		}
		space := r.space
		r.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return ctx.Err()
		}
		r.mu.Lock()
	}
	r.waiting = append(r.waiting, e)
	r.queued += e.size()
	start := !r.writing
	r.writing = true
	r.mu.Unlock()
	if start && !r.runs.write(r) {
		r.abandon(nil)
		return ErrStopping
	}
	return nil
}

// take empties the queue into work. With nothing to do it reports false, and
// the writer has to end.
func (r *Recorder) take(work []*entry) ([]*entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	work = append(work, r.waiting...)
	clear(r.waiting)
	r.waiting, r.queued = r.waiting[:0], 0
	if r.space != nil {
		close(r.space)
		r.space = nil
	}
	r.writing = len(work) > 0
	return work, r.writing
}

// abandon answers all that waits when the process ends.
func (r *Recorder) abandon(work []*entry) {
	for more := true; more; {
		work, more = r.take(work)
		settleAll(work, ErrStopping)
		work = nil
	}
}

// write is the writer: it commits what waits, append by append, until nothing
// does.
func (r *Recorder) write(ctx context.Context) {
	var work []*entry
	for {
		var more bool
		if work, more = r.take(work); !more {
			return
		}
		if ctx.Err() != nil {
			r.abandon(work)
			return
		}
		if r.state == nil {
			if err := r.readOn(ctx, nil); err != nil {
				settleAll(work, err)
				work = nil
				continue
			}
		}
		var b *batch
		if b, work = r.prepare(ctx, work); b != nil {
			work = append(r.commit(ctx, b), work...)
		}
	}
}

// prepare decides what work brings, in order. It settles what needs no append
// while that stands at the front, and returns the batch behind it, with the
// entries that are left. Only what stands at the front is refused or found a
// duplicate: further back the answer would rest on facts that are not
// committed.
func (r *Recorder) prepare(ctx context.Context, work []*entry) (*batch, []*entry) {
	b := newBatch(r.state)
	looked := false
	for len(work) > 0 {
		e := work[0]
		if e.dropped() {
			work = work[1:]
			continue
		}
		if released := r.release(e); released != nil {
			work = append(released, work[1:]...)
			continue
		}
		d, err := b.decide(e, r.received, r.runs.config)
		if err == nil && len(d.Candidates) > 0 && !e.halved() {
			if !b.add(e, d, r.runs.config.MaxAppend) {
				break
			}
			work = work[1:]
			continue
		}
		if len(b.entries) > 0 {
			break
		}
		if !looked && r.outdated(e, err) {
			if err := r.readOn(ctx, nil); err != nil {
				settleAll(work, err)
				return nil, nil
			}
			looked = true
		} else {
			r.settle(e, d, err)
			work = work[1:]
		}
		b = newBatch(r.state)
	}
	if len(b.entries) == 0 {
		return nil, work
	}
	return b, work
}

// outdated reports whether the answer to e might be another one with what the
// leader has: other instances write the run too, and erase it.
func (r *Recorder) outdated(e *entry, err error) bool {
	var gap *run.GapError
	return e.push == nil || errors.As(err, &gap) || r.state.Terminal()
}

// settle answers an entry that brings no facts now.
func (r *Recorder) settle(e *entry, d run.Decision, err error) {
	if errors.Is(err, run.ErrDuplicate) && r.state.Owner == "" && !r.state.Terminal() {
		r.runs.config.Observer.Heard(r.id, r.state.LastSeq, false)
	}
	if err != nil {
		e.settle(err)
		return
	}
	if e.push != nil {
		producer := e.push.producer
		r.received[producer] = max(r.received[producer], e.event.ProducerSeq)
		r.mu.Lock()
		if e.halved() {
			r.held[producer] = e
		} else {
			r.state.Take(d) // no facts, but perhaps a note
		}
		r.mu.Unlock()
	}
	if e.push != nil && r.state.Owner == "" {
		r.runs.config.Observer.Heard(r.id, r.state.LastSeq, false)
	}
	e.settle(nil)
}

// position returns the run's last seq and a producer's mark.
func (r *Recorder) position(producer string) (run.Seq, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		return 0, 0
	}
	return r.state.LastSeq, r.state.Mark(producer)
}

// backoff is how long to wait before asking a store again that did not answer:
// short at first, since most outages are blips, and never long, since the store
// being back is worth more than the calls.
func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 5), time.Second)
}
