package run_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// What a producer can say, drawn so that ids, names and blocks collide as often
// as not, and that what is given is named like what is ours.
var (
	anyID   = rapid.SampledFrom([]string{"x", "x~2", "y", "x~2~2", "~2", "\u2028\x01", "message_1", "artifact_1"})
	anyName = rapid.SampledFrom([]string{"t", "u", "", "a\"\\<"})
	anyText = rapid.SampledFrom([]string{"", "a", "\"\n\x00", "é\U0001F600", "\xed\xa0\xbd", "\u2028\u0085", strings.Repeat("long\x01", 6000)})
	anyKey  = rapid.SampledFrom([]string{"name", "media_type", "size", "checksum", "url", "message_id", "content", "error", "owner", "epoch", "reason",
		"Role", "delta", "arguments", "result", "full", "truncated", "evidence", "tool_call_id", "started_at", "usage", "labels", "block", "input",
		"run_id", "seq", "payload", "$correlationId", "", "\u2028", "é"})
	anyTime = rapid.Custom(func(t *rapid.T) time.Time {
		return rapid.SampledFrom([]time.Time{
			{}, noon, time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
			time.Date(2026, 3, 29, 2, 30, 0, 5, time.FixedZone("odd", 12345)), time.Date(1, 1, 1, 0, 0, 0, 0, time.FixedZone("west", -3600)),
		}).Draw(t, "time")
	})
)

// anyJSON draws a value, nested now and then.
func anyJSON(t *rapid.T, depth int) json.RawMessage {
	kind := rapid.IntRange(0, 7).Draw(t, "json")
	if depth == 0 {
		kind %= 6
	}
	switch kind {
	case 6:
		return json.RawMessage("[" + string(anyJSON(t, depth-1)) + " , " + string(anyJSON(t, depth-1)) + "]")
	case 7:
		return anyObject(t, depth-1, nil)
	}
	return json.RawMessage(rapid.SampledFrom([]string{"null", `"r"`, `"\ud83d"`, "9007199254740993", "-1.50e400", "\"\u2028\\u0000\"", "false", strings.Repeat("[", 200) + strings.Repeat("]", 200)}).Draw(t, "literal"))
}

func anyObject(t *rapid.T, depth int, fixed map[string]string) json.RawMessage {
	b := []byte("{")
	for key, value := range fixed {
		b = fmt.Appendf(b, "%q:%s,", key, value)
	}
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		key, err := json.Marshal(anyKey.Draw(t, "key"))
		if err != nil {
			t.Fatal(err)
		}
		b = append(append(append(append(b, key...), ':'), anyJSON(t, depth)...), ',')
	}
	if len(b) > 1 {
		b = b[:len(b)-1]
	}
	return append(b, '}')
}

// anyEvent draws an AgentEvent that the gate lets in.
func anyEvent(t *rapid.T) agent.Event {
	for {
		e := drawEvent(t)
		if e.Check() == nil {
			return e
		}
	}
}

func drawEvent(t *rapid.T) agent.Event {
	e := agent.Event{TraceID: rapid.SampledFrom([]string{"", "t", "\x01"}).Draw(t, "trace"), OccurredAt: anyTime.Draw(t, "at")}
	if rapid.IntRange(0, 3).Draw(t, "cursor") == 0 {
		cursor := rapid.SampledFrom([]string{"", "c", "\u2029\""}).Draw(t, "where")
		e.Cursor = &cursor
	}
	usage := func() json.RawMessage {
		if rapid.IntRange(0, 4).Draw(t, "used") > 0 {
			return nil
		}
		return json.RawMessage(rapid.SampledFrom([]string{"{}", `{"input_tokens": 3,"odd":[1.0]}`}).Draw(t, "usage"))
	}
	full := func() *agent.Full {
		if rapid.IntRange(0, 5).Draw(t, "kept") > 0 {
			return nil
		}
		return &agent.Full{Checksum: run.Checksum([]byte(anyID.Draw(t, "whole"))), Size: 5, MediaType: "text/plain"}
	}
	switch rapid.IntRange(0, 14).Draw(t, "kind") {
	case 0:
		e.Type, e.State = agent.StateChange, "s"
	case 1, 2, 3:
		e.Type, e.ToolCallID, e.ToolName = agent.ToolCall, anyID.Draw(t, "id"), anyName.Draw(t, "name")
		e.ToolArgs, e.Full = anyJSON(t, 2), full()
		e.External, e.ParentToolCallID = rapid.Bool().Draw(t, "external"), rapid.SampledFrom([]string{"", "x"}).Draw(t, "parent")
	case 4, 5:
		e.Type, e.ToolCallID, e.ToolName = agent.ToolResult, anyID.Draw(t, "id"), anyName.Draw(t, "name")
		e.ToolResult, e.Usage, e.Full, e.IsError = anyJSON(t, 2), usage(), full(), rapid.Bool().Draw(t, "failed")
	case 6, 7:
		e.Type, e.Stored, e.Full = agent.Artifact, rapid.Bool().Draw(t, "stored"), full()
		fixed := map[string]string{}
		if rapid.Bool().Draw(t, "named") {
			fixed["artifact_id"] = rapid.SampledFrom([]string{`"artifact_2"`, `"a"`, "null"}).Draw(t, "artifact")
		}
		e.Artifact = anyObject(t, 2, fixed)
	case 8:
		if rapid.IntRange(0, 2).Draw(t, "end") > 0 {
			e.Type, e.State = agent.StateChange, "not yet"
			return e
		}
		e.Type, e.Usage, e.Answer, e.Full = agent.Done, usage(), agent.Unicode(anyText.Draw(t, "answer")), full()
		if rapid.Bool().Draw(t, "badly") {
			e.Type, e.ErrorCode, e.ErrorMessage, e.Retryable = agent.Error, "code", anyText.Draw(t, "message"), true
		}
	case 9:
		e.Type, e.BlockType, e.Block, e.Full = agent.Delta, "card", anyJSON(t, 2), full()
		e.BlockID, e.Usage = rapid.SampledFrom([]string{"", "b1"}).Draw(t, "block"), usage()
	default:
		e.Type, e.BlockType = agent.Delta, rapid.SampledFrom([]string{agent.Text, agent.Text, agent.Reasoning, agent.Nested}).Draw(t, "block type")
		e.Content, e.Usage = agent.Unicode(anyText.Draw(t, "content")), usage()
		e.BlockID = rapid.SampledFrom([]string{"", "", "b1", "b2", "b3"}).Draw(t, "block")
		e.Author = rapid.SampledFrom([]string{"", "", "author"}).Draw(t, "author")
		e.ParentToolCallID = rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "parent")
	}
	return e
}

// Any sequence of AgentEvents becomes a valid run, merged or not, and what was
// taken is what a restart folds, without exception: everything goes through the
// stored bytes.
func TestAnySequenceIsAValidRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := run.Start{ID: "run_1", AgentID: "ä<\u2028", Runtime: "push", ThreadID: "thread", Labels: map[string]string{"b": "\u0085", "a": ""},
			Input: json.RawMessage(`{"input":1}`), StartedAt: anyTime.Draw(t, "imported"), Queued: rapid.Bool().Draw(t, "queued"), RequestID: "r"}
		live, first := run.Begin(start, noon) // merges, on forks
		plain, _ := run.Begin(start, noon)    // does not merge
		merged := live.Seal(first, "n0")
		unmerged := plain.Seal(first, "n0")
		marks := map[string]run.Mark{}
		for batch := range rapid.IntRange(1, 12).Draw(t, "batches") {
			before, fork := live.Dump(), live.Fork()
			var waiting []run.Candidate
			size := 0
			for range rapid.IntRange(0, 6).Draw(t, "events") {
				e := anyEvent(t)
				from := run.Origin{Producer: rapid.SampledFrom([]string{"", "p"}).Draw(t, "producer"), RequestID: "r"}
				mark := marks[from.Producer]
				if rapid.IntRange(0, 9).Draw(t, "reborn") == 0 {
					mark = run.Mark{Epoch: mark.Epoch + 1}
				}
				from.Epoch = mark.Epoch
				if rapid.Bool().Draw(t, "numbered") {
					e.ProducerSeq = mark.Seq + 1
				}
				d, err := fork.Decide(&e, from, noon, limit)
				if err != nil {
					if !fork.Terminal() {
						t.Fatalf("refused: %v", err)
					}
					continue
				}
				if e.ProducerSeq != 0 {
					mark.Seq = e.ProducerSeq
				}
				marks[from.Producer] = mark
				fork.Take(d)
				plain.Take(d)
				for i := range d.Candidates {
					size += d.Candidates[i].Size(fork)
				}
				unmerged = append(unmerged, plain.Seal(append([]run.Candidate(nil), d.Candidates...), fmt.Sprint(batch))...)
				waiting = run.Join(waiting, d.Candidates)
			}
			if rapid.IntRange(0, 3).Draw(t, "thrown away") == 0 {
				// Decided for nothing, and the process dies: neither log has it.
				if live.Dump() != before {
					t.Fatalf("a fork changed its base:\n%s\n%s", before, live.Dump())
				}
				live, plain = refold(t, merged), refold(t, merged)
				unmerged = append([]run.Event(nil), merged...)
				for producer := range marks {
					marks[producer] = live.Mark(producer)
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
		if !live.Terminal() { // what was only noted waits for the next append
			for _, log := range []struct {
				state  *run.State
				events *[]run.Event
			}{{live, &merged}, {plain, &unmerged}} {
				d, err := log.state.Decide(&agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: "last"}, run.Origin{}, noon, limit)
				if err != nil {
					t.Fatal(err)
				}
				log.state.Take(d)
				*log.events = append(*log.events, log.state.Seal(d.Candidates, "last")...)
			}
		}
		valid(t, merged)
		valid(t, unmerged)
		a, b := refold(t, merged), refold(t, unmerged)
		if x, y := a.Dump(), b.Dump(); x != y {
			t.Fatalf("merged and unmerged fold apart:\n%s\n%s", x, y)
		}
		if x, y := a.Dump(), live.Dump(); x != y {
			t.Fatalf("what was taken and what is folded differ:\n%s\n%s", x, y)
		}
		if err := ending(a); err != nil {
			t.Fatal(err)
		}
	})
}

// ending reports whether a run that has not ended can be.
func ending(s *run.State) error {
	if s.Terminal() {
		return nil
	}
	_, err := s.Decide(&agent.Event{Type: agent.Done}, run.Origin{}, noon, limit)
	return err
}

// valid is what must hold of any run's log, as every view shows it.
func valid(t *rapid.T, events []run.Event) {
	opened, closed := map[string]bool{}, map[string]bool{}
	next, ended := uint64(0), false
	for i, e := range events {
		p, err := run.DecodePayload(e.Type, e.Payload)
		if err != nil || p == nil {
			t.Fatalf("payload %q: %v", e.Payload, err)
		}
		if ended {
			t.Fatalf("%s behind the end", e.Type)
		}
		for _, view := range [][]byte{e.Client(), e.Envelope()} {
			var shown struct{ Payload json.RawMessage }
			if err := json.Unmarshal(view, &shown); err != nil || string(shown.Payload) != string(e.Payload) {
				t.Fatalf("view %s: %v", view, err)
			}
		}
		switch p := p.(type) {
		case *run.ToolCallStarted:
			if opened[p.ToolCallID] {
				t.Fatalf("call %q started twice", p.ToolCallID)
			}
			opened[p.ToolCallID] = true
		case *run.ToolCallCompleted:
			if !opened[p.ToolCallID] || closed[p.ToolCallID] {
				t.Fatalf("call %q completed out of turn", p.ToolCallID)
			}
			closed[p.ToolCallID] = true
		case *run.MessageDelta:
			if p.ContentIndex > next || p.BlockID == "" && p.ContentIndex+1 < next {
				t.Fatalf("content_index %d, the next is %d", p.ContentIndex, next)
			}
			next = max(next, p.ContentIndex+1)
		}
		if ended = run.Terminal(e.Type); ended && len(opened) != len(closed) {
			t.Fatalf("%d calls, %d completed, at event %d", len(opened), len(closed), i)
		}
	}
}

// What a producer gives comes back to the letter, whatever it is named like.
func TestWhatIsGivenComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := agent.Event{Type: agent.Artifact, Artifact: anyObject(t, 2, nil)}
		if e.Check() != nil {
			t.Skip("the gate refuses it")
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(e.Artifact, &want); err != nil {
			t.Fatal(err)
		}
		delete(want, "message_id") // which is ours
		state, first := run.Begin(run.Start{ID: "run_1", AgentID: "a", Runtime: "push"}, noon)
		d, err := state.Decide(&e, run.Origin{}, noon, limit)
		if err != nil {
			t.Fatal(err)
		}
		facts := state.Seal(append(first, d.Candidates...), "n")
		refold(t, facts)
		var got map[string]json.RawMessage
		if err := json.Unmarshal(facts[1].Payload, &got); err != nil {
			t.Fatal(err)
		}
		delete(got, "artifact_id")
		if fmt.Sprintf("%s", got) != fmt.Sprintf("%s", want) {
			t.Fatalf("given %s, got %s", want, got)
		}
	})
}
