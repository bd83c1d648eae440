package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
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

// Summary is where a run stands.
type Summary struct {
	RunID       run.ID
	AgentID     string
	Runtime     string
	ThreadID    string
	Status      run.Status
	LastSeq     run.Seq
	StartedAt   time.Time
	EndedAt     time.Time // zero: not ended
	Failure     *run.Failure
	ProducerSeq uint64
	Owner       string  // the instance that drives it; "": the run is pushed
	Epoch       uint64  // the owner's; 0: the run is pushed
	Cursor      *string // the runtime's position after what is recorded; nil: none given
}

// Start commits a run's first event, or finds that the same request has done
// so before (created is false). It gives up with ctx, when the outcome is
// unknown. Errors: *ExistsError, ErrErased, *RefusedError, *run.TooLargeError,
// *UnknownError.
func (r *Runs) Start(ctx context.Context, s run.Start) (summary Summary, created bool, err error) {
	state, candidates := run.Begin(s, r.config.Now())
	if candidates[0].Size(state) > r.config.MaxAppend {
		return Summary{}, false, &run.TooLargeError{Run: s.ID, Limit: r.config.MaxAppend}
	}
	events := state.Seal(candidates, r.config.Nonce())
	for attempt := 0; ; attempt++ {
		began := time.Now()
		err = r.config.Ledger.Append(ctx, s.ID, 0, events)
		r.config.Observer.Appended(outcome(err), len(events), time.Since(began))
		var unknown *UnknownError
		var conflict *ConflictError
		switch {
		case err == nil:
			r.config.Observer.Started()
			return r.begun(s.ID, state), true, nil
		case errors.As(err, &conflict):
			return r.existing(ctx, s, &events[0])
		case !errors.As(err, &unknown) || !wait(ctx, backoff(attempt)):
			return Summary{}, false, err
		}
	}
}

// begun keeps the state of a run that was just started.
func (r *Runs) begun(id run.ID, state *run.State) Summary {
	recorder, release := r.Use(id)
	defer release()
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	if recorder.state == nil && !recorder.writing {
		recorder.state = state
	}
	return summarize(state, "")
}

// existing answers a start that met a run: it may be its own, from a try whose
// answer was lost, or an earlier one of the same request.
func (r *Runs) existing(ctx context.Context, s run.Start, mine *run.Event) (Summary, bool, error) {
	page, err := r.config.Ledger.Read(ctx, s.ID, 0, Page{Events: 1, Bytes: 1})
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

// Summary returns where the run stands at the leader. Errors: ErrNotFound,
// ErrErased, *TruncatedError, *CorruptError, *UnavailableError, ErrStopping.
func (r *Runs) Summary(ctx context.Context, id run.ID, producer string) (Summary, error) {
	return r.ask(ctx, id, producer, &entry{done: make(chan error, 1)})
}

// Cancel ends the run as cancelled, unless it has been. epoch is that of the
// owner that asks; 0: somebody else does. Errors as for Summary,
// *run.EndedError where it ended otherwise, *run.FencedError. An *UnavailableError with a
// summary beside it means that the end will be recorded once the store answers,
// unless the process ends before.
func (r *Runs) Cancel(ctx context.Context, id run.ID, epoch uint64, c run.Cancellation) (Summary, error) {
	return r.act(ctx, id, true, func(s *run.State) (run.Decision, error) {
		if s.Status() == run.Cancelled {
			return run.Decision{}, nil // cancelled already: as wished
		}
		if epoch != 0 && !s.Terminal() {
			if err := s.MayWrite(epoch); err != nil {
				return run.Decision{}, err
			}
		}
		return s.Cancel(c, r.config.Now())
	})
}

// Answer records what somebody outside answered to an external call; answered
// is whether that was recorded before. With dry it only looks. epoch is as for
// Cancel. Errors as for Summary, *run.NoCallError, *run.AnsweredError,
// *run.EndedError, *run.TooLargeError, *run.FencedError.
func (r *Runs) Answer(ctx context.Context, id run.ID, epoch uint64, a agent.Answer, dry bool) (summary Summary, answered bool, err error) {
	summary, err = r.act(ctx, id, false, func(s *run.State) (run.Decision, error) {
		d, err := s.Answer(a, r.config.Now(), r.config.MaxAppend)
		answered = err == nil && len(d.Candidates) == 0
		if err == nil && !answered && !dry {
			err = s.MayWrite(epoch)
		}
		if dry || err != nil {
			return run.Decision{}, err
		}
		return d, nil
	})
	return summary, answered, err
}

// Lose ends the run as lost, if it still ends where its observer saw it end
// (e.LastSeq): otherwise somebody lives who writes it, and the answer is a
// *ConflictError. Errors as for Summary, *run.EndedError.
func (r *Runs) Lose(ctx context.Context, id run.ID, e run.Evidence) (Summary, error) {
	return r.act(ctx, id, true, func(s *run.State) (run.Decision, error) {
		if s.LastSeq != e.LastSeq {
			return run.Decision{}, &ConflictError{id, e.LastSeq}
		}
		return s.Lose(e, r.config.Now())
	})
}

// Resume makes owner the run's owner, in the next epoch, under the same
// condition and with the same errors as Lose.
func (r *Runs) Resume(ctx context.Context, id run.ID, owner string, e run.Evidence) (Summary, error) {
	return r.act(ctx, id, false, func(s *run.State) (run.Decision, error) {
		if s.LastSeq != e.LastSeq {
			return run.Decision{}, &ConflictError{id, e.LastSeq}
		}
		return s.Resume(owner, e, r.config.Now())
	})
}

func (r *Runs) act(ctx context.Context, id run.ID, final bool, a act) (Summary, error) {
	return r.ask(ctx, id, "", &entry{act: a, final: final, done: make(chan error, 1)})
}

// ask puts a question to the run's writer and returns the state behind the
// answer.
func (r *Runs) ask(ctx context.Context, id run.ID, producer string, e *entry) (Summary, error) {
	recorder, release := r.Use(id)
	defer release()
	if err := recorder.enqueue(ctx, e); err != nil {
		return Summary{}, err
	}
	var err error
	select {
	case err = <-e.done:
		if err != nil {
			return Summary{}, err
		}
	case <-ctx.Done():
		err = &UnavailableError{context.Cause(ctx)}
	}
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	if recorder.state == nil {
		return Summary{}, errors.Join(err, &UnavailableError{errors.New("the run is being read")})
	}
	return summarize(recorder.state, producer), err
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
func (r *Runs) Artifact(ctx context.Context, id run.ID, artifact string) (a run.Artifact, err error) {
	_, err = r.act(ctx, id, false, func(s *run.State) (run.Decision, error) {
		var ok bool
		if a, ok = s.Artifact(artifact); !ok {
			return run.Decision{}, &NoArtifactError{id, artifact}
		}
		return run.Decision{}, nil
	})
	return a, err
}

// Erase tombstones an ended run. Errors as for Summary, *NotEndedError,
// *UnknownError once ctx has ended.
func (r *Runs) Erase(ctx context.Context, id run.ID) error {
	for attempt := 0; ; attempt++ {
		summary, err := r.Summary(ctx, id, "")
		if attempt > 0 && errors.Is(err, ErrErased) {
			return nil // by the try whose answer was lost
		}
		if err != nil {
			return err
		}
		if summary.EndedAt.IsZero() {
			return &NotEndedError{id}
		}
		err = r.config.Ledger.Erase(ctx, id, summary.LastSeq)
		var unknown *UnknownError
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

func summarize(s *run.State, producer string) Summary {
	return Summary{
		RunID: s.RunID, AgentID: s.AgentID, Runtime: s.Runtime, ThreadID: s.ThreadID,
		Status: s.Status(), LastSeq: s.LastSeq, StartedAt: s.StartedAt, EndedAt: s.EndedAt,
		Failure: s.Failure, ProducerSeq: s.Mark(producer),
		Owner: s.Owner, Epoch: s.Epoch, Cursor: s.Cursor,
	}
}
