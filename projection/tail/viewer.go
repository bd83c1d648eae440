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
	end   run.Seq // the newest event when the viewer came
	view  *view.View

	last place // the event at at, as it was shown; without a seq: it was not
	read place // the event that was read last from the store; without a seq: none was

	projector view.Projector // while the viewer replays
	projected run.Seq        // where that stands; of a stateless view it does not matter
	joined    bool           // the tail projects for it
	began     bool           // the prelude was given
}

// Next returns what comes behind the viewer's position and moves it on. An
// empty batch means that there is nothing yet: wait for more to be closed and
// call again. It reads the store where the viewer is behind the ring, waits for
// nothing else, and outlives an outage of the store.
// Errors: ledger.ErrNotFound, ledger.ErrErased, *ledger.TruncatedError,
// *ledger.CorruptError, *run.BrokenChainError, ctx's; nothing comes after one.
func (v *Viewer) Next(ctx context.Context) (b Batch, more <-chan struct{}, err error) {
	if v.tail == nil {
		if v.at >= v.end {
			return Batch{}, nil, nil
		}
		return v.replay(ctx)
	}
	b, more, behind, err := v.follow()
	if behind && err == nil {
		return v.replay(ctx)
	}
	return b, more, err
}

// follow takes what the tail has; behind tells that the store has more, or must
// be read first.
func (v *Viewer) follow() (b Batch, more <-chan struct{}, behind bool, err error) {
	t := v.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	reached := max(v.end, t.head)
	if v.at < reached || !v.standing() {
		events, ok := t.ring.behind(v.at)
		if !ok || !v.standing() {
			return Batch{}, t.more, true, nil
		}
		if b, err = v.take(events); err != nil || len(b.Frames) > 0 {
			return b, t.more, false, err
		}
	}
	if !v.joined && v.at == t.head {
		t.enter(v.view, v.projector)
		v.joined, v.projector = true, nil
	}
	return Batch{}, t.more, false, t.err
}

// standing reports whether the next event can be projected at once: the viewer's
// own projector stands there, or the tail's does it.
func (v *Viewer) standing() bool {
	return v.joined || v.view.Stateless() || v.projected == v.at && (v.began || v.at == 0)
}

// take makes a batch of the ring's events behind the viewer's position.
func (v *Viewer) take(events []framed) (b Batch, err error) {
	if len(events) == 0 {
		return Batch{}, nil
	}
	if v.last.seq == v.at && v.last.seq > 0 && events[0].follows != v.last.chain {
		return Batch{}, &run.BrokenChainError{Run: v.id, Seq: events[0].event.Seq}
	}
	for i := range events {
		encoded, err := v.frame(&events[i])
		if err != nil {
			return Batch{}, err
		}
		b.Frames = append(b.Frames, encoded)
	}
	b.Live = true
	v.reach(&b, &events[len(events)-1].event)
	return b, nil
}

// frame is what an event of the ring is in the viewer's view. While the viewer
// replays, its own projector must see each.
func (v *Viewer) frame(f *framed) ([]byte, error) {
	if v.joined || v.view.Stateless() {
		return v.tail.ring.in(v.view, f, func(e *run.Event) ([]byte, error) { return v.tails.encode.all(v.view.New().Step(e)) })
	}
	v.projected = f.event.Seq
	return v.tails.encode.all(v.projector.Step(&f.event))
}

// reach moves the viewer on to an event, the last of a batch.
func (v *Viewer) reach(b *Batch, e *run.Event) {
	b.Last, b.Recorded, b.Terminal = e.Seq, e.RecordedAt, run.Terminal(e.Type)
	v.at, v.last = e.Seq, place{e.Seq, e.ChainChecksum}
}

// replay reads a page of the store, whole, before any of it is written. In a
// stateful view that begins with the run, whatever the viewer has seen.
func (v *Viewer) replay(ctx context.Context) (Batch, <-chan struct{}, error) {
	if v.joined { // it has fallen out of the ring
		v.leave()
	}
	from := v.at
	if !v.view.Stateless() {
		from = v.projected
	}
	events, err := v.tails.source.Read(ctx, v.id, from, page)
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
		e := &events[i]
		if follows := v.read; follows.seq > 0 && follows.seq+1 == e.Seq && !run.Verify(e, follows.chain) || v.last.seq == e.Seq && v.last.chain != e.ChainChecksum {
			return Batch{}, nil, &run.BrokenChainError{Run: v.id, Seq: e.Seq}
		}
		v.read = place{e.Seq, e.ChainChecksum}
		if err := v.step(e, &b); err != nil {
			return Batch{}, nil, err
		}
	}
	if v.tail != nil {
		v.tail.read(v.read)
	}
	if len(b.Frames) == 0 {
		return Batch{}, already, nil // behind the viewer's cursor still
	}
	v.reach(&b, &events[len(events)-1])
	return b, nil, nil
}

// step projects one event of a replay.
func (v *Viewer) step(e *run.Event, b *Batch) error {
	frames := v.projector.Step(e)
	v.projected = e.Seq
	if e.Seq < v.at || e.Seq == v.at && v.began {
		return nil
	}
	if e.Seq == v.at { // here a viewer joins that has a cursor
		frames = v.projector.Prelude()
	}
	v.began = true
	encoded, err := v.tails.encode.all(frames)
	if err != nil {
		return err
	}
	b.Frames = append(b.Frames, encoded)
	return nil
}

// already is news that has come.
var already = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// leave takes the projecting back from the tail.
func (v *Viewer) leave() {
	v.tail.mu.Lock()
	v.tail.exit(v.view)
	v.tail.mu.Unlock()
	v.joined, v.projector, v.projected, v.read = false, v.view.New(), 0, place{}
}

// Close ends the viewing.
func (v *Viewer) Close() {
	if v.tail == nil {
		return
	}
	if v.joined {
		v.leave()
	}
	v.tail.leave()
}
