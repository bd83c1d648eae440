package view_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

var update = flag.Bool("update", false, "write the golden files anew; do it only when the format changes on purpose")

// samples has one event of every type, each with something that a careless
// encoder would change: HTML, U+2028, large integers, exponents, escapes.
func samples() []run.Event {
	cursor := "1700000000000-4"
	payloads := []struct{ eventType, payload string }{
		{run.TypeRunStarted, `{"started_at":"2026-09-07T10:30:00.000000Z","agent_id":"freight_agent","runtime":"push","input":{"q":"<b>a & b</b>","id":9007199254740993},"thread_id":"thread_7"}`},
		{run.TypeRunResumed, `{"owner":"b","previous_owner":"a","epoch":2,"evidence":"lease expired"}`},
		{run.TypeMessageStarted, `{"message_id":"message_1","role":"assistant"}`},
		{run.TypeMessageDelta, "{\"message_id\":\"message_1\",\"content_index\":0,\"delta\":\"line\\nnext \u2028 \\u2029 \\/ é 𝄞\"}"},
		{run.TypeToolCallStarted, `{"tool_call_id":"call_0","tool_name":"quote","arguments":{"weight":1.0e5,"big":12345678901234567890}}`},
		{run.TypeToolCallCompleted, `{"tool_call_id":"call_0","tool_name":"quote","result":"","result_checksum":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","is_error":false}`},
		{run.TypeArtifactCreated, `{"artifact_id":"artifact_1","name":"offer.pdf","media_type":"application/pdf","size":0,"checksum":"sha256:00","url":"https://example.org/?a=1&b=2"}`},
		{run.TypeMessageCompleted, `{"message_id":"message_1","content":"","content_checksum":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`},
		{run.TypeRunCompleted, `{"message_id":"message_1"}`},
		{run.TypeRunFailed, `{"error":{"code":"runtime_lost","message":"no heartbeat","retryable":true}}`},
		{run.TypeRunCancelled, `{"external_stop_confirmed":true,"proof":"exit","reason":"user"}`},
		{"later.event", `{"unknown":[null,-0,1E400]}`},
	}
	events := make([]run.Event, len(payloads))
	for i, p := range payloads {
		at := time.Date(2026, 9, 7, 10, 30, 0, 123456000, time.UTC)
		events[i] = run.Event{
			RunID: "run_1", Seq: run.Seq(i + 1), Type: p.eventType, OccurredAt: at, RecordedAt: at.Add(3 * time.Millisecond),
			AgentID: "freight_agent", Snapshot: "sha256:aa", ThreadID: "thread_7",
			Payload: []byte(p.payload), PayloadChecksum: run.Checksum([]byte(p.payload)), SchemaVersion: run.SchemaVersion,
			TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", SpanID: "00f067aa0ba902b7", ChainChecksum: run.Checksum([]byte{byte(i)}),
		}
	}
	events[0].RequestChecksum, events[0].Nonce = "sha256:bb", "6e6f6e6365"
	events[1].Owner, events[1].Epoch = "b", 2
	events[3].Source = &run.Source{Producer: "sandbox", Seq: 7, Cursor: &cursor}
	events[8].Source = &run.Source{}
	return events
}

// Both views of every event, byte for byte.
func TestGolden(t *testing.T) {
	for _, e := range samples() {
		for _, v := range []*view.View{view.Client, view.Full} {
			t.Run(v.Name+"/"+e.Type, func(t *testing.T) {
				got := append(v.Encode(&e), '\n')
				file := filepath.Join("testdata", v.Name, e.Type+".json")
				if *update {
					if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("got  %swant %s", got, want)
				}
			})
		}
	}
}

// What payload_checksum is about can be cut out of either view.
func TestPayloadIsUntouched(t *testing.T) {
	for _, e := range samples() {
		for _, v := range []*view.View{view.Client, view.Full} {
			var decoded struct {
				Payload json.RawMessage `json:"payload"`
			}
			line := v.Encode(&e)
			if err := json.Unmarshal(line, &decoded); err != nil {
				t.Fatalf("%s of %s: %v", v.Name, e.Type, err)
			}
			if run.Checksum(decoded.Payload) != e.PayloadChecksum {
				t.Errorf("%s of %s: payload became %s", v.Name, e.Type, decoded.Payload)
			}
			if bytes.ContainsAny(line, "\r\n") {
				t.Errorf("%s of %s is more than one line", v.Name, e.Type)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, v := range []*view.View{view.Client, view.Full} {
		if got, err := view.Parse(v.Name); got != v || err != nil {
			t.Errorf("Parse(%q) = %v, %v", v.Name, got, err)
		}
	}
	if got, err := view.Parse(""); got != view.Client || err != nil {
		t.Errorf(`Parse("") = %v, %v`, got, err)
	}
	for _, bad := range []string{"Client", "full ", "raw"} {
		if _, err := view.Parse(bad); err == nil {
			t.Errorf("Parse(%q) passed", bad)
		}
	}
}
