package record

import (
	"slices"

	"github.com/runfacts/runfacts/domain/agent"
)

// A delta may end in half a surrogate pair. It waits whole, uncommitted, until
// its producer's next AgentEvent or the run's end shows what becomes of the
// half (protocol section 2, Resending).

// maxHalves bounds the deltas of one run that wait so, in bytes: producers are
// named by strangers. Of more, the one that has waited longest goes first, and
// its half becomes U+FFFD as any other lone half does.
const maxHalves = 1 << 20

// halves are those deltas, at most one of a producer. They are answered already;
// the queue goes on counting them. The zero value is empty.
type halves struct {
	waiting []*entry // the longest first
	bytes   int
}

func (h *halves) add(e *entry) {
	h.waiting = append(h.waiting, e)
	h.bytes += e.size
}

// of returns a producer's; nil: it has none.
func (h *halves) of(producer string) *entry {
	i := slices.IndexFunc(h.waiting, func(e *entry) bool { return e.producer == producer })
	if i < 0 {
		return nil
	}
	return h.waiting[i]
}

func (h *halves) remove(e *entry) {
	if i := slices.Index(h.waiting, e); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
		h.bytes -= e.size
	}
}

// let ends the waiting of e, which is committed as it stands from now on.
func (h *halves) let(e *entry) *entry {
	h.remove(e)
	e.whole = true
	return e
}

// beyond ends the waiting of those that are too many.
func (h *halves) beyond() (let []*entry) {
	for h.bytes > maxHalves {
		let = append(let, h.let(h.waiting[0]))
	}
	return let
}

// clear ends the waiting of all, for nothing: the run takes no more.
func (h *halves) clear() (bytes int) {
	bytes = h.bytes
	*h = halves{}
	return bytes
}

// release ends the waiting that e ends: of its producer's delta, and of all at
// the run's end. It returns those deltas, in the order in which they came, and in
// whole pairs where e brought the other half.
func (w *writer) release(e *entry) (let []*entry) {
	if len(w.halves.waiting) == 0 || e.looks() || e.whole || w.admit(e) != nil {
		return nil
	}
	if h := w.halves.of(e.producer); h != nil && e.push != nil {
		n, m, reborn := e.event.ProducerSeq, h.event.ProducerSeq, e.push.from.Epoch > h.push.from.Epoch
		switch {
		case n != 0 && n == m && !reborn: // the same delta, sent again, takes the other's place
			w.halves.remove(h)
			w.queue.free(h.size)
		case n == 0 || n > m || reborn:
			if e.event.Type == agent.Delta && e.event.BlockType == h.event.BlockType && e.event.BlockID == h.event.BlockID && !reborn {
				h.event.Content, e.event.Content = h.event.Content.Complete(e.event.Content)
			}
			let = append(let, w.halves.let(h))
		}
	}
	if e.closes() {
		for len(w.halves.waiting) > 0 {
			let = append(let, w.halves.let(w.halves.waiting[0]))
		}
	}
	return let
}

func (w *writer) admit(e *entry) error {
	if e.push == nil {
		return nil
	}
	return w.state.Admit(e.producer, e.push.from.Epoch, e.event.ProducerSeq, w.received[e.producer])
}
