package eventstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// A store's writer decides from memory, and its readers follow an index: what
// was acknowledged, or has caused a conflict, may not be readable yet (by tens
// of milliseconds under load). So reads go on until where the stream is known
// to end; and where they do not get there, the writer is asked.

// settleTime is how long reads may trail what is known before the writer is
// asked whether the store was set back.
const settleTime = 2 * time.Second

// maxEnds bounds what is remembered: some 100 bytes each. Past it an arbitrary
// one goes; what is forgotten has long been readable.
const maxEnds = 50_000

// ends remembers where streams are known to end, at least. Safe for concurrent
// use.
type ends struct {
	mu    sync.Mutex
	known map[string]run.Seq
}

func (e *ends) raise(stream string, to run.Seq) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if to <= e.known[stream] {
		return
	}
	if len(e.known) >= maxEnds {
		for other := range e.known {
			delete(e.known, other)
			break
		}
	}
	e.known[stream] = to
}

func (e *ends) at(stream string) run.Seq {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known[stream]
}

func (e *ends) forget(stream string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.known, stream)
}

// errBehind: reads do not show what the store's writer has.
var errBehind = errors.New("the store's readers trail its writer")

// errEmpty: the stream is there, and nothing of it can be read.
var errEmpty = errors.New("nothing of the stream can be read")

// End implements ledger.Appender: an append where no stream ends is refused
// with where it does.
func (s *Store) End(ctx context.Context, id run.ID) (run.Seq, error) {
	return s.end(ctx, id.Stream())
}

func (s *Store) end(ctx context.Context, stream string) (run.Seq, error) {
	nothing := esdb.EventData{EventID: uuid.New(), EventType: "runfacts.probe", ContentType: esdb.ContentTypeJson, Data: []byte("{}")}
	_, err := s.append(ctx, stream, expected(ledger.Impossible), nothing)
	switch faultOf(err) {
	case conflicted:
		end := currentOf(err)
		s.ends.raise(stream, end)
		return end, nil
	case deleted:
		s.ends.forget(stream)
		return 0, ledger.ErrErased
	}
	if err == nil {
		err = errors.New("it took an append at an impossible seq")
	}
	return 0, &ledger.UnavailableError{Err: err}
}

// settled reads until the page goes as far as the stream is known to. after is
// the seq behind which the page begins; full tells that a page ends for another
// reason than the stream's end.
func (s *Store) settled(ctx context.Context, id run.ID, after run.Seq, read func() (page []run.Stored, full bool, err error)) ([]run.Stored, error) {
	stream := id.Stream()
	for began, attempt := time.Now(), 0; ; attempt++ {
		page, full, err := read()
		known := s.ends.at(stream)
		missing := errors.Is(err, ledger.ErrNotFound)
		switch {
		case err != nil && !missing:
			if errors.Is(err, ledger.ErrErased) {
				s.ends.forget(stream)
			}
			return nil, err
		case missing && known == 0, missing && attempt == 1, missing && time.Since(began) > settleTime:
			if err := s.missing(ctx, id, known, time.Since(began) > settleTime); err != nil {
				return nil, err
			}
		case !missing && (full || reach(page, after) >= known):
			return page, nil
		case time.Since(began) > settleTime:
			return page, s.astray(ctx, id, known, len(page) == 0)
		}
		if !pauseFor(ctx, min(5*time.Millisecond<<min(attempt, 5), 100*time.Millisecond)) {
			return nil, &ledger.UnavailableError{Err: fmt.Errorf("%w: %w", errBehind, ctx.Err())}
		}
	}
}

// reach is how far a page shows its stream.
func reach(page []run.Stored, after run.Seq) run.Seq {
	if len(page) == 0 {
		return after
	}
	return max(page[0].Seq, page[len(page)-1].Seq)
}

// missing tells why reads find no stream: there is none, or it was deleted by
// hand; nil: it is not to be seen yet. late: it should have been, by now.
func (s *Store) missing(ctx context.Context, id run.ID, known run.Seq, late bool) error {
	end, err := s.end(ctx, id.Stream())
	switch {
	case err != nil:
		return err
	case end < known && late:
		return s.wasSetBack(id, known, end)
	case end == 0 && known == 0:
		return ledger.ErrNotFound
	case end == 0:
		return nil
	}
	gone, err := s.softDeleted(ctx, id.Stream())
	switch {
	case err != nil:
		return err
	case gone:
		s.ends.forget(id.Stream())
		return ledger.ErrDeleted
	case late:
		return &ledger.UnavailableError{Err: errBehind}
	}
	return nil
}

// astray tells why reads end before what is known.
func (s *Store) astray(ctx context.Context, id run.ID, known run.Seq, empty bool) error {
	end, err := s.end(ctx, id.Stream())
	switch {
	case err != nil:
		return err
	case end < known:
		return s.wasSetBack(id, known, end)
	case empty: // it ends where it should, and nothing of that is left
		return errEmpty
	}
	return &ledger.UnavailableError{Err: errBehind}
}

func (s *Store) wasSetBack(id run.ID, known, end run.Seq) error {
	s.ends.forget(id.Stream())
	err := &ledger.SetBackError{Run: id, Known: known, Ends: end}
	s.notice(err)
	return err
}

// softDeleted reports whether a stream's metadata hide all that it ever had.
func (s *Store) softDeleted(ctx context.Context, stream string) (bool, error) {
	page, err := s.read(ctx, "$$"+stream, esdb.ReadStreamOptions{
		Direction: esdb.Backwards, From: esdb.End{}, RequiresLeader: true,
	}, ledger.Page{Events: 1, Bytes: 1})
	if err = readError(err); errors.Is(err, ledger.ErrNotFound) || err == nil && len(page) == 0 {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return hidesAll(page[0].Data), nil
}
