package eventstore

import (
	"context"
	"errors"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

var _ ledger.Side = (*Store)(nil)

// silent is after how long without a note a subscription is compared with its
// stream's end: they are known to fall silent.
const silent = 15 * time.Second

// maxNotes bounds a page of notes in bytes; a note is far smaller.
const maxNotes = 8 << 20

// Note implements ledger.Side.
func (s *Store) Note(ctx context.Context, stream string, notes ...ledger.Note) (uint64, error) {
	return s.note(ctx, stream, esdb.Any{}, notes)
}

// Keep implements ledger.Side.
func (s *Store) Keep(ctx context.Context, stream string, note ledger.Note) error {
	_, err := s.note(ctx, stream, esdb.NoStream{}, []ledger.Note{note})
	if err != nil && faultOf(err) == conflict {
		return nil
	}
	return err
}

func (s *Store) note(ctx context.Context, stream string, at esdb.ExpectedRevision, notes []ledger.Note) (uint64, error) {
	data := make([]esdb.EventData, len(notes))
	for i, n := range notes {
		data[i] = esdb.EventData{EventID: uuid.New(), EventType: n.Type, ContentType: esdb.ContentTypeJson, Data: n.Data}
	}
	ctx, cancel := context.WithTimeout(atLeader(ctx), appendTime)
	defer cancel()
	result, err := call(ctx, s.appends, func(c *esdb.Client) (*esdb.WriteResult, error) {
		return c.AppendToStream(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: at}, data...)
	}, nil)
	if err != nil {
		return 0, &ledger.UnavailableError{Err: err}
	}
	return result.NextExpectedVersion + 1, nil
}

// Notes implements ledger.Side.
func (s *Store) Notes(ctx context.Context, stream string, after uint64, limit int) ([]ledger.Note, error) {
	page, err := s.read(ctx, stream, esdb.ReadStreamOptions{
		Direction: esdb.Forwards, From: esdb.Revision(after), RequiresLeader: true,
	}, ledger.Page{Events: limit, Bytes: maxNotes})
	switch err = readError(err); {
	case errors.Is(err, ledger.ErrNotFound), errors.Is(err, ledger.ErrErased):
		return nil, nil
	case err != nil:
		return nil, err
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
	for {
		awake, sleep := context.WithCancel(ctx)
		heard := make(chan uint64, 1) // the last seq delivered
		watched, from := make(chan struct{}), after
		go func() {
			defer close(watched)
			defer sleep()
			s.watch(awake, stream, from, heard)
		}()
		err := s.follow(awake, stream, run.Seq(after), nil, func(one run.Stored) error {
			if err := deliver(noted(one)); err != nil {
				return err
			}
			after = uint64(one.Seq)
			select {
			case <-heard: // the newest is enough
			default:
			}
			heard <- after
			return nil
		})
		overslept := awake.Err() != nil && ctx.Err() == nil
		sleep()
		<-watched
		if !overslept {
			return err
		}
	}
}

// watch returns when the stream has a note that was not heard, or ctx ends.
func (s *Store) watch(ctx context.Context, stream string, after uint64, heard <-chan uint64) {
	tick := time.NewTicker(silent)
	defer tick.Stop()
	for quiet := false; ; {
		select {
		case <-ctx.Done():
			return
		case after = <-heard:
			quiet = false
			continue
		case <-tick.C:
		}
		if quiet {
			if missed, err := s.Notes(ctx, stream, after, 1); err == nil && len(missed) > 0 && len(heard) == 0 {
				return
			}
		}
		quiet = true
	}
}

// Trim implements ledger.Side.
func (s *Store) Trim(ctx context.Context, stream string, first uint64) error {
	ctx, cancel := context.WithTimeout(atLeader(ctx), appendTime)
	defer cancel()
	var metadata esdb.StreamMetadata
	metadata.SetTruncateBefore(first - 1)
	_, err := call(ctx, s.appends, func(c *esdb.Client) (*esdb.WriteResult, error) {
		return c.SetStreamMetadata(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: esdb.Any{}}, metadata)
	}, nil)
	if err != nil {
		return &ledger.UnavailableError{Err: err}
	}
	return nil
}

// Drop implements ledger.Side.
func (s *Store) Drop(ctx context.Context, stream string, last uint64) error {
	ctx, cancel := context.WithTimeout(atLeader(ctx), appendTime)
	defer cancel()
	_, err := call(ctx, s.appends, func(c *esdb.Client) (*esdb.DeleteResult, error) {
		return c.DeleteStream(ctx, stream, esdb.DeleteStreamOptions{ExpectedRevision: expected(run.Seq(last))})
	}, nil)
	switch {
	case err == nil:
		return nil
	case faultOf(err) == conflict, faultOf(err) == deleted:
		return &ledger.ConflictError{Expected: run.Seq(last)}
	}
	return &ledger.UnavailableError{Err: err}
}
