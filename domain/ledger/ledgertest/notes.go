package ledgertest

import (
	"context"
	"errors"
	"sync"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Notes is side streams in memory. Safe for concurrent use. Who calls gets a
// view of its own (For), whose connection a test can cut.
type Notes struct {
	mu      sync.Mutex
	streams map[string]*noteStream
	changed chan struct{} // closed and replaced on every change
}

type noteStream struct {
	notes []ledger.Note // those that are left
	last  uint64
	most  int // 0: any number
}

// NewNotes returns empty side streams.
func NewNotes() *Notes {
	return &Notes{streams: make(map[string]*noteStream), changed: make(chan struct{})}
}

// Line is one caller's way to the side streams. It implements ledger.Side.
type Line struct {
	notes *Notes
	away  bool
	limit int // bytes of one append; 0: any
}

var _ ledger.Side = (*Line)(nil)

// For returns a way to the streams.
func (n *Notes) For() *Line { return &Line{notes: n} }

// Away makes the streams unreachable for this caller, or reachable again.
func (l *Line) Away(away bool) {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	l.away = away
	l.notes.wake()
}

// Limit makes the caller's appends of more bytes than that be refused, as a node
// does whose bound is low.
func (l *Line) Limit(bytes int) {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	l.limit = bytes
}

func (n *Notes) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
}

func (l *Line) reach() error {
	if l.away {
		return &ledger.UnavailableError{Err: errLost}
	}
	return nil
}

func (n *Notes) stream(name string) *noteStream {
	if n.streams[name] == nil {
		n.streams[name] = &noteStream{}
	}
	return n.streams[name]
}

// Note implements ledger.Side.
func (l *Line) Note(_ context.Context, stream string, notes ...ledger.Note) (uint64, error) {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	if err := l.reach(); err != nil {
		return 0, err
	}
	size := 0
	for _, n := range notes {
		size += len(n.Data) + len(n.Type)
	}
	if l.limit > 0 && size > l.limit {
		return 0, &ledger.RefusedError{TooLarge: true, Err: errors.New("too large")}
	}
	s := l.notes.stream(stream)
	for _, n := range notes {
		s.last++
		n.Seq = s.last
		s.notes = append(s.notes, n)
	}
	s.cut()
	l.notes.wake()
	return s.last, nil
}

// Keep implements ledger.Side.
func (l *Line) Keep(ctx context.Context, stream string, note ledger.Note) error {
	l.notes.mu.Lock()
	there := len(l.notes.stream(stream).notes) > 0
	err := l.reach()
	l.notes.mu.Unlock()
	if there || err != nil {
		return err
	}
	_, err = l.Note(ctx, stream, note)
	return err
}

// Notes implements ledger.Side.
func (l *Line) Notes(_ context.Context, stream string, after uint64, limit int) ([]ledger.Note, error) {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	if err := l.reach(); err != nil {
		return nil, err
	}
	var page []ledger.Note
	for _, n := range l.notes.stream(stream).notes {
		if n.Seq > after && len(page) < limit {
			page = append(page, n)
		}
	}
	return page, nil
}

// Listen implements ledger.Side.
func (l *Line) Listen(ctx context.Context, stream string, after uint64, deliver func(ledger.Note) error) error {
	for {
		l.notes.mu.Lock()
		changed := l.notes.changed
		l.notes.mu.Unlock()
		page, err := l.Notes(ctx, stream, after, 1)
		if err == nil && len(page) > 0 {
			if err := deliver(page[0]); err != nil {
				return err
			}
			after = page[0].Seq
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Bound implements ledger.Side.
func (l *Line) Bound(_ context.Context, stream string, most int) error {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	if err := l.reach(); err != nil {
		return err
	}
	s := l.notes.stream(stream)
	s.most = most
	s.cut()
	return nil
}

func (s *noteStream) cut() {
	if n := len(s.notes); s.most > 0 && n > s.most {
		s.notes = s.notes[n-s.most:]
	}
}

// Trim implements ledger.Side.
func (l *Line) Trim(_ context.Context, stream string, first uint64) error {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	if err := l.reach(); err != nil {
		return err
	}
	s := l.notes.stream(stream)
	for len(s.notes) > 0 && s.notes[0].Seq < first {
		s.notes = s.notes[1:]
	}
	return nil
}

// Drop implements ledger.Side.
func (l *Line) Drop(_ context.Context, stream string, last uint64) error {
	l.notes.mu.Lock()
	defer l.notes.mu.Unlock()
	if err := l.reach(); err != nil {
		return err
	}
	s := l.notes.stream(stream)
	if len(s.notes) == 0 || s.last != last {
		return &ledger.ConflictError{Expected: run.Seq(last)}
	}
	s.notes = nil
	return nil
}
