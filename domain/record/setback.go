package record

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// settleTime is for how long a store must say that it ends before what it has
// acknowledged until that is believed: a leader that was replaced may say so for
// a moment.
const settleTime = 2 * time.Second

// behind looks at a conflict that reading on did not explain: the run ended at
// known when last seen. nil: somebody has written meanwhile. An
// *ledger.SetBackError: the store ends before that, and insists.
func (w *writer) behind(ctx context.Context, known run.Seq) error {
	for began, attempt := time.Now(), 0; ; attempt++ {
		end, err := w.config.Ledger.End(ctx, w.id)
		var away *ledger.UnavailableError
		switch {
		case errors.As(err, &away):
		case err != nil:
			return err
		case end >= known:
			return nil
		case time.Since(began) >= settleTime:
			return &ledger.SetBackError{Run: w.id, Known: known, Ends: end}
		}
		if err := w.outlast(ctx, attempt, err); err != nil {
			return err
		}
	}
}

// restart forgets what is known of the run: the store was set back, and has other
// facts than those that the state was folded from. What waits is decided anew,
// but not what an owner reports: its runtime goes on where facts are missing.
func (w *writer) restart(back *ledger.SetBackError) {
	w.forget()
	var owned []*entry
	for _, e := range w.backlog.all() {
		switch {
		case e.push != nil && e.push.epoch != 0:
			owned = append(owned, e)
		case e.seed != nil: // it never was, either
			owned = append(owned, e)
		default:
			w.backlog.add([]*entry{e})
		}
	}
	w.answerAll(owned, back)
}
