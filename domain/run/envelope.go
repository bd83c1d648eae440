package run

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Source says which AgentEvent an event is the last fact of.
type Source struct {
	Producer string
	Epoch    uint64  // of the producer; 0: it tells no lives apart
	Seq      uint64  // the producer_seq; 0: the AgentEvent had none
	Cursor   *string // the runtime's own position after it; nil: none
}

func (s *Source) fields(c *codec) {
	c.str("producer", &s.Producer)
	c.count("epoch", &s.Epoch)
	c.count("seq", &s.Seq)
	if c.out != nil {
		if s.Cursor != nil {
			c.str("cursor", s.Cursor)
		}
		return
	}
	if _, ok := c.has("cursor"); ok {
		var cursor string
		c.str("cursor", &cursor)
		s.Cursor = &cursor
	}
}

// Event is the envelope of one canonical fact (protocol section 4). Sealed
// events, those about to be appended, have everything but RecordedAt.
type Event struct {
	RunID      ID
	Seq        Seq
	Type       string
	OccurredAt time.Time // UTC, microseconds
	RecordedAt time.Time // the store's created time
	AgentID    string
	Snapshot   string // agent_snapshot_checksum
	ThreadID   string

	Payload         []byte // compact JSON, exactly as stored
	PayloadChecksum string
	SchemaVersion   int
	TraceID         string
	SpanID          string
	ChainChecksum   string
	Source          *Source  // on the last event of an AgentEvent
	Claims          []string // on the first event of an append: synthesized calls whose real start came since the one before
	Nonce           string   // on the first event of an append
	RequestChecksum string   // on run.started
	RequestID       string   // of the HTTP request that brought it; "": none did
	Owner           string   // on owned runs
	Epoch           uint64   // on owned runs, from 1
	Extra           []Member // what a later version has added
}

// place, head and tail are the members of the envelope, the latter two before and
// behind the payload. Members that say nothing are left out, so that each event
// costs what it tells.
func (e *Event) place(c *codec) {
	id, seq := string(e.RunID), uint64(e.Seq)
	c.str("run_id", &id)
	c.num("seq", &seq)
	e.RunID, e.Seq = ID(id), Seq(seq)
}

func (e *Event) head(c *codec) {
	c.given("agent_id", &e.AgentID)
	c.given("agent_snapshot_checksum", &e.Snapshot)
	c.given("thread_id", &e.ThreadID)
}

func (e *Event) tail(c *codec) {
	version := uint64(e.SchemaVersion)
	c.str("payload_checksum", &e.PayloadChecksum)
	c.num("schema_version", &version)
	e.SchemaVersion = int(version)
	c.given("trace_id", &e.TraceID)
	c.given("span_id", &e.SpanID)
	var source Source
	if e.Source != nil {
		source = *e.Source
	}
	if c.object("source", e.Source != nil, source.fields) && c.out == nil {
		e.Source = &source
	}
	c.texts("claims", &e.Claims)
	c.given("nonce", &e.Nonce)
	c.given("request_checksum", &e.RequestChecksum)
	c.given("request_id", &e.RequestID)
	c.given("owner", &e.Owner)
	c.count("epoch", &e.Epoch)
	c.rest(ours, &e.Extra)
}

// ours are the members that this version knows.
var ours = []string{"run_id", "seq", "event_type", "occurred_at", "recorded_at", "agent_id", "agent_snapshot_checksum", "thread_id",
	"payload", "payload_checksum", "schema_version", "trace_id", "span_id", "source", "claims", "nonce", "request_checksum",
	"request_id", "owner", "epoch", "chain_checksum"}

// Metadata returns what is stored beside the payload: every envelope field but
// event_type (the store's type) and recorded_at (its created time). The store's
// own two members let its projections show a thread, or a run without one
// ($correlationId), and a run's events ($causationId).
func (e *Event) Metadata() []byte {
	c := codec{out: newObject(640)}
	e.place(&c)
	c.time("occurred_at", &e.OccurredAt)
	e.head(&c)
	e.tail(&c)
	c.given("chain_checksum", &e.ChainChecksum)
	correlation := e.ThreadID
	if correlation == "" {
		correlation = string(e.RunID)
	}
	c.out.str("$correlationId", correlation).str("$causationId", string(e.RunID))
	return c.out.close()
}

// Envelope returns the whole envelope as one line of JSON, the payload's bytes
// unchanged (the full view).
func (e *Event) Envelope() []byte {
	c := codec{out: newObject(768 + len(e.Payload))}
	e.place(&c)
	c.str("event_type", &e.Type)
	c.time("occurred_at", &e.OccurredAt)
	c.time("recorded_at", &e.RecordedAt)
	e.head(&c)
	c.out.raw("payload", e.Payload)
	e.tail(&c)
	c.given("chain_checksum", &e.ChainChecksum)
	return c.out.close()
}

// Client returns the client view: seq, event_type, occurred_at and the
// payload's bytes unchanged, as one line of JSON.
func (e *Event) Client() []byte {
	o := newObject(128 + len(e.Payload))
	o.num("seq", uint64(e.Seq)).str("event_type", e.Type)
	o.str("occurred_at", e.OccurredAt.UTC().Format(TimeFormat)).raw("payload", e.Payload)
	return o.close()
}

// Stored is one event as the store returns it.
type Stored struct {
	Seq      Seq
	Type     string
	Data     []byte // kept, not copied
	Metadata []byte
	Created  time.Time
}

// Decode lifts a stored event of run id into its envelope. It fails where the
// metadata is not an envelope, or belongs to another place: somebody else wrote
// into the stream. Whether the event follows the one before it is State.Apply's
// to find, and Verify's.
func Decode(id ID, s Stored) (Event, error) {
	c, err := read(s.Metadata)
	if err != nil {
		return Event{}, fmt.Errorf("metadata is not an envelope: %w", err)
	}
	e := Event{Type: s.Type, RecordedAt: s.Created.UTC(), Payload: s.Data}
	e.place(c)
	c.time("occurred_at", &e.OccurredAt)
	e.head(c)
	e.tail(c)
	c.given("chain_checksum", &e.ChainChecksum)
	e.Extra = slices.DeleteFunc(e.Extra, func(m Member) bool { return strings.HasPrefix(m.Key, "$") })
	switch {
	case c.err != nil:
		return Event{}, fmt.Errorf("metadata is not an envelope: %w", c.err)
	case e.RunID != id:
		return Event{}, fmt.Errorf("metadata names run %q", e.RunID)
	case e.Seq != s.Seq:
		return Event{}, fmt.Errorf("metadata names seq %d", e.Seq)
	}
	return e, nil
}
