package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrStopped: the store takes no writes any more.
var ErrStopped = errors.New("the store is stopped")

// UnwritableError: the disk is full or failing. Reads go on.
type UnwritableError struct{ Err error }

func (e *UnwritableError) Error() string { return fmt.Sprintf("the store cannot write: %v", e.Err) }
func (e *UnwritableError) Unwrap() error { return e.Err }

// Result is what a write was answered with.
type Result struct {
	Last     int64  // the number of its last event; -1: no stream
	Position uint64 // of its last event; 0: not known
}

type kind int

const (
	appending kind = iota
	deleting
	tombstoning
)

// write is one request to the committer.
type write struct {
	ctx      context.Context // the caller's: one that gave up is skipped
	kind     kind
	stream   string
	expected Expected
	events   []Proposed
	done     chan answer // holds the one answer
}

type answer struct {
	result Result
	err    error
}

// Append stores events behind the expected one, all or none, and returns once
// they are on disk. Errors: *WrongVersionError, *DeletedError,
// *UnwritableError, ErrStopped, ctx's (when it ended the outcome is open).
func (s *Store) Append(ctx context.Context, stream string, expected Expected, events []Proposed) (Result, error) {
	return s.submit(&write{ctx: ctx, kind: appending, stream: stream, expected: expected, events: events})
}

// Delete hides a stream until it is written to again (wire 3.3). Errors as for
// Append.
func (s *Store) Delete(ctx context.Context, stream string, expected Expected) (Result, error) {
	return s.submit(&write{ctx: ctx, kind: deleting, stream: stream, expected: expected})
}

// Tombstone ends a stream for ever (wire 3.4). Errors as for Append.
func (s *Store) Tombstone(ctx context.Context, stream string, expected Expected) (Result, error) {
	return s.submit(&write{ctx: ctx, kind: tombstoning, stream: stream, expected: expected})
}

func (s *Store) submit(w *write) (Result, error) {
	w.done = make(chan answer, 1)
	select {
	case s.writes <- w:
	case <-s.stopped:
		return Result{}, ErrStopped
	case <-w.ctx.Done():
		return Result{}, w.ctx.Err()
	}
	select {
	case a := <-w.done:
		return a.result, a.err
	case <-w.ctx.Done():
		return Result{}, w.ctx.Err()
	}
}

// verdict is what the decision table says of a write.
type verdict struct {
	repeated bool // it is stored already, up to result
	result   Result
}

// decide is the table of wire 3.1.
func (g *group) decide(w *write, h *head) (verdict, error) {
	deleted := &DeletedError{w.stream}
	wrong := &WrongVersionError{w.stream, w.expected, h.last}
	if gone, err := g.tombstoned(w.stream, h); err != nil || gone {
		return verdict{}, errors.Join(err, condition(gone, deleted))
	}
	switch w.expected {
	case Exists:
		if h.meta.deleted() {
			return verdict{}, deleted
		}
		if h.last == none {
			about, err := g.head(metaStream(w.stream))
			if err != nil {
				return verdict{}, err
			}
			if about.last == none {
				return verdict{}, wrong
			}
		}
		return g.repeated(w, h)
	case Any:
		return g.repeated(w, h)
	}
	switch {
	case int64(w.expected) > h.last:
		return verdict{}, wrong
	case int64(w.expected) == h.last:
		return verdict{}, nil // no look at ids: the same ones are written again
	case len(w.events) == 0 && w.kind != appending && w.expected == NoStream && h.meta.deleted():
		return verdict{}, nil
	case len(w.events) == 0:
		return verdict{}, wrong
	}
	return g.compare(w, h, wrong)
}

func condition(when bool, err error) error {
	if when {
		return err
	}
	return nil
}

// repeated looks for the ids of a write without a number among the recent ones.
func (g *group) repeated(w *write, h *head) (verdict, error) {
	last := none
	for i, e := range w.events {
		number, known := g.store.recent.find(e.ID, w.stream)
		switch {
		case i == 0 && !known:
			return verdict{}, nil
		case !known:
			return verdict{}, &WrongVersionError{w.stream, w.expected, h.last}
		}
		last = number
	}
	if len(w.events) == 0 {
		return verdict{}, nil
	}
	return g.asBefore(h, last)
}

// compare holds a write's ids against the events behind the expected one.
func (g *group) compare(w *write, h *head, wrong error) (verdict, error) {
	for i, e := range w.events {
		number := int64(w.expected) + 1 + int64(i)
		var id ID
		if number <= h.last {
			stored, err := g.event(h.id, number)
			if err != nil {
				return verdict{}, err
			}
			id = stored.ID
		}
		if number > h.last || id != e.ID {
			if i == 0 && w.expected == NoStream && h.meta.deleted() {
				return verdict{}, nil // written anew
			}
			return verdict{}, wrong
		}
	}
	return g.asBefore(h, int64(w.expected)+int64(len(w.events)))
}

// asBefore answers a write that is stored already.
func (g *group) asBefore(h *head, last int64) (verdict, error) {
	v := verdict{repeated: true, result: Result{Last: last}}
	if last >= h.meta.before {
		e, err := g.event(h.id, last)
		if err != nil {
			return verdict{}, err
		}
		v.result.Position = e.Position
	}
	return v, nil
}

// tombstoned reports whether a stream, or the one that it describes, is.
func (g *group) tombstoned(stream string, h *head) (bool, error) {
	if h.tombstoned() {
		return true, nil
	}
	about, ok := described(stream)
	if !ok {
		return false, nil
	}
	subject, err := g.head(about)
	return err == nil && subject.tombstoned(), err
}

// apply decides one write and adds what it brings to the group.
func (g *group) apply(w *write) (Result, error) {
	h, err := g.head(w.stream)
	if err != nil {
		return Result{}, err
	}
	if w.kind != appending {
		return g.remove(w, h)
	}
	v, err := g.decide(w, h)
	if err != nil || v.repeated {
		return v.result, err
	}
	about, isMeta := described(w.stream)
	wasDeleted := false
	if isMeta {
		subject, err := g.head(about)
		if err != nil {
			return Result{}, err
		}
		wasDeleted = subject.meta.deleted()
	}
	result := Result{Last: h.last, Position: g.position}
	for i, e := range w.events {
		if result, err = g.put(w.stream, h.last+1+int64(i), e); err != nil {
			return Result{}, err
		}
	}
	switch {
	case h.meta.deleted(): // written anew: what was before stays hidden
		err = g.describe(w.stream, h.meta.withBefore(h.last+1))
	case wasDeleted: // its numbers go on behind what was deleted (wire 3.3)
		var subject *head
		if subject, err = g.head(about); err == nil {
			err = g.describe(about, subject.meta.withBefore(subject.last+1))
		}
	}
	return result, err
}

// remove is Delete and Tombstone.
func (g *group) remove(w *write, h *head) (Result, error) {
	if v, err := g.decide(w, h); err != nil || v.repeated {
		return v.result, err
	}
	if w.kind == tombstoning {
		return g.put(w.stream, Deleted, Proposed{ID: g.store.newID(), Type: deletedType})
	}
	if h.last == none {
		about, err := g.head(metaStream(w.stream))
		if err != nil {
			return Result{}, err
		}
		if about.last == none {
			return Result{}, &WrongVersionError{w.stream, w.expected, none}
		}
	}
	err := g.describe(w.stream, json.RawMessage(fmt.Sprintf(`{"$tb":%d}`, int64(softDeleted))))
	return Result{Last: h.last, Position: g.position}, err
}
