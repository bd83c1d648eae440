package ledger

import (
	"maps"
	"slices"

	"github.com/runfacts/runfacts/domain/agent"
)

// A delta may end in half a surrogate pair. It waits whole, uncommitted, until
// its producer's next AgentEvent or the run's end shows what becomes of the
// half (protocol section 2, Resending).

// halved reports whether the entry is such a delta and may still wait.
func (e *entry) halved() bool {
	return e.push != nil && e.event.Type == agent.Delta && !e.whole && e.event.Content.EndsInHalf()
}

// release returns the deltas whose waiting ends with e, followed by e itself,
// or nil where there are none.
func (r *Recorder) release(e *entry) []*entry {
	if len(r.held) == 0 || e.looks() || e.whole || r.admit(e) != nil {
		return nil
	}
	var out []*entry
	let := func(producer string) {
		out = append(out, r.held[producer])
		r.held[producer].whole = true
		delete(r.held, producer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.held[e.producer()]; h != nil && e.push != nil {
		n, m := e.event.ProducerSeq, h.event.ProducerSeq
		switch {
		case n != 0 && n == m: // the same delta, sent again, takes the other's place
			delete(r.held, e.producer())
		case n == 0 || n > m:
			if e.event.Type == agent.Delta && e.event.BlockType == h.event.BlockType {
				h.event.Content, e.event.Content = h.event.Content.Complete(e.event.Content)
			}
			let(e.producer())
		}
	}
	if e.ends() {
		for _, producer := range slices.Sorted(maps.Keys(r.held)) {
			let(producer)
		}
	}
	if out == nil {
		return nil
	}
	return append(out, e)
}

func (r *Recorder) admit(e *entry) error {
	return r.state.Admit(e.producer(), e.event.ProducerSeq, r.received[e.producer()])
}
