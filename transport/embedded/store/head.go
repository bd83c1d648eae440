package store

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// none is the last number of a stream without events.
const none int64 = -1

// maxHeads bounds the heads kept in memory: some 200 bytes each. Past it an
// arbitrary one goes; it is read again when it is wanted.
const maxHeads = 100_000

// head is what is known of a stream: where it ends, and what its metadata
// hides. A head in the cache is never changed, only replaced.
type head struct {
	id   uint64 // 0: the stream was never written
	last int64
	meta meta
}

func (h *head) tombstoned() bool { return h.last == Deleted }

// heads caches committed heads. Safe for concurrent use. Only the committer
// replaces them; readers add what they have read.
type heads struct {
	mu    sync.RWMutex
	known map[string]*head
	epoch uint64 // counts replacements, so that a slow reader adds nothing stale
}

func (h *heads) get(stream string) (*head, uint64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.known[stream], h.epoch
}

// add keeps a head that was read when the cache was at epoch.
func (h *heads) add(stream string, one *head, epoch uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoch != epoch {
		return
	}
	h.put(stream, one)
}

func (h *heads) replace(changed map[string]*head) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch++
	for stream, one := range changed {
		h.put(stream, one)
	}
}

func (h *heads) put(stream string, one *head) {
	if len(h.known) >= maxHeads {
		for other := range h.known {
			delete(h.known, other)
			break
		}
	}
	h.known[stream] = one
}

// head returns the committed head of a stream.
func (s *Store) head(stream string) (*head, error) {
	cached, epoch := s.heads.get(stream)
	if cached != nil {
		return cached, nil
	}
	h := &head{last: none}
	var err error
	if h.id, h.last, err = s.readHead(stream); err != nil {
		return nil, err
	}
	id, last, err := s.readHead(metaStream(stream))
	if err != nil {
		return nil, err
	}
	if last >= 0 && last != Deleted {
		e, err := s.event(id, last)
		if err != nil {
			return nil, err
		}
		h.meta = parseMeta(e)
	}
	s.heads.add(stream, h, epoch)
	return h, nil
}

func (s *Store) readHead(stream string) (id uint64, last int64, err error) {
	value, closer, err := s.db.Get(headKey(stream))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, none, nil
	}
	if err != nil {
		return 0, 0, err
	}
	defer closer.Close()
	id, last, ok := unpair(value)
	if !ok {
		return 0, 0, &CorruptError{Stream: stream, Key: headKey(stream)}
	}
	return id, last, nil
}

// event returns one event of a stream.
func (s *Store) event(id uint64, number int64) (*Event, error) {
	key := eventKey(id, number)
	value, closer, err := s.db.Get(key)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return decodeEvent(key, value)
}
