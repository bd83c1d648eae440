// Package ledgertest holds what tests of a ledger and of its users need: a
// ledger in memory with faults to order, and the suite that every ledger has to
// pass.
package ledgertest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Fault is what goes wrong with one append.
type Fault int

// Faults.
const (
	None         Fault = iota
	NotStored          // the answer is lost, and so was the append
	StoredUnseen       // the answer is lost, the append was stored
	Late               // the answer is lost; the append is stored by Deliver
	Ended              // the server ends the call and its reason is lost; not stored
	TooLarge           // refused as too large
	Forbidden          // refused by an ACL
)

var (
	errLost    = errors.New("the answer was lost")
	errDamaged = errors.New("metadata is not an envelope")
)

// Memory is a ledger in memory. It polices its callers: an append with a gap,
// a broken chain or no id fails the test. Safe for concurrent use.
type Memory struct {
	t testing.TB

	mu      sync.Mutex
	runs    map[run.ID][]run.Event
	erased  map[run.ID]bool
	hidden  map[run.ID]run.Seq // events up to here are gone
	corrupt map[run.ID]run.Seq // this event cannot be read
	epoch   map[run.ID]int     // counts silences
	faults  []Fault
	late    []func()
	away    bool
	changed chan struct{} // closed and replaced on every change
	gate    chan struct{} // appends wait here while it is not nil
	arrived chan struct{} // a token for each append that came to the gate
	limit   int           // bytes of one append; 0: any
	counts  map[string]int
}

var _ ledger.Ledger = (*Memory)(nil)

// NewMemory returns an empty ledger.
func NewMemory(t testing.TB) *Memory {
	return &Memory{
		t: t, runs: make(map[run.ID][]run.Event), erased: make(map[run.ID]bool), hidden: make(map[run.ID]run.Seq), corrupt: make(map[run.ID]run.Seq),
		epoch: make(map[run.ID]int), changed: make(chan struct{}),
		arrived: make(chan struct{}, 1024), counts: make(map[string]int),
	}
}

// Fail orders faults for the next appends, in order.
func (m *Memory) Fail(faults ...Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, faults...)
}

// Limit makes appends of more bytes than that be refused as too large.
func (m *Memory) Limit(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
}

// Hold makes appends wait until the returned call lets them go. Arrived has a
// token for each that came.
func (m *Memory) Hold() (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gate := make(chan struct{})
	m.gate = gate
	return sync.OnceFunc(func() {
		m.mu.Lock()
		m.gate = nil
		m.mu.Unlock()
		close(gate)
	})
}

// Arrived has a token for each append that a Hold made wait.
func (m *Memory) Arrived() <-chan struct{} { return m.arrived }

// Deliver stores what came late.
func (m *Memory) Deliver() {
	m.mu.Lock()
	late := m.late
	m.late = nil
	m.mu.Unlock()
	for _, store := range late {
		store()
	}
}

// Away makes the store unreachable, or reachable again.
func (m *Memory) Away(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
	m.wake()
}

// Truncate hides a run's events up to a seq.
func (m *Memory) Truncate(id run.ID, upTo run.Seq) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden[id] = upTo
	m.wake()
}

// SetBack makes a run's stream what a backup has of it, and what came since.
func (m *Memory) SetBack(id run.ID, events []run.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[id] = events
	m.wake()
}

// Corrupt makes an event of a run unreadable.
func (m *Memory) Corrupt(id run.ID, seq run.Seq) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.corrupt[id] = seq
	m.wake()
}

// Stranger puts an event behind a run that is not one of ours.
func (m *Memory) Stranger(id run.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seq := run.Seq(len(m.runs[id]) + 1)
	m.runs[id] = append(m.runs[id], run.Event{RunID: id, Seq: seq, Type: "stranger"})
	m.corrupt[id] = seq
	m.wake()
}

// damage is why an event cannot be read; nil: it can.
func (m *Memory) damage(e *run.Event) error {
	if m.corrupt[e.RunID] != e.Seq {
		return nil
	}
	return &ledger.CorruptError{Run: e.RunID, Seq: e.Seq, Err: errDamaged}
}

func (m *Memory) damageOf(e *run.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.damage(e)
}

// Silence makes a run's open subscriptions say nothing any more.
func (m *Memory) Silence(id run.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch[id]++
}

// Events returns what is stored of a run.
func (m *Memory) Events(id run.ID) []run.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]run.Event(nil), m.runs[id]...)
}

// Count returns how often a method was called: append, end, read, last, follow.
func (m *Memory) Count(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[method]
}

func (m *Memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Append implements ledger.Appender.
func (m *Memory) Append(ctx context.Context, id run.ID, after run.Seq, events []run.Event) error {
	m.mu.Lock()
	m.counts["append"]++
	gate := m.gate
	m.mu.Unlock()
	if gate != nil {
		m.arrived <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
			return &ledger.UnknownError{Run: id, Err: ctx.Err()}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	unknown := &ledger.UnknownError{Run: id, Err: errLost}
	if m.away {
		return unknown
	}
	fault := None
	if len(m.faults) > 0 {
		fault, m.faults = m.faults[0], m.faults[1:]
	}
	size := 0
	for i := range events {
		size += len(events[i].Payload) + len(events[i].Metadata()) + len(events[i].Type)
	}
	switch {
	case fault == NotStored:
		return unknown
	case fault == Ended:
		unknown.Answered = true
		return unknown
	case fault == TooLarge, m.limit > 0 && size > m.limit:
		return &ledger.RefusedError{Run: id, TooLarge: true, Err: errors.New("too large")}
	case fault == Forbidden:
		return &ledger.RefusedError{Run: id, Err: errors.New("forbidden")}
	case fault == Late:
		m.late = append(m.late, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			_ = m.store(id, after, events) // nobody waits for the answer
		})
		return unknown
	}
	if err := m.store(id, after, events); err != nil || fault == None {
		return err
	}
	return unknown // StoredUnseen
}

func (m *Memory) store(id run.ID, after run.Seq, events []run.Event) error {
	if m.erased[id] {
		return ledger.ErrErased
	}
	all := m.runs[id]
	last := run.Seq(len(all))
	conflict := &ledger.ConflictError{Run: id, Expected: after, Current: last}
	if after > last {
		return conflict
	}
	if after < last { // the very same append again, or a conflict
		if int(after)+len(events) > len(all) {
			return conflict
		}
		for i := range events {
			if all[int(after)+i].EventID() != events[i].EventID() {
				return conflict
			}
		}
		return nil
	}
	m.police(id, after, events)
	for _, e := range events {
		e.RecordedAt = e.OccurredAt
		all = append(all, e)
	}
	m.runs[id] = all
	m.wake()
	return nil
}

// police fails the test for an append that no well-behaved caller makes.
func (m *Memory) police(id run.ID, after run.Seq, events []run.Event) {
	previous := ""
	if after > 0 && m.corrupt[id] != after { // there is no chain to go on with behind what cannot be read
		previous = m.runs[id][after-1].ChainChecksum
	}
	if len(events) == 0 {
		m.t.Errorf("run %s: an append without events", id)
	}
	for i := range events {
		e := &events[i]
		switch {
		case e.RunID != id || e.Seq != after+run.Seq(i)+1:
			m.t.Errorf("run %s: event %d is called %d of %s", id, after+run.Seq(i)+1, e.Seq, e.RunID)
		case e.EventID() == [16]byte{}:
			m.t.Errorf("run %s: event %d has no id", id, e.Seq)
		case !run.Verify(e, previous):
			m.t.Errorf("run %s: the chain is broken at event %d", id, e.Seq)
		case (i == 0) != (e.Nonce != ""):
			m.t.Errorf("run %s: event %d, number %d of its append, has nonce %q", id, e.Seq, i, e.Nonce)
		}
		previous = e.ChainChecksum
	}
	if n := len(m.runs[id]); n > 0 && run.Terminal(m.runs[id][n-1].Type) {
		m.t.Errorf("run %s: events behind its end", id)
	}
}

// End implements ledger.Appender.
func (m *Memory) End(_ context.Context, id run.ID) (run.Seq, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts["end"]++
	switch {
	case m.away:
		return 0, &ledger.UnavailableError{Err: errLost}
	case m.erased[id]:
		return 0, ledger.ErrErased
	}
	return run.Seq(len(m.runs[id])), nil
}

// Erase implements ledger.Appender.
func (m *Memory) Erase(_ context.Context, id run.ID, last run.Seq) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away:
		return &ledger.UnknownError{Run: id, Err: errLost}
	case m.erased[id]:
		return ledger.ErrErased
	case run.Seq(len(m.runs[id])) != last:
		return &ledger.ConflictError{Run: id, Expected: last, Current: run.Seq(len(m.runs[id]))}
	}
	m.erased[id] = true
	m.wake()
	return nil
}

// Read implements ledger.Reader.
func (m *Memory) Read(_ context.Context, id run.ID, after run.Seq, limit ledger.Page) ([]run.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts["read"]++
	if err := m.readable(id); err != nil {
		return nil, err
	}
	if after < m.hidden[id] {
		return nil, &ledger.TruncatedError{Run: id, First: m.hidden[id] + 1}
	}
	var page []run.Event
	size := 0
	for _, e := range m.runs[id][min(int(after), len(m.runs[id])):] {
		if len(page) >= limit.Events || size >= limit.Bytes {
			break
		}
		if err := m.damage(&e); err != nil {
			return nil, err
		}
		page, size = append(page, e), size+len(e.Payload)
	}
	return page, nil
}

func (m *Memory) readable(id run.ID) error {
	switch {
	case m.away:
		return &ledger.UnavailableError{Err: errLost}
	case m.erased[id]:
		return ledger.ErrErased
	case len(m.runs[id]) == 0:
		return ledger.ErrNotFound
	}
	return nil
}

// Last implements ledger.Reader.
func (m *Memory) Last(_ context.Context, id run.ID) (run.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts["last"]++
	if err := m.readable(id); err != nil {
		return run.Event{}, err
	}
	last := m.runs[id][len(m.runs[id])-1]
	return last, m.damage(&last)
}

// Follow implements ledger.Follower.
func (m *Memory) Follow(ctx context.Context, id run.ID, after run.Seq, deliver func(run.Event) error) error {
	m.mu.Lock()
	m.counts["follow"]++
	epoch := m.epoch[id]
	m.mu.Unlock()
	for {
		m.mu.Lock()
		changed := m.changed
		var next *run.Event
		switch {
		case m.erased[id]:
			m.mu.Unlock()
			return ledger.ErrErased
		case m.away || m.epoch[id] != epoch:
		case after < m.hidden[id]:
			m.mu.Unlock()
			return &ledger.TruncatedError{Run: id, First: m.hidden[id] + 1}
		case int(after) < len(m.runs[id]):
			e := m.runs[id][after]
			next = &e
		}
		m.mu.Unlock()
		if next != nil {
			if err := m.damageOf(next); err != nil {
				return err
			}
			if err := deliver(*next); err != nil {
				return err
			}
			after++
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
