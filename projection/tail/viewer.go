package tail

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

// page bounds what a viewer that is behind the ring reads, and holds, at a time.
var page = ledger.Page{Events: 256, Bytes: 512 << 10}

// storeAway is how long a viewer waits before it asks a store again that could
// not be reached.
const storeAway = 500 * time.Millisecond

// Viewer is one reader's position in a run. Not safe for concurrent use.
type Viewer struct {
	tails *Tails
	tail  *tail // nil: the run had ended when the viewer came
	id    run.ID
	at    run.Seq // the last event that Next has returned
	view  view.View
	end   run.Seq // the newest event when the viewer came
}

// Next returns what comes behind the viewer's position and moves it on. An
// empty batch means that there is nothing yet: wait for more to be closed and
// call again. It reads the store where the viewer is behind the ring, waits for
// nothing else, and outlives an outage of the store.
// Errors: ledger.ErrErased, *ledger.TruncatedError, *ledger.CorruptError,
// ctx's; nothing comes after one.
func (v *Viewer) Next(ctx context.Context) (b Batch, more <-chan struct{}, err error) {
	reached := v.end
	if v.tail != nil {
		t := v.tail
		t.mu.Lock()
		b, _, err = t.ring.after(v.at, v.view, t.tails.encode)
		head, failed := t.head, t.err
		more = t.more
		t.mu.Unlock()
		if reached = max(reached, head); len(b.Frames) > 0 || err != nil {
			v.at = max(v.at, b.Last)
			return b, more, err
		}
		if v.at >= reached {
			return b, more, failed
		}
	}
	if v.at < reached {
		return v.replay(ctx)
	}
	return Batch{}, more, nil
}

// replay reads a page of the store, whole, before any of it is written.
func (v *Viewer) replay(ctx context.Context) (Batch, <-chan struct{}, error) {
	events, err := v.tails.source.Read(ctx, v.id, v.at, page)
	var away *ledger.UnavailableError
	if errors.As(err, &away) {
		later := make(chan struct{})
		time.AfterFunc(storeAway, func() { close(later) })
		return Batch{}, later, nil
	}
	if err != nil {
		return Batch{}, nil, err
	}
	if len(events) == 0 {
		return Batch{}, nil, &ledger.TruncatedError{Run: v.id}
	}
	var b Batch
	for i := range events {
		encoded, err := v.tails.encode(v.view, &events[i])
		if err != nil {
			return Batch{}, nil, err
		}
		b.Frames = append(b.Frames, encoded)
	}
	last := &events[len(events)-1]
	b.Last, b.Recorded, b.Terminal = last.Seq, last.RecordedAt, run.Terminal(last.Type)
	v.at = last.Seq
	return b, nil, nil
}

// Close ends the viewing.
func (v *Viewer) Close() {
	if v.tail != nil {
		v.tail.leave()
	}
}
