package run_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

func TestAMarkIsNotLoweredByWhatHasNoNumber(t *testing.T) {
	s := given(t, `{"type":"delta","content":"a","producer_seq":5}`, `{"type":"delta","content":"b"}`)
	if s.state.Mark("").Seq != 5 {
		t.Errorf("decided: %d", s.state.Mark(""))
	}
	var folded run.State
	for i := range s.facts {
		if err := folded.Apply(&s.facts[i]); err != nil {
			t.Fatal(err)
		}
	}
	if folded.Mark("").Seq != 5 {
		t.Errorf("folded: %d", folded.Mark(""))
	}
}

func TestParentsAreTranslated(t *testing.T) {
	s := given(t,
		`{"type":"tool_call","tool_name":"task","tool_call_id":"c","tool_args":{"n":1},"producer_seq":1}`,
		`{"type":"tool_result","tool_name":"task","tool_call_id":"c","tool_result":1,"producer_seq":2}`,
		`{"type":"tool_call","tool_name":"task","tool_call_id":"c","tool_args":{"n":2},"producer_seq":3}`,
		`{"type":"tool_call","tool_name":"sub","tool_call_id":"d","parent_tool_call_id":"c","producer_seq":4}`,
		`{"type":"tool_result","tool_name":"task","tool_call_id":"c","tool_result":2,"producer_seq":5}`,
		`{"type":"tool_call","tool_name":"late","tool_call_id":"e","parent_tool_call_id":"c","producer_seq":6}`,
		`{"type":"tool_call","tool_name":"odd","tool_call_id":"f","parent_tool_call_id":"nobody","producer_seq":7}`)
	for i, want := range map[int]string{4: `"c~2"`, 6: `"c~2"`, 7: `"nobody"`} {
		if p := string(s.facts[i].Payload); !strings.Contains(p, `"parent_tool_call_id":`+want) {
			t.Errorf("%s, want parent %s", p, want)
		}
	}
}

// What open calls reserve of an append is given back when they close.
func TestRoomIsFreedByCompletion(t *testing.T) {
	const small = 32 << 10
	s := given(t)
	put := func(line string) error {
		e, err := agent.Decode([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.state.Decide(&e, run.Origin{}, noon, small)
		if err == nil {
			s.state.Take(d)
			s.state.Seal(d.Candidates, "n")
		}
		return err
	}
	for n := range 200 {
		if err := put(fmt.Sprintf(`{"type":"tool_call","tool_name":"t","tool_call_id":"c%d"}`, n)); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		if err := put(fmt.Sprintf(`{"type":"tool_result","tool_name":"t","tool_call_id":"c%d","tool_result":1}`, n)); err != nil {
			t.Fatalf("result %d: %v", n, err)
		}
	}
	var large *run.TooManyCallsError
	open := 0
	for ; open < 200; open++ {
		if err := put(fmt.Sprintf(`{"type":"tool_call","tool_name":"t","tool_call_id":"o%d"}`, open)); errors.As(err, &large) {
			break
		}
	}
	if open == 200 {
		t.Error("open calls took more than an append can close")
	}
	if err := put(`{"type":"done"}`); err != nil {
		t.Errorf("closing %d calls: %v", open, err)
	}
}

// Size bounds what the store counts: payload, metadata and type.
func TestSizeIsAnUpperBound(t *testing.T) {
	odd := strings.Repeat("\x01é\"", 20)
	state, started := run.Begin(run.Start{ID: run.ID(strings.Repeat("r", 64)), AgentID: odd, Runtime: "push", ThreadID: odd,
		Owner: odd, Snapshot: run.Checksum(nil), RequestChecksum: run.Checksum(nil), Input: []byte(`"x"`)}, noon)
	check := func(c []run.Candidate) {
		t.Helper()
		var sizes []int
		for i := range c {
			sizes = append(sizes, c[i].Size(state))
		}
		for i, e := range state.Seal(c, strings.Repeat("n", 32)) {
			if stored := len(e.Payload) + len(e.Metadata()) + len(e.Type); stored > sizes[i] {
				t.Errorf("%s takes %d bytes, and at most %d by Size", e.Type, stored, sizes[i])
			}
		}
	}
	check(started)
	cursor := odd
	for _, e := range []agent.Event{
		{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(odd), TraceID: odd, SpanID: odd, ProducerSeq: 1<<53 - 1, Cursor: &cursor},
		{Type: agent.ToolCall, ToolCallID: odd, ToolName: odd, ToolArgs: []byte("{}")},
		{Type: agent.Done, Answer: agent.Unicode(odd), Cursor: &cursor},
	} {
		d, err := state.Decide(&e, run.Origin{Producer: odd}, noon, limit)
		if err != nil {
			t.Fatal(err)
		}
		state.Take(d)
		check(d.Candidates)
	}
}

// A text that is cut stays a beginning: nothing that comes later is put behind
// the gap.
func TestACutTextHasNoGap(t *testing.T) {
	whole := strings.Repeat("x", 1<<16-1) + "é" + "tail"
	s := given(t)
	for _, part := range []string{whole[:1<<15], whole[1<<15 : 1<<16-1], "é", "tail"} {
		e := agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(part)}
		d, err := s.state.Decide(&e, run.Origin{}, noon, 4<<20)
		if err != nil {
			t.Fatal(err)
		}
		s.state.Take(d)
		s.facts = append(s.facts, s.state.Seal(d.Candidates, "n")...)
	}
	d, err := s.state.Decide(&agent.Event{Type: agent.Done}, run.Origin{}, noon, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	p := d.Candidates[0].Payload.(*run.MessageCompleted)
	if !p.Truncated || !strings.HasPrefix(whole, p.Content) || len(p.Content) < 60_000 || p.ContentChecksum != run.Checksum([]byte(whole)) {
		t.Errorf("%d bytes, truncated %v, ends in %q", len(p.Content), p.Truncated, p.Content[len(p.Content)-6:])
	}
}
