package run_test

import (
	"testing"

	"github.com/runfacts/runfacts/domain/run"
)

// refold is the state that a restart has of what is stored.
func refold(t interface {
	Helper()
	Fatal(...any)
}, facts []run.Event) *run.State {
	t.Helper()
	var s run.State
	for i := range facts {
		e, err := run.Decode(facts[i].RunID, run.Stored{Seq: facts[i].Seq, Type: facts[i].Type, Data: facts[i].Payload, Metadata: facts[i].Metadata()})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	return &s
}

// A real start that a synthesized one stood in for is taken once, and that is
// known after a restart too: a second one is another call.
func TestAClaimOutlivesARestart(t *testing.T) {
	s := given(t, numbered(result("a", "t", "1"), 1), numbered(call("a", "t", "{}"), 2), numbered(text("x"), 3))
	s.state = refold(t, s.facts)
	s.when(numbered(call("a", "t", "{}"), 4), numbered(result("a", "t", "2"), 5))
	if calls := said[*run.ToolCallStarted](t, s.facts); len(calls) != 2 || calls[1].ToolCallID != "a~2" {
		t.Errorf("%d calls", len(calls))
	}
	if done := said[*run.ToolCallCompleted](t, s.facts); len(done) != 2 || string(done[1].Result) != "2" {
		t.Errorf("%d results", len(done))
	}
}

// What follows a run that was altered, or is another one, is not folded.
func TestApplyRefusesWhatDoesNotFollow(t *testing.T) {
	s := given(t, text("a"), text("b"), done)
	other := given(t, text("A"), text("b"), done)
	for i := range s.facts {
		for name, alter := range map[string]func(*run.Event){
			"payload":   func(e *run.Event) { e.Payload = append([]byte(" "), e.Payload...) },
			"checksum":  func(e *run.Event) { e.PayloadChecksum = run.Checksum(nil) },
			"time":      func(e *run.Event) { e.OccurredAt = e.OccurredAt.Add(1000) },
			"type":      func(e *run.Event) { e.Type += "x" },
			"agent":     func(e *run.Event) { e.AgentID += "x" },
			"addition":  func(e *run.Event) { e.Extra = append(e.Extra, run.Member{Key: "later", Value: []byte("1")}) },
			"seq":       func(e *run.Event) { e.Seq++ },
			"cut chain": func(e *run.Event) { e.ChainChecksum = "" },
			"another": func(e *run.Event) {
				*e = other.facts[i]
			},
		} {
			state := refold(t, s.facts[:i])
			before := state.Dump()
			e := s.facts[i]
			if name == "another" && i <= 2 {
				continue // up to the first delta, where the two part, it follows
			}
			alter(&e)
			if err := state.Apply(&e); err == nil {
				t.Errorf("event %d with another %s was folded", i+1, name)
			}
			if state.Dump() != before {
				t.Errorf("event %d with another %s left a trace", i+1, name)
			}
		}
	}
}
