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

// adoptTime bounds the adoption of one run; what takes longer is tried again.
const adoptTime = 5 * time.Second

var _ lease.Adopter = (*Supervisor)(nil)

// Adopt implements lease.Adopter: it ends a run whose owner, or whose producers,
// are dead, for the reason that is true. A run that moves has met the living.
func (s *Supervisor) Adopt(ctx context.Context, id run.ID, d lease.Expiry) (lease.Verdict, run.Seq, error) {
	ctx, done := context.WithTimeout(ctx, adoptTime)
	defer done()
	summary, err := s.config.Runs.Summary(ctx, id, "")
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return lease.Missing, 0, nil
	case errors.Is(err, ledger.ErrErased):
		return lease.Closed, 0, nil
	case unreadable(err) && d.Look:
		return lease.Moving, d.LastSeq, nil
	case unreadable(err):
		return s.lose(ctx, id, run.Evidence{Owner: d.Holder, Observer: s.config.Instance, Silence: d.Silence, LastSeq: d.LastSeq})
	case err != nil:
		return 0, 0, err
	case !summary.EndedAt.IsZero(), summary.Owner != d.Holder:
		return lease.Closed, 0, nil
	case d.Look, d.Holder == "" && summary.LastSeq != d.LastSeq:
		return lease.Moving, summary.LastSeq, nil
	}
	evidence := run.Evidence{Owner: d.Holder, Observer: s.config.Instance, Silence: d.Silence, LastSeq: summary.LastSeq}
	if d.Holder != "" {
		left, err := s.demanded(ctx, d.Holder, id)
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
	return s.lose(ctx, id, evidence)
}

// lose ends a run as lost.
func (s *Supervisor) lose(ctx context.Context, id run.ID, e run.Evidence) (lease.Verdict, run.Seq, error) {
	summary, err := s.config.Runs.Lose(ctx, id, e)
	if err == nil {
		s.config.Observer.Lost(id, e.Owner, e.Silence)
	}
	v, _, err := verdict(err)
	return v, summary.LastSeq, err
}

// verdict says what an attempt to end a run means for its lease.
func verdict(err error) (lease.Verdict, run.Seq, error) {
	var moved *ledger.ConflictError
	var ended *run.EndedError
	var fenced *run.FencedError
	switch {
	case err == nil, errors.As(err, &ended), errors.As(err, &fenced), errors.Is(err, ledger.ErrErased):
		return lease.Closed, 0, nil
	case unknown(err):
		return 0, 0, &ledger.UnavailableError{Err: err}
	case errors.As(err, &moved):
		return lease.Moving, 0, nil
	}
	return 0, 0, err
}

// unreadable reports whether a run is there and cannot be folded.
func unreadable(err error) bool {
	var truncated *ledger.TruncatedError
	var corrupt *ledger.CorruptError
	return errors.As(err, &truncated) || errors.As(err, &corrupt)
}

// Lapsed implements lease.Adopter.
func (s *Supervisor) Lapsed() {
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
		case erased(err), err == nil && !summary.EndedAt.IsZero():
			r.end(errLost)
		case err == nil && summary.Owner != s.config.Instance:
			r.end(agent.ErrTakenOver)
		}
	}
}
