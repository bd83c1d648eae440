package run_test

import (
	"errors"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// by puts what somebody other than the runtime does to a scenario.
func (s *scenario) by(d run.Decision, err error) *scenario {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	s.state.Take(d)
	s.facts = append(s.facts, s.state.Seal(d.Candidates, "n")...)
	return s
}

func (s *scenario) answer(id, result string, isError bool) (run.Decision, error) {
	return s.state.Answer(agent.Answer{ToolCallID: id, Result: []byte(result), IsError: isError}, noon, limit)
}

const ask = `{"type":"tool_call","tool_name":"ask","tool_call_id":"q","external":true}`

func TestLose(t *testing.T) {
	s := given(t, call("a", "t", "{}"))
	s.by(s.state.Lose(run.Evidence{Owner: "one", Observer: "two", Silence: 1500 * time.Millisecond, LastSeq: 2}, noon))
	s.then(started("a", "t", "{}", ""), completed("a", "t", "null", null, `true,"synthesized":true`),
		`run.failed {"error":{"code":"runtime_lost","message":"the run's owner gave no sign of life for 1.5s","retryable":true},`+
			`"evidence":{"owner":"one","observer":"two","silence_ms":1500,"last_seq":2}}`)
	s = given(t)
	s.by(s.state.Lose(run.Evidence{Observer: "two", Silence: time.Minute, LastSeq: 1}, noon))
	s.then(`run.failed {"error":{"code":"runtime_lost","message":"the run's producers gave no sign of life for 1m0s","retryable":true},` +
		`"evidence":{"owner":null,"observer":"two","silence_ms":60000,"last_seq":1}}`)
	var ended *run.EndedError
	if _, err := s.state.Lose(run.Evidence{}, noon); !errors.As(err, &ended) || ended.Status != run.Failed {
		t.Errorf("%v", err)
	}
}

// Every event says who owned the run, and since which change of hands.
func TestOwnersAndEpochs(t *testing.T) {
	state, begun := run.Begin(run.Start{ID: "run_1", AgentID: "a", Runtime: "x", Owner: "one"}, noon)
	s := &scenario{t: t, state: state, facts: state.Seal(begun, "n")}
	s.when(text("a"))
	s.by(s.state.Resume("two", run.Evidence{Owner: "one", Observer: "two", Silence: time.Second, LastSeq: 3}, noon))
	s.when(text("b"), done)
	s.then(message, deltaFact(0, `"delta":"a"`),
		`run.resumed {"owner":"two","previous_owner":"one","epoch":2,"evidence":{"owner":"one","observer":"two","silence_ms":1000,"last_seq":3}}`,
		deltaFact(0, `"delta":"b"`), `message.completed {"message_id":"message_1","content":"ab","content_checksum":`+sum("ab")+`}`,
		`run.completed {"message_id":"message_1"}`)
	for i, e := range s.facts {
		want, epoch := "one", uint64(1)
		if i >= 3 {
			want, epoch = "two", 2
		}
		if e.Owner != want || e.Epoch != epoch {
			t.Errorf("event %d: %s, %d", e.Seq, e.Owner, e.Epoch)
		}
	}
	var folded run.State
	for i := range s.facts {
		back, err := run.Decode("run_1", run.Stored{Seq: s.facts[i].Seq, Type: s.facts[i].Type, Data: s.facts[i].Payload, Metadata: s.facts[i].Metadata()})
		if err != nil {
			t.Fatal(err)
		}
		if err := folded.Apply(&back); err != nil {
			t.Fatal(err)
		}
	}
	if folded.Owner != "two" || folded.Epoch != 2 {
		t.Errorf("folded: %s, %d", folded.Owner, folded.Epoch)
	}
	var fenced *run.FencedError
	var owned *run.OwnedError
	if err := folded.MayWrite(1); !errors.As(err, &fenced) || fenced.Epoch != 2 {
		t.Errorf("the old owner: %v", err)
	}
	if err := folded.MayWrite(0); !errors.As(err, &owned) {
		t.Errorf("nobody in particular: %v", err)
	}
	if err := folded.MayWrite(2); err != nil {
		t.Errorf("the owner: %v", err)
	}
}

func TestAnswersFromOutside(t *testing.T) {
	s := given(t, ask)
	if s.state.Status() != run.Waiting {
		t.Errorf("%s", s.state.Status())
	}
	s.by(s.answer("q", `{"n":1.0}`, false))
	if s.state.Status() != run.Running {
		t.Errorf("%s", s.state.Status())
	}
	s.by(s.answer("q", `{"n":1.0}`, false)) // the same again
	s.when(result("q", "ask", `"mine"`))    // a second result
	s.then(started("q", "ask", "{}", `,"external":true`), completed("q", "ask", `{"n":1.0}`, sum(`{"n":1.0}`), "false"))
	var answered *run.AnsweredError
	var none *run.NoCallError
	for _, other := range []struct {
		result string
		failed bool
	}{{`{"n":1}`, false}, {`{"n":1.0}`, true}, {`"{\"n\":1.0}"`, true}} {
		if _, err := s.answer("q", other.result, other.failed); !errors.As(err, &answered) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	s.when(call("own", "t", "{}"), done)
	for _, id := range []string{"own", "nobody"} {
		if _, err := s.answer(id, "1", false); !errors.As(err, &none) {
			t.Errorf("%s: %v", id, err)
		}
	}
	s.by(s.answer("q", `{"n":1.0}`, false)) // after the end, still the same
	s = given(t, ask, done)
	var ended *run.EndedError
	if _, err := s.answer("q", "1", false); !errors.As(err, &ended) {
		t.Errorf("after the end: %v", err)
	}
	s = given(t, ask)
	var large *run.TooLargeError
	if _, err := s.state.Answer(agent.Answer{ToolCallID: "q", Result: []byte(`"` + string(make([]byte, 5000)) + `"`)}, noon, 4000); !errors.As(err, &large) {
		t.Errorf("%v", err)
	}
}

// A long value stands as its beginning, behind the artifact that is the whole.
func TestLongValues(t *testing.T) {
	s := given(t)
	whole := &agent.Full{Checksum: run.Checksum([]byte("whole")), Size: 5, MediaType: "text/plain"}
	for _, e := range []agent.Event{
		{Type: agent.ToolCall, ToolCallID: "c", ToolName: "t", ToolArgs: []byte(`"wh"`), Full: whole},
		{Type: agent.ToolResult, ToolCallID: "c", ToolName: "t", ToolResult: []byte(`"wh"`), Full: whole},
		{Type: agent.Done, Answer: "wh", Full: whole},
	} {
		s.by(s.state.Decide(&e, run.Origin{}, noon, limit))
	}
	kept := func(id, name, message string) string {
		return `artifact.created {"artifact_id":"` + id + `",` + message + `"name":"` + name + `","media_type":"text/plain","size":5,"checksum":` + sum("whole") +
			`,"url":"/api/agent-runs/run_1/artifacts/` + id + `"}`
	}
	full := func(id string) string {
		return `,"truncated":true,"full":{"artifact_id":"` + id + `","size":5,"checksum":` + sum("whole") + `}`
	}
	s.then(kept("artifact_1", "arguments of c", ""), started("c", "t", `"wh"`, full("artifact_1")),
		kept("artifact_2", "result of c", ""), completed("c", "t", `"wh"`, sum("whole"), "false"+full("artifact_2")),
		message, kept("artifact_3", "answer", `"message_id":"message_1",`),
		`message.completed {"message_id":"message_1","content":"wh","content_checksum":`+sum("whole")+full("artifact_3")+`}`,
		`run.completed {"message_id":"message_1"}`)
	if a, ok := s.state.Artifact("artifact_2"); !ok || a != (run.Artifact{Name: "result of c", MediaType: "text/plain", Checksum: run.Checksum([]byte("whole")), Size: 5}) {
		t.Errorf("%+v", a)
	}
}
