package record

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// suspicious is how many unknown outcomes in a row, each ended by the server
// itself, make us ask for a reason that the client has lost.
const suspicious = 3

// commit appends a batch and answers its entries. Those that have to be decided
// again go back into the backlog.
func (w *writer) commit(ctx context.Context, b *batch) {
	b.seal(w.config.Nonce())
	began := time.Now()
	err := w.append(ctx, b)
	w.config.Observer.Appended(outcome(err), len(b.events), time.Since(began))
	var conflict *ledger.ConflictError
	var refused *ledger.RefusedError
	switch {
	case err == nil:
		w.adopt(b)
	case errors.As(err, &conflict):
		w.reconcile(ctx, b)
	case errors.As(err, &refused) && b.unsure && w.landed(ctx, b):
	case errors.As(err, &refused) && b.first() < len(b.events):
		// The append as a whole was refused. Its first AgentEvent alone tells
		// whether that is at fault.
		w.alone(ctx, b, b.first())
	default: // refused, erased, or the process ends with the outcome unknown
		w.heard()
		w.answerAll(b.entries, err)
	}
}

// append sends the frozen batch until the store says stored or refused; it
// gives up only with ctx, or where all of it has lapsed. Absence on a read would
// prove nothing: an append may still be queued somewhere.
func (w *writer) append(ctx context.Context, b *batch) error {
	answered := 0
	for attempt := 0; ; attempt++ {
		err := w.config.Ledger.Append(ctx, w.id, b.after, b.events)
		var unknown *ledger.UnknownError
		if !errors.As(err, &unknown) {
			w.public.trouble(nil)
			return err
		}
		b.unsure = true
		w.public.trouble(unknown.Err)
		w.heard()
		if unknown.Answered {
			answered++
		} else {
			answered = 0
		}
		if answered >= suspicious {
			answered = 0
			if reason := w.probe(ctx, b); reason != nil {
				return reason
			}
		}
		w.config.Observer.Appended(Unknown, len(b.events), 0)
		if b.lapsed() || !wait(ctx, backoff(attempt)) {
			return err
		}
	}
}

// heard tells that the producers of a pushed run are alive, although the store
// does not take what they say.
func (w *writer) heard() {
	if w.state != nil && w.state.Owner == "" && !w.state.Terminal() {
		w.config.Watcher.Heard(w.id, w.state.LastSeq, false)
	}
}

// probe asks for the reason of a refusal that the client may have lost. nil:
// there is none to be had, so the append is sent again.
func (w *writer) probe(ctx context.Context, b *batch) error {
	var refused *ledger.RefusedError
	if n := b.first(); n < len(b.events) {
		return &ledger.RefusedError{Run: w.id, Err: errors.New("ended early by the server")}
	}
	err := w.config.Ledger.Append(ctx, w.id, ledger.Impossible, b.events[:1])
	if errors.As(err, &refused) || errors.Is(err, ledger.ErrErased) {
		return err
	}
	return nil
}

// alone appends a batch's first n events, its first AgentEvent: the same bytes
// at the same seq, so that it is safe whatever became of the whole.
func (w *writer) alone(ctx context.Context, b *batch, n int) {
	small := &batch{after: b.after, events: b.events[:n]}
	var rest []*entry
	small.entries, rest = b.upTo(n)
	err := w.append(ctx, small)
	var conflict *ledger.ConflictError
	switch {
	case err == nil || errors.As(err, &conflict):
		w.reconcile(ctx, b)
	default:
		w.heard()
		w.answerAll(small.entries, err)
		w.backlog.back(rest...)
	}
}

// adopt makes the batch's facts the state's and answers its entries.
func (w *writer) adopt(b *batch) {
	ended := !w.state.Terminal() && b.fork.Terminal()
	w.state.Adopt(b.fork)
	w.stored(b.entries, ended)
}

// stored answers entries whose facts are in the stream and in the state; ended is
// whether the run's end is among them.
func (w *writer) stored(entries []*entry, ended bool) {
	if ended { // counted before anybody hears of it
		w.config.Observer.Ended(w.id, w.state.Owner != "", w.state.Status())
	} else if len(entries) > 0 && w.state.Owner == "" && !w.state.Terminal() {
		w.config.Watcher.Heard(w.id, w.state.LastSeq, true)
	}
	producers := make([]string, 0, len(entries))
	for _, e := range entries {
		producers = append(producers, e.producer)
	}
	w.publish(producers...)
	w.answerAll(entries, nil)
}

// reconcile reads on after a conflict. What is in the stream may be the batch
// itself, from an earlier try whose answer was lost: ids tell. The entries that
// did not get in are decided again.
func (w *writer) reconcile(ctx context.Context, b *batch) {
	before := w.state.LastSeq
	stored, err := w.seek(ctx, b)
	if err == nil && w.state.LastSeq == before {
		err = w.behind(ctx, before)
	}
	var back *ledger.SetBackError
	switch {
	case errors.As(err, &back):
		w.backlog.back(b.entries...)
		w.restart(back)
		return
	case unreadable(err):
		w.backlog.back(b.entries...)
		w.forget()
		w.refuse(ctx, err)
		return
	case err != nil:
		w.answerAll(b.entries, err)
		return
	}
	w.split(b, stored)
}

// seek reads on, and returns how many of a batch's events are in the stream.
func (w *writer) seek(ctx context.Context, b *batch) (stored int, err error) {
	w.inFlight = b.entries
	defer func() { w.inFlight = nil }()
	err = w.readOn(ctx, func(e *run.Event) {
		if stored < len(b.events) && e.Seq == b.events[stored].Seq && e.EventID() == b.events[stored].EventID() {
			stored++
		}
	})
	return stored, err
}

// landed reports whether a batch that was refused in the end had been stored before
// by a try whose answer was lost; then it is seen to.
func (w *writer) landed(ctx context.Context, b *batch) bool {
	stored, err := w.seek(ctx, b)
	if err != nil || stored == 0 {
		return false
	}
	w.split(b, stored)
	return true
}

// split answers the entries whose facts are in a batch's first events, which are
// stored, and has the others decided again.
func (w *writer) split(b *batch, stored int) {
	within, beyond := b.upTo(stored)
	w.stored(within, stored == len(b.events) && b.fork != nil && b.fork.Terminal())
	w.backlog.back(beyond...)
}
