package run_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// Calls may be open up to a number that is told, and whatever is open the run
// can be ended.
func TestTheEndAlwaysFits(t *testing.T) {
	for _, name := range []string{"t", strings.Repeat("n", 1024)} {
		s := given(t)
		var many *run.TooManyCallsError
		opened := 0
		for i := 0; ; i++ {
			e := agent.Event{Type: agent.ToolCall, ToolCallID: fmt.Sprint(i), ToolName: name, ToolArgs: []byte("{}")}
			d, err := s.state.Decide(&e, run.Origin{}, noon, limit)
			if errors.As(err, &many) {
				break
			}
			s.by(d, err)
			opened++
		}
		if opened != many.Open || name == "t" && opened != 512 || opened < 250 {
			t.Errorf("%d calls were opened, %d are told", opened, many.Open)
		}
		s.when(text("still"), done)
	}
}

// A long delta is several events of one append, each within its bound, cut
// between characters; the last tells whose it was, and what it used.
func TestLongDeltasAreSplit(t *testing.T) {
	whole := strings.Repeat("é\n\u2028\U0001F600", 5000)
	e := agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(whole), ProducerSeq: 1, Usage: []byte(`{"output_tokens":3}`)}
	s := given(t)
	s.by(s.state.Decide(&e, run.Origin{}, noon, limit))
	var content strings.Builder
	for i, p := range said[*run.MessageDelta](t, s.facts) {
		content.WriteString(p.Delta)
		last := i+3 == len(s.facts)
		if n := agent.JSONLen(p.Delta); n > 16<<10 || p.ContentIndex != 0 || (p.Usage != nil) != last || (s.facts[i+2].Source != nil) != last {
			t.Errorf("piece %d: %d bytes at %d, usage %s", i, n, p.ContentIndex, p.Usage)
		}
	}
	if content.String() != whole || len(s.facts) < 5 {
		t.Errorf("%d events, %d bytes", len(s.facts), content.Len())
	}
}

// No line of an event is longer than line readers take, however its texts escape.
func TestLinesFitLineReaders(t *testing.T) {
	odd := func(n int) string { return strings.Repeat("\x01", n/6) }
	state, facts := run.Begin(run.Start{ID: run.ID(strings.Repeat("r", 64)), AgentID: odd(768), Runtime: "push", ThreadID: odd(1536), Owner: odd(128)}, noon)
	s := &scenario{t: t, state: state, facts: state.Seal(facts, "n")}
	cursor := odd(4096)
	value := []byte(`"` + strings.Repeat("v", 48<<10) + `"`) // what may stand inline by default
	usage := []byte(`{"model":"` + strings.Repeat("m", 1000) + `"}`)
	for _, e := range []agent.Event{
		{Type: agent.Delta, Content: agent.Unicode(odd(600_000)), BlockID: odd(1024), Author: odd(1024), ParentToolCallID: odd(1024), Usage: usage},
		{Type: agent.ToolCall, ToolCallID: odd(1024), ToolName: odd(1024), ParentToolCallID: odd(1024), ToolArgs: value},
		{Type: agent.ToolResult, ToolCallID: odd(1024), ToolName: odd(1024), ToolResult: value, Usage: usage},
		{Type: agent.Delta, BlockType: odd(128), Block: value, BlockID: odd(1024), Author: odd(1024), Usage: usage},
		{Type: agent.Done, Usage: usage},
	} {
		e.Cursor, e.TraceID, e.SpanID = &cursor, odd(128), odd(128)
		if err := e.Check(); err != nil {
			t.Fatal(err)
		}
		s.by(s.state.Decide(&e, run.Origin{Producer: odd(768), RequestID: odd(128)}, noon, limit))
	}
	for i := range s.facts {
		for _, line := range [][]byte{s.facts[i].Client(), s.facts[i].Envelope()} {
			if len("data: ")+len(line) > run.MaxLine {
				t.Errorf("%s: a line of %d bytes", s.facts[i].Type, len(line))
			}
		}
	}
	if !s.state.Terminal() {
		t.Error("not ended")
	}
}

// Readers break lines at more characters than LF: none stands in an event.
func TestNoCharacterBreaksALine(t *testing.T) {
	s := given(t, `{"type":"delta","content":"a\u2028\u2029\u0085"}`, `{"type":"tool_call","tool_name":"\u2028","tool_call_id":"c","tool_args":{"\u2029":"`+"\u0085"+`"}}`,
		`{"type":"artifact","artifact":{"`+"\u2028"+`":1}}`, done)
	for i := range s.facts {
		if line := string(s.facts[i].Envelope()); strings.ContainsAny(line, "\u0085\u2028\u2029\n\r") {
			t.Errorf("%s", line)
		}
	}
	if p := said[*run.ArtifactCreated](t, s.facts)[0]; p.Members[0].Key != "\u2028" {
		t.Errorf("%q", p.Members)
	}
}
