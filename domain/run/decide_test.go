package run_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

const limit = 1_000_000

var noon = time.Date(2026, 9, 7, 12, 0, 0, 123456789, time.UTC)

// scenario is a run that AgentEvents are put to, one by one.
type scenario struct {
	t     *testing.T
	state *run.State
	facts []run.Event
}

func given(t *testing.T, lines ...string) *scenario {
	t.Helper()
	state, started := run.Begin(run.Start{ID: "run_1", AgentID: "a", Runtime: "push"}, noon)
	s := &scenario{t: t, state: state, facts: state.Seal(started, "n")}
	s.when(lines...)
	return s
}

func (s *scenario) when(lines ...string) *scenario {
	s.t.Helper()
	for _, line := range lines {
		e, err := agent.Decode([]byte(line))
		if err != nil {
			s.t.Fatal(err)
		}
		d, err := s.state.Decide(&e, "", noon, limit)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		s.state.Take(d)
		s.facts = append(s.facts, s.state.Seal(d.Candidates, "n")...)
	}
	return s
}

// then compares the facts behind run.started, each as its type and payload.
func (s *scenario) then(want ...string) {
	s.t.Helper()
	var got []string
	for _, f := range s.facts[1:] {
		got = append(got, f.Type+" "+string(f.Payload))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		s.t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Shorthands of AgentEvents.
func text(content string) string { return fmt.Sprintf(`{"type":"delta","content":%q}`, content) }
func call(id, name, args string) string {
	return fmt.Sprintf(`{"type":"tool_call","tool_call_id":%q,"tool_name":%q,"tool_args":%s}`, id, name, args)
}
func result(id, name, value string) string {
	return fmt.Sprintf(`{"type":"tool_result","tool_call_id":%q,"tool_name":%q,"tool_result":%s}`, id, name, value)
}
func numbered(line string, n int) string {
	return strings.TrimSuffix(line, "}") + fmt.Sprintf(`,"producer_seq":%d}`, n)
}

const (
	done    = `{"type":"done"}`
	message = `message.started {"message_id":"message_1","role":"assistant"}`
	null    = `"sha256:74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"` // of null
	empty   = `"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"` // of nothing
)

func sum(text string) string { return `"` + run.Checksum([]byte(text)) + `"` }

func deltaFact(index int, rest string) string {
	return fmt.Sprintf(`message.delta {"message_id":"message_1","content_index":%d,%s}`, index, rest)
}
func started(id, name, args, more string) string {
	return fmt.Sprintf(`tool.call.started {"tool_call_id":%q,"tool_name":%q,"arguments":%s%s}`, id, name, args, more)
}
func completed(id, name, value, checksum, more string) string {
	return fmt.Sprintf(`tool.call.completed {"tool_call_id":%q,"tool_name":%q,"result":%s,"result_checksum":%s,"is_error":%s}`, id, name, value, checksum, more)
}

func TestMessageAndEnd(t *testing.T) {
	given(t, text("a"), `{"type":"done","answer":"given"}`).then(message, deltaFact(0, `"delta":"a"`),
		`message.completed {"message_id":"message_1","content":"given","content_checksum":`+sum("given")+`}`,
		`run.completed {"message_id":"message_1"}`)
	given(t, text("a<&>"), `{"type":"delta","content":"think","block_type":"reasoning"}`, text("\u2028b"), done).then(
		message, deltaFact(0, `"delta":"a<&>"`), deltaFact(1, `"block_type":"reasoning","delta":"think"`), deltaFact(2, "\"delta\":\"\u2028b\""),
		"message.completed {\"message_id\":\"message_1\",\"content\":\"a<&>\u2028b\",\"content_checksum\":"+sum("a<&>\u2028b")+"}",
		`run.completed {"message_id":"message_1"}`)
	given(t, done).then(message, `message.completed {"message_id":"message_1","content":"","content_checksum":`+empty+`}`,
		`run.completed {"message_id":"message_1"}`)
	given(t, text("a"), `{"type":"error","error_code":"c","error_message":"m","retryable":true}`).then(message, deltaFact(0, `"delta":"a"`),
		`run.failed {"error":{"code":"c","message":"m","retryable":true}}`)
	given(t, `{"type":"state_change","state":"x"}`).then()
}

func TestPairing(t *testing.T) {
	given(t, result("a", "lost", `"1"`)).then(started("a", "lost", "null", `,"synthesized":true`), completed("a", "lost", `"1"`, sum("1"), "false"))
	given(t, call("a", "t", `{"x":1}`), `{"type":"error","error_code":"c","error_message":"m"}`).then(
		started("a", "t", `{"x":1}`, ""), completed("a", "t", "null", null, `true,"synthesized":true`),
		`run.failed {"error":{"code":"c","message":"m","retryable":false}}`)
	// The first start after a synthesized one is a duplicate, whatever it says; the next is a call.
	given(t, result("a", "t", `{"b":1.0}`), numbered(call("a", "t", `{"x":1}`), 2), numbered(call("a", "t", `{"x":1}`), 3)).then(
		started("a", "t", "null", `,"synthesized":true`), completed("a", "t", `{"b":1.0}`, sum(`{"b":1.0}`), "false"),
		started("a~2", "t", `{"x":1}`, ""))
	given(t, call("a", "t", `{}`), result("a", "t", `1`), result("a", "t", `2`)).then(started("a", "t", `{}`, ""), completed("a", "t", "1", sum("1"), "false"))
}

func TestRepeatedStarts(t *testing.T) {
	open, closed := call("a", "t", `{"x":1}`), result("a", "t", "1")
	other := call("a", "t", `{"x":2}`)
	for name, c := range map[string]struct {
		lines []string
		calls int
	}{
		"unnumbered, open, the same":      {[]string{open, open}, 1},
		"unnumbered, open, another":       {[]string{open, other}, 1},
		"unnumbered, closed, the same":    {[]string{open, closed, open}, 1},
		"unnumbered, closed, another":     {[]string{open, closed, other}, 2},
		"unnumbered, an earlier one":      {[]string{open, closed, other, result("a", "t", "2"), open}, 2},
		"numbered, open, the same":        {[]string{numbered(open, 1), numbered(open, 2)}, 1},
		"numbered, open, another":         {[]string{numbered(open, 1), numbered(other, 2)}, 2},
		"numbered, closed, the same":      {[]string{numbered(open, 1), closed, numbered(open, 2)}, 2},
		"numbered, open, another by name": {[]string{numbered(open, 1), numbered(call("a", "u", `{"x":1}`), 2)}, 2},
	} {
		calls := 0
		for _, f := range given(t, c.lines...).facts {
			if f.Type == run.ToolCallStarted {
				calls++
			}
		}
		if calls != c.calls {
			t.Errorf("%s: %d calls, want %d", name, calls, c.calls)
		}
	}
}

func TestReusedIDs(t *testing.T) {
	given(t, numbered(call("c", "t", "1"), 1), numbered(call("c", "t", "2"), 2), result("c", "t", `"first"`), result("c", "t", `"second"`)).then(
		started("c", "t", "1", ""), started("c~2", "t", "2", ""),
		completed("c", "t", `"first"`, sum("first"), "false"), completed("c~2", "t", `"second"`, sum("second"), "false"))
	// The outside answers the canonical id; parents are translated.
	given(t, numbered(call("c", "t", "1"), 1), result("c", "t", "1"), numbered(call("c", "t", "2"), 2),
		`{"type":"tool_call","tool_call_id":"d","tool_name":"u","parent_tool_call_id":"c"}`, result("c~2", "t", "2")).then(
		started("c", "t", "1", ""), completed("c", "t", "1", sum("1"), "false"), started("c~2", "t", "2", ""),
		started("d", "u", "{}", `,"parent_tool_call_id":"c~2"`), completed("c~2", "t", "2", sum("2"), "false"))
	// A runtime's own id may look like ours.
	given(t, numbered(call("c~2", "t", "1"), 1), numbered(call("c", "t", "2"), 2), result("c~2", "t", "1"), result("c", "t", "2")).then(
		started("c~2", "t", "1", ""), started("c", "t", "2", ""),
		completed("c~2", "t", "1", sum("1"), "false"), completed("c", "t", "2", sum("2"), "false"))
}

func TestContentIndex(t *testing.T) {
	card := `{"type":"delta","block_type":"card","block":{"a": 1}}`
	given(t, call("c", "t", "{}"), text("a"), text("b"), card, card, text("c"), result("c", "t", "1"), text("d"), numbered(call("c", "t", "{}"), 1), text("e")).then(
		started("c", "t", "{}", ""), message, deltaFact(0, `"delta":"a"`), deltaFact(0, `"delta":"b"`),
		deltaFact(1, `"block_type":"card","delta":"","block":{"a":1}`), deltaFact(2, `"block_type":"card","delta":"","block":{"a":1}`),
		deltaFact(3, `"delta":"c"`),
		`tool.call.completed {"message_id":"message_1","tool_call_id":"c","tool_name":"t","result":1,"result_checksum":`+sum("1")+`,"is_error":false}`,
		deltaFact(3, `"delta":"d"`),
		`tool.call.started {"message_id":"message_1","tool_call_id":"c~2","tool_name":"t","arguments":{}}`, deltaFact(4, `"delta":"e"`))
}

func TestArtifacts(t *testing.T) {
	artifact := func(members string) string { return `{"type":"artifact","artifact":{` + members + `}}` }
	given(t, artifact(`"name":"r.md","size":3,"extra": [1.0, 9007199254740993]`), artifact(`"artifact_id":"artifact_3"`), artifact(``), text("x"),
		artifact(`"message_id":"theirs","name":"a","name":"b"`)).then(
		`artifact.created {"artifact_id":"artifact_1","name":"r.md","size":3,"extra":[1.0,9007199254740993]}`,
		`artifact.created {"artifact_id":"artifact_3"}`, `artifact.created {"artifact_id":"artifact_4"}`,
		message, deltaFact(0, `"delta":"x"`), `artifact.created {"artifact_id":"artifact_5","message_id":"message_1","name":"b"}`)
}

func TestLongAnswers(t *testing.T) {
	big := strings.Repeat("é\n", 200_000)
	s := given(t)
	for range 4 {
		s.when(text(big))
	}
	whole := strings.Repeat(big, 4)
	var ended run.Payload
	s.when(done)
	for _, f := range s.facts {
		if f.Type == run.MessageCompleted {
			if err := json.Unmarshal(f.Payload, &ended); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !ended.Truncated || !strings.HasPrefix(whole, ended.Content) || len(ended.Content) < limit/2 || ended.ContentChecksum != run.Checksum([]byte(whole)) {
		t.Errorf("truncated %v, %d bytes kept, checksum %s", ended.Truncated, len(ended.Content), ended.ContentChecksum)
	}
	// An answer that the deltas do not hold must not be cut.
	var large *run.TooLargeError
	e := agent.Event{Type: agent.Done, Answer: agent.Unicode(strings.Repeat("y", 2*limit))}
	if _, err := given(t).state.Decide(&e, "", noon, limit); !errors.As(err, &large) {
		t.Errorf("%v", err)
	}
}

func TestTheEndAlwaysFits(t *testing.T) {
	s := given(t)
	var large *run.TooLargeError
	opened := 0
	for i := 0; ; i++ {
		e := agent.Event{Type: agent.ToolCall, ToolCallID: fmt.Sprint(i), ToolName: "t", ToolArgs: []byte("{}")}
		d, err := s.state.Decide(&e, "", noon, limit)
		if errors.As(err, &large) {
			break
		}
		s.state.Take(d)
		opened++
	}
	if opened < 100 {
		t.Errorf("only %d calls may be open", opened)
	}
	s.when(done)
}

func TestAdmit(t *testing.T) {
	s := given(t, numbered(text("a"), 1), numbered(text("b"), 2))
	for _, c := range []struct {
		number, received uint64
		next             uint64 // of the gap; 0: none
		err              error
	}{{0, 0, 0, nil}, {1, 0, 0, run.ErrDuplicate}, {2, 9, 0, run.ErrDuplicate}, {3, 0, 0, nil}, {4, 0, 3, nil}, {4, 3, 0, nil}, {6, 4, 5, nil}} {
		err := s.state.Admit("", c.number, c.received)
		var gap *run.GapError
		if errors.As(err, &gap) != (c.next != 0) || c.next != 0 && gap.Next != c.next || c.next == 0 && !errors.Is(err, c.err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	var gap *run.GapError
	if err := s.state.Admit("other", 2, 0); !errors.As(err, &gap) || gap.Next != 1 {
		t.Errorf("another producer: %v", err)
	}
	s.when(numbered(done, 3))
	var ended *run.EndedError
	if err := s.state.Admit("", 3, 0); !errors.Is(err, run.ErrDuplicate) {
		t.Errorf("the end again: %v", err)
	}
	if err := s.state.Admit("", 9, 0); !errors.As(err, &ended) || ended.Status != run.Completed {
		t.Errorf("after the end: %v", err)
	}
}

func TestMerging(t *testing.T) {
	delta := func(text, block, trace, producer string, seq uint64) run.Candidate {
		return run.Candidate{Type: run.MessageDelta, TraceID: trace, Source: &run.Source{Producer: producer, Seq: seq},
			Payload: run.Payload{MessageID: "m", Delta: text, BlockType: block}}
	}
	structured := delta("", "card", "", "", 1)
	structured.Payload.Block = []byte("{}")
	long := strings.Repeat("x", 16<<10)
	for name, c := range map[string]struct {
		a, b   run.Candidate
		merged bool
	}{
		"alike":            {delta("a", "", "", "", 1), delta("b", "", "", "", 2), true},
		"both unnumbered":  {delta("a", "", "", "", 0), delta("b", "", "", "", 0), true},
		"one numbered":     {delta("a", "", "", "", 0), delta("b", "", "", "", 2), false},
		"another block":    {delta("a", "", "", "", 1), delta("b", "reasoning", "", "", 2), false},
		"another trace":    {delta("a", "", "x", "", 1), delta("b", "", "y", "", 2), false},
		"another producer": {delta("a", "", "", "p", 1), delta("b", "", "", "q", 2), false},
		"structured":       {structured, structured, false},
		"to the limit":     {delta(long[1:], "", "", "", 1), delta("b", "", "", "", 2), true},
		"over the limit":   {delta(long, "", "", "", 1), delta("b", "", "", "", 2), false},
	} {
		got := run.Join([]run.Candidate{c.a}, []run.Candidate{c.b})
		if (len(got) == 1) != c.merged {
			t.Errorf("%s: %d events", name, len(got))
		}
		if c.merged && (got[0].Payload.Delta != c.a.Payload.Delta+c.b.Payload.Delta || got[0].Source.Seq != c.b.Source.Seq) {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
}
