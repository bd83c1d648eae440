package run

// blockKey is how a runtime names a block: another type under one id is another
// block.
type blockKey struct{ id, kind string }

// blocks numbers the blocks of the open message (protocol section 3,
// content_index). The zero value has none.
type blocks struct {
	byKey layered[blockKey, uint64]
	next  uint64 // index of the next to open
	last  block  // the one that the last delta wrote to
}

type block struct {
	open  bool // there is one
	index uint64
	key   blockKey
	left  bool // a tool call has started since
}

func (b *blocks) fork() blocks {
	f := *b
	f.byKey = b.byKey.fork()
	return f
}

func (b *blocks) merge(fork blocks) {
	byKey := b.byKey
	byKey.merge(fork.byKey)
	*b = fork
	b.byKey = byKey
}

// place is the index that a delta writes to. Keyed blocks of text before floor
// grow no more.
func (b *blocks) place(key blockKey, structured bool, floor uint64) uint64 {
	if key.id != "" {
		if index, known := b.byKey.get(key); known && (key.kind != "" || index >= floor) {
			return index
		}
		return b.next
	}
	if b.last.open && b.last.key == key && !structured && !b.last.left {
		return b.last.index
	}
	return b.next
}

// fold notes where a delta was written.
func (b *blocks) fold(p *MessageDelta) {
	key := blockKey{p.BlockID, p.BlockType}
	if key.id != "" {
		b.byKey.set(key, p.ContentIndex)
	}
	b.last = block{open: true, index: p.ContentIndex, key: key}
	b.next = max(b.next, p.ContentIndex+1)
}
