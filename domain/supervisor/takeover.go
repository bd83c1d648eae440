package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// errTaking: the take-over is under way.
var errTaking = errors.New("the run is being taken over")

// takeOver makes this instance the run's owner and goes on with its runtime,
// from the last recorded cursor. answers are what the dead owner was given.
func (s *Supervisor) takeOver(ctx context.Context, id run.ID, a Agent, e run.Evidence, answers []agent.Answer) (lease.Verdict, run.Seq, error) {
	r, mine, err := s.register(id, a, nil)
	switch {
	case err != nil:
		return 0, 0, err // no room: another instance may have some
	case !mine:
		return 0, 0, errTaking
	case !s.spawn(func(hard context.Context) { s.resume(hard, r, e, answers) }):
		s.unregister(r)
		return 0, 0, record.ErrStopping
	}
	select {
	case <-r.started:
		return verdict(r.err)
	case <-ctx.Done():
		return 0, 0, errTaking
	}
}

// resume commits run.resumed and drives the run to its end.
func (s *Supervisor) resume(hard context.Context, r *owned, e run.Evidence, answers []agent.Answer) {
	defer s.unregister(r)
	bound, done := context.WithTimeout(hard, adoptTime) // later the evidence may not be true
	defer done()
	if r.err = s.config.Watch.Announce(bound, r.id, lease.Owned); r.err != nil {
		close(r.started)
		return
	}
	r.summary, r.err = s.config.Runs.Resume(bound, r.id, s.config.Instance, e)
	r.created = r.err == nil
	var unknowable error
	switch {
	case !r.created && hard.Err() == nil: // the one who owns it answers for it
		s.config.Watch.Withdraw(r.id, lease.Owned)
	case r.created:
		s.config.Watch.Confirm(r.id, lease.Owned, 0)
		s.config.Observer.TakenOver(r.id, e.Owner)
		unknowable = s.recall(hard, r)
		s.catchUp(hard, r, e.Owner, answers)
	}
	close(r.started)
	var over bool
	switch {
	case !r.created:
	case unknowable != nil && hard.Err() == nil: // it is ours now, and cannot go on
		s.config.Observer.RuntimeFailed(r.id, unknowable)
		over = s.finish(hard, r, nil, result{err: &agent.Failure{
			Code: run.RuntimeLost, Message: "the run was taken over, and what happened before cannot be read", Retryable: true,
		}})
		r.finish()
	default:
		over = s.drive(hard, r)
	}
	if r.placed {
		<-s.slots
	}
	if over {
		s.config.Watch.Forget(r.id, lease.Owned)
	}
}

// catchUp does what the dead owner was asked to do and had not done, up to the
// moment when everybody could see that the run has another owner.
func (s *Supervisor) catchUp(hard context.Context, r *owned, owner string, answers []agent.Answer) {
	for hard.Err() == nil {
		left, err := s.demanded(hard, owner, r.id)
		if err != nil {
			pause(hard, recallPause)
			continue
		}
		if left.cancelled {
			r.end(&cancel{left.reason})
		}
		answers = append(answers, left.answers...)
		break
	}
	for _, a := range answers { // those that are recorded are so again
		if _, _, err := s.config.Runs.Answer(hard, r.id, r.summary.Epoch, a, false); err == nil {
			r.questions.deliver(a)
		}
	}
}

// recallPause is how long a store that is away is left alone.
const recallPause = 100 * time.Millisecond

// recall reads what the runtime has to know of the run so far: its input, its
// open external calls and the answers.
func (s *Supervisor) recall(hard context.Context, r *owned) error {
	external := make(map[string]bool)
	for after := run.Seq(0); after < r.summary.LastSeq; {
		page, err := s.config.Reader.Read(hard, r.id, after, ledger.Page{Events: 1000, Bytes: 4 << 20})
		var away *ledger.UnavailableError
		if errors.As(err, &away) && hard.Err() == nil {
			pause(hard, recallPause)
			continue
		}
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			e := &page[i]
			after = e.Seq
			payload, err := run.DecodePayload(e.Type, e.Payload)
			if err != nil {
				return &ledger.CorruptError{Run: r.id, Seq: e.Seq, Err: err}
			}
			switch p := payload.(type) {
			case *run.RunStarted:
				whole := agent.Answer{Result: p.Input}
				if whole.Full, err = s.full(hard, r.id, p.Full); err == nil {
					whole, err = r.questions.whole(hard, whole)
				}
				if err != nil {
					return err
				}
				r.input = whole.Result
			case *run.ToolCallStarted:
				if p.External {
					external[p.ToolCallID] = true
					r.questions.ask(p.ToolCallID)
				}
			case *run.ToolCallCompleted:
				if !external[p.ToolCallID] {
					continue
				}
				a := agent.Answer{ToolCallID: p.ToolCallID, Result: p.Result, IsError: p.IsError}
				if a.Full, err = s.full(hard, r.id, p.Full); err != nil {
					return err
				}
				r.questions.deliver(a)
			}
		}
	}
	if r.summary.Status != run.Queued { // its runtime may have begun
		r.rejoin = &agent.Rejoin{Cursor: r.summary.Cursor}
	}
	return nil
}

// full says where the whole of a recorded value is kept.
func (s *Supervisor) full(hard context.Context, id run.ID, f *run.Full) (*agent.Full, error) {
	if f == nil {
		return nil, nil
	}
	a, err := s.config.Runs.Artifact(hard, id, f.ArtifactID)
	if err != nil {
		return nil, err
	}
	return &agent.Full{Checksum: f.Checksum, Size: f.Size, MediaType: a.MediaType}, nil
}
