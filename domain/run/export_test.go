package run

import (
	"encoding/json"
	"fmt"
	"maps"
)

// Dump shows all that the state holds, so that two can be compared.
func (s *State) Dump() string {
	kept, whole, checksum := s.text.finish()
	var open []string
	for _, b := range s.text.open {
		open = append(open, fmt.Sprint(b.index, b.keyed, len(b.text)))
	}
	cursor := "none"
	if s.Cursor != nil {
		cursor = fmt.Sprintf("%q", *s.Cursor)
	}
	failure, err := json.Marshal(s.Failure)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("%v\n", []any{
		s.RunID, s.AgentID, s.Runtime, s.ThreadID, s.Labels, s.ParentRunID, s.RetryOf, s.Snapshot, s.RequestChecksum,
		s.StartedAt.UnixNano(), s.EndedAt.UnixNano(), string(failure), s.Owner, s.Epoch, cursor,
		"\n", s.ending, s.queued, all(s.marks), s.message, s.messages,
		"\nblocks", all(s.blocks.byKey), s.blocks.next, s.blocks.last,
		"\ntext", kept, whole, checksum, open, s.text.held, s.text.floor,
		"\ncalls", all(s.calls.byID), all(s.calls.groups), all(s.calls.claimed), s.calls.open, s.calls.cost, s.calls.external,
		"\nartifacts", all(s.artifacts), s.products,
	})
}

// all is what a layered map holds; fmt prints maps in the order of their keys.
func all[K comparable, V any](m layered[K, V]) map[K]V {
	out := make(map[K]V)
	if !m.emptied {
		maps.Copy(out, m.base)
	}
	maps.Copy(out, m.top)
	return out
}

// Canonical is canonical.
func Canonical(value []byte) []byte { return canonical(value) }
