package run_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// anyEvent draws AgentEvents whose ids and names collide as often as not.
func anyEvent(t *rapid.T) agent.Event {
	id := rapid.SampledFrom([]string{"x", "x~2", "y", "x~2~2", "~2"})
	e := agent.Event{TraceID: rapid.SampledFrom([]string{"", "t"}).Draw(t, "trace")}
	switch rapid.IntRange(0, 12).Draw(t, "kind") {
	case 0:
		e.Type, e.State = agent.StateChange, "s"
	case 1, 2, 3:
		e.Type, e.ToolCallID, e.ToolName = agent.ToolCall, id.Draw(t, "id"), rapid.SampledFrom([]string{"t", "u"}).Draw(t, "name")
		e.ToolArgs = json.RawMessage(rapid.SampledFrom([]string{"{}", "1"}).Draw(t, "args"))
		e.External, e.ParentToolCallID = rapid.Bool().Draw(t, "external"), rapid.SampledFrom([]string{"", "x"}).Draw(t, "parent")
	case 4, 5:
		e.Type, e.ToolCallID, e.ToolName = agent.ToolResult, id.Draw(t, "id"), "t"
		e.ToolResult = json.RawMessage(rapid.SampledFrom([]string{"null", `"r"`, `"\ud83d"`}).Draw(t, "result"))
	case 6:
		e.Type, e.Artifact = agent.Artifact, json.RawMessage(rapid.SampledFrom([]string{"{}", `{"artifact_id":"artifact_2"}`}).Draw(t, "artifact"))
	case 7:
		e.Type = agent.Done
	case 8:
		e.Type, e.BlockType, e.Block = agent.Delta, "card", json.RawMessage("{}")
	default:
		e.Type, e.BlockType = agent.Delta, rapid.SampledFrom([]string{agent.Text, agent.Text, agent.Reasoning}).Draw(t, "block")
		e.Content = agent.Unicode(rapid.SampledFrom([]string{"", "a", "\"\n\x00", "é\U0001F600", "\xed\xa0\xbd"}).Draw(t, "content"))
	}
	return e
}

// Any sequence of AgentEvents becomes a valid run, merged or not.
func TestAnySequenceIsAValidRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := run.Start{ID: "run_1", AgentID: "ä<", Runtime: "push"}
		live, first := run.Begin(start, noon) // merges, on forks
		plain, _ := run.Begin(start, noon)    // does not merge
		merged := live.Seal(first, "n0")
		unmerged := plain.Seal(first, "n0")
		marks := map[string]uint64{}
		for batch := range rapid.IntRange(1, 12).Draw(t, "batches") {
			fork := live.Fork()
			var waiting []run.Candidate
			size := 0
			for range rapid.IntRange(0, 6).Draw(t, "events") {
				e := anyEvent(t)
				producer := rapid.SampledFrom([]string{"", "p"}).Draw(t, "producer")
				if rapid.Bool().Draw(t, "numbered") {
					e.ProducerSeq = marks[producer] + 1
				}
				d, err := fork.Decide(&e, producer, noon, limit)
				if err != nil {
					if !fork.Terminal() {
						t.Fatalf("refused: %v", err)
					}
					continue
				}
				if e.ProducerSeq != 0 {
					marks[producer] = e.ProducerSeq
				}
				fork.Take(d)
				plain.Take(d)
				for i := range d.Candidates {
					size += d.Candidates[i].Size(fork)
				}
				unmerged = append(unmerged, plain.Seal(append([]run.Candidate(nil), d.Candidates...), fmt.Sprint(batch))...)
				waiting = run.Join(waiting, d.Candidates)
			}
			if rapid.IntRange(0, 3).Draw(t, "thrown away") == 0 {
				// Decided for nothing: neither log has it.
				plain = fold(t, merged)
				unmerged = append([]run.Event(nil), merged...)
				for producer := range marks {
					marks[producer] = live.Mark(producer)
				}
				if same(live, plain) != "" {
					t.Fatalf("a fork changed its base: %s", same(live, plain))
				}
				continue
			}
			sealed := fork.Seal(waiting, fmt.Sprint("m", batch))
			for i := range sealed {
				size -= len(sealed[i].Payload) + len(sealed[i].Metadata()) + len(sealed[i].Type)
			}
			if size < 0 {
				t.Fatalf("sizes were no upper bound: %d bytes over", -size)
			}
			merged = append(merged, sealed...)
			live.Adopt(fork)
		}
		valid(t, merged)
		valid(t, unmerged)
		a, b := fold(t, merged), fold(t, unmerged)
		if difference := same(a, b); difference != "" {
			t.Fatalf("merged and unmerged fold apart: %s", difference)
		}
		if difference := same(a, live); difference != "" {
			t.Fatalf("what was taken and what is folded differ: %s", difference)
		}
	})
}

func fold(t *rapid.T, events []run.Event) *run.State {
	var s run.State
	for i, e := range events {
		e.Seq = run.Seq(i + 1)
		if err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	return &s
}

// same asks two states the questions that decisions ask, by deciding.
func same(a, b *run.State) string {
	if a.Status() != b.Status() || a.Mark("") != b.Mark("") || a.Mark("p") != b.Mark("p") {
		return fmt.Sprintf("%s %d %d, %s %d %d", a.Status(), a.Mark(""), a.Mark("p"), b.Status(), b.Mark(""), b.Mark("p"))
	}
	for _, e := range []agent.Event{
		{Type: agent.Done},
		{Type: agent.Delta, BlockType: agent.Text, Content: "x"},
		{Type: agent.Artifact, Artifact: json.RawMessage("{}")},
		{Type: agent.ToolResult, ToolCallID: "x", ToolName: "t", ToolResult: json.RawMessage("1")},
		{Type: agent.ToolCall, ToolCallID: "y", ToolName: "t", ToolArgs: json.RawMessage("7"), ProducerSeq: 99, ParentToolCallID: "x~2"},
	} {
		x, _ := a.Decide(&e, "", noon, limit)
		y, _ := b.Decide(&e, "", noon, limit)
		if p, q := fmt.Sprintf("%+v", facts(x)), fmt.Sprintf("%+v", facts(y)); p != q && e.Type != agent.ToolCall {
			return p + "\n" + q
		}
	}
	return ""
}

func facts(d run.Decision) (out []string) {
	for i := range d.Candidates {
		payload, err := json.Marshal(d.Candidates[i].Payload)
		out = append(out, d.Candidates[i].Type, string(payload), fmt.Sprint(err))
	}
	return out
}

// valid is what must hold of any run's log.
func valid(t *rapid.T, events []run.Event) {
	opened, closed := map[string]bool{}, map[string]bool{}
	index, ended := uint64(0), false
	for i, e := range events {
		var p run.Payload
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			t.Fatalf("payload %q: %v", e.Payload, err)
		}
		if ended {
			t.Fatalf("%s behind the end", e.Type)
		}
		switch e.Type {
		case run.ToolCallStarted:
			if opened[p.ToolCallID] {
				t.Fatalf("call %q started twice", p.ToolCallID)
			}
			opened[p.ToolCallID] = true
		case run.ToolCallCompleted:
			if !opened[p.ToolCallID] || closed[p.ToolCallID] {
				t.Fatalf("call %q completed out of turn", p.ToolCallID)
			}
			closed[p.ToolCallID] = true
		case run.MessageDelta:
			if p.ContentIndex != index && p.ContentIndex != index+1 {
				t.Fatalf("content_index %d follows %d", p.ContentIndex, index)
			}
			index = p.ContentIndex
		}
		if ended = run.Terminal(e.Type); ended && len(opened) != len(closed) {
			t.Fatalf("%d calls, %d completed, at event %d", len(opened), len(closed), i)
		}
	}
}
