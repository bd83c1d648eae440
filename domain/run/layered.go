package run

// layered is a map whose newest entries can be thrown away: fork lays an empty
// layer over it, merge takes the layer's entries over. There is never more than
// one fork at a time. The zero value is empty and ready.
type layered[K comparable, V any] struct {
	base, top map[K]V
	forked    bool
	emptied   bool // of a fork: base counts no more
}

func (m *layered[K, V]) get(k K) (V, bool) {
	if v, ok := m.top[k]; ok {
		return v, true
	}
	if m.emptied {
		var none V
		return none, false
	}
	v, ok := m.base[k]
	return v, ok
}

func (m *layered[K, V]) set(k K, v V) {
	layer := &m.base
	if m.forked {
		layer = &m.top
	}
	if *layer == nil {
		*layer = make(map[K]V)
	}
	(*layer)[k] = v
}

// cleared is what takes the place of a map whose entries no longer count.
func (m *layered[K, V]) cleared() layered[K, V] {
	return layered[K, V]{forked: m.forked, emptied: m.forked}
}

func (m *layered[K, V]) fork() layered[K, V] {
	return layered[K, V]{base: m.base, forked: true}
}

// merge takes over what fork, a fork of m, has gained.
func (m *layered[K, V]) merge(fork layered[K, V]) {
	if fork.emptied {
		m.base = nil
	}
	for k, v := range fork.top {
		m.set(k, v)
	}
}
