package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// SyntaxError: the bytes are not one JSON object in UTF-8.
type SyntaxError struct{ Err error }

func (e *SyntaxError) Error() string { return "not an AgentEvent: " + e.Err.Error() }
func (e *SyntaxError) Unwrap() error { return e.Err }

// FieldError: an object that parses says something wrong, or leaves it unsaid.
type FieldError struct {
	Type   Type   // the event's type where it is known
	Field  string // the member at fault
	Reason string
}

func (e *FieldError) Error() string {
	if e.Type == "" {
		return fmt.Sprintf("AgentEvent: %s %s", e.Field, e.Reason)
	}
	return fmt.Sprintf("AgentEvent %s: %s %s", e.Type, e.Field, e.Reason)
}

// Decode returns the AgentEvent in one line of JSON. Errors: *SyntaxError,
// *FieldError. The event shares no memory with line.
//
//	{"type":"delta","content":"Hello","producer_seq":7}
func Decode(line []byte) (Event, error) {
	if !utf8.Valid(line) {
		return Event{}, &SyntaxError{errors.New("it is not UTF-8")}
	}
	if tooDeep(line, MaxDepth) {
		return Event{}, &FieldError{Field: "the event", Reason: ErrTooDeep.Error()}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return Event{}, &SyntaxError{err}
	}
	if members == nil {
		return Event{}, &SyntaxError{errors.New("null is not an object")}
	}
	d := decoder{members: members}
	e := d.event()
	if d.err != nil {
		return Event{}, d.err
	}
	if err := e.Check(); err != nil {
		return Event{}, err
	}
	return e, nil
}

// decoder reads members one by one and remembers the first fault. It knows JSON's
// types; what they may say is Check's.
type decoder struct {
	members map[string]json.RawMessage
	kind    Type
	err     error
}

func (d *decoder) event() Event {
	kind := Type(d.str("type", required))
	if d.err != nil {
		return Event{}
	}
	read, known := readers[kind]
	if !known {
		d.fail("type", fmt.Sprintf("%q is unknown", kind))
		return Event{}
	}
	d.kind = kind
	e := Event{Type: kind, OccurredAt: d.time("occurred_at"), TraceID: d.str("trace_id", optional),
		SpanID: d.str("span_id", optional), ProducerSeq: d.count("producer_seq")}
	if d.has("producer_seq") && e.ProducerSeq == 0 {
		d.fail("producer_seq", "counts from 1")
	}
	if d.has("cursor") {
		cursor := d.str("cursor", required)
		e.Cursor = &cursor
	}
	read(d, &e)
	return e
}

// readers take what is particular to each type.
var readers = map[Type]func(*decoder, *Event){
	StateChange: func(d *decoder, e *Event) { e.State = d.str("state", required) },
	Delta:       (*decoder).delta,
	ToolCall: func(d *decoder, e *Event) {
		e.ToolName, e.ToolCallID = d.str("tool_name", required), d.str("tool_call_id", required)
		e.ParentToolCallID, e.External = d.str("parent_tool_call_id", optional), d.flag("external")
		e.ToolArgs = d.raw("tool_args", optional)
	},
	ToolResult: func(d *decoder, e *Event) {
		e.ToolName, e.ToolCallID = d.str("tool_name", required), d.str("tool_call_id", required)
		e.ToolResult, e.IsError = d.raw("tool_result", required), d.flag("is_error")
		e.Usage = d.raw("usage", optional)
	},
	Artifact: func(d *decoder, e *Event) { e.Artifact = d.raw("artifact", required) },
	Done: func(d *decoder, e *Event) {
		e.Answer, e.Usage = d.unicode("answer", optional), d.raw("usage", optional)
	},
	Error: func(d *decoder, e *Event) {
		e.ErrorCode, e.ErrorMessage = d.str("error_code", required), d.str("error_message", required)
		e.Retryable, e.Usage = d.flag("retryable"), d.raw("usage", optional)
	},
}

func (d *decoder) delta(e *Event) {
	e.BlockType, e.BlockID = d.str("block_type", optional), d.str("block_id", optional)
	e.Author, e.ParentToolCallID = d.str("author", optional), d.str("parent_tool_call_id", optional)
	e.Usage = d.raw("usage", optional)
	structured := e.BlockType != "" && e.Structured()
	e.Content = d.unicode("content", !structured)
	if structured || d.has("block") {
		e.Block = d.raw("block", structured)
	}
}

const (
	optional = false
	required = true
)

func (d *decoder) fail(field, reason string) {
	if d.err == nil {
		d.err = &FieldError{Type: d.kind, Field: field, Reason: reason}
	}
}

// has reports whether a member is given; null counts as absent.
func (d *decoder) has(field string) bool {
	v, ok := d.members[field]
	return ok && string(v) != "null"
}

func (d *decoder) unicode(field string, need bool) Unicode {
	v, ok := d.members[field]
	switch {
	case !ok && need:
		d.fail(field, "is missing")
	case ok && v[0] == '"':
		return Unquote(v)
	case d.has(field) || ok && need:
		d.fail(field, "must be a string")
	}
	return ""
}

func (d *decoder) str(field string, need bool) string { return d.unicode(field, need).String() }

func (d *decoder) flag(field string) bool {
	if !d.has(field) {
		return false
	}
	switch string(d.members[field]) {
	case "true":
		return true
	case "false":
	default:
		d.fail(field, "must be true or false")
	}
	return false
}

// count reads a whole number that every reader keeps exact; absent is 0.
func (d *decoder) count(field string) uint64 {
	if !d.has(field) {
		return 0
	}
	n, err := strconv.ParseUint(string(d.members[field]), 10, 64)
	if err != nil || n > maxCount {
		d.fail(field, "must be a whole number from 0 to 2^53-1")
	}
	return n
}

func (d *decoder) time(field string) time.Time {
	if !d.has(field) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, d.str(field, required))
	switch {
	case err != nil:
		d.fail(field, "must be an RFC 3339 time")
	case t.IsZero(): // the first moment of year 1, which must not mean absent
		t = t.Add(1)
	}
	return t
}

// raw returns a value as it is given; Check brings it into its stored form.
func (d *decoder) raw(field string, need bool) json.RawMessage {
	v, ok := d.members[field]
	if !ok && need {
		d.fail(field, "is missing")
	}
	if !need && string(v) == "null" {
		return nil
	}
	return v
}
