package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// SetBack drops the last n events of the log, as a restored backup would, and
// returns how many it found. Subscribers are not told. Errors: ErrStopped,
// ctx's (when it ended the outcome is open), the disk's.
func (s *Store) SetBack(ctx context.Context, n uint64) (dropped uint64, err error) {
	done := make(chan struct{})
	do := func() {
		defer close(done)
		dropped, err = s.setBack(n)
	}
	select {
	case s.between <- do:
		<-done
		return dropped, err
	case <-s.stopped:
		return 0, ErrStopped
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// setBack is the committer's.
func (s *Store) setBack(n uint64) (dropped uint64, err error) {
	batch := s.db.NewBatch()
	defer batch.Close()
	ends := make(map[string]int64) // where each stream will end
	first := s.position + 1 - min(n, s.position)
	for at := s.position; at >= first && at > 0; at-- {
		page, err := s.AllBackward(at+1, 1)
		if err != nil || len(page) == 0 {
			return 0, errors.Join(fmt.Errorf("set back to position %d", at), err)
		}
		e := page[0]
		id, _, err := s.readHead(e.Stream)
		if err != nil {
			return 0, err
		}
		ends[e.Stream] = e.Number - 1
		if e.Number == Deleted {
			if ends[e.Stream], err = s.lastBefore(id, Deleted); err != nil {
				return 0, err
			}
		}
		if err := errors.Join(batch.Delete(positionKey(at), nil), batch.Delete(eventKey(id, e.Number), nil)); err != nil {
			return 0, err
		}
	}
	for stream, last := range ends {
		id, _, err := s.readHead(stream)
		if err != nil {
			return 0, err
		}
		set := func() error { return batch.Set(headKey(stream), pair(id, last), nil) }
		if last == none {
			set = func() error { return batch.Delete(headKey(stream), nil) }
		}
		if err := set(); err != nil {
			return 0, err
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return 0, err
	}
	dropped = s.position + 1 - first
	s.position, s.recent = first-1, newRecent()
	s.committed.Store(s.position)
	s.heads.forget()
	return dropped, nil
}

// lastBefore is the highest number of a stream's events below one.
func (s *Store) lastBefore(id uint64, number int64) (int64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(id, 0), UpperBound: eventKey(id, number)})
	if err != nil {
		return none, err
	}
	defer it.Close()
	if !it.Last() {
		return none, it.Error()
	}
	e, err := decodeEvent(it.Key(), it.Value())
	if err != nil {
		return none, err
	}
	return e.Number, nil
}

// forget drops every head: they are read again when they are wanted.
func (h *heads) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch++
	clear(h.known)
}
