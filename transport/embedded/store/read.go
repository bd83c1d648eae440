package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// ErrNoStream: the stream was never written, or is soft-deleted.
var ErrNoStream = errors.New("no such stream")

// Bounds of a page, which is read whole before any of it is sent: no iterator
// waits for a slow reader.
const (
	pageEvents = 256
	pageBytes  = 1 << 20
)

// Window is what of a stream can be read.
type Window struct {
	id     uint64
	First  int64 // the lowest number that is not hidden
	Last   int64 // the highest; -1: none
	oldest int64 // ticks; what was created before is hidden ($maxAge)
}

// Window returns what of a stream can be read now (wire 2.4). Errors:
// ErrNoStream, *DeletedError.
func (s *Store) Window(stream string) (Window, error) {
	h, err := s.head(stream)
	if err != nil {
		return Window{}, err
	}
	if h.tombstoned() {
		return Window{}, &DeletedError{stream}
	}
	about, isMeta := described(stream)
	if isMeta {
		subject, err := s.head(about)
		if err != nil {
			return Window{}, err
		}
		if subject.tombstoned() {
			return Window{}, &DeletedError{stream}
		}
	}
	if h.last == none || h.meta.deleted() {
		return Window{Last: none}, ErrNoStream
	}
	w := Window{id: h.id, First: h.meta.before, Last: h.last}
	if isMeta { // only the newest document counts (wire 2.8)
		w.First = h.last
	}
	if h.meta.maxCount > 0 {
		w.First = max(w.First, h.last-h.meta.maxCount+1)
	}
	if h.meta.maxAge > 0 {
		w.oldest = s.now() - int64(h.meta.maxAge/100/time.Nanosecond)
	}
	return w, nil
}

// Forward returns a page of visible events from a number on, and the number
// from which to go on; at the end the page is empty.
func (s *Store) Forward(w Window, from int64, limit uint64) (page []*Event, next int64, err error) {
	from = max(from, w.First)
	if from > w.Last {
		return nil, from, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(w.id, from), UpperBound: eventKey(w.id, w.Last+1)})
	if err != nil {
		return nil, from, err
	}
	defer it.Close()
	size := 0
	for ok := it.First(); ok && !full(page, size, limit); ok = it.Next() {
		e, err := decodeEvent(it.Key(), it.Value())
		if err != nil {
			return page, from, err
		}
		from = e.Number + 1
		if e.Created < w.oldest {
			continue
		}
		page, size = append(page, e), size+len(e.Data)+len(e.Metadata)
	}
	return page, from, it.Error()
}

// Backward is Forward towards the start: from a number down, inclusive.
func (s *Store) Backward(w Window, from int64, limit uint64) (page []*Event, next int64, err error) {
	from = min(from, w.Last)
	if from < w.First {
		return nil, from, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(w.id, w.First), UpperBound: eventKey(w.id, from+1)})
	if err != nil {
		return nil, from, err
	}
	defer it.Close()
	size := 0
	for ok := it.Last(); ok && !full(page, size, limit); ok = it.Prev() {
		e, err := decodeEvent(it.Key(), it.Value())
		if err != nil {
			return page, from, err
		}
		from = e.Number - 1
		if e.Created < w.oldest {
			continue
		}
		page, size = append(page, e), size+len(e.Data)+len(e.Metadata)
	}
	return page, from, it.Error()
}

func full(page []*Event, size int, limit uint64) bool {
	return len(page) >= pageEvents || uint64(len(page)) >= limit || size >= pageBytes
}

// Position is the last committed position; 0: nothing is stored.
func (s *Store) Position() uint64 { return s.committed.Load() }

// All returns a page of $all from a position on, inclusive, up to the last
// committed one when it was called.
func (s *Store) All(from uint64, limit uint64) ([]*Event, error) {
	last := s.Position()
	if from > last {
		return nil, nil
	}
	return s.all(&pebble.IterOptions{LowerBound: positionKey(from), UpperBound: positionKey(last + 1)}, limit,
		(*pebble.Iterator).First, (*pebble.Iterator).Next)
}

// AllBackward returns a page of $all down from a position, exclusive.
func (s *Store) AllBackward(before uint64, limit uint64) ([]*Event, error) {
	before = min(before, s.Position()+1)
	return s.all(&pebble.IterOptions{LowerBound: positionKey(0), UpperBound: positionKey(before)}, limit,
		(*pebble.Iterator).Last, (*pebble.Iterator).Prev)
}

func (s *Store) all(bounds *pebble.IterOptions, limit uint64, first, next func(*pebble.Iterator) bool) (page []*Event, err error) {
	it, err := s.db.NewIter(bounds)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	// One iterator for all of the page's events: most of them stand near the
	// one before, and a Get for each would search from the top every time.
	events, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{'d'}, UpperBound: []byte{'e'}})
	if err != nil {
		return nil, err
	}
	defer events.Close()
	size := 0
	for ok := first(it); ok && !full(page, size, limit); ok = next(it) {
		id, number, ok := unpair(it.Value())
		key := eventKey(id, number)
		if !ok || !events.SeekGE(key) || !bytes.Equal(events.Key(), key) {
			return page, errors.Join(events.Error(), &CorruptError{Key: append([]byte(nil), it.Key()...)})
		}
		e, err := decodeEvent(key, events.Value())
		if err != nil {
			return page, err
		}
		page, size = append(page, e), size+len(e.Data)+len(e.Metadata)
	}
	return page, it.Error()
}

func (s *Store) lastPosition() (uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{'p'}, UpperBound: []byte{'q'}})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	if !it.Last() {
		return 0, it.Error()
	}
	return binary.BigEndian.Uint64(it.Key()[1:]), nil
}
