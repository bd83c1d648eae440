package embedded

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// index is what the services read: the store, or what a rehearsal lets them see.
type index interface {
	Window(stream string) (store.Window, error)
	Forward(w store.Window, from int64, limit uint64) (page []*store.Event, next int64, err error)
	Backward(w store.Window, from int64, limit uint64) (page []*store.Event, next int64, err error)
	All(from, limit uint64) ([]*store.Event, error)
	AllBackward(before, limit uint64) ([]*store.Event, error)
	Position() uint64
	Subscribe(stream string) subscriber
	SubscribeAll() subscriber
}

// subscriber is store.Subscriber, or one that sees less.
type subscriber interface {
	News() <-chan struct{}  // ready when something was stored
	Shown() <-chan struct{} // ready when something stored before can be read; nil: it could at once
	Take() (events []*store.Event, missed bool)
	Close()
}

// whole is the store as it is.
type whole struct{ *store.Store }

func (w whole) Subscribe(stream string) subscriber { return prompt{w.Store.Subscribe(stream)} }
func (w whole) SubscribeAll() subscriber           { return prompt{w.Store.SubscribeAll()} }

// prompt is a subscriber that sees what is stored.
type prompt struct{ *store.Subscriber }

func (prompt) Shown() <-chan struct{} { return nil }

// lagging is the store as a reader sees it who follows an index behind the
// writer: appends are decided and acknowledged by what is stored, and can be
// read when the horizon has passed them. An append becomes visible as a whole,
// and in the order of the log. Safe for concurrent use; the horizon moves while
// Run runs.
type lagging struct {
	*store.Store
	stage   *stage
	horizon atomic.Uint64 // the last position that can be read

	mu   sync.Mutex
	subs map[*waiting]struct{}
}

func newLagging(s *store.Store, at *stage) *lagging {
	l := &lagging{Store: s, stage: at, subs: make(map[*waiting]struct{})}
	l.horizon.Store(s.Position())
	return l
}

// Run moves the horizon until ctx ends.
func (l *lagging) Run(ctx context.Context) error {
	committed := l.Store.SubscribeAll()
	defer committed.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-committed.News():
			committed.Take() // the store has them; only the hint counts
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		next, err := l.advance(time.Now())
		if err != nil {
			return err
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// advance passes what is due and returns when the next is; zero: nothing waits.
func (l *lagging) advance(now time.Time) (next time.Time, err error) {
	before := l.horizon.Load()
	defer func() {
		if l.horizon.Load() != before {
			l.hint()
		}
	}()
	if end := l.Store.Position(); end < before { // the store was set back
		l.horizon.Store(end)
	}
	for {
		page, err := l.Store.All(l.horizon.Load()+1, math.MaxUint64)
		if err != nil || len(page) == 0 {
			return time.Time{}, err
		}
		for _, e := range page {
			if due := l.due(e); due.After(now) {
				return due, nil
			}
			l.horizon.Store(e.Position)
		}
	}
}

// due is when an event can be read. All events of one synced write have the
// same time, and so the same lag.
func (l *lagging) due(e *store.Event) time.Time {
	scene := l.stage.scene.Load()
	created := time.Unix(0, e.Created*100)
	span := scene.readLag
	if span.to == 0 {
		return created
	}
	var key [16]byte
	binary.BigEndian.PutUint64(key[:], scene.seed)
	binary.BigEndian.PutUint64(key[8:], uint64(e.Created))
	return created.Add(span.from + time.Duration(mix(string(key[:]))%uint64(span.to-span.from+1)))
}

// end is the last position that can be read.
func (l *lagging) end() uint64 {
	committed := l.Store.Position()
	if l.stage.scene.Load().readLag.to == 0 {
		return committed
	}
	return min(l.horizon.Load(), committed)
}

func (l *lagging) hint() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sub := range l.subs {
		select {
		case sub.shown <- struct{}{}:
		default:
		}
	}
}

// Window ends at the last event that can be read. Deleting, truncating and a
// stream's metadata are seen at once.
func (l *lagging) Window(stream string) (store.Window, error) {
	w, err := l.Store.Window(stream)
	if err != nil || hasPrefix(stream, "$$") {
		return w, err
	}
	for from := w.Last; ; {
		page, next, err := l.Store.Backward(w, from, math.MaxUint64)
		if err != nil {
			return w, err
		}
		for _, e := range page {
			if e.Position <= l.end() {
				w.Last = e.Number
				return w, nil
			}
		}
		if len(page) == 0 && next == from {
			break
		}
		from = next
	}
	if w.First == 0 {
		return store.Window{Last: -1}, store.ErrNoStream
	}
	w.Last = w.First - 1
	return w, nil
}

// limit makes a page of the store as short as the rehearsal wants it.
func (l *lagging) limit(wanted uint64) uint64 {
	scene := l.stage.scene.Load()
	if scene.pages.to == 0 {
		return wanted
	}
	return min(wanted, uint64(scene.number("page-size", scene.pages)))
}

// Forward implements index.
func (l *lagging) Forward(w store.Window, from int64, limit uint64) ([]*store.Event, int64, error) {
	return l.Store.Forward(w, from, l.limit(limit))
}

// Backward implements index.
func (l *lagging) Backward(w store.Window, from int64, limit uint64) ([]*store.Event, int64, error) {
	return l.Store.Backward(w, from, l.limit(limit))
}

// Position implements index.
func (l *lagging) Position() uint64 { return l.end() }

// All implements index.
func (l *lagging) All(from, limit uint64) ([]*store.Event, error) {
	page, err := l.Store.All(from, l.limit(limit))
	seen, _ := l.upTo(page)
	return seen, err
}

// AllBackward implements index.
func (l *lagging) AllBackward(before, limit uint64) ([]*store.Event, error) {
	return l.Store.AllBackward(min(before, l.Position()+1), l.limit(limit))
}

// upTo splits events at the horizon.
func (l *lagging) upTo(events []*store.Event) (seen, hidden []*store.Event) {
	at := l.end()
	for i, e := range events {
		if e.Position > at {
			return events[:i], events[i:]
		}
	}
	return events, nil
}

// waiting is a subscriber whose events wait for the horizon.
type waiting struct {
	index  *lagging
	live   *store.Subscriber
	shown  chan struct{}
	held   []*store.Event // behind the horizon
	behind uint64         // events up to this position are in the store only; 0: none are
}

func (l *lagging) wait(live *store.Subscriber) subscriber {
	w := &waiting{index: l, live: live, shown: make(chan struct{}, 1)}
	if end := l.Store.Position(); end > l.end() {
		w.behind = end // stored before it subscribed, and not to be seen yet
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs[w] = struct{}{}
	return w
}

// Subscribe implements index.
func (l *lagging) Subscribe(stream string) subscriber { return l.wait(l.Store.Subscribe(stream)) }

// SubscribeAll implements index.
func (l *lagging) SubscribeAll() subscriber { return l.wait(l.Store.SubscribeAll()) }

func (w *waiting) News() <-chan struct{}  { return w.live.News() }
func (w *waiting) Shown() <-chan struct{} { return w.shown }

func (w *waiting) Take() (seen []*store.Event, missed bool) {
	if w.behind == 0 {
		events, missed := w.live.Take()
		w.held = append(w.held, events...)
		if missed {
			w.behind = w.index.Store.Position()
		}
	}
	if w.behind > 0 && w.index.end() >= w.behind {
		w.held, w.behind = nil, 0
		return nil, true
	}
	seen, w.held = w.index.upTo(w.held)
	return seen, false
}

func (w *waiting) Close() {
	w.live.Close()
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	delete(w.index.subs, w)
}

var (
	_ index = whole{}
	_ index = (*lagging)(nil)
)
