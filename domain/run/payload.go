package run

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// The canonical vocabulary (protocol section 3). These names are stored: they
// outlive whatever the Go names become.
const (
	TypeRunStarted        = "run.started"
	TypeRunDequeued       = "run.dequeued"
	TypeRunResumed        = "run.resumed"
	TypeMessageStarted    = "message.started"
	TypeMessageDelta      = "message.delta"
	TypeToolCallStarted   = "tool.call.started"
	TypeToolCallCompleted = "tool.call.completed"
	TypeArtifactCreated   = "artifact.created"
	TypeMessageCompleted  = "message.completed"
	TypeRunCompleted      = "run.completed"
	TypeRunFailed         = "run.failed"
	TypeRunCancelled      = "run.cancelled"
)

// Payload is what one canonical event says. Each type of event has a Go type of
// its own, which is written and read by the one list of its members (fields).
// What a producer gave as given (arguments, results, blocks, usage, an artifact's
// members) is raw.
type Payload interface {
	// EventType is the name under which the event is stored.
	EventType() string
	fields(c *codec)
}

// vocabulary makes an empty payload of each type, to be read.
var vocabulary = map[string]func() Payload{
	TypeRunStarted:        func() Payload { return new(RunStarted) },
	TypeRunDequeued:       func() Payload { return new(RunDequeued) },
	TypeRunResumed:        func() Payload { return new(RunResumed) },
	TypeMessageStarted:    func() Payload { return new(MessageStarted) },
	TypeMessageDelta:      func() Payload { return new(MessageDelta) },
	TypeToolCallStarted:   func() Payload { return new(ToolCallStarted) },
	TypeToolCallCompleted: func() Payload { return new(ToolCallCompleted) },
	TypeArtifactCreated:   func() Payload { return new(ArtifactCreated) },
	TypeMessageCompleted:  func() Payload { return new(MessageCompleted) },
	TypeRunCompleted:      func() Payload { return new(RunCompleted) },
	TypeRunFailed:         func() Payload { return new(RunFailed) },
	TypeRunCancelled:      func() Payload { return new(RunCancelled) },
}

// Terminal reports whether eventType ends a run.
func Terminal(eventType string) bool {
	return eventType == TypeRunCompleted || eventType == TypeRunFailed || eventType == TypeRunCancelled
}

// DecodePayload reads what an event says. An event type that is not known gives
// nil and no error; members that are not known are passed over.
func DecodePayload(eventType string, data []byte) (Payload, error) {
	create, known := vocabulary[eventType]
	if !known {
		return nil, nil
	}
	c, err := read(data)
	if err == nil {
		p := create()
		p.fields(c)
		if err = c.err; err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("payload of %s: %w", eventType, err)
}

// encodePayload writes the bytes that the checksums are over: compact JSON.
func encodePayload(p Payload) []byte {
	c := codec{out: newObject(256)}
	p.fields(&c)
	return c.out.close()
}

// RunStarted begins every run.
type RunStarted struct {
	StartedAt   time.Time
	AgentID     string
	Runtime     string
	Input       json.RawMessage // nil: null
	ThreadID    string          // "": none
	Labels      map[string]string
	ParentRunID string // "": none
	RetryOf     string // "": none
	Queued      bool   // it waits for its turn
	Full        *Full  // of the input
}

// EventType implements Payload.
func (*RunStarted) EventType() string { return TypeRunStarted }

func (p *RunStarted) fields(c *codec) {
	c.time("started_at", &p.StartedAt)
	c.str("agent_id", &p.AgentID)
	c.str("runtime", &p.Runtime)
	c.raw("input", &p.Input)
	c.given("thread_id", &p.ThreadID)
	c.labels("labels", &p.Labels)
	c.given("parent_run_id", &p.ParentRunID)
	c.given("retry_of", &p.RetryOf)
	c.onlyTrue("queued", &p.Queued)
	c.full(&p.Full)
}

// RunDequeued tells that a queued run has its turn.
type RunDequeued struct{ QueuedMS uint64 }

// EventType implements Payload.
func (*RunDequeued) EventType() string { return TypeRunDequeued }

func (p *RunDequeued) fields(c *codec) { c.num("queued_ms", &p.QueuedMS) }

// RunResumed tells that another instance drives the run from here on.
type RunResumed struct {
	Owner         string
	PreviousOwner string
	Epoch         uint64
	Evidence      *Evidence
}

// EventType implements Payload.
func (*RunResumed) EventType() string { return TypeRunResumed }

func (p *RunResumed) fields(c *codec) {
	c.str("owner", &p.Owner)
	c.str("previous_owner", &p.PreviousOwner)
	c.num("epoch", &p.Epoch)
	c.evidence(&p.Evidence)
}

// MessageStarted opens the assistant's message.
type MessageStarted struct {
	MessageID string
	Role      string
}

// EventType implements Payload.
func (*MessageStarted) EventType() string { return TypeMessageStarted }

func (p *MessageStarted) fields(c *codec) {
	c.str("message_id", &p.MessageID)
	c.str("role", &p.Role)
}

// MessageDelta adds to one block of the message.
type MessageDelta struct {
	MessageID        string
	ContentIndex     uint64
	BlockType        string // "" is text
	BlockID          string // the runtime's key of the block; "": none
	Delta            string
	Block            json.RawMessage // of a structured block
	Author           string
	ParentToolCallID string
	Usage            json.RawMessage // nil: none
	Full             *Full           // of the block
}

// EventType implements Payload.
func (*MessageDelta) EventType() string { return TypeMessageDelta }

func (p *MessageDelta) fields(c *codec) {
	c.str("message_id", &p.MessageID)
	c.num("content_index", &p.ContentIndex)
	c.given("block_type", &p.BlockType)
	c.given("block_id", &p.BlockID)
	c.str("delta", &p.Delta)
	c.givenRaw("block", &p.Block)
	c.given("author", &p.Author)
	c.given("parent_tool_call_id", &p.ParentToolCallID)
	c.givenRaw("usage", &p.Usage)
	c.full(&p.Full)
}

// ToolCallStarted tells that a tool works.
type ToolCallStarted struct {
	MessageID        string // "": no message is open
	ToolCallID       string // canonical
	ToolName         string
	Arguments        json.RawMessage // nil: null, of a synthesized one
	ParentToolCallID string          // canonical
	External         bool            // somebody outside answers it
	Synthesized      bool
	Full             *Full // of the arguments
}

// EventType implements Payload.
func (*ToolCallStarted) EventType() string { return TypeToolCallStarted }

func (p *ToolCallStarted) fields(c *codec) {
	c.given("message_id", &p.MessageID)
	c.str("tool_call_id", &p.ToolCallID)
	c.str("tool_name", &p.ToolName)
	c.raw("arguments", &p.Arguments)
	c.given("parent_tool_call_id", &p.ParentToolCallID)
	c.onlyTrue("external", &p.External)
	c.onlyTrue("synthesized", &p.Synthesized)
	c.full(&p.Full)
}

// ToolCallCompleted brings a call's result.
type ToolCallCompleted struct {
	MessageID      string // "": no message is open
	ToolCallID     string // canonical
	ToolName       string
	Result         json.RawMessage // nil: null
	ResultChecksum string
	IsError        bool
	Synthesized    bool
	Usage          json.RawMessage // nil: none
	Full           *Full           // of the result
}

// EventType implements Payload.
func (*ToolCallCompleted) EventType() string { return TypeToolCallCompleted }

func (p *ToolCallCompleted) fields(c *codec) {
	c.given("message_id", &p.MessageID)
	c.str("tool_call_id", &p.ToolCallID)
	c.str("tool_name", &p.ToolName)
	c.raw("result", &p.Result)
	c.str("result_checksum", &p.ResultChecksum)
	c.flag("is_error", &p.IsError)
	c.onlyTrue("synthesized", &p.Synthesized)
	c.givenRaw("usage", &p.Usage)
	c.full(&p.Full)
}

// ArtifactCreated describes a product.
type ArtifactCreated struct {
	ArtifactID string
	MessageID  string   // "": no message is open
	Members    []Member // name, media_type, size, checksum, url and others, as given
}

// EventType implements Payload.
func (*ArtifactCreated) EventType() string { return TypeArtifactCreated }

func (p *ArtifactCreated) fields(c *codec) {
	c.str("artifact_id", &p.ArtifactID)
	c.given("message_id", &p.MessageID)
	c.rest([]string{"artifact_id", "message_id"}, &p.Members)
}

// MessageCompleted is the answer.
type MessageCompleted struct {
	MessageID       string
	Content         string
	ContentChecksum string // of the whole
	Truncated       bool   // the deltas hold the whole
	Usage           json.RawMessage
	Full            *Full
}

// EventType implements Payload.
func (*MessageCompleted) EventType() string { return TypeMessageCompleted }

func (p *MessageCompleted) fields(c *codec) {
	c.str("message_id", &p.MessageID)
	c.str("content", &p.Content)
	c.str("content_checksum", &p.ContentChecksum)
	if p.Full == nil {
		c.onlyTrue("truncated", &p.Truncated)
	}
	c.givenRaw("usage", &p.Usage)
	c.full(&p.Full)
}

// RunCompleted ends a run well.
type RunCompleted struct{ MessageID string }

// EventType implements Payload.
func (*RunCompleted) EventType() string { return TypeRunCompleted }

func (p *RunCompleted) fields(c *codec) { c.str("message_id", &p.MessageID) }

// RunFailed ends a run badly.
type RunFailed struct {
	Failure  Failure
	Evidence *Evidence       // where a runtime was declared lost
	Usage    json.RawMessage // nil: none
	Full     *Full           // of the message
}

// EventType implements Payload.
func (*RunFailed) EventType() string { return TypeRunFailed }

func (p *RunFailed) fields(c *codec) {
	c.object("error", true, func(c *codec) {
		c.str("code", &p.Failure.Code)
		c.str("message", &p.Failure.Message)
		c.flag("retryable", &p.Failure.Retryable)
	})
	c.evidence(&p.Evidence)
	c.givenRaw("usage", &p.Usage)
	c.full(&p.Full)
}

// RunCancelled ends a run as somebody wished.
type RunCancelled struct {
	ExternalStopConfirmed bool
	Proof                 string // "": null
	Reason                string
}

// EventType implements Payload.
func (*RunCancelled) EventType() string { return TypeRunCancelled }

func (p *RunCancelled) fields(c *codec) {
	c.flag("external_stop_confirmed", &p.ExternalStopConfirmed)
	c.orNull("proof", &p.Proof)
	c.str("reason", &p.Reason)
}

// Failure is why a run failed.
type Failure struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
}

// Full says where the whole of a value is that stands here as its beginning.
type Full struct {
	ArtifactID string
	Size       int64
	Checksum   string
}

// given is what a runner gave of it, as far as the event tells.
func (f *Full) given() *agent.Full {
	if f == nil {
		return nil
	}
	return &agent.Full{Checksum: f.Checksum, Size: f.Size}
}

func (f *Full) fields(c *codec) {
	size := uint64(f.Size)
	c.str("artifact_id", &f.ArtifactID)
	c.num("size", &size)
	c.str("checksum", &f.Checksum)
	f.Size = int64(size)
}

// full says that a value is only a beginning, and where the whole is.
func (c *codec) full(f **Full) {
	truncated := *f != nil
	c.onlyTrue("truncated", &truncated)
	var whole Full
	if *f != nil {
		whole = **f
	}
	if c.object("full", *f != nil, whole.fields) && c.out == nil {
		*f = &whole
	}
}

func (c *codec) evidence(e **Evidence) {
	var seen Evidence
	if *e != nil {
		seen = **e
	}
	if c.object("evidence", *e != nil, seen.fields) && c.out == nil {
		*e = &seen
	}
}
