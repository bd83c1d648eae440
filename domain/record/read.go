package record

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// readPage is how much of a run is folded at a time.
var readPage = ledger.Page{Events: 1000, Bytes: 1 << 20}

// errUnwanted: nobody waits any more for what was being read.
var errUnwanted = errors.New("nobody asks for the run any more")

// readOn folds what the leader has behind the state's last event, and shows it
// to see, if that is not nil. It outlasts an unavailable store, for as long as
// anybody waits; ctx ends it. An *ledger.SetBackError says that the store does not
// have what the state was folded from: the last event is read again to find out.
func (w *writer) readOn(ctx context.Context, see func(*run.Event)) error {
	state := w.state
	if state == nil {
		state = &run.State{}
	}
	known := state.LastSeq
	for after := max(known, 1) - 1; ; after = state.LastSeq {
		page, err := w.page(ctx, after)
		if err != nil {
			return err
		}
		more := len(page) >= readPage.Events || full(page)
		if known > 0 && after < known {
			if len(page) == 0 {
				if err := w.behind(ctx, known); err != nil {
					return err
				}
				continue // it was not to be seen yet
			}
			if !state.Ends(&page[0]) {
				return &ledger.SetBackError{Run: w.id, Known: known, Ends: page[0].Seq - 1}
			}
			page = page[1:]
		}
		producers := []string{""}
		for i := range page {
			if err := state.Apply(&page[i]); err != nil {
				return &ledger.CorruptError{Run: w.id, Seq: page[i].Seq, Err: err}
			}
			if source := page[i].Source; source != nil {
				producers = append(producers, source.Producer)
			}
			if see != nil {
				see(&page[i])
			}
		}
		if state.LastSeq > 0 {
			w.state, w.seen = state, time.Now()
			w.publish(producers...)
		}
		if !more {
			return nil
		}
	}
}

// begins makes sure that the run still begins where it did: retention may have
// cut it, and somebody may have deleted it, with nothing to be seen at its end.
func (w *writer) begins(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		_, err := w.config.Ledger.Read(ctx, w.id, 0, ledger.Page{Events: 1, Bytes: 1})
		var away *ledger.UnavailableError
		if !errors.As(err, &away) {
			return err
		}
		if err := w.outlast(ctx, attempt, err); err != nil {
			return err
		}
	}
}

// page reads the next page after seq, once the store is there.
func (w *writer) page(ctx context.Context, after run.Seq) ([]run.Event, error) {
	for attempt := 0; ; attempt++ {
		page, err := w.config.Ledger.Read(ctx, w.id, after, readPage)
		var away *ledger.UnavailableError
		if !errors.As(err, &away) {
			w.public.trouble(nil)
			return page, err
		}
		if err := w.outlast(ctx, attempt, err); err != nil {
			return nil, err
		}
	}
}

// outlast waits before an unavailable store is asked again. It has an error when
// the process ends, or when nobody waits for the answer any more.
func (w *writer) outlast(ctx context.Context, attempt int, away error) error {
	w.public.trouble(away)
	if !wait(ctx, backoff(attempt)) {
		return ErrStopping
	}
	if w.take(); !w.backlog.wanted() && !slices.ContainsFunc(w.inFlight, (*entry).waits) {
		return errUnwanted
	}
	return nil
}

// full reports whether a page ended because of its bytes, with more behind it.
func full(page []run.Event) bool {
	n := 0
	for i := range page {
		n += len(page[i].Payload)
	}
	return n >= readPage.Bytes
}
