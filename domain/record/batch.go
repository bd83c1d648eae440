package record

import (
	"slices"

	"github.com/runfacts/runfacts/domain/run"
)

// batch is what goes into one append: entries, and the facts decided for them
// on a fork of the run's state.
type batch struct {
	fork       *run.State
	entries    []*entry
	candidates []run.Candidate
	size       int // upper bound, in bytes

	after  run.Seq // set by seal
	events []run.Event
	unsure bool // an answer to its append was lost
}

func newBatch(state *run.State) *batch { return &batch{fork: state.Fork()} }

// decide judges e behind what the batch holds already.
func (b *batch) decide(e *entry, received map[string]run.Mark, c *Config) (run.Decision, error) {
	switch {
	case e.act != nil:
		return e.act(b.fork, nil)
	case e.push == nil:
		return run.Decision{}, nil
	}
	if err := b.fork.MayWrite(e.push.epoch); err != nil && !b.fork.Terminal() {
		return run.Decision{}, err
	}
	from := e.push.from
	if err := b.fork.Admit(from.Producer, from.Epoch, e.event.ProducerSeq, received[from.Producer]); err != nil {
		return run.Decision{}, err
	}
	return b.fork.Decide(&e.event, from, c.Now(), c.MaxAppend)
}

// add takes e's facts in, unless they no longer fit; the first always fit.
func (b *batch) add(e *entry, d run.Decision, limit int) bool {
	size := 0
	for i := range d.Candidates {
		size += d.Candidates[i].Size(b.fork)
	}
	if len(b.entries) > 0 && b.size+size > limit {
		return false
	}
	b.fork.Take(d)
	b.candidates = run.Join(b.candidates, d.Candidates)
	e.last = len(b.candidates) - 1
	b.entries = append(b.entries, e)
	b.size += size
	return true
}

// seal freezes the batch: from here on its bytes stay as they are.
func (b *batch) seal(nonce string) {
	b.after = b.fork.LastSeq
	b.events = b.fork.Seal(b.candidates, nonce)
}

// lapsed reports whether nobody stands for any of it any more: should it be stored
// after all, so be it.
func (b *batch) lapsed() bool {
	return !slices.ContainsFunc(b.entries, func(e *entry) bool { return !e.lapse.Load() })
}

// first returns how many events the batch's first AgentEvent has (with those
// that merging made one with it).
func (b *batch) first() int {
	for i := range b.events {
		if b.events[i].Source != nil {
			return i + 1
		}
	}
	return len(b.events)
}

// upTo splits the entries into those whose facts are within the first n
// events, and the others.
func (b *batch) upTo(n int) (within, beyond []*entry) {
	for _, e := range b.entries {
		if e.last < n {
			within = append(within, e)
		} else {
			beyond = append(beyond, e)
		}
	}
	return within, beyond
}
