package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"
)

func seeded(seed int64) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

// model is one stream as wire 3 describes it, without storage or concurrency.
type model struct {
	ids        []ID // by number
	tb         int64
	described  bool // its metadata stream was written
	tombstoned bool
}

// append is the decision table of wire 3.1 for numbers and the wishes that do
// not look at recent ids.
func (m *model) append(expected Expected, ids []ID) (last int64, err error) {
	cur := int64(len(m.ids)) - 1
	wrong := &WrongVersionError{Current: cur}
	switch {
	case m.tombstoned, expected == Exists && m.tb == softDeleted:
		return 0, &DeletedError{}
	case expected == Exists && cur < 0 && !m.described:
		return 0, wrong
	case expected >= NoStream && int64(expected) > cur:
		return 0, wrong
	case expected >= NoStream && int64(expected) < cur:
		if len(ids) == 0 {
			return 0, wrong
		}
		for i, id := range ids {
			n := int64(expected) + 1 + int64(i)
			if n > cur || m.ids[n] != id {
				if i == 0 && expected == NoStream && m.tb == softDeleted {
					return m.write(ids), nil
				}
				return 0, wrong
			}
		}
		return int64(expected) + int64(len(ids)), nil
	}
	return m.write(ids), nil
}

func (m *model) write(ids []ID) int64 {
	if m.tb == softDeleted {
		m.tb, m.described = int64(len(m.ids)), true
	}
	m.ids = append(m.ids, ids...)
	return int64(len(m.ids)) - 1
}

// Random operations on a store, restarted now and then, against the model.
func TestTheStoreDoesWhatTheModelSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewMem()
		var s *Store
		var stop func()
		start := func() {
			var err error
			if s, err = Open("db", fs, zerolog.Nop()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			stop = func() {
				cancel()
				if err := errors.Join(<-done, s.Close()); err != nil {
					t.Fatal(err)
				}
			}
		}
		start()
		defer func() { stop() }()
		models := map[string]*model{"a": {}, "b": {}}
		fresh := 0
		next := func() (id ID) {
			fresh++
			copy(id[:], fmt.Sprintf("%016d", fresh))
			return id
		}
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "stream")
			m := models[name]
			ctx := context.Background()
			switch rapid.IntRange(0, 9).Draw(t, "operation") {
			case 0:
				stop()
				start()
			case 1:
				_, err := s.Delete(ctx, name, Any)
				switch {
				case m.tombstoned:
					check(t, err, &DeletedError{})
				case len(m.ids) == 0 && !m.described:
					check(t, err, &WrongVersionError{Current: -1})
				default:
					check(t, err, nil)
					m.tb, m.described = softDeleted, true
				}
			case 2:
				if rapid.IntRange(0, 5).Draw(t, "tombstone") == 0 {
					_, err := s.Tombstone(ctx, name, Any)
					if m.tombstoned {
						check(t, err, &DeletedError{})
					}
					m.tombstoned = true
				}
			default:
				expected := Expected(rapid.SampledFrom([]int64{-4, -1, 0, 1, int64(len(m.ids)) - 1, int64(len(m.ids))}).Draw(t, "expected"))
				var ids []ID
				for i := range rapid.IntRange(0, 3).Draw(t, "events") {
					n := int(expected) + 1 + i
					if expected >= NoStream && n < len(m.ids) && n >= 0 && rapid.Bool().Draw(t, "repeat") {
						ids = append(ids, m.ids[n])
					} else {
						ids = append(ids, next())
					}
				}
				var events []Proposed
				for _, id := range ids {
					events = append(events, Proposed{ID: id, Type: "t"})
				}
				before := m.tb
				want, wrong := m.append(expected, ids)
				got, err := s.Append(ctx, name, expected, events)
				check(t, err, wrong)
				if err == nil && got.Last != want {
					t.Fatalf("append at %d to %s: last %d, want %d (tb was %d)", expected, name, got.Last, want, before)
				}
			}
			m.compare(t, s, name)
		}
	})
}

func check(t *rapid.T, got, want error) {
	var gotWrong, wantWrong *WrongVersionError
	var gotDeleted, wantDeleted *DeletedError
	switch {
	case want == nil && got == nil:
	case errors.As(want, &wantWrong) && errors.As(got, &gotWrong) && gotWrong.Current == wantWrong.Current:
	case errors.As(want, &wantDeleted) && errors.As(got, &gotDeleted):
	default:
		t.Fatalf("got %v, want %v", got, want)
	}
}

// compare reads the stream and holds it against the model.
func (m *model) compare(t *rapid.T, s *Store, name string) {
	w, err := s.Window(name)
	switch {
	case m.tombstoned:
		check(t, err, &DeletedError{})
		return
	case len(m.ids) == 0 || m.tb == softDeleted:
		if !errors.Is(err, ErrNoStream) {
			t.Fatalf("window of %s: %v", name, err)
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	var got []ID
	from := int64(0)
	for {
		page, next, err := s.Forward(w, from, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if e.Number != m.tb+int64(len(got)) {
				t.Fatalf("event %d of %s, want %d", e.Number, name, m.tb+int64(len(got)))
			}
			got = append(got, e.ID)
		}
		from = next
	}
	if fmt.Sprint(got) != fmt.Sprint(m.ids[m.tb:]) {
		t.Fatalf("%s holds %v, want %v", name, got, m.ids[m.tb:])
	}
}
