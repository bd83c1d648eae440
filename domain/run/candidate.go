package run

import (
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// envelopeSize bounds what an event takes in an append beside its payload and
// the texts in its envelope that vary, in bytes: keys, checksums, times, ids.
const envelopeSize = 1024

// maxJoined is the largest delta that one event holds, in bytes as JSON
// (protocol section 3, Merging); a longer one becomes several events.
const maxJoined = 16 << 10

// MaxLine is the longest line of an event, in bytes, in any view: what Go's and
// Python's line readers take.
const MaxLine = 65_535

// dataPrefix stands before an event's JSON in its line.
const dataPrefix = "data: "

// Candidate is a fact that was decided and has no place in the run yet.
type Candidate struct {
	OccurredAt time.Time
	TraceID    string
	SpanID     string
	RequestID  string
	Source     *Source
	Payload    Payload // not changed once the candidate is made

	joined []byte // what merging has added to a delta
	length int    // of a delta's whole text as JSON; 0: not counted yet
	data   []byte // the payload encoded; nil: not yet, or no longer
}

func (c *Candidate) encoded() []byte {
	if c.data == nil {
		c.data = encodePayload(c.whole())
	}
	return c.data
}

// whole is the payload with all that merging has added.
func (c *Candidate) whole() Payload {
	p, delta := c.Payload.(*MessageDelta)
	if !delta || len(c.joined) == 0 {
		return c.Payload
	}
	merged := *p
	merged.Delta += string(c.joined)
	return &merged
}

// Size is an upper bound of what the candidate takes in an append: payload,
// metadata and type, in bytes.
func (c *Candidate) Size(s *State) int { return len(c.encoded()) + c.envelope(s) }

// envelope is that without the payload.
func (c *Candidate) envelope(s *State) int {
	n := envelopeSize + agent.JSONLen(s.AgentID) + 2*agent.JSONLen(s.ThreadID) + agent.JSONLen(s.Owner) +
		agent.JSONLen(c.TraceID) + agent.JSONLen(c.SpanID) + agent.JSONLen(c.RequestID)
	if c.Source != nil {
		n += agent.JSONLen(c.Source.Producer)
		if c.Source.Cursor != nil {
			n += agent.JSONLen(*c.Source.Cursor)
		}
	}
	for _, id := range s.claims {
		n += agent.JSONLen(id) + len(`"",`)
	}
	return n
}

// join adds next to c where both are deltas that may become one (protocol
// section 3, Merging), and reports whether it did.
func (c *Candidate) join(next *Candidate) bool {
	p, first := c.Payload.(*MessageDelta)
	q, second := next.Payload.(*MessageDelta)
	if !first || !second || p.Block != nil || q.Block != nil || p.Usage != nil || q.Usage != nil {
		return false
	}
	if p.MessageID != q.MessageID || p.ContentIndex != q.ContentIndex || p.BlockType != q.BlockType || p.BlockID != q.BlockID ||
		p.Author != q.Author || p.ParentToolCallID != q.ParentToolCallID {
		return false
	}
	if c.TraceID != next.TraceID || c.SpanID != next.SpanID || c.Source == nil || next.Source == nil {
		return false
	}
	if c.Source.Producer != next.Source.Producer || c.Source.Epoch != next.Source.Epoch || (c.Source.Seq == 0) != (next.Source.Seq == 0) {
		return false
	}
	if c.length == 0 {
		c.length = agent.JSONLen(p.Delta)
	}
	more := agent.JSONLen(q.Delta) + len(next.joined)
	if c.length+more > maxJoined {
		return false
	}
	c.joined, c.length = append(append(c.joined, q.Delta...), next.joined...), c.length+more
	c.Source, c.RequestID, c.data = next.Source, next.RequestID, nil
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
