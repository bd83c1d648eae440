package supervisor

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// finishPause is how long an end that was refused waits before it is tried again:
// somebody has to change something.
const finishPause = 5 * time.Second

// maxMessage bounds a failure's message, in bytes.
const maxMessage = 8 << 10

// end is what is to be recorded last of a run: a cancellation, or an AgentEvent
// that says how it ended.
type end struct {
	cancel *run.Cancellation
	event  agent.Event
}

// finish records how an owned run ends. Every way out comes here, and nothing else
// ends one: a runtime's own end, a limit, a drain, a cancel, an event that could
// not be recorded. It tries until the run has ended, whoever ended it, or is not
// this instance's any more; then over is true. It is false where the process ends
// before. What the runtime has reported comes first, for as long as the store
// takes; push is nil where it has not begun.
func (s *Supervisor) finish(hard context.Context, r *owned, push *record.Push, out result) (over bool) {
	last, ours := s.ending(r, out)
	if push != nil {
		_, err := push.Wait(hard)
		switch cause := broken(err); {
		case err == nil:
		case hard.Err() != nil, errors.Is(err, record.ErrStopping):
			return false
		case last.cancel == nil || cause == errLost || cause == agent.ErrTakenOver: //nolint:errorlint // they come bare
			last, ours = endFor(cause)
		}
	}
	for ours && hard.Err() == nil {
		err := s.recordEnd(hard, r, last)
		switch cause := broken(err); {
		case err == nil, cause == errLost, cause == agent.ErrTakenOver: //nolint:errorlint // they come bare
			return true
		case errors.Is(err, record.ErrStopping):
			return false
		case last.event.Type == agent.Done || len(last.event.ErrorMessage) > maxMessage: // what the runtime said of its end cannot be recorded
			last, ours = endFor(cause)
			continue
		}
		s.config.Observer.RuntimeFailed(r.id, err)
		pause(hard, finishPause)
	}
	return !ours
}

// ending says what the end of a run is; ours is false where somebody else has seen
// to it.
func (s *Supervisor) ending(r *owned, out result) (last end, ours bool) {
	var c *cancel
	var f *agent.Failure
	switch {
	case out.word != nil:
		return end{event: *out.word}, true
	case errors.As(out.told, &c):
		return end{cancel: &run.Cancellation{Confirmed: out.stop.Proof != "", Proof: out.stop.Proof, Reason: c.reason}}, true
	case out.told != nil:
		return endFor(out.told)
	case out.err == nil:
		return end{event: agent.Event{Type: agent.Done}}, true
	case errors.As(out.err, &f):
		return failure(f.Code, f.Message, f.Retryable), true
	}
	s.config.Observer.RuntimeFailed(r.id, out.err)
	return failure(run.RuntimeFailed, "the runtime failed", false), true
}

// endFor is the end for a reason that the runtime did not give.
func endFor(cause error) (last end, ours bool) {
	var l *limit
	if errors.As(cause, &l) {
		return failure(l.code, l.message, l.retryable), true
	}
	return end{}, false
}

func failure(code, message string, retryable bool) end {
	e := agent.Event{Type: agent.Error, ErrorCode: code, ErrorMessage: beginning(message, maxMessage), Retryable: retryable}
	if e.Check() != nil { // a runner's code that is none
		e.ErrorCode = run.RuntimeFailed
	}
	return end{event: e}
}

// recordEnd records a run's end. nil: it is recorded.
func (s *Supervisor) recordEnd(hard context.Context, r *owned, last end) (err error) {
	if last.cancel != nil {
		_, err = s.config.Runs.Cancel(hard, r.id, r.summary.Epoch, *last.cancel)
	} else {
		_, err = s.config.Runs.Finish(hard, r.id, r.summary.Epoch, last.event)
	}
	return err
}

// beginning returns at most n bytes of text, whole characters.
func beginning(text string, n int) string {
	n = min(n, len(text))
	for n < len(text) && n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// pause waits for d, or for ctx's end.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
