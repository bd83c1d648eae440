package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// owned is a run that this instance owns.
type owned struct {
	id    run.ID
	agent Agent
	input json.RawMessage

	started chan struct{} // closed once the three below are set
	summary record.Summary
	created bool
	err     error

	driven bool          // it has its turn; the Supervisor's lock guards it
	done   chan struct{} // closed when nothing more is recorded here

	finish func() // closes done, once

	rejoin *agent.Rejoin // of a run that was taken over

	calls                  // external ones
	answered chan struct{} // holds a hint that one was answered

	once   sync.Once
	ending chan struct{} // closed once cause is set
	cause  error         // why it is to end: *cancel, *limit, errLost or agent.ErrTakenOver
}

func newOwned(id run.ID, a Agent, input json.RawMessage) *owned {
	r := &owned{id: id, agent: a, input: input, started: make(chan struct{}), done: make(chan struct{}), ending: make(chan struct{})}
	r.answered = make(chan struct{}, 1)
	r.changed, r.open, r.answers = make(chan struct{}), make(map[string]bool), make(map[string]agent.Answer)
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

// cancel: somebody wants the run to stop.
type cancel struct{ reason string }

func (*cancel) Error() string { return "cancelled" }

// limit: the run has reached something that it may not pass.
type limit struct {
	code, message string
	retryable     bool
}

func (l *limit) Error() string { return l.message }

// errLost: somebody else has ended the run.
var errLost = errors.New("the run ended elsewhere")

// lost says why a run is not this instance's any more.
func lost(err error) error {
	var fenced *run.FencedError
	if errors.As(err, &fenced) {
		return agent.ErrTakenOver
	}
	return errLost
}

// neverStarted is the proof for a run that was stopped before its turn.
const neverStarted = "the runtime was never started"

// drive lets the run have its turn, and records how it ends. hard ends with the
// process: what is not recorded then is left to the other instances.
func (s *Supervisor) drive(hard context.Context, r *owned, epoch uint64) {
	recorder, release := s.config.Runs.Use(r.id)
	defer release()
	push := recorder.Drive(epoch)
	outcome := result{stop: agent.Stop{Proof: neverStarted}}
	if place, mine := s.turn(hard, r); mine {
		outcome = s.execute(hard, r, push)
		defer func() {
			if outcome.late != nil { // recorded without it; its place is still taken
				<-outcome.late
			}
			place()
		}()
	}
	defer r.finish()
	if hard.Err() != nil {
		return
	}
	// What it reported comes before its end.
	if _, err := push.Wait(hard); err != nil && !s.refused(err, r) {
		return
	}
	s.conclude(hard, r, epoch, recorder, outcome)
}

// refused reports whether a failed push leaves a run that must still be ended.
func (s *Supervisor) refused(err error, r *owned) bool {
	var large *run.TooLargeError
	var no *ledger.RefusedError
	switch {
	case errors.As(err, &large), errors.As(err, &no) && no.TooLarge:
		r.end(&limit{"event_too_large", "the runtime reported an event that does not fit one append", false})
	case errors.As(err, &no):
		r.end(&limit{"store_refused", "the store refused an event of the runtime", false})
	default:
		return false
	}
	return true
}

// turn waits until the run may be driven, and returns the call that gives its
// place back; mine is false where it is to end before. What was taken over runs
// already, and does not wait.
func (s *Supervisor) turn(hard context.Context, r *owned) (place func(), mine bool) {
	begin := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.driven = true
	}
	if r.rejoin != nil {
		begin()
		return func() {}, true
	}
	timer := time.NewTimer(s.config.QueueTime)
	defer timer.Stop()
	select {
	case <-r.ending: // drained or cancelled while it was being started
		return nil, false
	default:
	}
	select {
	case s.slots <- struct{}{}:
		begin()
		return func() { <-s.slots }, true
	case <-r.ending:
	case <-timer.C:
		r.end(&limit{run.QueueTimeout, "the run waited too long for its turn", true})
	case <-hard.Done():
	}
	return nil, false
}

// result is how a runtime ended.
type result struct {
	stop  agent.Stop
	err   error
	ended bool            // it reported the run's end itself
	late  <-chan struct{} // closed when it has ended after all; nil: it has
}

// execute runs the runtime until it has stopped; where it is told to, it has
// stopTime for it.
func (s *Supervisor) execute(hard context.Context, r *owned, push *record.Push) result {
	ctx, stop := context.WithCancelCause(hard)
	defer stop(nil)
	var out result
	reported := make(chan struct{}, 1) // holds a hint that the runtime lives
	exited := make(chan struct{})
	line := 0
	emit := func(e agent.Event) error {
		if ctx.Err() != nil {
			return agent.ErrEnded
		}
		select {
		case reported <- struct{}{}:
		default: // one hint is enough
		}
		s.config.Observer.Reported(e.Type)
		if err := blob.Offload(ctx, s.config.Blobs, r.id, s.config.Inline, &e); err != nil {
			s.config.Observer.RuntimeFailed(r.id, err)
			r.end(&limit{"blob_store_failed", "what the runtime reported could not be kept", true})
			return agent.ErrEnded
		}
		r.follow(&e)
		line++
		if push.Send(ctx, line, e) != nil {
			return agent.ErrEnded
		}
		if e.Type == agent.Done || e.Type == agent.Error {
			out.ended = true
			stop(agent.ErrEnded)
			return agent.ErrEnded
		}
		return nil
	}
	go func() {
		defer close(exited)
		out.stop, out.err = r.agent.Runner.Run(ctx, r.task(), emit)
	}()
	bounds := newClock(r.agent.Limits)
	defer bounds.stop()
	for {
		bounds.set(r.waits())
		select {
		case <-exited:
			return out
		case <-reported:
			bounds.again()
			continue
		case <-r.answered:
			bounds.again()
			continue
		case <-bounds.duration.C:
			r.end(&limit{run.RunTimeout, "the run took longer than " + r.agent.Limits.Duration.String(), false})
		case <-bounds.silence.C:
			r.end(&limit{run.RunSilent, "the runtime reported nothing for " + r.agent.Limits.Silence.String(), true})
		case <-bounds.wait.C:
			r.end(&limit{run.WaitTimeout, "nobody answered within " + r.agent.Limits.Wait.String(), false})
		case <-push.Broken():
			if _, err := push.Wait(hard); !s.refused(err, r) {
				r.end(lost(err))
			}
		case <-r.ending:
		case <-hard.Done():
		}
		break
	}
	select {
	case <-r.ending:
		stop(r.cause)
	default: // the process ends
		stop(nil)
	}
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-exited:
		return out
	case <-timer.C:
		return result{late: exited}
	}
}

func (r *owned) task() agent.Task {
	return agent.Task{RunID: string(r.id), ThreadID: r.summary.ThreadID, Input: r.input, Rejoin: r.rejoin, Answer: r.answer}
}

// conclude records the end of a run whose runtime has stopped, or was given up.
func (s *Supervisor) conclude(hard context.Context, r *owned, epoch uint64, recorder *record.Recorder, out result) {
	var cause error
	select {
	case <-r.ending:
		cause = r.cause
	default: // it ended by itself
	}
	if out.ended && cause == nil {
		return // its own end is recorded
	}
	var c *cancel
	var l *limit
	var f *agent.Failure
	end := agent.Event{Type: agent.Error, ErrorCode: run.RuntimeFailed, ErrorMessage: "the runtime failed"}
	switch {
	case errors.As(cause, &c):
		s.insist(hard, r.id, func() error {
			_, err := s.config.Runs.Cancel(hard, r.id, epoch, run.Cancellation{
				Confirmed: out.stop.Proof != "", Proof: out.stop.Proof, Reason: c.reason,
			})
			return err
		})
		return
	case errors.As(cause, &l):
		end.ErrorCode, end.ErrorMessage, end.Retryable = l.code, l.message, l.retryable
	case cause != nil: // it is not ours to end
		return
	case out.err == nil:
		end = agent.Event{Type: agent.Done}
	case errors.As(out.err, &f):
		end.ErrorCode, end.ErrorMessage, end.Retryable = f.Code, f.Message, f.Retryable
	default:
		s.config.Observer.RuntimeFailed(r.id, out.err)
	}
	end.ErrorMessage = beginning(end.ErrorMessage, maxMessage)
	s.insist(hard, r.id, func() error {
		push := recorder.Drive(epoch)
		if err := push.Send(hard, 1, end); err != nil {
			return err
		}
		_, err := push.Wait(hard)
		return err
	})
}

// maxMessage bounds a failure's message, in bytes.
const maxMessage = 8 << 10

// beginning returns at most n bytes of text, whole characters.
func beginning(text string, n int) string {
	n = min(n, len(text))
	for n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// insistPause is how long a refused end waits before it is tried again: an
// operator has to change something.
const insistPause = 5 * time.Second

// insist records a run's end until it is recorded, or is not this instance's
// to record.
func (s *Supervisor) insist(hard context.Context, id run.ID, record func() error) {
	for {
		err := record()
		var ended *run.EndedError
		var fenced *run.FencedError
		if err == nil || errors.As(err, &ended) || errors.As(err, &fenced) || gone(err) || hard.Err() != nil {
			return
		}
		s.config.Observer.RuntimeFailed(id, err)
		timer := time.NewTimer(insistPause)
		select {
		case <-timer.C:
		case <-hard.Done():
		}
		timer.Stop()
	}
}
