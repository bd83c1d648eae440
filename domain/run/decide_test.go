package run_test

import (
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
		d, err := s.state.Decide(&e, run.Origin{}, noon, limit)
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

// said is what the events of one type say.
func said[P run.Payload](t testing.TB, facts []run.Event) (all []P) {
	t.Helper()
	for i := range facts {
		p, err := run.DecodePayload(facts[i].Type, facts[i].Payload)
		if err != nil {
			t.Fatal(err)
		}
		if one, ok := p.(P); ok {
			all = append(all, one)
		}
	}
	return all
}

func TestMessageAndEnd(t *testing.T) {
	given(t, text("a"), `{"type":"done","answer":"given"}`).then(message, deltaFact(0, `"delta":"a"`),
		`message.completed {"message_id":"message_1","content":"given","content_checksum":`+sum("given")+`}`,
		`run.completed {"message_id":"message_1"}`)
	given(t, text("a<&>"), `{"type":"delta","content":"think","block_type":"reasoning"}`, text("\u2028b"), done).then(
		message, deltaFact(0, `"delta":"a<&>"`), deltaFact(1, `"block_type":"reasoning","delta":"think"`), deltaFact(2, `"delta":"\u2028b"`),
		"message.completed {\"message_id\":\"message_1\",\"content\":\"a<&>\\u2028b\",\"content_checksum\":"+sum("a<&>\u2028b")+"}",
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
		"unnumbered, open, another tool":  {[]string{open, call("a", "u", `{"x":1}`)}, 2},
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
			if f.Type == run.TypeToolCallStarted {
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

// Two tools under one id: each result goes to the call of its tool.
func TestResultsGoToTheCallOfTheirTool(t *testing.T) {
	given(t, call("x", "search", "{}"), call("x", "fetch", "{}"), result("x", "fetch", `"F"`), result("x", "other", `"S"`)).then(
		started("x", "search", "{}", ""), started("x~2", "fetch", "{}", ""),
		completed("x~2", "fetch", `"F"`, sum("F"), "false"), completed("x", "other", `"S"`, sum("S"), "false"))
}

// Messages that stream at the same time keep their texts apart, and the answer
// is their texts by index.
func TestBlocksThatStreamAtOnce(t *testing.T) {
	in := func(block, kind, content string) string {
		return fmt.Sprintf(`{"type":"delta","block_id":%q,"block_type":%q,"content":%q}`, block, kind, content)
	}
	delta := func(index int, kind, block, content string) string {
		if kind != "" {
			kind = fmt.Sprintf(`"block_type":%q,`, kind)
		}
		return deltaFact(index, fmt.Sprintf(`%s"block_id":%q,"delta":%q`, kind, block, content))
	}
	given(t, in("m1", "text", "a"), in("m2", "text", "x"), in("m1", "text", "b"), in("m1", "reasoning", "why"),
		`{"type":"delta","block_id":"sub","block_type":"nested","content":"n","author":"researcher","parent_tool_call_id":"c"}`,
		numbered(call("c", "t", "{}"), 1), in("m2", "text", "y"), text("z"), in("m1", "text", "c"), done).then(
		message, delta(0, "", "m1", "a"), delta(1, "", "m2", "x"), delta(0, "", "m1", "b"), delta(2, "reasoning", "m1", "why"),
		deltaFact(3, `"block_type":"nested","block_id":"sub","delta":"n","author":"researcher","parent_tool_call_id":"c"`),
		`tool.call.started {"message_id":"message_1","tool_call_id":"c","tool_name":"t","arguments":{}}`,
		delta(1, "", "m2", "y"), deltaFact(4, `"delta":"z"`), delta(0, "", "m1", "c"),
		`tool.call.completed {"message_id":"message_1","tool_call_id":"c","tool_name":"t","result":null,"result_checksum":`+null+`,"is_error":true,"synthesized":true}`,
		`message.completed {"message_id":"message_1","content":"abcxyz","content_checksum":`+sum("abcxyz")+`}`, `run.completed {"message_id":"message_1"}`)
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
	s.when(done)
	ended := said[*run.MessageCompleted](t, s.facts)[0]
	if !ended.Truncated || !strings.HasPrefix(whole, ended.Content) || len(ended.Content) < 40_000 || ended.ContentChecksum != run.Checksum([]byte(whole)) {
		t.Errorf("truncated %v, %d bytes kept, checksum %s", ended.Truncated, len(ended.Content), ended.ContentChecksum)
	}
	// An answer that the deltas do not hold must not be cut.
	var large *run.TooLargeError
	e := agent.Event{Type: agent.Done, Answer: agent.Unicode(strings.Repeat("y", 2*limit))}
	if _, err := given(t).state.Decide(&e, run.Origin{}, noon, limit); !errors.As(err, &large) {
		t.Errorf("%v", err)
	}
}
