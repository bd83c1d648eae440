// Package record writes runs: it has AgentEvents, and what is done to a run from
// outside, decided by the fold and committed to the ledger, in order, once.
//
// Each run in use has one Recorder. Whoever has something for the run hands it
// over and waits for its answer; a writer, one goroutine that exists while
// something waits, owns the run's folded state and commits append by append. An
// append is sent until the store has said stored or refused; nothing is guessed.
package record

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// ErrStopping: the process is ending; what was not committed is the producer's
// to send again.
var ErrStopping = errors.New("the server is stopping")

// Recorder is one run, as those see it who have something to be written. While one
// append is in flight, what arrives waits; the next append takes all of it. There
// are no timers: an idle run pays no delay, a fast one pays few appends. Safe for
// concurrent use.
type Recorder struct {
	id     run.ID
	runs   *Runs
	queue  queue
	public public
	writer writer // belongs to the goroutine that the queue has let be active

	users int // who may still add, a writer among them; Runs counts them under its lock
}

func newRecorder(id run.ID, runs *Runs) *Recorder {
	r := &Recorder{id: id, runs: runs}
	r.writer = writer{id: id, config: &runs.config, queue: &r.queue, public: &r.public, received: make(map[string]run.Mark)}
	return r
}

// add hands e over, and brings a writer if there is none. Errors: ctx's,
// ErrStopping; then e has no answer.
func (r *Recorder) add(ctx context.Context, e *entry) error {
	start, err := r.queue.add(ctx, e)
	if err != nil || !start {
		return err
	}
	release := r.runs.hold(r)
	if !r.runs.start(r, release) {
		r.writer.abandon()
		release()
		return ErrStopping
	}
	return nil
}

// ask hands e over and waits for its answer. When ctx ends first, the answer is
// what is known of the run (zero: nothing), with an *ledger.UnavailableError. A
// brief act comes to nothing then, unless its facts are on their way already. For
// those it waits on; only an end whose outcome is unknown is not sent again.
func (r *Recorder) ask(ctx context.Context, e *entry) (Summary, error) {
	if err := r.add(ctx, e); err != nil {
		return Summary{}, err
	}
	select {
	case a := <-e.done:
		return a.summary, a.err
	case <-ctx.Done():
	}
	if e.looks() || e.brief {
		if e.withdraw() {
			r.queue.remove(e)
		} else if e.brief {
			e.lapse.Store(e.final)
			a := <-e.done
			return a.summary, a.err
		}
	}
	return r.public.summary(e.producer), &ledger.UnavailableError{Err: r.public.because(context.Cause(ctx))}
}

// letGo ends the waiting of half characters, so that nothing acknowledged is left
// when the recorder is dropped. Its caller is a user, and is none afterwards.
func (r *Recorder) letGo() {
	defer r.runs.release(r)
	e := newAsk("")
	e.letGo = true
	// There is room: the recorder was idle. An error means that the process ends,
	// and that the producers send again what is above their marks.
	_ = r.add(context.Background(), e)
}

// backoff is how long to wait before asking a store again that did not answer:
// short at first, since most outages are blips, and never long, since the store
// being back is worth more than the calls.
func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 5), time.Second)
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
