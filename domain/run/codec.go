package run

import (
	"encoding/json"
	"fmt"
	"time"
)

// TimeFormat is how every time is written: UTC with six digits.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// Metadata returns what is stored beside the payload: every envelope field but
// event_type (the store's type) and recorded_at (its created time). Members
// that say nothing are left out, so that each event costs what it tells.
func (e *Event) Metadata() []byte {
	o := newObject(512)
	o.str("run_id", string(e.RunID)).num("seq", uint64(e.Seq)).str("occurred_at", e.OccurredAt.UTC().Format(TimeFormat))
	o.given("agent_id", e.AgentID).given("agent_snapshot_checksum", e.Snapshot)
	e.tail(o)
	o.given("$correlationId", e.ThreadID)
	return o.close()
}

// tail writes the members that follow the payload in the envelope; metadata
// and envelope share them.
func (e *Event) tail(o *object) {
	o.str("payload_checksum", e.PayloadChecksum).num("schema_version", uint64(e.SchemaVersion))
	o.given("trace_id", e.TraceID).given("span_id", e.SpanID).given("chain_checksum", e.ChainChecksum)
	if e.Source != nil {
		s := newObject(64).str("producer", e.Source.Producer)
		if e.Source.Seq != 0 {
			s.num("seq", e.Source.Seq)
		}
		if e.Source.Cursor != nil {
			s.str("cursor", *e.Source.Cursor)
		}
		o.raw("source", s.close())
	}
	o.given("nonce", e.Nonce).given("request_checksum", e.RequestChecksum).given("owner", e.Owner)
	if e.Epoch != 0 {
		o.num("epoch", e.Epoch)
	}
}

// Envelope returns the whole envelope as one line of JSON, the payload's bytes
// unchanged (the full view).
func (e *Event) Envelope() []byte {
	o := newObject(640 + len(e.Payload))
	o.str("run_id", string(e.RunID)).num("seq", uint64(e.Seq)).str("event_type", e.Type)
	o.str("occurred_at", e.OccurredAt.UTC().Format(TimeFormat)).str("recorded_at", e.RecordedAt.UTC().Format(TimeFormat))
	o.given("agent_id", e.AgentID).given("agent_snapshot_checksum", e.Snapshot).raw("payload", e.Payload)
	e.tail(o)
	o.given("thread_id", e.ThreadID)
	return o.close()
}

// Client returns the client view: seq, event_type, occurred_at and the
// payload's bytes unchanged, as one line of JSON.
func (e *Event) Client() []byte {
	o := newObject(128 + len(e.Payload))
	o.num("seq", uint64(e.Seq)).str("event_type", e.Type)
	o.str("occurred_at", e.OccurredAt.UTC().Format(TimeFormat)).raw("payload", e.Payload)
	return o.close()
}

// stored mirrors Metadata for decoding. Fields of a later version are ignored.
type stored struct {
	RunID           ID     `json:"run_id"`
	OccurredAt      string `json:"occurred_at"`
	AgentID         string `json:"agent_id"`
	Snapshot        string `json:"agent_snapshot_checksum"`
	PayloadChecksum string `json:"payload_checksum"`
	SchemaVersion   int    `json:"schema_version"`
	TraceID         string `json:"trace_id"`
	SpanID          string `json:"span_id"`
	ChainChecksum   string `json:"chain_checksum"`
	Source          *struct {
		Producer string  `json:"producer"`
		Seq      uint64  `json:"seq"`
		Cursor   *string `json:"cursor"`
	} `json:"source"`
	Nonce           string `json:"nonce"`
	RequestChecksum string `json:"request_checksum"`
	Owner           string `json:"owner"`
	Epoch           uint64 `json:"epoch"`
	ThreadID        string `json:"$correlationId"`
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
// metadata is not an envelope, or belongs to another run: somebody else wrote
// into the stream. The payload's checksum is not verified here (see Verify).
func Decode(id ID, s Stored) (Event, error) {
	var m stored
	if err := json.Unmarshal(s.Metadata, &m); err != nil {
		return Event{}, fmt.Errorf("metadata is not an envelope: %w", err)
	}
	if m.RunID != id {
		return Event{}, fmt.Errorf("metadata names run %q", m.RunID)
	}
	occurred, err := time.Parse(time.RFC3339Nano, m.OccurredAt)
	if err != nil {
		return Event{}, fmt.Errorf("occurred_at: %w", err)
	}
	e := Event{
		RunID: id, Seq: s.Seq, Type: s.Type,
		OccurredAt: occurred.UTC(), RecordedAt: s.Created.UTC(),
		AgentID: m.AgentID, Snapshot: m.Snapshot, ThreadID: m.ThreadID,
		Payload: s.Data, PayloadChecksum: m.PayloadChecksum, SchemaVersion: m.SchemaVersion,
		TraceID: m.TraceID, SpanID: m.SpanID, ChainChecksum: m.ChainChecksum,
		Nonce: m.Nonce, RequestChecksum: m.RequestChecksum, Owner: m.Owner, Epoch: m.Epoch,
	}
	if m.Source != nil {
		e.Source = &Source{Producer: m.Source.Producer, Seq: m.Source.Seq, Cursor: m.Source.Cursor}
	}
	return e, nil
}
