package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
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
		return Event{}, &SyntaxError{fmt.Errorf("it is not UTF-8")}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return Event{}, &SyntaxError{err}
	}
	if members == nil {
		return Event{}, &SyntaxError{fmt.Errorf("null is not an object")}
	}
	d := decoder{members: members}
	e := d.event()
	if d.err != nil {
		return Event{}, d.err
	}
	return e, nil
}

// decoder reads members one by one and remembers the first fault.
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
		e.ToolName, e.ToolCallID = d.str("tool_name", required), d.filled("tool_call_id")
		e.ParentToolCallID, e.External = d.str("parent_tool_call_id", optional), d.flag("external")
		if e.ToolArgs = d.raw("tool_args", optional); e.ToolArgs == nil {
			e.ToolArgs = json.RawMessage("{}")
		}
	},
	ToolResult: func(d *decoder, e *Event) {
		e.ToolName, e.ToolCallID = d.str("tool_name", required), d.filled("tool_call_id")
		e.ToolResult, e.IsError = d.raw("tool_result", required), d.flag("is_error")
	},
	Artifact: (*decoder).artifact,
	Done:     func(d *decoder, e *Event) { e.Answer = d.unicode("answer", optional) },
	Error: func(d *decoder, e *Event) {
		e.ErrorCode, e.ErrorMessage = d.filled("error_code"), d.str("error_message", required)
		e.Retryable = d.flag("retryable")
	},
}

func (d *decoder) delta(e *Event) {
	if e.BlockType = d.str("block_type", optional); e.BlockType == "" {
		e.BlockType = Text
	}
	if !e.Structured() {
		e.Content = d.unicode("content", required)
		if d.has("block") {
			d.fail("block", "needs a structured block_type")
		}
		return
	}
	if d.unicode("content", optional) != "" {
		d.fail("content", "must be empty beside a structured block")
	}
	e.Block = d.raw("block", required)
}

// artifact checks the members that have a meaning and keeps the others.
func (d *decoder) artifact(e *Event) {
	e.Artifact = d.raw("artifact", required)
	if d.err != nil {
		return
	}
	inner := decoder{kind: d.kind}
	if err := json.Unmarshal(e.Artifact, &inner.members); err != nil || inner.members == nil {
		d.fail("artifact", "must be an object")
		return
	}
	for _, name := range []string{"name", "media_type", "checksum", "url"} {
		inner.str(name, optional)
	}
	if inner.has("artifact_id") {
		inner.filled("artifact_id")
	}
	inner.size("size")
	if d.err == nil {
		d.err = inner.err
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

// Bounds of names, in bytes: they stand in every envelope, or come again in
// what closes a call.
const (
	maxName   = 1024
	maxTrace  = 128
	maxCursor = 4096
)

func bound(field string) int {
	switch field {
	case "trace_id", "span_id":
		return maxTrace
	case "cursor":
		return maxCursor
	case "error_message", "url":
		return math.MaxInt
	}
	return maxName
}

func (d *decoder) str(field string, need bool) string {
	text := d.unicode(field, need).String()
	if len(text) > bound(field) {
		d.fail(field, fmt.Sprintf("must not be longer than %d bytes", bound(field)))
	}
	return text
}

func (d *decoder) filled(field string) string {
	text := d.str(field, required)
	if text == "" {
		d.fail(field, "must not be empty")
	}
	return text
}

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

func (d *decoder) size(field string) uint64 {
	if !d.has(field) {
		return 0
	}
	n, err := strconv.ParseUint(string(d.members[field]), 10, 63)
	if err != nil {
		d.fail(field, "must be a whole number, at least 0")
	}
	return n
}

func (d *decoder) count(field string) uint64 {
	n := d.size(field)
	if d.has(field) && n == 0 {
		d.fail(field, "counts from 1")
	}
	return n
}

func (d *decoder) time(field string) time.Time {
	if !d.has(field) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, d.str(field, required))
	if err != nil {
		d.fail(field, "must be an RFC 3339 time")
	}
	return t.UTC()
}

// raw returns a value to the letter, white space aside.
func (d *decoder) raw(field string, need bool) json.RawMessage {
	v, ok := d.members[field]
	if !ok || !need && string(v) == "null" {
		if need {
			d.fail(field, "is missing")
		}
		return nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, v); err != nil {
		d.fail(field, "cannot be read")
	}
	return b.Bytes()
}
