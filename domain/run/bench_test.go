package run_test

import (
	"testing"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// BenchmarkDelta is what one pushed delta costs from its line to its sealed
// event, without any I/O.
func BenchmarkDelta(b *testing.B) {
	line := []byte(`{"type":"delta","content":"a chunk of some forty characters, more or less","producer_seq":1}`)
	state := given(&testing.T{}, text("x")).state
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := agent.Decode(line); err != nil {
				b.Fatal(err)
			}
		}
	})
	e, err := agent.Decode(line)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("decide and seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fork := state.Fork()
			d, err := fork.Decide(&e, run.Origin{}, noon, limit)
			if err != nil {
				b.Fatal(err)
			}
			fork.Take(d)
			for _, sealed := range fork.Seal(run.Join(nil, d.Candidates), "nonce") {
				sealed.Metadata()
			}
		}
	})
}
