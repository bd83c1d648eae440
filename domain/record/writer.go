package record

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// maxReceived bounds how many producers' received numbers are remembered beyond
// their marks. One that is forgotten is told to go on behind its mark, as another
// instance would tell it.
const maxReceived = 10_000

// writer writes one run. It owns all that is in it, queue and public aside, which
// are safe for others; it goes from goroutine to goroutine by way of the queue,
// which lets one be active.
type writer struct {
	id     run.ID
	config *Config
	queue  *queue
	public *public

	state    *run.State // nil: not read yet
	backlog  backlog
	inFlight []*entry  // of a batch whose append is being explained
	seen     time.Time // when the store last showed the run as the state has it
	halves   halves
	received map[string]run.Mark // by producer: the highest number taken, where that is above its mark
	over     bool                // the Watcher was told that the run has ended
}

// run commits what is handed over until nothing is left to do.
func (w *writer) run(ctx context.Context) {
	for w.take() {
		switch {
		case ctx.Err() != nil:
			w.answerAll(w.backlog.all(), ErrStopping)
		case w.state == nil && !w.plant():
			if err := w.readOn(ctx, nil); err != nil {
				w.refuse(ctx, err)
			}
		case time.Since(w.seen) > unseen:
			if err := w.wholly(ctx); err != nil {
				w.unreadOn(ctx, err)
			}
		default:
			if b := w.prepare(ctx); b != nil {
				w.commit(ctx, b)
			}
		}
	}
}

// abandon answers all that is there when the process ends.
func (w *writer) abandon() {
	for w.take() {
		w.answerAll(w.backlog.all(), ErrStopping)
	}
}

// take moves what was handed over into the backlog; false: the writer's turn has
// ended, and it must touch nothing any more.
func (w *writer) take() bool {
	w.public.weigh(w.weight(), len(w.halves.waiting) > 0)
	taken, on := w.queue.take(w.backlog.len() > 0)
	if on {
		w.backlog.add(taken)
	}
	return on
}

func (w *writer) weight() int {
	if w.state == nil {
		return 0
	}
	return w.state.Weight() + w.halves.bytes + 128*len(w.received)
}

// plant begins with the state of a run that was started here just now, if that is
// what comes first.
func (w *writer) plant() bool {
	e := w.backlog.front()
	if e.seed != nil {
		w.state, w.seen = e.seed, time.Now()
		w.publish("")
	}
	return e.seed != nil
}

// prepare decides what the backlog brings, in order. It answers what needs no
// append while that stands at the front, and returns the batch behind it. Only
// what stands at the front is refused or found a duplicate: further back the
// answer would rest on facts that are not committed.
func (w *writer) prepare(ctx context.Context) *batch {
	b := newBatch(w.state)
	looked := false
	for w.backlog.len() > 0 {
		e := w.backlog.front()
		if e.dropped() {
			w.backlog.pop()
			w.queue.free(e.size)
			continue
		}
		if let := w.release(e); let != nil {
			w.backlog.back(let...)
			continue
		}
		d, err := b.decide(e, w.received, w.config)
		if err == nil && len(d.Candidates) > 0 && !e.take() {
			continue // withdrawn just now
		}
		if err == nil && len(d.Candidates) > 0 && !e.halved() {
			if !b.add(e, d, w.config.MaxAppend) {
				break
			}
			w.backlog.pop()
			continue
		}
		if len(b.entries) > 0 {
			break
		}
		if !looked && w.outdated(e, err) {
			if err := w.look(ctx, e, err); err != nil {
				w.unreadOn(ctx, err)
				return nil
			}
			looked = true
		} else {
			w.backlog.pop()
			w.settle(e, d, err)
		}
		b = newBatch(w.state)
	}
	if len(b.entries) == 0 {
		return nil
	}
	return b
}

// unseen is after how long without a look at the store a run is looked at before
// anything is appended: an append shows that the run's end is where it was, and
// nothing of what stands before that.
const unseen = 15 * time.Second

// look reads on before an answer that what is not read yet might make another
// one. Where the answer is a gap, the store's writer is asked first how far there
// is to read: a producer would go on from where it is told. Who asks where the
// run stands is told what every instance would tell, also of its beginning.
func (w *writer) look(ctx context.Context, e *entry, answer error) error {
	var gap *run.GapError
	for attempt := 0; errors.As(answer, &gap); attempt++ {
		_, err := w.config.Ledger.End(ctx, w.id)
		var away *ledger.UnavailableError
		if !errors.As(err, &away) {
			break // what else is wrong, reading tells
		}
		if err := w.outlast(ctx, attempt, err); err != nil {
			return err
		}
	}
	if e.push == nil {
		return w.wholly(ctx)
	}
	return w.readOn(ctx, nil)
}

// wholly looks at the run's beginning and at its end.
func (w *writer) wholly(ctx context.Context) error {
	if err := w.begins(ctx); err != nil {
		return err
	}
	return w.readOn(ctx, nil)
}

// unreadOn answers the backlog when reading on failed, unless it can be decided
// anew.
func (w *writer) unreadOn(ctx context.Context, err error) {
	var back *ledger.SetBackError
	if errors.As(err, &back) {
		w.restart(back)
		return
	}
	if errors.Is(err, ledger.ErrNotFound) || errors.Is(err, ledger.ErrErased) || unreadable(err) {
		w.forget() // it is known of a run that is not there any more
	}
	w.refuse(ctx, err)
}

// outdated reports whether the answer to e might be another one with what the
// leader has: other instances write the run too, and erase it.
func (w *writer) outdated(e *entry, err error) bool {
	var gap *run.GapError
	switch {
	case e.letGo, e.seed != nil:
		return false
	case e.push == nil:
		return true
	}
	return errors.As(err, &gap) || w.state.Terminal()
}

// settle answers an entry that brings no facts now.
func (w *writer) settle(e *entry, d run.Decision, err error) {
	heard := e.push != nil && (err == nil || errors.Is(err, run.ErrDuplicate))
	if heard && w.state.Owner == "" && !w.state.Terminal() {
		w.config.Watcher.Heard(w.id, w.state.LastSeq, false)
	}
	if e.push == nil || err != nil {
		w.answer(e, err)
		return
	}
	w.receive(e)
	if e.halved() {
		e.push.answered(e.line, nil)
		w.halves.add(e)
		w.backlog.back(w.halves.beyond()...)
		return
	}
	w.state.Take(d) // no facts, but perhaps a note
	w.answer(e, nil)
}

// receive notes the highest number that was taken from a producer.
func (w *writer) receive(e *entry) {
	taken := run.Mark{Epoch: e.push.from.Epoch, Seq: e.event.ProducerSeq}
	if !w.received[e.producer].Before(taken) {
		return
	}
	if len(w.received) >= maxReceived {
		clear(w.received)
	}
	w.received[e.producer] = taken
}

// answer gives an entry its one answer: nil for taken. What has waited for half a
// character was answered when it began to wait.
func (w *writer) answer(e *entry, err error) { w.answerAll([]*entry{e}, err) }

func (w *writer) answerAll(entries []*entry, err error) {
	bytes := 0
	for _, e := range entries {
		bytes += e.size
	}
	w.queue.free(bytes)
	for _, e := range entries {
		switch {
		case e.whole:
		case e.push != nil:
			e.push.answered(e.line, err)
		default:
			a := answer{err: err}
			if w.state != nil && err == nil {
				a.summary = summarize(w.state, e.producer)
			}
			e.done <- a
		}
	}
}

// refuse answers the whole backlog: the run could not be read. What ends it is done
// all the same, if the fault is the run's own.
func (w *writer) refuse(ctx context.Context, err error) {
	all := w.backlog.all()
	if !unreadable(err) {
		w.answerAll(all, err)
		return
	}
	for _, e := range all {
		if !e.final || !e.take() {
			w.answer(e, err)
			continue
		}
		summary, err := w.endUnread(ctx, e, err)
		w.queue.free(e.size)
		e.done <- answer{summary, err}
	}
}

// publish makes known where the run stands now, and the marks of producers.
func (w *writer) publish(producers ...string) {
	w.public.publish(w.state, producers...)
	for _, producer := range producers {
		if !w.state.Mark(producer).Before(w.received[producer]) {
			delete(w.received, producer)
		}
	}
	if !w.state.Terminal() {
		return
	}
	w.queue.free(w.halves.clear())
	if !w.over && w.state.Owner == "" {
		w.config.Watcher.Ended(w.id)
	}
	w.over = true
}

// forget drops a state that the store contradicts; the next use reads anew.
func (w *writer) forget() {
	w.state, w.over = nil, false
	w.queue.free(w.halves.clear())
	clear(w.received)
	w.public.forget()
}
