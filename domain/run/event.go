package run

import (
	"fmt"
	"time"
)

// ID names a run: 1 to 64 of A-Z a-z 0-9 _ and, not first, -. The zero value
// names none. Only ParseID makes one from foreign text.
type ID string

// ParseID returns text as an ID, or an error that says what is wrong with it.
func ParseID(text string) (ID, error) {
	if len(text) == 0 || len(text) > 64 {
		return "", fmt.Errorf("a run_id has 1 to 64 characters, not %d", len(text))
	}
	for i, c := range []byte(text) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
		if !letter && (c != '-' || i == 0) {
			return "", fmt.Errorf("a run_id is made of A-Z a-z 0-9 _ and, not first, -: character %d is not", i+1)
		}
	}
	return ID(text), nil
}

// Stream is the name of the run's stream in EventStoreDB (category agent_run).
func (id ID) Stream() string { return "agent_run-" + string(id) }

// Seq is the place of an event in its run, from 1. The store gives it at
// commit: it is the stream revision + 1. Zero stands before the first event.
type Seq uint64

// SchemaVersion is the version of the vocabulary that this code writes.
const SchemaVersion = 1

// The canonical vocabulary (protocol section 3). These names are stored: they
// outlive whatever the Go names become.
const (
	RunStarted        = "run.started"
	RunResumed        = "run.resumed"
	MessageStarted    = "message.started"
	MessageDelta      = "message.delta"
	ToolCallStarted   = "tool.call.started"
	ToolCallCompleted = "tool.call.completed"
	ArtifactCreated   = "artifact.created"
	MessageCompleted  = "message.completed"
	RunCompleted      = "run.completed"
	RunFailed         = "run.failed"
	RunCancelled      = "run.cancelled"
)

// Terminal reports whether eventType ends a run.
func Terminal(eventType string) bool {
	return eventType == RunCompleted || eventType == RunFailed || eventType == RunCancelled
}

// Source says which AgentEvent an event is the last fact of.
type Source struct {
	Producer string
	Seq      uint64  // the producer_seq; 0: the AgentEvent had none
	Cursor   *string // the runtime's own position after it; nil: none
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
	ThreadID   string // stored as $correlationId

	Payload         []byte // compact JSON, exactly as stored
	PayloadChecksum string
	SchemaVersion   int
	TraceID         string
	SpanID          string
	ChainChecksum   string
	Source          *Source // on the last event of an AgentEvent
	Nonce           string  // on the first event of an append
	RequestChecksum string  // on run.started
	Owner           string  // on owned runs
	Epoch           uint64  // on owned runs, from 1
}
