package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// inheritTime bounds the settling of one run; what takes longer is tried again.
const inheritTime = 5 * time.Second

var _ lease.Heir = (*Supervisor)(nil)

// Inherit implements lease.Heir: it ends a run whose owner, or whose producers,
// are dead, for the reason that is true. A run that moves has met the living.
func (s *Supervisor) Inherit(ctx context.Context, id run.ID, d lease.Death) (lease.Verdict, run.Seq, error) {
	ctx, done := context.WithTimeout(ctx, inheritTime)
	defer done()
	summary, err := s.config.Runs.Summary(ctx, id, "")
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return lease.Missing, 0, nil
	case gone(err):
		return lease.Settled, 0, nil
	case err != nil:
		return 0, 0, err
	case !summary.EndedAt.IsZero(), summary.Owner != d.Owner:
		return lease.Settled, 0, nil
	case d.Owner == "" && summary.LastSeq != d.LastSeq:
		return lease.Alive, summary.LastSeq, nil
	}
	evidence := run.Evidence{Owner: d.Owner, Observer: s.config.Instance, Silence: d.Silence, LastSeq: summary.LastSeq}
	if d.Owner != "" {
		left, err := s.demanded(ctx, d.Owner, id)
		if err != nil {
			return 0, 0, err
		}
		if left.cancelled {
			_, err = s.config.Runs.Cancel(ctx, id, 0, run.Cancellation{Reason: left.reason})
			return verdict(err)
		}
		if a, ok := s.agents[summary.AgentID]; ok && a.Runtime == summary.Runtime {
			if _, ok := a.Runner.(agent.Rejoiner); ok {
				return s.takeOver(ctx, id, a, evidence, left.answers)
			}
		}
	}
	_, err = s.config.Runs.Lose(ctx, id, evidence)
	if err == nil {
		s.config.Observer.Lost(id, d.Owner, d.Silence)
	}
	return verdict(err)
}

// verdict says what an attempt to end a run means for its lease.
func verdict(err error) (lease.Verdict, run.Seq, error) {
	var moved *ledger.ConflictError
	var ended *run.EndedError
	switch {
	case err == nil, errors.As(err, &ended), gone(err):
		return lease.Settled, 0, nil
	case errors.As(err, &moved):
		return lease.Alive, 0, nil
	}
	return 0, 0, err
}

// gone reports whether there is nothing left of a run that could be ended.
func gone(err error) bool {
	var truncated *ledger.TruncatedError
	var corrupt *ledger.CorruptError
	return errors.Is(err, ledger.ErrErased) || errors.As(err, &truncated) || errors.As(err, &corrupt)
}

// Absent implements lease.Heir.
func (s *Supervisor) Absent() {
	select {
	case s.absent <- struct{}{}:
	default: // one hint is enough
	}
}

// review looks at all owned runs after this instance may have been taken for
// dead, and lets go of those that were closed or taken over.
func (s *Supervisor) review(ctx context.Context) {
	s.mu.Lock()
	var all []*owned
	for _, r := range s.runs {
		all = append(all, r)
	}
	s.mu.Unlock()
	for _, r := range all {
		select {
		case <-r.started:
		default:
			continue // its start is on its way still
		}
		summary, err := s.config.Runs.Summary(ctx, r.id, "")
		switch {
		case gone(err), err == nil && !summary.EndedAt.IsZero():
			r.end(errLost)
		case err == nil && summary.Owner != s.config.Instance:
			r.end(agent.ErrTakenOver)
		}
	}
}
