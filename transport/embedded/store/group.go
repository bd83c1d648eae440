package store

import (
	"encoding/json"

	"github.com/cockroachdb/pebble/v2"
)

// group is what one synced write makes durable: the decisions of all writes
// that waited, each resting on those before it.
type group struct {
	store    *Store
	batch    *pebble.Batch
	heads    map[string]*head // as they will be
	events   []*Event         // new ones, in order
	byKey    map[place]*Event // the same
	position uint64           // the last one given
	nextID   uint64
	created  int64
	size     int
}

type place struct {
	id     uint64
	number int64
}

func (s *Store) newGroup() *group {
	return &group{
		store: s, batch: s.db.NewBatch(), heads: make(map[string]*head), byKey: make(map[place]*Event),
		position: s.position, nextID: s.nextID, created: s.now(),
	}
}

func (g *group) head(stream string) (*head, error) {
	if h := g.heads[stream]; h != nil {
		return h, nil
	}
	return g.store.head(stream)
}

func (g *group) event(id uint64, number int64) (*Event, error) {
	if e := g.byKey[place{id, number}]; e != nil {
		return e, nil
	}
	return g.store.event(id, number)
}

// put adds one event to the group.
func (g *group) put(stream string, number int64, p Proposed) (Result, error) {
	before, err := g.head(stream)
	if err != nil {
		return Result{}, err
	}
	h := *before
	if h.id == 0 {
		h.id = g.nextID
		g.nextID++
		if err := g.batch.Set(nextIDKey, pair(g.nextID, 0), nil); err != nil {
			return Result{}, err
		}
	}
	h.last = number
	g.heads[stream] = &h
	g.position++
	e := &Event{
		Stream: stream, Number: number, Position: g.position, ID: p.ID, Type: p.Type, JSON: p.JSON,
		Created: g.created, Metadata: p.Metadata, Data: p.Data,
	}
	record := e.encode()
	g.size += len(record)
	g.events = append(g.events, e)
	g.byKey[place{h.id, number}] = e
	g.store.recent.add(p.ID, stream, number)
	for _, set := range [][2][]byte{
		{headKey(stream), pair(h.id, number)},
		{eventKey(h.id, number), record},
		{positionKey(e.Position), pair(h.id, number)},
	} {
		if err := g.batch.Set(set[0], set[1], nil); err != nil {
			return Result{}, err
		}
	}
	if about, ok := described(stream); ok && number != Deleted {
		subject, err := g.head(about)
		if err != nil {
			return Result{}, err
		}
		changed := *subject
		changed.meta = parseMeta(e)
		g.heads[about] = &changed
	}
	return Result{Last: number, Position: e.Position}, nil
}

// describe writes a stream's metadata document.
func (g *group) describe(stream string, document json.RawMessage) error {
	about, err := g.head(metaStream(stream))
	if err != nil {
		return err
	}
	_, err = g.put(metaStream(stream), about.last+1, Proposed{ID: g.store.newID(), Type: MetadataType, JSON: true, Data: document})
	return err
}
