package eventstore

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Read implements ledger.Reader.
func (s *Store) Read(ctx context.Context, id run.ID, after run.Seq, limit ledger.Page) ([]run.Event, error) {
	if after > math.MaxInt64 {
		return nil, nil // no stream is as long
	}
	stored, err := s.settled(ctx, id, after, func() ([]run.Stored, bool, error) {
		page, err := s.read(ctx, id.Stream(), esdb.ReadStreamOptions{
			Direction: esdb.Forwards, From: esdb.Revision(uint64(after)), RequiresLeader: true,
		}, limit)
		return page, full(page, limit), readError(err)
	})
	if errors.Is(err, errEmpty) || err == nil && len(stored) == 0 && after == 0 {
		return nil, &ledger.TruncatedError{Run: id}
	}
	if err != nil {
		return nil, err
	}
	events := make([]run.Event, len(stored))
	for i, one := range stored {
		if one.Seq != after+1+run.Seq(i) {
			return nil, &ledger.TruncatedError{Run: id, First: one.Seq}
		}
		if events[i], err = decode(id, one); err != nil {
			return events[:i], err
		}
		if run.Terminal(one.Type) { // what stands behind the end is nobody's
			return events[:i+1], nil
		}
	}
	return events, nil
}

// full reports whether a page ended because of its limit.
func full(page []run.Stored, limit ledger.Page) bool {
	size := 0
	for i := range page {
		size += len(page[i].Data)
	}
	return len(page) >= limit.Events || size >= limit.Bytes
}

// Last implements ledger.Reader.
func (s *Store) Last(ctx context.Context, id run.ID) (run.Event, error) {
	backwards := esdb.ReadStreamOptions{Direction: esdb.Backwards, From: esdb.End{}, RequiresLeader: true}
	stored, err := s.settled(ctx, id, 0, func() ([]run.Stored, bool, error) {
		page, err := s.read(ctx, id.Stream(), backwards, ledger.Page{Events: 1, Bytes: 1})
		return page, false, readError(err)
	})
	if errors.Is(err, errEmpty) || err == nil && len(stored) == 0 {
		return run.Event{}, &ledger.TruncatedError{Run: id}
	}
	if err != nil {
		return run.Event{}, err
	}
	last, err := decode(id, stored[0])
	if err == nil {
		return last, nil
	}
	// Somebody else's. If it stands behind the run's end, that is the last event.
	backwards.From = esdb.Revision(uint64(stored[0].Seq) - 1)
	before, away := s.read(ctx, id.Stream(), backwards, ledger.Page{Events: strangers, Bytes: maxNotes})
	if away != nil {
		return run.Event{}, readError(away)
	}
	for i := range before {
		if end, notOurs := decode(id, before[i]); notOurs == nil {
			if run.Terminal(end.Type) {
				return end, nil
			}
			break
		}
	}
	return run.Event{}, err
}

// strangers is how many events of somebody else are looked past for a run's end.
const strangers = 32

// read collects a page whole and closes its stream.
func (s *Store) read(ctx context.Context, stream string, options esdb.ReadStreamOptions, limit ledger.Page) ([]run.Stored, error) {
	return s.readWithin(ctx, readTime, stream, options, limit)
}

func (s *Store) readWithin(ctx context.Context, most time.Duration, stream string, options esdb.ReadStreamOptions, limit ledger.Page) ([]run.Stored, error) {
	select {
	case s.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.reading }()
	return gated(&s.gates, right{read, stream}, func() ([]run.Stored, error) {
		return call(atLeader(ctx), s.reads, most, func(ctx context.Context, c *esdb.Client) ([]run.Stored, error) {
			open, err := c.ReadStream(ctx, stream, options, uint64(limit.Events))
			if err != nil {
				return nil, err
			}
			defer open.Close()
			var page []run.Stored
			for size := 0; size < limit.Bytes; {
				e, err := open.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return nil, err
				}
				one := stored(e.OriginalEvent())
				page, size = append(page, one), size+len(one.Data)
			}
			return page, nil
		}, nil)
	})
}

// stored is an event as the run's codec knows it.
func stored(e *esdb.RecordedEvent) run.Stored {
	return run.Stored{
		Seq: run.Seq(e.EventNumber + 1), Type: e.EventType,
		Data: e.Data, Metadata: e.UserMetadata, Created: e.CreatedDate,
	}
}

func decode(id run.ID, s run.Stored) (run.Event, error) {
	e, err := run.Decode(id, s)
	if err != nil {
		return run.Event{}, &ledger.CorruptError{Run: id, Seq: s.Seq, Err: err}
	}
	return e, nil
}
