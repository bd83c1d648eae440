package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// NotEndedError refuses to erase a run that has not ended.
type NotEndedError struct{ Run run.ID }

func (e *NotEndedError) Error() string { return fmt.Sprintf("run %s has not ended", e.Run) }

// ExistsError refuses to start a run whose id names another one.
type ExistsError struct{ Run run.ID }

func (e *ExistsError) Error() string {
	return fmt.Sprintf("run %s exists and was started by another request", e.Run)
}

// Start commits a run's first event, or finds that the same request has done
// so before (created is false). It gives up with ctx, when the outcome is
// unknown. Errors: *ExistsError, ledger.ErrErased, *ledger.RefusedError,
// *run.TooLargeError, *ledger.UnknownError.
func (r *Runs) Start(ctx context.Context, s run.Start) (summary Summary, created bool, err error) {
	state, candidates := run.Begin(s, r.config.Now())
	if candidates[0].Size(state) > r.config.MaxAppend {
		return Summary{}, false, &run.TooLargeError{Run: s.ID, Limit: r.config.MaxAppend}
	}
	events := state.Seal(candidates, r.config.Nonce())
	var trouble error // what the store has said before ctx ended
	for attempt := 0; ; attempt++ {
		began := time.Now()
		err = r.config.Ledger.Append(ctx, s.ID, 0, events)
		r.config.Observer.Appended(outcome(err), len(events), time.Since(began))
		var unknown *ledger.UnknownError
		var conflict *ledger.ConflictError
		if errors.As(err, &conflict) {
			summary, created, err = r.existing(ctx, s, &events[0])
			var back *ledger.SetBackError
			var away *ledger.UnavailableError
			if !errors.As(err, &back) && !errors.As(err, &away) {
				return summary, created, err
			}
			if trouble = err; !wait(ctx, backoff(attempt)) {
				return Summary{}, false, err
			}
			continue
		}
		if errors.As(err, &unknown) && ctx.Err() != nil && trouble != nil {
			return Summary{}, false, &ledger.UnknownError{Run: s.ID, Err: trouble}
		}
		unsure := trouble != nil // an answer was lost: it may be stored all the same
		trouble = err
		switch {
		case err != nil && unsure && !errors.As(err, &unknown):
			if summary, created, found := r.existing(ctx, s, &events[0]); found == nil && created {
				return summary, true, nil
			}
			return Summary{}, false, err
		case err == nil:
			r.config.Observer.Started()
			summary = summarize(state, "")
			r.seed(s.ID, state)
			return summary, true, nil
		case !errors.As(err, &unknown) || !wait(ctx, backoff(attempt)):
			return Summary{}, false, err
		}
	}
}

// seed hands the state of a run that was just started to its writer, which would
// read it otherwise.
func (r *Runs) seed(id run.ID, state *run.State) {
	recorder, release := r.Use(id)
	defer release()
	e := newAsk("")
	e.seed = state
	over, cancel := context.WithCancel(context.Background())
	cancel()                  // without room it is not worth the wait
	_ = recorder.add(over, e) // an error means that it will be read
}

// existing answers a start that met a run: it may be its own, from a try whose
// answer was lost, or an earlier one of the same request.
func (r *Runs) existing(ctx context.Context, s run.Start, mine *run.Event) (Summary, bool, error) {
	page, err := r.config.Ledger.Read(ctx, s.ID, 0, ledger.Page{Events: 1, Bytes: 1})
	if err != nil {
		return Summary{}, false, fmt.Errorf("start run %s: %w", s.ID, err)
	}
	created := len(page) > 0 && page[0].EventID() == mine.EventID()
	if !created && (len(page) == 0 || page[0].RequestChecksum != s.RequestChecksum) {
		return Summary{}, false, &ExistsError{s.ID}
	}
	if created {
		r.config.Observer.Started()
	}
	summary, err := r.Summary(ctx, s.ID, "")
	return summary, created, err
}

// Summary returns where the run stands at the leader. Errors: ledger.ErrNotFound,
// ledger.ErrErased, *ledger.TruncatedError, *ledger.CorruptError,
// *ledger.UnavailableError, ErrStopping.
func (r *Runs) Summary(ctx context.Context, id run.ID, producer string) (Summary, error) {
	return r.ask(ctx, id, newAsk(producer))
}

// Known returns where the run stood when this process last heard of it, without
// asking the store; false: it has heard of nothing lately.
func (r *Runs) Known(id run.ID) (Summary, bool) {
	r.mu.Lock()
	recorder := r.recorders[id]
	r.mu.Unlock()
	if recorder == nil {
		return Summary{}, false
	}
	s := recorder.public.summary("")
	return s, s.RunID != ""
}

// Cancel ends the run as cancelled, unless it has been. epoch is that of the
// owner that asks; 0: somebody else does. A run that cannot be read is ended too,
// and its reason says so. Errors: as for Summary otherwise, *run.EndedError where it
// ended otherwise, *run.FencedError. An *ledger.UnavailableError with a summary
// beside it means that the end will be recorded once the store answers, unless the
// process ends before.
func (r *Runs) Cancel(ctx context.Context, id run.ID, epoch uint64, c run.Cancellation) (Summary, error) {
	return r.ask(ctx, id, newAct(func(s *run.State, fault error) (run.Decision, error) {
		if s.Status() == run.Cancelled {
			return run.Decision{}, nil // cancelled already: as wished
		}
		if epoch != 0 && !s.Terminal() {
			if err := s.MayWrite(epoch); err != nil {
				return run.Decision{}, err
			}
		}
		c := c
		if fault != nil {
			c.Reason = fmt.Sprintf("%s (%v)", c.Reason, fault)
		}
		return s.Cancel(c, r.config.Now())
	}, true))
}

// Finish ends the run as its owner, of that epoch, says: by a done or an error. A
// run that cannot be read ends as failed. Errors: as for Summary otherwise,
// *run.EndedError, *run.FencedError, *run.TooLargeError, *ledger.RefusedError.
func (r *Runs) Finish(ctx context.Context, id run.ID, epoch uint64, end agent.Event) (Summary, error) {
	return r.ask(ctx, id, newAct(func(s *run.State, fault error) (run.Decision, error) {
		if !s.Terminal() && (fault == nil || s.Epoch > epoch) {
			if err := s.MayWrite(epoch); err != nil {
				return run.Decision{}, err
			}
		}
		if fault != nil {
			return r.unreadable(s, fault, end.ErrorMessage)
		}
		return s.Decide(&end, run.Origin{}, r.config.Now(), r.config.MaxAppend)
	}, true))
}

// Dequeue records that a queued run of that epoch has its turn, after it has waited.
// Of a run that has it already nothing is recorded. Errors: as for Summary,
// *run.EndedError, *run.FencedError.
func (r *Runs) Dequeue(ctx context.Context, id run.ID, epoch uint64, waited time.Duration) (Summary, error) {
	return r.ask(ctx, id, newAct(func(s *run.State, _ error) (run.Decision, error) {
		if !s.Terminal() {
			if err := s.MayWrite(epoch); err != nil {
				return run.Decision{}, err
			}
		}
		return s.Dequeue(waited, r.config.Now())
	}, false))
}

// unreadable ends a run that cannot be read; why is what ends it beside the fault.
func (r *Runs) unreadable(s *run.State, fault error, why string) (run.Decision, error) {
	e := agent.Event{Type: agent.Error, ErrorCode: run.RunUnreadable, ErrorMessage: fault.Error()}
	if why != "" {
		e.ErrorMessage = why + "; " + e.ErrorMessage
	}
	return s.Decide(&e, run.Origin{}, r.config.Now(), r.config.MaxAppend)
}

// Answer records what somebody outside answered to an external call; answered
// is whether that was recorded before. With dry it only looks. epoch is as for
// Cancel. Errors as for Summary, *run.NoCallError, *run.AnsweredError,
// *run.EndedError, *run.TooLargeError, *run.FencedError.
func (r *Runs) Answer(ctx context.Context, id run.ID, epoch uint64, a agent.Answer, dry bool) (summary Summary, answered bool, err error) {
	return consult(ctx, r, id, func(s *run.State) (run.Decision, bool, error) {
		d, err := s.Answer(a, r.config.Now(), r.config.MaxAppend)
		answered := err == nil && len(d.Candidates) == 0
		if err == nil && !answered && !dry {
			err = s.MayWrite(epoch)
		}
		if dry || err != nil {
			d = run.Decision{}
		}
		return d, answered, err
	})
}

// brief makes an act one that comes to nothing when its ctx ends before it is on
// its way: what it rests on may not be true any more.
func brief(e *entry) *entry {
	e.brief = true
	return e
}

// ExternalCall returns the canonical id of the newest external call that the run's
// runtime names call; its own name where there is none. Errors as for Summary.
func (r *Runs) ExternalCall(ctx context.Context, id run.ID, call string) (string, error) {
	_, canonical, err := consult(ctx, r, id, func(s *run.State) (run.Decision, string, error) {
		canonical, ok := s.ExternalCall(call)
		if !ok {
			canonical = call
		}
		return run.Decision{}, canonical, nil
	})
	return canonical, err
}

// Lose ends the run as lost, if it still ends where its observer saw it end
// (e.LastSeq): otherwise somebody lives who writes it, and the answer is a
// *ledger.ConflictError. One that cannot be read is ended as that, if it is still
// e.Owner's; e.LastSeq 0 is where it stands then. It comes to nothing when ctx ends
// before it is on its way. Errors: as for Summary otherwise,
// *run.EndedError.
func (r *Runs) Lose(ctx context.Context, id run.ID, e run.Evidence) (Summary, error) {
	return r.ask(ctx, id, brief(newAct(func(s *run.State, fault error) (run.Decision, error) {
		switch {
		case s.Terminal():
			return run.Decision{}, &run.EndedError{Run: id, Status: s.Status()}
		case fault != nil && s.Owner != e.Owner:
			return run.Decision{}, &run.FencedError{Run: id, Epoch: s.Epoch}
		case s.LastSeq != e.LastSeq && (fault == nil || e.LastSeq != 0):
			return run.Decision{}, &ledger.ConflictError{Run: id, Expected: e.LastSeq}
		case fault != nil:
			return r.unreadable(s, fault, fmt.Sprintf("no sign of life for %s", e.Silence.Round(time.Millisecond)))
		}
		return s.Lose(e, r.config.Now())
	}, true)))
}

// Resume makes owner the run's owner, in the next epoch, under the same
// conditions and with the same errors as Lose.
func (r *Runs) Resume(ctx context.Context, id run.ID, owner string, e run.Evidence) (Summary, error) {
	return r.ask(ctx, id, brief(newAct(func(s *run.State, _ error) (run.Decision, error) {
		if s.LastSeq != e.LastSeq {
			return run.Decision{}, &ledger.ConflictError{Run: id, Expected: e.LastSeq}
		}
		return s.Resume(owner, e, r.config.Now())
	}, false)))
}

// ask puts a question to the run's writer and returns the state behind the
// answer.
func (r *Runs) ask(ctx context.Context, id run.ID, e *entry) (Summary, error) {
	recorder, release := r.Use(id)
	defer release()
	return recorder.ask(ctx, e)
}

// consult puts a question to the run's writer that finds something out, whether
// it changes the run or not. The zero T comes with an error that is not the
// question's own.
func consult[T any](ctx context.Context, r *Runs, id run.ID, question func(*run.State) (run.Decision, T, error)) (Summary, T, error) {
	found := make(chan T, 1) // the last call counts
	e := newAct(func(s *run.State, _ error) (run.Decision, error) {
		d, one, err := question(s)
		select {
		case <-found:
		default:
		}
		found <- one
		return d, err
	}, false)
	summary, err := r.ask(ctx, id, e)
	var one T
	select {
	case one = <-found:
	default:
	}
	return summary, one, err
}

// NoArtifactError: the run has no artifact of that id.
type NoArtifactError struct {
	Run        run.ID
	ArtifactID string
}

func (e *NoArtifactError) Error() string {
	return fmt.Sprintf("run %s has no artifact %q", e.Run, e.ArtifactID)
}

// Artifact returns what the run says of an artifact. Errors as for Summary,
// *NoArtifactError.
func (r *Runs) Artifact(ctx context.Context, id run.ID, artifact string) (run.Artifact, error) {
	_, a, err := consult(ctx, r, id, func(s *run.State) (run.Decision, run.Artifact, error) {
		a, ok := s.Artifact(artifact)
		if !ok {
			return run.Decision{}, a, &NoArtifactError{id, artifact}
		}
		return run.Decision{}, a, nil
	})
	return a, err
}

// Erase tombstones an ended run, whether it can be read or not. Errors: as for
// Summary otherwise, *NotEndedError, *ledger.UnknownError once ctx has ended.
func (r *Runs) Erase(ctx context.Context, id run.ID) error {
	asked := false
	for attempt := 0; ; attempt++ {
		last, ended, err := r.end(ctx, id)
		switch {
		case attempt > 0 && errors.Is(err, ledger.ErrErased):
			return nil // by the try whose answer was lost
		case err != nil:
			return err
		case !ended && !asked:
			// Another instance may have ended it, with nothing to be read of that yet.
			asked = true
			if _, err := r.config.Ledger.End(ctx, id); err != nil {
				return err
			}
			continue
		case !ended:
			return &NotEndedError{id}
		}
		err = r.config.Ledger.Erase(ctx, id, last)
		var unknown *ledger.UnknownError
		var moved *ledger.ConflictError
		if errors.As(err, &moved) && moved.Current > last { // somebody else's events stand behind the end
			err = r.config.Ledger.Erase(ctx, id, moved.Current)
		}
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			if recorder := r.recorders[id]; recorder != nil {
				r.drop(recorder)
			}
			return nil
		}
		if !errors.As(err, &unknown) || !wait(ctx, backoff(attempt)) {
			return err
		}
	}
}

// end returns the run's last seq, and whether it has ended.
func (r *Runs) end(ctx context.Context, id run.ID) (last run.Seq, ended bool, err error) {
	summary, err := r.Summary(ctx, id, "")
	if unreadable(err) {
		return scan(ctx, r.config.Ledger, id)
	}
	return summary.LastSeq, !summary.EndedAt.IsZero(), err
}
