package supervisor

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// Answer has somebody's answer to an external call committed, by the run's owner
// where it has one, which hands it to the runtime whole. The same answer again is
// fine. Errors as for record.Runs.Answer; ctx's end is an
// *ledger.UnavailableError: the answer may still be committed, and reaches the
// runtime then.
func (s *Supervisor) Answer(ctx context.Context, id run.ID, a agent.Answer) (record.Summary, error) {
	if s, err := s.config.Runs.Summary(ctx, id, ""); err != nil {
		return s, err // nothing is kept for a run that is not there
	}
	if err := blob.OffloadAnswer(ctx, s.config.Blobs, id, s.config.Inline, &a); err != nil {
		return record.Summary{}, err
	}
	for {
		summary, answered, err := s.config.Runs.Answer(ctx, id, 0, a, true)
		if err != nil || answered {
			return summary, err
		}
		r := s.owned(id)
		switch {
		case summary.Owner == "":
			summary, _, err = s.config.Runs.Answer(ctx, id, 0, a, false)
		case summary.Owner == s.config.Instance && r != nil:
			summary, err = s.commitAnswer(ctx, r, a)
		default:
			summary, err = s.dispatchAnswer(ctx, id, summary, a)
		}
		var fenced *run.FencedError
		var owned *run.OwnedError
		if !errors.As(err, &fenced) && !errors.As(err, &owned) && !errors.Is(err, errMoved) || ctx.Err() != nil {
			return summary, err
		}
	}
}

// dispatchAnswer puts an answer into the mailbox of the run's owner and waits until
// it is recorded. errMoved: the run has another owner.
func (s *Supervisor) dispatchAnswer(ctx context.Context, id run.ID, summary record.Summary, a agent.Answer) (record.Summary, error) {
	data, err := json.Marshal(given{id, a.ToolCallID, a.Result, a.IsError, a.Full})
	if err != nil {
		return summary, err
	}
	if _, err := s.config.Side.Note(ctx, lease.Mailbox(summary.Owner), ledger.Note{Type: answerType, Data: data}); err != nil {
		return summary, err
	}
	err = s.config.Follower.Follow(ctx, id, summary.LastSeq, func(e run.Event) error {
		switch {
		case run.Terminal(e.Type):
			return errOver
		case e.Type == run.TypeRunResumed:
			return errMoved
		}
		p, err := run.DecodePayload(e.Type, e.Payload)
		if completed, ok := p.(*run.ToolCallCompleted); err != nil || ok && completed.ToolCallID == a.ToolCallID {
			return errOver
		}
		return nil
	})
	if !errors.Is(err, errOver) {
		if ctx.Err() != nil {
			err = &ledger.UnavailableError{Err: context.Cause(ctx)}
		}
		return summary, err
	}
	summary, answered, err := s.config.Runs.Answer(ctx, id, 0, a, true)
	if err == nil && !answered { // the end of another call: it was not there yet when we looked
		err = &ledger.UnavailableError{Err: errors.New("the answer is not recorded yet")}
	}
	return summary, err
}

// commitAnswer commits an answer to a run that is owned here, and hands it to the
// runtime. It goes on when ctx ends: what may be committed must reach the runtime.
func (s *Supervisor) commitAnswer(ctx context.Context, r *owned, a agent.Answer) (record.Summary, error) {
	away := func() (record.Summary, error) {
		summary, _ := s.config.Runs.Known(r.id)
		return summary, &ledger.UnavailableError{Err: context.Cause(ctx)}
	}
	select {
	case <-r.started: // while it is being taken over nobody may write it
	case <-ctx.Done():
		return away()
	}
	given, over, mine := r.questions.give(a.ToolCallID)
	var summary record.Summary
	var err error
	switch {
	case !mine: // with this answer or another: that shows below
	case !s.spawn(func(hard context.Context) {
		defer over()
		var fenced *run.FencedError
		switch summary, _, err = s.config.Runs.Answer(hard, r.id, r.summary.Epoch, a, false); {
		case err == nil:
			r.questions.deliver(a)
		case errors.As(err, &fenced):
			r.end(agent.ErrTakenOver)
		}
	}):
		over()
		return summary, record.ErrStopping
	}
	select {
	case <-given:
	case <-ctx.Done():
		return away()
	}
	if !mine {
		var answered bool
		if summary, answered, err = s.config.Runs.Answer(ctx, r.id, 0, a, true); err == nil && !answered {
			err = &ledger.UnavailableError{Err: errors.New("the answer is not recorded yet")}
		}
	}
	return summary, err
}
