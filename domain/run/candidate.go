package run

import (
	"time"
	"unicode/utf8"
)

// envelopeSize bounds what an event takes in an append beside its payload and
// the texts in its envelope that vary, in bytes: keys, four checksums, times.
const envelopeSize = 1024

// maxJoined is the largest delta that merging makes, in bytes of text
// (protocol section 3); a single larger one stays whole.
const maxJoined = 16 << 10

// Candidate is a fact that was decided and has no place in the run yet.
type Candidate struct {
	Type       string
	OccurredAt time.Time
	TraceID    string
	SpanID     string
	Source     *Source
	Payload    Payload

	data []byte // the payload encoded; nil: not yet, or no longer
}

func (c *Candidate) encoded() []byte {
	if c.data == nil {
		c.data = c.Payload.encode(c.Type)
	}
	return c.data
}

// Size is an upper bound of what the candidate takes in an append: payload,
// metadata and type, in bytes.
func (c *Candidate) Size(s *State) int {
	texts := len(s.AgentID) + len(s.ThreadID) + len(s.Owner) + len(c.TraceID) + len(c.SpanID)
	if c.Source != nil {
		texts += len(c.Source.Producer)
		if c.Source.Cursor != nil {
			texts += len(*c.Source.Cursor)
		}
	}
	return len(c.encoded()) + envelopeSize + 6*texts // a byte escapes to six at worst
}

// join adds next to c where both are deltas that may become one (protocol
// section 3, Merging), and reports whether it did.
func (c *Candidate) join(next *Candidate) bool {
	p, q := &c.Payload, &next.Payload
	if c.Type != MessageDelta || next.Type != MessageDelta || p.Block != nil || q.Block != nil {
		return false
	}
	if p.MessageID != q.MessageID || p.ContentIndex != q.ContentIndex || p.BlockType != q.BlockType {
		return false
	}
	if c.TraceID != next.TraceID || c.SpanID != next.SpanID || c.Source == nil || next.Source == nil {
		return false
	}
	if c.Source.Producer != next.Source.Producer || (c.Source.Seq == 0) != (next.Source.Seq == 0) {
		return false
	}
	if len(p.Delta)+len(q.Delta) > maxJoined {
		return false
	}
	p.Delta += q.Delta
	c.Source, c.data = next.Source, nil
	return true
}

// Join appends more to candidates that wait for the same append, merging
// adjacent deltas. The slices' elements may be changed.
func Join(waiting, more []Candidate) []Candidate {
	for i := range more {
		if n := len(waiting); n > 0 && waiting[n-1].join(&more[i]) {
			continue
		}
		waiting = append(waiting, more[i])
	}
	return waiting
}

// beginning returns the longest beginning of text that takes at most room
// bytes as a JSON string.
func beginning(text string, room int) string {
	room -= 2 // the quotes
	for i, r := range text {
		switch {
		case r == '"' || r == '\\' || r == '\b' || r == '\t' || r == '\n' || r == '\f' || r == '\r':
			room -= 2
		case r < ' ':
			room -= 6
		default:
			room -= utf8.RuneLen(r)
		}
		if room < 0 {
			return text[:i]
		}
	}
	return text
}
