package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Bounds of texts that stand in an event's line beside its value, in bytes as
// JSON: together with what a line takes besides they leave room for a value of
// the default inline limit in the 65,535 bytes that line readers take.
const (
	maxName   = 1024 // names and ids
	maxTrace  = 128
	maxCursor = 4096
	maxURL    = 8192
	maxKind   = 128 // a block's type
)

// maxCount is the largest whole number that every JSON reader, and the chain's
// canonical form (RFC 8785), keeps exact.
const maxCount = 1<<53 - 1

// Check is the gate that every AgentEvent passes, decoded or made by a runner:
// what it lets in can be read back, for ever, by every reader (protocol section
// 2). It brings raw values into their stored form, fills in what may be absent
// and puts times into UTC. The error is a *FieldError.
func (e *Event) Check() error {
	g := gate{kind: e.Type}
	e.OccurredAt = g.time(e.OccurredAt)
	g.text("trace_id", &e.TraceID, maxTrace, optional)
	g.text("span_id", &e.SpanID, maxTrace, optional)
	if e.ProducerSeq > maxCount {
		g.fail("producer_seq", "is too large")
	}
	if e.Cursor != nil {
		cursor := *e.Cursor
		g.text("cursor", &cursor, maxCursor, optional)
		e.Cursor = &cursor
	}
	switch e.Type {
	case StateChange:
		g.text("state", &e.State, maxName, optional)
	case Delta:
		e.checkDelta(&g)
	case ToolCall:
		e.checkCall(&g)
		if e.ToolArgs == nil {
			e.ToolArgs = json.RawMessage("{}")
		}
		g.raw("tool_args", &e.ToolArgs)
	case ToolResult:
		e.checkCall(&g)
		if e.ToolResult == nil {
			e.ToolResult = json.RawMessage("null")
		}
		g.raw("tool_result", &e.ToolResult)
		g.usage(&e.Usage)
	case Artifact:
		g.artifact(&e.Artifact)
	case Done:
		g.usage(&e.Usage)
	case Error:
		g.text("error_code", &e.ErrorCode, maxName, required)
		g.utf8(&e.ErrorMessage)
		g.usage(&e.Usage)
	default:
		g.kind = ""
		g.fail("type", fmt.Sprintf("%q is unknown", e.Type))
	}
	return g.err
}

func (e *Event) checkDelta(g *gate) {
	if e.BlockType == "" {
		e.BlockType = Text
	}
	g.text("block_type", &e.BlockType, maxKind, required)
	g.text("block_id", &e.BlockID, maxName, optional)
	g.text("author", &e.Author, maxName, optional)
	g.text("parent_tool_call_id", &e.ParentToolCallID, maxName, optional)
	g.usage(&e.Usage)
	switch {
	case e.Structured() && e.Content != "":
		g.fail("content", "must be empty beside a structured block")
	case e.Structured() && e.Block == nil:
		g.fail("block", "is missing")
	case e.Structured():
		g.raw("block", &e.Block)
	case e.Block != nil:
		g.fail("block", "needs a structured block_type")
	}
}

func (e *Event) checkCall(g *gate) {
	g.text("tool_name", &e.ToolName, maxName, optional)
	g.text("tool_call_id", &e.ToolCallID, maxName, required)
	g.text("parent_tool_call_id", &e.ParentToolCallID, maxName, optional)
}

// gate remembers the first fault.
type gate struct {
	kind Type
	err  error
}

func (g *gate) fail(field, reason string) {
	if g.err == nil {
		g.err = &FieldError{Type: g.kind, Field: field, Reason: reason}
	}
}

// inside notes the fault of a member of field.
func (g *gate) inside(field string, err error) {
	var fault *FieldError
	if errors.As(err, &fault) {
		g.fail(field+"."+fault.Field, fault.Reason)
	}
}

// utf8 makes a text what JSON can hold: a Go program may have put in anything.
func (g *gate) utf8(text *string) {
	if !utf8.ValidString(*text) {
		*text = Unicode(*text).String()
	}
}

func (g *gate) text(field string, text *string, most int, need bool) {
	g.utf8(text)
	switch {
	case need && *text == "":
		g.fail(field, "must not be empty")
	case JSONLen(*text) > most:
		g.fail(field, fmt.Sprintf("must not be longer than %d bytes as JSON", most))
	}
}

// time puts t into UTC, where its year must have four digits: RFC 3339 has no
// other.
func (g *gate) time(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	t = t.UTC()
	if year := t.Year(); year < 1 || year > 9999 {
		g.fail("occurred_at", "must be of a year from 1 to 9999, in UTC")
	}
	return t
}

func (g *gate) raw(field string, value *json.RawMessage) {
	compact, err := Compact(*value)
	switch {
	case errors.Is(err, ErrTooDeep):
		g.fail(field, err.Error())
	case err != nil:
		g.fail(field, "cannot be read")
	default:
		*value = compact
	}
}

// object returns the members of what must be an object.
func (g *gate) object(field string, value json.RawMessage) (members map[string]json.RawMessage) {
	if json.Unmarshal(value, &members) != nil || members == nil {
		g.fail(field, "must be an object")
	}
	return members
}

// artifact checks the members that have a meaning; the others are kept.
func (g *gate) artifact(value *json.RawMessage) {
	if *value == nil {
		g.fail("artifact", "is missing")
		return
	}
	g.raw("artifact", value)
	if g.err != nil {
		return
	}
	inner := decoder{kind: g.kind, members: g.object("artifact", *value)}
	for _, name := range []string{"name", "media_type", "checksum", "url", "artifact_id"} {
		text := inner.str(name, optional)
		most := maxName
		if name == "url" {
			most = maxURL
		}
		bound := gate{kind: g.kind}
		bound.text(name, &text, most, name == "artifact_id" && inner.has(name))
		g.inside("artifact", bound.err)
	}
	inner.count("size")
	g.inside("artifact", inner.err)
}
