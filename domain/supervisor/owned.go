package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// owned is a run that this instance owns, or is about to.
type owned struct {
	id    run.ID
	agent Agent
	input json.RawMessage

	started chan struct{} // closed once the three below are set
	summary record.Summary
	created bool
	err     error

	placed bool          // it holds a slot, for a turn that has not begun; of the goroutine that drives it
	since  time.Time     // it waits for its turn
	driven bool          // it has its turn; the Supervisor's lock guards it
	done   chan struct{} // closed when nothing more is recorded here
	finish func()        // closes done, once

	rejoin *agent.Rejoin // of a run that was taken over

	clock     *clock
	questions *questions

	once   sync.Once
	ending chan struct{} // closed once cause is set
	cause  error         // why it is to end: *cancel, *limit, errLost or agent.ErrTakenOver
}

func (s *Supervisor) newOwned(id run.ID, a Agent, input json.RawMessage) *owned {
	r := &owned{id: id, agent: a, input: input, since: time.Now(), started: make(chan struct{}), done: make(chan struct{}), ending: make(chan struct{})}
	r.clock = newClock(a.Limits)
	r.questions = newQuestions(r.clock, s.config.Blobs, func(ctx context.Context, call string) (string, error) {
		return s.config.Runs.ExternalCall(ctx, id, call)
	})
	r.finish = sync.OnceFunc(func() { close(r.done) })
	return r
}

// end makes the run end for a reason; the first one counts.
func (r *owned) end(cause error) {
	r.once.Do(func() {
		r.cause = cause
		close(r.ending)
	})
}

// told returns why the run is to end; nil: nobody has said so.
func (r *owned) told() error {
	select {
	case <-r.ending:
		return r.cause
	default:
		return nil
	}
}

func (r *owned) task() agent.Task {
	return agent.Task{RunID: string(r.id), ThreadID: r.summary.ThreadID, Input: r.input, Rejoin: r.rejoin, Answer: r.questions.answer}
}

// cancel: somebody wants the run to stop.
type cancel struct{ reason string }

func (*cancel) Error() string { return "cancelled" }

// limit: the run has reached something that it may not pass.
type limit struct {
	code, message string
	retryable     bool
}

func (l *limit) Error() string { return l.message }

// errLost: there is nothing left to end here, since somebody else has ended the
// run, or it is gone.
var errLost = errors.New("the run ended elsewhere")

// broken says why a run has to end that has refused what its runtime reported: it
// is not this instance's any more (errLost, agent.ErrTakenOver), or the event could
// not be recorded (*limit).
func broken(err error) error {
	var fenced *run.FencedError
	var ended *run.EndedError
	var large *run.TooLargeError
	var no *ledger.RefusedError
	var back *ledger.SetBackError
	switch {
	case errors.As(err, &back):
		return &limit{run.StoreDiverged, "the store was set back, and facts of the run are gone", true}
	case errors.As(err, &fenced):
		return agent.ErrTakenOver
	case errors.As(err, &ended), erased(err):
		return errLost
	case errors.As(err, &large), errors.As(err, &no) && no.TooLarge:
		return &limit{"event_too_large", "the runtime reported an event that does not fit one append", false}
	case errors.As(err, &no):
		return &limit{"store_refused", "the store refused an event of the runtime", false}
	}
	return &limit{run.RecordFailed, "what the runtime reported could not be recorded", true}
}

// erased reports whether there is nothing that could be ended.
func erased(err error) bool {
	return errors.Is(err, ledger.ErrErased) || errors.Is(err, ledger.ErrNotFound)
}
