package supervisor

import (
	"context"
	"errors"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// commit commits a run's start. A long input is kept beside it first; nothing is
// kept for a run that was erased. Errors as for record.Start, and blob.Store.Put's.
func (s *Supervisor) commit(ctx context.Context, start run.Start) (record.Summary, bool, error) {
	if len(start.Input) > s.config.Inline {
		if summary, err := s.config.Runs.Summary(ctx, start.ID, ""); errors.Is(err, ledger.ErrErased) {
			return summary, false, err
		}
		if err := blob.OffloadInput(ctx, s.config.Blobs, s.config.Inline, &start); err != nil {
			return record.Summary{}, false, err
		}
	}
	return s.config.Runs.Start(ctx, start)
}
