package run_test

import (
	"strings"
	"testing"

	"github.com/runfacts/runfacts/domain/run"
)

func TestMerging(t *testing.T) {
	delta := func(text, block, trace, producer string, seq uint64) run.Candidate {
		return run.Candidate{TraceID: trace, Source: &run.Source{Producer: producer, Seq: seq},
			Payload: &run.MessageDelta{MessageID: "m", Delta: text, BlockType: block}}
	}
	with := func(change func(*run.MessageDelta)) run.Candidate {
		p := &run.MessageDelta{MessageID: "m", Delta: "z"}
		change(p)
		return run.Candidate{Source: &run.Source{Seq: 2}, Payload: p}
	}
	structured := with(func(p *run.MessageDelta) { p.Block = []byte("{}") })
	later := delta("b", "", "", "", 1)
	later.Source.Epoch = 2
	long := strings.Repeat("x", 16<<10)
	for name, c := range map[string]struct {
		a, b   run.Candidate
		merged bool
	}{
		"alike":               {delta("a", "", "", "", 1), delta("b", "", "", "", 2), true},
		"both unnumbered":     {delta("a", "", "", "", 0), delta("b", "", "", "", 0), true},
		"one numbered":        {delta("a", "", "", "", 0), delta("b", "", "", "", 2), false},
		"another type":        {delta("a", "", "", "", 1), delta("b", "reasoning", "", "", 2), false},
		"another trace":       {delta("a", "", "x", "", 1), delta("b", "", "y", "", 2), false},
		"another producer":    {delta("a", "", "", "p", 1), delta("b", "", "", "q", 2), false},
		"another life":        {delta("a", "", "", "", 1), later, false},
		"another block id":    {delta("a", "", "", "", 1), with(func(p *run.MessageDelta) { p.BlockID = "b" }), false},
		"another author":      {delta("a", "", "", "", 1), with(func(p *run.MessageDelta) { p.Author = "b" }), false},
		"another parent":      {delta("a", "", "", "", 1), with(func(p *run.MessageDelta) { p.ParentToolCallID = "b" }), false},
		"usage":               {delta("a", "", "", "", 1), with(func(p *run.MessageDelta) { p.Usage = []byte("{}") }), false},
		"structured":          {structured, structured, false},
		"to the limit":        {delta(long[1:], "", "", "", 1), delta("b", "", "", "", 2), true},
		"over the limit":      {delta(long, "", "", "", 1), delta("b", "", "", "", 2), false},
		"over it, as encoded": {delta(long[:len(long)-5], "", "", "", 1), delta("\x01", "", "", "", 2), false},
	} {
		a, b := c.a.Payload.(*run.MessageDelta).Delta, c.b.Payload.(*run.MessageDelta).Delta
		got := run.Join([]run.Candidate{c.a}, []run.Candidate{c.b})
		if (len(got) == 1) != c.merged {
			t.Errorf("%s: %d events", name, len(got))
		}
		if !c.merged {
			continue
		}
		var s run.State
		if sealed := said[*run.MessageDelta](t, s.Seal(got, "n")); sealed[0].Delta != a+b || got[0].Source.Seq != c.b.Source.Seq {
			t.Errorf("%s: %+v", name, sealed[0])
		}
	}
}

// Merging many small deltas costs what their bytes cost.
func BenchmarkJoin(b *testing.B) {
	for b.Loop() {
		var waiting []run.Candidate
		for range 10_000 {
			waiting = run.Join(waiting, []run.Candidate{{Source: &run.Source{}, Payload: &run.MessageDelta{Delta: "x"}}})
		}
		if len(waiting) != 1 {
			b.Fatal(len(waiting))
		}
	}
}
