package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
)

// Report is what Check found.
type Report struct {
	Streams, Events int
	Last            uint64 // position
}

func (r Report) String() string {
	return fmt.Sprintf("%d streams, %d events, last position %d: everything is in order", r.Streams, r.Events, r.Last)
}

// Check walks a stopped store and verifies every event: its bytes, its place
// in its stream, and its place in $all. The error names what is wrong, all of
// it.
func Check(folder string, fs vfs.FS) (report Report, err error) {
	s, err := open(folder, fs, zerolog.Nop(), true)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	names := make(map[uint64]string)
	last := make(map[uint64]int64)
	err = s.scan('h', func(key, value []byte) {
		id, number, ok := unpair(value)
		if !ok {
			fault("the head of stream %q is damaged", key[1:])
			return
		}
		names[id], last[id] = string(key[1:]), number
		report.Streams++
	})
	next := make(map[uint64]int64)
	err = errors.Join(err, s.scan('d', func(key, value []byte) {
		e, err := decodeEvent(key, value)
		if err != nil {
			faults = append(faults, err)
			return
		}
		report.Events++
		id, _, _ := unpair(key[1:])
		if names[id] != e.Stream {
			fault("event %d of stream %q stands in stream %q", e.Number, e.Stream, names[id])
		}
		if e.Number != next[id] && e.Number != Deleted {
			fault("stream %q: event %d is followed by event %d", e.Stream, next[id]-1, e.Number)
		}
		if e.Number > last[id] {
			fault("stream %q: event %d stands behind the head %d", e.Stream, e.Number, last[id])
		}
		next[id] = e.Number + 1
		if e.Number == last[id] {
			delete(last, id)
		}
	}))
	for id, number := range last {
		fault("stream %q ends before its head %d", names[id], number)
	}
	err = errors.Join(err, s.scan('p', func(key, value []byte) {
		report.Last++
		id, number, _ := unpair(value)
		e, err := s.event(id, number)
		if errors.Is(err, pebble.ErrNotFound) {
			fault("position %x: there is no event %d in stream %q", key[1:], number, names[id])
		} else if err == nil && string(positionKey(e.Position)) != string(key) {
			fault("event %d of stream %q stands at another position", number, e.Stream)
		}
	}))
	if int(report.Last) != report.Events {
		fault("%d events have %d positions", report.Events, report.Last)
	}
	return report, errors.Join(append(faults, err)...)
}

// scan shows every key with a prefix.
func (s *Store) scan(prefix byte, show func(key, value []byte)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		show(it.Key(), it.Value())
	}
	return it.Error()
}
