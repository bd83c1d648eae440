package run_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gowebpki/jcs"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// update rewrites the golden histories. Stored histories are promises: look at
// every line of the difference before you keep it.
var update = flag.Bool("update", false, "rewrite testdata/*.golden")

// Recorded LangGraph runs become the same facts, byte for byte, for ever.
func TestRecordedHistories(t *testing.T) {
	recorded, err := filepath.Glob("testdata/*.ndjson")
	if err != nil || len(recorded) < 8 {
		t.Fatalf("%d recorded runs, %v", len(recorded), err)
	}
	for _, path := range recorded {
		t.Run(filepath.Base(path), func(t *testing.T) {
			lines, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			state, all := run.Begin(run.Start{ID: "run_golden", AgentID: "golden_agent", Runtime: "push", ThreadID: "thread",
				Input: []byte(`{"q":1}`), Snapshot: run.UnconfiguredSnapshot("golden_agent", "push"), RequestChecksum: "sha256:0"}, noon)
			for line := range bytes.Lines(lines) {
				e, err := agent.Decode(line)
				if err != nil {
					t.Fatal(err)
				}
				d, err := state.Decide(&e, run.Origin{Producer: "golden"}, noon, limit)
				if err != nil {
					t.Fatal(err)
				}
				state.Take(d)
				all = run.Join(all, d.Candidates)
			}
			var got bytes.Buffer
			events := state.Seal(all, "nonce")
			for i := range events {
				fmt.Fprintf(&got, "%s\n%s\n%s\n", events[i].Type, events[i].Payload, events[i].Metadata())
			}
			golden := strings.TrimSuffix(path, "ndjson") + "golden"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got\n%s\nwant\n%s", got.Bytes(), want)
			}
			replay(t, events, state)
		})
	}
}

// replay folds what was sealed, as it would come from the store, and checks it
// against the state that it came from and against the protocol, recomputed by
// other means.
func replay(t *testing.T, events []run.Event, want *run.State) {
	t.Helper()
	var folded run.State
	previous := ""
	for i := range events {
		e, err := run.Decode("run_golden", run.Stored{Seq: events[i].Seq, Type: events[i].Type, Data: events[i].Payload, Metadata: events[i].Metadata()})
		if err != nil {
			t.Fatal(err)
		}
		if err := folded.Apply(&e); err != nil {
			t.Fatal(err)
		}
		if !run.Verify(&e, previous) || chain(t, &e, previous) != e.ChainChecksum {
			t.Errorf("event %d: the chain does not hold", e.Seq)
		}
		id := e.EventID()
		if id[6]>>4 != 8 || id[8]>>6 != 2 {
			t.Errorf("event %d: id %x is no UUIDv8", e.Seq, id)
		}
		previous = e.ChainChecksum
		for _, line := range [][]byte{e.Client(), e.Envelope()} {
			if !json.Valid(line) || !bytes.Contains(line, append([]byte(`"payload":`), e.Payload...)) {
				t.Errorf("view %s", line)
			}
		}
	}
	if folded.Status() != want.Status() || folded.LastSeq != want.LastSeq || folded.Mark("golden") != want.Mark("golden") || folded.Dump() != want.Dump() {
		t.Errorf("folded to %s at %d, mark %v", folded.Status(), folded.LastSeq, folded.Mark("golden"))
	}
}

// chain recomputes the chain checksum from the full view, with a canonicalizer
// that others wrote.
func chain(t *testing.T, e *run.Event, previous string) string {
	t.Helper()
	var envelope map[string]any
	if err := json.Unmarshal(e.Envelope(), &envelope); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{"recorded_at", "payload", "chain_checksum"} {
		delete(envelope, out)
	}
	envelope["previous_chain_checksum"] = nil
	if previous != "" {
		envelope["previous_chain_checksum"] = previous
	}
	plain, err := json.Marshal(envelope)
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := jcs.Transform(plain)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(canonical))
}

// The canonical form is the one that others compute.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{"b":[1e3,-0.0,1E-7,123456789012345680000000],"a":"\u2028\u0001é","\ud83d\ude00":1,"\ufb33":2}`, `[]`, `"x"`, `[1,true,null,{}]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if !json.Valid(value) || !utf8.Valid(value) {
			return
		}
		want, err := jcs.Transform(value)
		if err != nil || bytes.Contains(value, []byte(`\u`)) && !bytes.Equal(bytes.ToValidUTF8(want, nil), want) {
			return // halves of pairs, numbers beyond a double, keys that stand twice
		}
		if got := run.Canonical(value); !bytes.Equal(got, want) {
			t.Errorf("%s became %s, want %s", value, got, want)
		}
	})
}
