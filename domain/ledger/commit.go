package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/runfacts/runfacts/domain/run"
)

// Impossible is a seq that no run ends at. An append there is refused in any
// case, and shows a reason that comes before the conflict, if there is one.
const Impossible run.Seq = math.MaxInt64

// suspicious is how many unknown outcomes in a row, each ended by the server
// itself, make us ask for a reason that the client has lost.
const suspicious = 3

// DivergedError: the stream ends before an event that was acknowledged to us.
type DivergedError struct {
	Run  run.ID
	Last run.Seq // the last event that we know of
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("run %s ended at seq %d when last seen, and no longer does", e.Run, e.Last)
}

// commit appends a batch and settles what came of it. It returns the entries
// that have to be decided again.
func (r *Recorder) commit(ctx context.Context, b *batch) []*entry {
	b.seal(r.runs.config.Nonce())
	began := time.Now()
	err := r.append(ctx, b)
	r.runs.config.Observer.Appended(outcome(err), len(b.events), time.Since(began))
	var conflict *ConflictError
	var refused *RefusedError
	switch {
	case err == nil:
		r.adopt(b)
		return nil
	case errors.As(err, &conflict):
		return r.reconcile(ctx, b)
	case errors.As(err, &refused):
		// The append as a whole was refused. Its first AgentEvent alone tells
		// whether that is at fault.
		if n := b.first(); n < len(b.events) {
			return r.alone(ctx, b, n)
		}
		settleAll(b.entries, err)
	default: // erased, or the process ends with the outcome unknown
		settleAll(b.entries, err)
	}
	return nil
}

// append sends the frozen batch until the store says stored or refused; it
// gives up only with ctx. Absence on a read would prove nothing: an append may
// still be queued somewhere.
func (r *Recorder) append(ctx context.Context, b *batch) error {
	answered := 0
	for attempt := 0; ; attempt++ {
		err := r.runs.config.Ledger.Append(ctx, r.id, b.after, b.events)
		var unknown *UnknownError
		if !errors.As(err, &unknown) {
			return err
		}
		if unknown.Answered {
			answered++
		} else {
			answered = 0
		}
		if answered >= suspicious {
			answered = 0
			if reason := r.probe(ctx, b); reason != nil {
				return reason
			}
		}
		r.runs.config.Observer.Appended(Unknown, len(b.events), 0)
		if !wait(ctx, backoff(attempt)) {
			return err
		}
	}
}

// probe asks for the reason of a refusal that the client may have lost. nil:
// there is none to be had, so the append is sent again.
func (r *Recorder) probe(ctx context.Context, b *batch) error {
	var refused *RefusedError
	if n := b.first(); n < len(b.events) {
		return &RefusedError{Run: r.id, Err: errors.New("ended early by the server")}
	}
	err := r.runs.config.Ledger.Append(ctx, r.id, Impossible, b.events[:1])
	if errors.As(err, &refused) || errors.Is(err, ErrErased) {
		return err
	}
	return nil
}

// alone appends a batch's first n events, its first AgentEvent: the same bytes
// at the same seq, so that it is safe whatever became of the whole.
func (r *Recorder) alone(ctx context.Context, b *batch, n int) []*entry {
	small := &batch{after: b.after, events: b.events[:n]}
	var rest []*entry
	small.entries, rest = b.upTo(n)
	err := r.append(ctx, small)
	var conflict *ConflictError
	switch {
	case err == nil || errors.As(err, &conflict):
		return r.reconcile(ctx, b)
	default:
		settleAll(small.entries, err)
		return rest
	}
}

// adopt makes the batch's facts the state's and answers its entries.
func (r *Recorder) adopt(b *batch) {
	r.mu.Lock()
	ended := !r.state.Terminal() && b.fork.Terminal()
	r.state.Adopt(b.fork)
	status, last, owned := r.state.Status(), r.state.LastSeq, r.state.Owner != ""
	r.mu.Unlock()
	if ended { // counted before anybody hears of it
		r.runs.config.Observer.Ended(r.id, owned, status)
	} else if !owned {
		r.runs.config.Observer.Heard(r.id, last, true)
	}
	settleAll(b.entries, nil)
}

// reconcile reads on after a conflict. What is in the stream may be the batch
// itself, from an earlier try whose answer was lost: ids tell. The entries that
// did not get in are decided again.
func (r *Recorder) reconcile(ctx context.Context, b *batch) []*entry {
	before := r.state.LastSeq
	stored := 0
	err := r.readOn(ctx, func(e *run.Event) {
		if stored < len(b.events) && e.Seq == b.events[stored].Seq && e.EventID() == b.events[stored].EventID() {
			stored++
		}
	})
	if err == nil && r.state.LastSeq == before {
		err = &DivergedError{r.id, before}
		r.forget()
	}
	if err != nil {
		settleAll(b.entries, err)
		return nil
	}
	if stored == len(b.events) && b.fork.Terminal() {
		r.runs.config.Observer.Ended(r.id, r.state.Owner != "", r.state.Status())
	}
	within, beyond := b.upTo(stored)
	settleAll(within, nil)
	return beyond
}

// forget drops a state that the store contradicts; the next use reads anew.
func (r *Recorder) forget() {
	r.mu.Lock()
	r.state = nil
	r.mu.Unlock()
}

// readPage is how much of a run is folded at a time.
var readPage = Page{Events: 1000, Bytes: 1 << 20}

// readOn folds what the leader has behind the state's last event, and shows it
// to see, if that is not nil. It outlasts an unavailable store; ctx ends it.
func (r *Recorder) readOn(ctx context.Context, see func(*run.Event)) error {
	state := r.state
	if state == nil {
		state = &run.State{}
	}
	for attempt := 0; ; {
		page, err := r.runs.config.Ledger.Read(ctx, r.id, state.LastSeq, readPage)
		var away *UnavailableError
		if errors.As(err, &away) {
			if !wait(ctx, backoff(attempt)) {
				return ErrStopping
			}
			attempt++
			continue
		}
		if err != nil {
			return err
		}
		r.mu.Lock()
		for i := range page {
			if err = state.Apply(&page[i]); err != nil {
				err = &CorruptError{Run: r.id, Seq: page[i].Seq, Err: err}
				break
			}
			if see != nil {
				see(&page[i])
			}
		}
		r.mu.Unlock()
		if err != nil {
			return err
		}
		if len(page) < readPage.Events && !full(page) {
			break
		}
	}
	r.mu.Lock()
	r.state = state
	r.mu.Unlock()
	return nil
}

// full reports whether a page ended because of its bytes, with more behind it.
func full(page []run.Event) bool {
	n := 0
	for i := range page {
		n += len(page[i].Payload)
	}
	return n >= readPage.Bytes
}

// wait reports whether d passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
