package eventstore

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

var _ ledger.Side = (*Store)(nil)

// sidePrefix begins the names of the streams that instances keep for themselves.
const sidePrefix = "runfacts_"

// maxNotes bounds a page of notes in bytes; a note is far smaller.
const maxNotes = 8 << 20

// Note implements ledger.Side.
func (s *Store) Note(ctx context.Context, stream string, notes ...ledger.Note) (last uint64, err error) {
	for len(notes) > 0 {
		n := s.fitting(notes)
		if last, err = s.note(ctx, stream, esdb.Any{}, notes[:n]); err != nil {
			return last, err
		}
		notes = notes[n:]
	}
	return last, nil
}

// fitting is how many notes go into one append, at least one.
func (s *Store) fitting(notes []ledger.Note) int {
	size := 0
	for i, n := range notes {
		if size += len(n.Data) + 2*len(n.Type); size > s.MaxAppend() && i > 0 {
			return i
		}
	}
	return len(notes)
}

// Keep implements ledger.Side.
func (s *Store) Keep(ctx context.Context, stream string, note ledger.Note) error {
	_, err := s.note(ctx, stream, esdb.NoStream{}, []ledger.Note{note})
	if err != nil && faultOf(err) == conflicted {
		return nil
	}
	return err
}

func (s *Store) note(ctx context.Context, stream string, at esdb.ExpectedRevision, notes []ledger.Note) (uint64, error) {
	data := make([]esdb.EventData, len(notes))
	for i, n := range notes {
		data[i] = esdb.EventData{EventID: uuid.New(), EventType: n.Type, ContentType: esdb.ContentTypeJson, Data: n.Data}
	}
	result, err := s.append(ctx, stream, at, data...)
	if err != nil {
		return 0, &ledger.UnavailableError{Err: err}
	}
	s.ends.raise(stream, run.Seq(result.NextExpectedVersion)+1)
	return result.NextExpectedVersion + 1, nil
}

// Notes implements ledger.Side.
func (s *Store) Notes(ctx context.Context, stream string, after uint64, limit int) ([]ledger.Note, error) {
	at := ledger.Page{Events: limit, Bytes: maxNotes}
	var page []run.Stored
	for began := time.Now(); ; {
		var err error
		page, err = s.read(ctx, stream, esdb.ReadStreamOptions{
			Direction: esdb.Forwards, From: esdb.Revision(after), RequiresLeader: true,
		}, at)
		err = readError(err)
		if err != nil && !errors.Is(err, ledger.ErrNotFound) && !errors.Is(err, ledger.ErrErased) {
			return nil, err
		}
		if full(page, at) || reach(page, run.Seq(after)) >= s.ends.at(stream) || errors.Is(err, ledger.ErrErased) {
			break
		}
		if time.Since(began) > settleTime { // another instance has dropped it
			s.ends.forget(stream)
			break
		}
		if !pauseFor(ctx, 10*time.Millisecond) {
			return nil, &ledger.UnavailableError{Err: errBehind}
		}
	}
	notes := make([]ledger.Note, len(page))
	for i, one := range page {
		notes[i] = noted(one)
	}
	return notes, nil
}

func noted(one run.Stored) ledger.Note {
	return ledger.Note{Seq: uint64(one.Seq), Type: one.Type, Data: one.Data}
}

// Listen implements ledger.Side.
func (s *Store) Listen(ctx context.Context, stream string, after uint64, deliver func(ledger.Note) error) error {
	look := func(ctx context.Context, last run.Seq) error {
		if missed, err := s.Notes(ctx, stream, uint64(last), 1); err == nil && len(missed) > 0 {
			return errSilent
		}
		return nil
	}
	return s.follow(ctx, stream, run.Seq(after), nil, look, func(one run.Stored) error { return deliver(noted(one)) })
}

// Bound implements ledger.Side.
func (s *Store) Bound(ctx context.Context, stream string, most int) error {
	s.bounds.Store(stream, most) // also where the store refuses: a later trim may be allowed
	return s.tended(s.describe(ctx, stream, esdb.Any{}, map[string]any{"$maxCount": most}))
}

// Trim implements ledger.Side.
func (s *Store) Trim(ctx context.Context, stream string, first uint64) error {
	document := map[string]any{"$tb": first - 1}
	if most, ok := s.bounds.Load(stream); ok { // the document is replaced whole
		document["$maxCount"] = most
	}
	return s.tended(s.describe(ctx, stream, esdb.Any{}, document))
}

// tended counts what was to keep a side stream small and was not done.
func (s *Store) tended(err error) error {
	if err != nil {
		s.untended.Add(1)
	}
	return err
}

// Untended is how often a side stream could not be bounded, trimmed or dropped.
func (s *Store) Untended() int { return int(s.untended.Load()) }

// describe writes a stream's metadata.
func (s *Store) describe(ctx context.Context, stream string, at esdb.ExpectedRevision, document map[string]any) error {
	data, err := json.Marshal(document)
	if err != nil {
		return err
	}
	_, err = gated(&s.gates, right{describe, stream}, func() (*esdb.WriteResult, error) {
		return call(atLeader(ctx), s.appends, appendTime, func(ctx context.Context, c *esdb.Client) (*esdb.WriteResult, error) {
			return c.AppendToStream(ctx, "$$"+stream, esdb.AppendToStreamOptions{ExpectedRevision: at},
				esdb.EventData{EventID: uuid.New(), EventType: "$metadata", ContentType: esdb.ContentTypeJson, Data: data})
		}, nil)
	})
	if err != nil {
		return &ledger.UnavailableError{Err: err}
	}
	return nil
}

// Drop implements ledger.Side.
func (s *Store) Drop(ctx context.Context, stream string, last uint64) error {
	_, err := gated(&s.gates, right{remove, stream}, func() (*esdb.DeleteResult, error) {
		return call(atLeader(ctx), s.appends, appendTime, func(ctx context.Context, c *esdb.Client) (*esdb.DeleteResult, error) {
			return c.DeleteStream(ctx, stream, esdb.DeleteStreamOptions{ExpectedRevision: expected(run.Seq(last))})
		}, nil)
	})
	switch {
	case err == nil:
		s.ends.forget(stream)
		return nil
	case faultOf(err) == conflicted, faultOf(err) == deleted:
		return &ledger.ConflictError{Expected: run.Seq(last), Current: currentOf(err)}
	}
	return s.tended(&ledger.UnavailableError{Err: err})
}
