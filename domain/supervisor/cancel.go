package supervisor

import (
	"context"
	"errors"

	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// Cancel stops a run's runtime, wherever it runs, and then has the stop recorded.
// A runtime of this instance is stopped whether the store answers or not. It
// returns when the stop is recorded, or with ctx and an *ledger.UnavailableError
// beside the summary: then it goes on by itself. Errors otherwise as for
// record.Runs.Cancel.
func (s *Supervisor) Cancel(ctx context.Context, id run.ID, reason string) (record.Summary, error) {
	if r := s.owned(id); r != nil {
		r.end(&cancel{reason})
		select {
		case <-r.done:
			return s.cancelled(ctx, id)
		case <-ctx.Done():
			summary, _ := s.config.Runs.Known(id)
			return summary, &ledger.UnavailableError{Err: context.Cause(ctx)}
		}
	}
	summary, err := s.config.Runs.Summary(ctx, id, "")
	switch {
	case unreadable(err), err == nil && summary.Owner == "" && summary.EndedAt.IsZero():
		return s.config.Runs.Cancel(ctx, id, 0, run.Cancellation{Reason: reason})
	case err != nil:
		return summary, err
	case !summary.EndedAt.IsZero():
		return judged(summary)
	}
	recorded := s.dispatchCancel(id, summary, reason)
	if recorded == nil {
		return summary, record.ErrStopping
	}
	select {
	case <-recorded:
		return s.cancelled(ctx, id)
	case <-ctx.Done():
		return summary, &ledger.UnavailableError{Err: context.Cause(ctx)}
	}
}

// cancelled tells how a run ended that was to be cancelled.
func (s *Supervisor) cancelled(ctx context.Context, id run.ID) (record.Summary, error) {
	summary, err := s.config.Runs.Summary(ctx, id, "")
	if unreadable(err) {
		return s.config.Runs.Cancel(ctx, id, 0, run.Cancellation{}) // it tells whether it was
	}
	if err != nil {
		return summary, err
	}
	return judged(summary)
}

func judged(s record.Summary) (record.Summary, error) {
	switch {
	case s.Status == run.Cancelled:
		return s, nil
	case s.EndedAt.IsZero():
		return s, &ledger.UnavailableError{Err: errors.New("the cancel is not recorded yet")}
	}
	return s, &run.EndedError{Run: s.RunID, Status: s.Status}
}

// dispatchCancel has a run of another owner cancelled, once for all who ask, and
// returns what is closed when that is recorded; nil: this instance is stopping.
func (s *Supervisor) dispatchCancel(id run.ID, summary record.Summary, reason string) <-chan struct{} {
	s.mu.Lock()
	recorded := s.cancelling[id]
	mine := recorded == nil
	if mine {
		recorded = make(chan struct{})
		s.cancelling[id] = recorded
	}
	s.mu.Unlock()
	if !mine {
		return recorded
	}
	over := func() {
		s.mu.Lock()
		delete(s.cancelling, id)
		s.mu.Unlock()
		close(recorded)
	}
	if !s.spawn(func(hard context.Context) {
		defer over()
		s.demand(hard, id, summary, reason)
	}) {
		over() // who waits beside us looks, and is told that it is not recorded
		return nil
	}
	return recorded
}

// What ends the following of a run.
var (
	errOver  = errors.New("the run has ended")
	errMoved = errors.New("the run has another owner")
)

// demand tells another instance to stop a run, and records the stop itself,
// unconfirmed, where there is no answer in time: the owner is dead, or deaf. A
// deaf one goes on writing; the recorder then reads on and tries again.
func (s *Supervisor) demand(hard context.Context, id run.ID, summary record.Summary, reason string) {
	for s.config.Watch.Alive(summary.Owner) {
		err := s.tell(hard, id, summary, newCommand(id, reason))
		if errors.Is(err, errOver) {
			return
		}
		if !errors.Is(err, errMoved) {
			break
		}
		if r := s.owned(id); r != nil { // here
			r.end(&cancel{reason})
			select {
			case <-r.done:
			case <-hard.Done():
			}
			return
		}
		if summary, err = s.config.Runs.Summary(hard, id, ""); err != nil {
			break
		}
	}
	// An error means that it has ended otherwise, or that this process ends.
	_, _ = s.config.Runs.Cancel(hard, id, 0, run.Cancellation{Reason: reason})
}

// tell puts a note into the mailbox of a run's owner and waits for answerTime until
// the run has ended (errOver) or has another owner (errMoved).
func (s *Supervisor) tell(hard context.Context, id run.ID, summary record.Summary, note ledger.Note) error {
	ctx, cancel := context.WithTimeout(hard, answerTime)
	defer cancel()
	// A note that fails leaves the rest to the time.
	_, _ = s.config.Side.Note(ctx, lease.Mailbox(summary.Owner), note)
	return s.config.Follower.Follow(ctx, id, summary.LastSeq, func(e run.Event) error {
		switch {
		case run.Terminal(e.Type):
			return errOver
		case e.Type == run.TypeRunResumed:
			return errMoved
		}
		return nil
	})
}
