package store

// maxRecent is how many event ids are remembered for idempotency without a
// number (wire 3.1, rule 3): about what the server's 8 MB hold.
const maxRecent = 1 << 16

// seen says where an id was written first.
type seen struct {
	stream string
	number int64
}

// recent remembers the ids of the newest writes; it is empty after a restart,
// as the server's is. The committer's own.
type recent struct {
	byID map[ID]seen
	ring []ID
	next int
}

func newRecent() *recent { return &recent{byID: make(map[ID]seen), ring: make([]ID, 0, maxRecent)} }

func (r *recent) find(id ID, stream string) (number int64, ok bool) {
	at, ok := r.byID[id]
	return at.number, ok && at.stream == stream
}

func (r *recent) add(id ID, stream string, number int64) {
	if _, again := r.byID[id]; again {
		return
	}
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, id)
	} else {
		delete(r.byID, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxRecent
	}
	r.byID[id] = seen{stream, number}
}
