// Package agent is the runner port: what a runtime reports about its own run.
//
// There are seven AgentEvents (protocol section 2), thin on purpose. They carry
// no authoritative number: producer_seq only lets a producer send again without
// harm. Decode is strict about what an event means and silent about members
// that it does not know. Values that are not text are kept to the letter.
package agent

import (
	"encoding/json"
	"io"
	"time"
)

// Type is the kind of an AgentEvent.
type Type string

// The seven types.
const (
	StateChange Type = "state_change" // never becomes a fact: it proves liveness
	Delta       Type = "delta"        // an increment of the assistant's message
	ToolCall    Type = "tool_call"    // a tool starts
	ToolResult  Type = "tool_result"  // summary of its result
	Artifact    Type = "artifact"     // metadata of a structured product
	Done        Type = "done"         // the final answer, whole
	Error       Type = "error"        // the run failed
)

// Block types with a meaning of their own; every other one is structured.
const (
	Text      = "text"
	Reasoning = "reasoning"
	Nested    = "nested" // what an agent says that a tool call runs: never part of the answer
)

// Event is one AgentEvent. Which members are set depends on Type, as the
// comments say; the zero value is no event. Raw values are compact JSON.
type Event struct {
	Type Type

	// Of every type, all optional.
	OccurredAt  time.Time // the runtime's clock, UTC; zero: not given
	TraceID     string
	SpanID      string
	ProducerSeq uint64  // from 1; 0: not numbered
	Cursor      *string // the runtime's own position after this event

	State string // state_change

	Content   Unicode         // delta: the increment; empty for a structured block
	BlockType string          // delta: Text, Reasoning, Nested or a structured type; "" is Text
	BlockID   string          // delta: the runtime's key for one block, such as a model's message; "": none
	Author    string          // delta: the agent that speaks, where there are several
	Block     json.RawMessage // delta: the structured block's whole value

	ToolName         string          // tool_call, tool_result
	ToolCallID       string          // tool_call, tool_result: never ""
	ToolArgs         json.RawMessage // tool_call: {} if absent
	ParentToolCallID string          // tool_call, delta: the call that this happens within
	External         bool            // tool_call: somebody outside will answer
	ToolResult       json.RawMessage // tool_result
	IsError          bool            // tool_result

	Artifact json.RawMessage // artifact: an object
	Bytes    []byte          // artifact: its content, where the runner has it
	Source   io.Reader       // artifact: its content, where Bytes is nil; read once, while the event is emitted
	Stored   bool            // artifact: its content is kept, under its checksum
	Full     *Full           // the event's value is kept elsewhere; here is only its beginning

	Answer Unicode // done; empty: the runtime gave none

	// Usage is what a model used: an increment, never a total. Of delta,
	// tool_result, done and error; nil: not given.
	Usage json.RawMessage

	ErrorCode    string // error
	ErrorMessage string // error
	Retryable    bool   // error
}

// Full is a whole value that is kept elsewhere, since it is long.
type Full struct {
	Checksum  string // of its bytes
	Size      int64
	MediaType string
}

// Structured reports whether a delta carries a block in place of text.
func (e *Event) Structured() bool {
	switch e.BlockType {
	case "", Text, Reasoning, Nested:
		return false
	}
	return true
}
