package run

import "encoding/json"

// Payload is what the payloads of the vocabulary say, in one place; which
// members count depends on the event type (protocol section 3). Stored
// payloads are decoded into it by encoding/json and written by encode, whose
// bytes are what the checksums are over.
type Payload struct {
	StartedAt string          `json:"started_at"`
	AgentID   string          `json:"agent_id"`
	Runtime   string          `json:"runtime"`
	Input     json.RawMessage `json:"input"`
	ThreadID  string          `json:"thread_id"`

	MessageID       string          `json:"message_id"`
	Role            string          `json:"role"`
	ContentIndex    uint64          `json:"content_index"`
	Delta           string          `json:"delta"`
	BlockType       string          `json:"block_type"` // "" is text
	Block           json.RawMessage `json:"block"`
	Content         string          `json:"content"`
	ContentChecksum string          `json:"content_checksum"`
	Truncated       bool            `json:"truncated"`
	Full            *Full           `json:"full"`

	ToolCallID       string          `json:"tool_call_id"`
	ToolName         string          `json:"tool_name"`
	Arguments        json.RawMessage `json:"arguments"`
	ParentToolCallID string          `json:"parent_tool_call_id"`
	External         bool            `json:"external"`
	Result           json.RawMessage `json:"result"`
	ResultChecksum   string          `json:"result_checksum"`
	IsError          bool            `json:"is_error"`
	Synthesized      bool            `json:"synthesized"`

	ArtifactID string   `json:"artifact_id"`
	Name       lenient  `json:"name"`
	MediaType  lenient  `json:"media_type"`
	Checksum   lenient  `json:"checksum"`
	Artifact   []member `json:"-"` // the other members, as given

	Error                 *Failure `json:"error"`
	ExternalStopConfirmed bool     `json:"external_stop_confirmed"`
	Proof                 string   `json:"proof"`
	Reason                string   `json:"reason"`

	Owner         string    `json:"owner"`
	PreviousOwner string    `json:"previous_owner"`
	Epoch         uint64    `json:"epoch"`
	Evidence      *Evidence `json:"-"`
}

// Full says where the whole of a value is that stands here as its beginning.
type Full struct {
	ArtifactID string `json:"artifact_id"`
	Size       int64  `json:"size"`
	Checksum   string `json:"checksum"`
}

// full writes that a value is only a beginning, and where the whole is.
func (o *object) full(f *Full) {
	if f != nil {
		o.flag("truncated", true)
		o.raw("full", newObject(160).str("artifact_id", f.ArtifactID).num("size", uint64(f.Size)).str("checksum", f.Checksum).close())
	}
}

// lenient is a string where somebody else may have put anything.
type lenient string

// UnmarshalJSON implements json.Unmarshaler; it never fails.
func (l *lenient) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*l = lenient(text)
	}
	return nil
}

// Failure is why a run failed.
type Failure struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
}

// member is one member of a JSON object that is kept as it was given.
type member struct {
	key   string
	value json.RawMessage
}

// encode returns the payload of an event of type kind as compact JSON.
func (p *Payload) encode(kind string) []byte {
	o := newObject(128 + len(p.Delta) + len(p.Content) + len(p.Arguments) + len(p.Result) + len(p.Input) + len(p.Block))
	switch kind {
	case RunStarted:
		o.str("started_at", p.StartedAt).str("agent_id", p.AgentID).str("runtime", p.Runtime)
		o.raw("input", p.Input).given("thread_id", p.ThreadID)
	case RunResumed:
		o.str("owner", p.Owner).str("previous_owner", p.PreviousOwner).num("epoch", p.Epoch)
		o.raw("evidence", p.Evidence.encode())
	case MessageStarted:
		o.str("message_id", p.MessageID).str("role", p.Role)
	case MessageDelta:
		o.str("message_id", p.MessageID).num("content_index", p.ContentIndex)
		o.given("block_type", p.BlockType).str("delta", p.Delta)
		if p.Block != nil {
			o.raw("block", p.Block)
		}
	case ToolCallStarted:
		o.given("message_id", p.MessageID).str("tool_call_id", p.ToolCallID).str("tool_name", p.ToolName)
		o.raw("arguments", p.Arguments).given("parent_tool_call_id", p.ParentToolCallID)
		o.onlyTrue("external", p.External).onlyTrue("synthesized", p.Synthesized).full(p.Full)
	case ToolCallCompleted:
		o.given("message_id", p.MessageID).str("tool_call_id", p.ToolCallID).str("tool_name", p.ToolName)
		o.raw("result", p.Result).str("result_checksum", p.ResultChecksum)
		o.flag("is_error", p.IsError).onlyTrue("synthesized", p.Synthesized).full(p.Full)
	case ArtifactCreated:
		o.str("artifact_id", p.ArtifactID).given("message_id", p.MessageID)
		for _, m := range p.Artifact {
			o.foreign(m.key, m.value)
		}
	case MessageCompleted:
		o.str("message_id", p.MessageID).str("content", p.Content)
		o.str("content_checksum", p.ContentChecksum).onlyTrue("truncated", p.Truncated && p.Full == nil).full(p.Full)
	case RunCompleted:
		o.str("message_id", p.MessageID)
	case RunFailed:
		e := newObject(64).str("code", p.Error.Code).str("message", p.Error.Message).flag("retryable", p.Error.Retryable)
		o.raw("error", e.close())
		if p.Evidence != nil {
			o.raw("evidence", p.Evidence.encode())
		}
	case RunCancelled:
		o.flag("external_stop_confirmed", p.ExternalStopConfirmed)
		o.key("proof")
		o.b = appendOptional(o.b, absent(p.Proof))
		o.str("reason", p.Reason)
	}
	return o.close()
}
