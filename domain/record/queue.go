package record

import (
	"context"
	"slices"
	"sync"
)

// Bounds of what one run holds in memory before it is committed, in bytes. They
// count an entry from when it is handed over until it is answered, so what waits
// to be taken and what the writer has taken count together. Who reports waits
// while there is more than maxReported, which is how a producer is read only as
// fast as the store commits. Cancels and questions are few and small and must come
// through then: they have a little room of their own behind it.
const (
	maxReported = 4 << 20
	maxWaiting  = maxReported + 1<<20
)

// queue is what was handed over to one run's writer. Safe for concurrent use.
type queue struct {
	mu      sync.Mutex
	waiting []*entry
	bytes   int           // of all entries that are not answered yet, taken or not
	room    chan struct{} // closed when bytes became fewer; nil: nobody waits for that
	active  bool          // a writer is running, or asked for
}

// add appends e, and waits for room before. start tells the caller to bring a
// writer. Error: ctx's; then e was not added.
func (q *queue) add(ctx context.Context, e *entry) (start bool, err error) {
	bound := maxWaiting
	if e.push != nil {
		bound = maxReported
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= bound {
		if q.room == nil {
			q.room = make(chan struct{})
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
			q.mu.Lock()
		case <-ctx.Done():
			q.mu.Lock()
			return false, context.Cause(ctx)
		}
	}
	q.waiting = append(q.waiting, e)
	q.bytes += e.size
	start, q.active = !q.active, true
	return start, nil
}

// take returns all that waits; its bytes stay counted. With nothing there, and
// busy not set, the writer has to end: another one may be running already.
func (q *queue) take(busy bool) (taken []*entry, on bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken, q.waiting = q.waiting, nil
	q.active = busy || len(taken) > 0
	return taken, q.active
}

// free gives back the bytes of entries that were answered.
func (q *queue) free(bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release(bytes)
}

func (q *queue) release(bytes int) {
	q.bytes -= bytes
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// remove takes out what was withdrawn. If the writer has it already, that passes
// it over.
func (q *queue) remove(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, e); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.release(e.size)
	}
}

// backlog is what a writer has taken and not answered, in order. It belongs to
// one goroutine. The zero value is empty.
type backlog struct {
	again []*entry // before the rest, the first one last
	rest  []*entry
}

func (b *backlog) len() int { return len(b.again) + len(b.rest) }

// front is the first entry of a backlog that is not empty.
func (b *backlog) front() *entry {
	if n := len(b.again); n > 0 {
		return b.again[n-1]
	}
	return b.rest[0]
}

// pop takes the front out.
func (b *backlog) pop() {
	if n := len(b.again); n > 0 {
		b.again[n-1] = nil
		b.again = b.again[:n-1]
		return
	}
	b.rest[0] = nil
	if b.rest = b.rest[1:]; len(b.rest) == 0 {
		b.rest = nil
	}
}

// add puts entries behind the others.
func (b *backlog) add(entries []*entry) {
	if len(b.rest) == 0 {
		b.rest = entries
		return
	}
	b.rest = append(b.rest, entries...)
}

// back puts entries before the others, in their order.
func (b *backlog) back(entries ...*entry) {
	for _, e := range slices.Backward(entries) {
		b.again = append(b.again, e)
	}
}

// all empties the backlog.
func (b *backlog) all() []*entry {
	slices.Reverse(b.again)
	entries := append(b.again, b.rest...)
	*b = backlog{}
	return entries
}

// wanted reports whether somebody still waits for any of it.
func (b *backlog) wanted() bool {
	return slices.ContainsFunc(b.again, (*entry).waits) || slices.ContainsFunc(b.rest, (*entry).waits)
}
