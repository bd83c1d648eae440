package record

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// A run may hold an event that cannot be read: damaged, written by a stranger, or
// gone with all before it. It cannot be folded then; ended and erased it must be all
// the same, or it would hang for ever. That needs no fold: only where it stands.

// unreadable reports whether err says that a run cannot be folded.
func unreadable(err error) bool {
	var corrupt *ledger.CorruptError
	var truncated *ledger.TruncatedError
	return errors.As(err, &corrupt) || errors.As(err, &truncated)
}

// newest returns the envelope of a run's last event. Of one that cannot be read it
// tells the seq, and of the run what the event before says, or the first one.
func newest(ctx context.Context, from ledger.Reader, id run.ID) (*run.Event, error) {
	last, err := from.Last(ctx, id)
	var corrupt *ledger.CorruptError
	if !errors.As(err, &corrupt) {
		return &last, err
	}
	stand := &run.Event{RunID: id, Seq: corrupt.Seq}
	for _, after := range []run.Seq{max(corrupt.Seq, 2) - 2, 0} {
		page, err := from.Read(ctx, id, after, ledger.Page{Events: 1, Bytes: 1})
		var away *ledger.UnavailableError
		switch {
		case errors.As(err, &away):
			return nil, err
		case err == nil && len(page) > 0:
			e := &page[0]
			stand.AgentID, stand.ThreadID, stand.Snapshot, stand.Owner, stand.Epoch = e.AgentID, e.ThreadID, e.Snapshot, e.Owner, e.Epoch
			return stand, nil
		}
	}
	return stand, nil
}

// scan returns a run's last seq, and whether any event that can be read ends it.
func scan(ctx context.Context, from ledger.Reader, id run.ID) (last run.Seq, ended bool, err error) {
	end, err := newest(ctx, from, id)
	if err != nil {
		return 0, false, err
	}
	page := readPage
	for after := run.Seq(0); after < end.Seq && !ended; {
		events, err := from.Read(ctx, id, after, page)
		var corrupt *ledger.CorruptError
		var truncated *ledger.TruncatedError
		switch {
		case errors.As(err, &corrupt) && corrupt.Seq > after+1: // first what is before it
			page.Events = int(corrupt.Seq - after - 1)
			continue
		case errors.As(err, &corrupt):
			after++
		case errors.As(err, &truncated) && truncated.First > after+1:
			after = truncated.First - 1
		case err != nil:
			return 0, false, err
		case len(events) == 0:
			return end.Seq, false, nil
		}
		page = readPage
		for i := range events {
			after = events[i].Seq
			ended = ended || run.Terminal(events[i].Type)
		}
	}
	return end.Seq, ended, nil
}

// endUnread carries an act out that ends a run which cannot be read; fault says
// why.
func (w *writer) endUnread(ctx context.Context, e *entry, fault error) (Summary, error) {
	for attempt := 0; ; attempt++ {
		last, err := newest(ctx, w.config.Ledger, w.id)
		var away *ledger.UnavailableError
		if errors.As(err, &away) && wait(ctx, backoff(attempt)) {
			continue
		}
		if err != nil {
			return Summary{}, err
		}
		b := newBatch(run.Unread(last))
		d, err := e.act(b.fork, fault)
		if err != nil || len(d.Candidates) == 0 {
			return summarize(b.fork, ""), err
		}
		b.add(e, d, w.config.MaxAppend)
		b.seal(w.config.Nonce())
		began := time.Now()
		err = w.append(ctx, b)
		w.config.Observer.Appended(outcome(err), len(b.events), time.Since(began))
		var conflict *ledger.ConflictError
		switch {
		case errors.As(err, &conflict): // somebody writes it, or this was stored and not seen
			if wait(ctx, backoff(attempt)) {
				continue
			}
		case err == nil:
			w.config.Observer.Ended(w.id, b.fork.Owner != "", b.fork.Status())
			if b.fork.Owner == "" {
				w.config.Watcher.Ended(w.id)
			}
		}
		return summarize(b.fork, ""), err
	}
}
