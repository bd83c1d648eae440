package store

import "sync"

// maxBuffered is how many live events wait for one subscriber. A slower one
// misses them here and reads them from the store instead: it is never dropped,
// and never holds more memory than this.
const maxBuffered = 256

// feed tells subscribers what was committed.
type feed struct {
	mu       sync.Mutex
	byStream map[string]map[*Subscriber]struct{}
	all      map[*Subscriber]struct{}
}

// Subscriber receives committed events as they come. Its methods belong to
// one goroutine.
type Subscriber struct {
	feed   *feed
	stream string
	all    bool

	mu     sync.Mutex
	buffer []*Event
	missed bool // the buffer was full: the store has what is not in it
	news   chan struct{}
}

// Subscribe begins to collect events of one stream.
func (s *Store) Subscribe(stream string) *Subscriber {
	sub := &Subscriber{feed: &s.feed, stream: stream, news: make(chan struct{}, 1)}
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.feed.byStream == nil {
		s.feed.byStream = make(map[string]map[*Subscriber]struct{})
	}
	if s.feed.byStream[stream] == nil {
		s.feed.byStream[stream] = make(map[*Subscriber]struct{})
	}
	s.feed.byStream[stream][sub] = struct{}{}
	return sub
}

// SubscribeAll begins to collect events of every stream.
func (s *Store) SubscribeAll() *Subscriber {
	sub := &Subscriber{feed: &s.feed, all: true, news: make(chan struct{}, 1)}
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.feed.all == nil {
		s.feed.all = make(map[*Subscriber]struct{})
	}
	s.feed.all[sub] = struct{}{}
	return sub
}

// Close ends the collecting.
func (sub *Subscriber) Close() {
	f := sub.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if sub.all {
		delete(f.all, sub)
		return
	}
	delete(f.byStream[sub.stream], sub)
	if len(f.byStream[sub.stream]) == 0 {
		delete(f.byStream, sub.stream)
	}
}

// News is ready when Take has something to give.
func (sub *Subscriber) News() <-chan struct{} { return sub.news }

// Take empties the buffer. missed: events behind those were committed and are
// only in the store.
func (sub *Subscriber) Take() (events []*Event, missed bool) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	events, missed = sub.buffer, sub.missed
	sub.buffer, sub.missed = nil, false
	return events, missed
}

func (f *feed) publish(events []*Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		for sub := range f.byStream[e.Stream] {
			sub.add(e)
		}
		for sub := range f.all {
			sub.add(e)
		}
	}
}

func (sub *Subscriber) add(e *Event) {
	sub.mu.Lock()
	if sub.missed || len(sub.buffer) >= maxBuffered {
		sub.missed = true // and nothing more, so that the buffer has no hole
	} else {
		sub.buffer = append(sub.buffer, e)
	}
	sub.mu.Unlock()
	select {
	case sub.news <- struct{}{}:
	default:
	}
}
