package supervisor

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// cancelType is the type of a cancel's note in its owner's command stream.
const cancelType = "run.cancel.requested"

// command is a cancel's data.
type command struct {
	RunID  run.ID `json:"run_id"`
	Reason string `json:"reason"`
}

// Cancel stops a run's runtime, wherever it runs, and has the stop recorded. It
// returns when that has happened, or with ctx and an *UnavailableError beside the
// summary: then it goes on by itself. Errors otherwise as for ledger.Cancel.
func (s *Supervisor) Cancel(ctx context.Context, id run.ID, reason string) (record.Summary, error) {
	summary, err := s.config.Runs.Summary(ctx, id, "")
	if err != nil {
		return summary, err
	}
	if !summary.EndedAt.IsZero() {
		return cancelled(summary)
	}
	if summary.Owner == "" {
		return s.config.Runs.Cancel(ctx, id, 0, run.Cancellation{Reason: reason})
	}
	answered := s.stop(id, summary, reason)
	if answered == nil {
		return summary, record.ErrStopping
	}
	select {
	case <-answered:
	case <-ctx.Done():
		return summary, &ledger.UnavailableError{Err: context.Cause(ctx)}
	}
	if summary, err = s.config.Runs.Summary(ctx, id, ""); err != nil {
		return summary, err
	}
	return cancelled(summary)
}

// cancelled judges how a run ended that was to be cancelled.
func cancelled(s record.Summary) (record.Summary, error) {
	switch {
	case s.Status == run.Cancelled:
		return s, nil
	case s.EndedAt.IsZero():
		return s, &ledger.UnavailableError{Err: errors.New("the cancel is not recorded yet")}
	}
	return s, &run.EndedError{Run: s.RunID, Status: s.Status}
}

// stop asks the run's owner, this instance or another, and returns what is
// closed once the stop is recorded; nil: this instance is stopping.
func (s *Supervisor) stop(id run.ID, summary record.Summary, reason string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		r.end(&cancel{reason})
		return r.done
	}
	if c := s.cancelling[id]; c != nil {
		return c
	}
	answered := make(chan struct{})
	s.cancelling[id] = answered
	s.mu.Unlock()
	going := s.spawn(func(hard context.Context) {
		defer func() {
			s.mu.Lock()
			delete(s.cancelling, id)
			s.mu.Unlock()
			close(answered)
		}()
		s.demand(hard, id, summary, reason)
	})
	s.mu.Lock()
	if !going {
		delete(s.cancelling, id)
		return nil
	}
	return answered
}

// errOver ends the following of a run that has ended.
var errOver = errors.New("the run has ended")

// demand tells another instance to stop a run, and records the stop itself,
// unconfirmed, where there is no answer in time: the owner is dead, or deaf. A
// deaf one goes on writing; the recorder then reads on and tries again.
func (s *Supervisor) demand(hard context.Context, id run.ID, summary record.Summary, reason string) {
	if s.config.Watch.Breathes(summary.Owner) {
		ctx, cancel := context.WithTimeout(hard, answerTime)
		defer cancel()
		// A note that fails leaves the rest to the time.
		_, _ = s.config.Side.Note(ctx, lease.CommandStream(summary.Owner), newCommand(id, reason))
		err := s.config.Follower.Follow(ctx, id, summary.LastSeq, func(e run.Event) error {
			if run.Terminal(e.Type) {
				return errOver
			}
			return nil
		})
		if errors.Is(err, errOver) {
			return
		}
	}
	// An error means that it has ended otherwise, or that this process ends.
	_, _ = s.config.Runs.Cancel(hard, id, 0, run.Cancellation{Reason: reason})
}

func newCommand(id run.ID, reason string) ledger.Note {
	data, err := json.Marshal(command{id, reason})
	if err != nil { // two strings
		panic("supervisor: " + err.Error())
	}
	return ledger.Note{Type: cancelType, Data: data}
}

// trimEvery is after how many commands the older ones are dropped.
const trimEvery = 100

// obey does what other instances ask of the runs that are owned here.
func (s *Supervisor) obey(ctx context.Context) {
	stream := lease.CommandStream(s.config.Instance)
	_ = s.config.Side.Listen(ctx, stream, 0, func(n ledger.Note) error { // ends with ctx
		var c command
		var g given
		switch {
		case n.Type == cancelType && json.Unmarshal(n.Data, &c) == nil:
			if r := s.owned(c.RunID); r != nil {
				r.end(&cancel{c.Reason})
			}
		case n.Type == answerType && json.Unmarshal(n.Data, &g) == nil:
			s.spawn(func(ctx context.Context) { s.obeyAnswer(ctx, g) })
		}
		if n.Seq%trimEvery == 0 {
			_ = s.config.Side.Trim(ctx, stream, n.Seq) // the next time does it as well
		}
		return nil
	})
}

// demands is what a dead owner was asked to do with a run.
type demands struct {
	cancelled bool
	reason    string
	answers   []agent.Answer
}

// demanded reads what a dead owner may have left undone.
func (s *Supervisor) demanded(ctx context.Context, owner string, id run.ID) (d demands, err error) {
	for after := uint64(0); ; {
		notes, err := s.config.Side.Notes(ctx, lease.CommandStream(owner), after, 1000)
		if err != nil || len(notes) == 0 {
			return d, err
		}
		for _, n := range notes {
			after = n.Seq
			var c command
			var g given
			switch {
			case n.Type == cancelType && json.Unmarshal(n.Data, &c) == nil && c.RunID == id:
				d.cancelled, d.reason = true, c.Reason
			case n.Type == answerType && json.Unmarshal(n.Data, &g) == nil && g.RunID == id:
				d.answers = append(d.answers, g.answer())
			}
		}
	}
}
