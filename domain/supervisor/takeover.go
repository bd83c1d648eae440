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
	defer func() {
		if hard.Err() == nil {
			s.config.Watch.Forget(r.id)
		}
	}()
	if r.err = s.config.Watch.Announce(hard, r.id, lease.Owned); r.err == nil {
		r.summary, r.err = s.config.Runs.Resume(hard, r.id, s.config.Instance, e)
	}
	r.created = r.err == nil
	var forgotten error
	if r.created {
		s.config.Observer.TakenOver(r.id, e.Owner)
		forgotten = s.recall(hard, r)
	}
	close(r.started)
	switch {
	case !r.created:
		return
	case forgotten != nil: // it is ours now, and cannot go on
		s.config.Observer.RuntimeFailed(r.id, forgotten)
		recorder, release := s.config.Runs.Use(r.id)
		defer release()
		s.conclude(hard, r, r.summary.Epoch, recorder, result{err: &agent.Failure{
			Code: run.RuntimeLost, Message: "the run was taken over, and what happened before cannot be read", Retryable: true,
		}})
		return
	}
	for _, a := range answers { // those that are recorded are so again
		_, _ = s.commitAnswer(hard, r, r.summary.Epoch, a)
	}
	s.drive(hard, r, r.summary.Epoch)
}

// recall reads what the runtime has to know of the run so far: its input, its
// open external calls and the answers.
func (s *Supervisor) recall(hard context.Context, r *owned) error {
	external := make(map[string]bool)
	for after := run.Seq(0); after < r.summary.LastSeq; {
		page, err := s.config.Reader.Read(hard, r.id, after, ledger.Page{Events: 1000, Bytes: 4 << 20})
		var away *ledger.UnavailableError
		if errors.As(err, &away) {
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-hard.Done():
			}
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
				r.input = p.Input
			case *run.ToolCallStarted:
				if p.External {
					external[p.ToolCallID] = true
					r.open[p.ToolCallID] = true
				}
			case *run.ToolCallCompleted:
				if external[p.ToolCallID] {
					r.deliver(agent.Answer{ToolCallID: p.ToolCallID, Result: p.Result, IsError: p.IsError})
				}
			}
		}
	}
	r.rejoin = &agent.Rejoin{Cursor: r.summary.Cursor}
	return nil
}
