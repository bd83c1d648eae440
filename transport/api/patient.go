package api

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// patient is a Reader that asks again while the store is away, for as long as a
// request waits: an election is over within a second or two.
type patient struct{ ledger.Reader }

// Read implements ledger.Reader.
func (p patient) Read(ctx context.Context, id run.ID, after run.Seq, limit ledger.Page) ([]run.Event, error) {
	return insist(ctx, func() ([]run.Event, error) { return p.Reader.Read(ctx, id, after, limit) })
}

// Last implements ledger.Reader.
func (p patient) Last(ctx context.Context, id run.ID) (run.Event, error) {
	return insist(ctx, func() (run.Event, error) { return p.Reader.Last(ctx, id) })
}

func insist[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for pause := lookPause; ; pause = min(2*pause, 10*lookPause) {
		value, err := ask()
		var away *ledger.UnavailableError
		if !errors.As(err, &away) {
			return value, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return value, err // the store's own words
		}
	}
}
