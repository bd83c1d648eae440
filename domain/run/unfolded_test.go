package run_test

import (
	"testing"

	"github.com/runfacts/runfacts/domain/run"
)

// A run that cannot be read can be ended, and its end follows its last event.
func TestAnUnreadableRunCanBeEnded(t *testing.T) {
	s := given(t, call("a", "t", "{}"), text("x"))
	last := s.facts[len(s.facts)-1]
	stump := run.Unfolded(&last)
	d, err := stump.Fail(run.Failure{Code: "run_corrupt", Message: "seq 2 cannot be read"}, noon)
	if err != nil {
		t.Fatal(err)
	}
	end := stump.Seal(d.Candidates, "n")
	if len(end) != 1 || end[0].Seq != last.Seq+1 || !run.Verify(&end[0], last.ChainChecksum) || end[0].AgentID != "a" {
		t.Errorf("%+v", end)
	}
	if _, err := run.Unfolded(&end[0]).Cancel(run.Cancellation{}, noon); err == nil {
		t.Error("ended twice")
	}
	bare := run.Unfolded(&run.Event{RunID: "run_1", Seq: 7})
	if d, err = bare.Cancel(run.Cancellation{}, noon); err != nil {
		t.Fatal(err)
	}
	if end = bare.Seal(d.Candidates, "n"); end[0].Seq != 8 || !run.Verify(&end[0], "") {
		t.Errorf("%+v", end)
	}
}
