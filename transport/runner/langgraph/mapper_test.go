package langgraph

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/transport/sse"
)

// frames reads a recorded stream.
func frames(t testing.TB, text []byte) (all []frame) {
	t.Helper()
	r := sse.NewReader(bytes.NewReader(text), maxFrame)
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parseFrame(f))
	}
}

// The recorded streams of real servers give the AgentEvents that were written
// down for them.
func TestRecordedStreams(t *testing.T) {
	streams, err := filepath.Glob("testdata/streams/*.sse")
	if err != nil || len(streams) < 8 {
		t.Fatalf("%d streams, %v", len(streams), err)
	}
	for _, name := range streams {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			m := newMapper()
			var got []agent.Event
			for _, f := range frames(t, text) {
				got = append(got, m.take(f)...)
			}
			expected, err := os.ReadFile(strings.TrimSuffix(name, ".sse") + ".ndjson")
			if err != nil {
				t.Fatal(err)
			}
			var want []agent.Event
			for line := range strings.Lines(string(expected)) {
				e, err := agent.Decode([]byte(strings.TrimSpace(line)))
				if err != nil {
					t.Fatal(err)
				}
				e.ProducerSeq = 0
				if e.Type == agent.Done { // follows from the end of the stream
					if !m.answered || m.answer != e.Answer {
						t.Errorf("answer %q, want %q", m.answer, e.Answer)
					}
					continue
				}
				want = append(want, e)
			}
			for i := range got {
				if got[i].Type == agent.Artifact && len(got[i].Bytes) == 0 {
					t.Errorf("an artifact without its content: %s", got[i].Artifact)
				}
				got[i].Bytes = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What one server writes otherwise than the other means the same.
func TestShapesOfServers(t *testing.T) {
	for name, c := range map[string]struct {
		frames []string // mode and data
		want   []string // AgentEvents
	}{
		"python's chunks and whole messages": {
			[]string{`messages [{"type":"AIMessageChunk","id":"m","content":"a ","tool_call_chunks":[]},{}]`, `messages [{"type":"AIMessageChunk","id":"m","content":"b","tool_call_chunks":[]},{}]`,
				`updates {"n":{"messages":[{"type":"ai","id":"m","content":"a b","tool_calls":[]}]}}`},
			[]string{`{"type":"delta","content":"a "}`, `{"type":"delta","content":"b"}`}},
		"a message that never streamed": {
			[]string{`updates {"n":{"messages":[{"type":"ai","id":"m","content":"whole","tool_calls":[]}]}}`, `updates {"n":{"messages":{"type":"ai","id":"m","content":"whole","tool_calls":[]}}}`},
			[]string{`{"type":"delta","content":"whole"}`}},
		"reasoning beside the content": {
			[]string{`messages [{"type":"ai","id":"m","content":"","tool_call_chunks":[],"additional_kwargs":{"reasoning_content":"hm"}},{}]`},
			[]string{`{"type":"delta","content":"hm","block_type":"reasoning"}`}},
		"the same call again, after an approval": {
			[]string{`updates {"n":{"messages":[{"type":"ai","id":"m","content":"","tool_calls":[{"id":"c","name":"t","args":{"n":12345678901234567890}}]}]}}`,
				`updates {"approve":{"messages":[{"type":"ai","id":"m","content":"","tool_calls":[{"id":"c","name":"t","args":{"n":12345678901234567890}}]}]}}`},
			[]string{`{"type":"tool_call","tool_name":"t","tool_call_id":"c","tool_args":{"n":12345678901234567890}}`}},
		"calls without an id, and broken ones": {
			[]string{`updates {"n":{"messages":[{"type":"ai","id":"m","content":"","tool_calls":[{"name":"t","args":{}}],"invalid_tool_calls":[{"id":"x","name":"u","args":"{\"half"}]}]}}`},
			[]string{`{"type":"tool_call","tool_name":"t","tool_call_id":"m:0","tool_args":{}}`, `{"type":"tool_call","tool_name":"u","tool_call_id":"x","tool_args":"{\"half"}`}},
		"two sub-graphs with the same ids": {
			[]string{`updates|tools:a {"n":{"messages":[{"type":"ai","id":"m","content":"","tool_calls":[{"id":"c","name":"t","args":{}}]}]}}`,
				`updates|tools:b {"n":{"messages":[{"type":"ai","id":"m","content":"","tool_calls":[{"id":"c","name":"t","args":{}}]}]}}`,
				`messages|tools:b [{"type":"tool","tool_call_id":"c","name":"t","content":"B"},{}]`, `messages|tools:a [{"type":"tool","tool_call_id":"c","name":"t","content":"A","status":"error"},{}]`},
			[]string{`{"type":"tool_call","tool_name":"t","tool_call_id":"c","tool_args":{}}`, `{"type":"tool_call","tool_name":"t","tool_call_id":"c@tools:b","tool_args":{}}`,
				`{"type":"tool_result","tool_name":"t","tool_call_id":"c@tools:b","tool_result":"B"}`, `{"type":"tool_result","tool_name":"t","tool_call_id":"c","tool_result":"A","is_error":true}`}},
		"parents only where they are certain": {
			[]string{`updates {"n":{"messages":[{"type":"ai","id":"m","content":"","tool_calls":[{"id":"t1","name":"task","args":{}},{"id":"t2","name":"task","args":{}}]}]}}`,
				`updates|tools:a {"n":{"messages":[{"type":"ai","id":"m1","content":"","tool_calls":[{"id":"c1","name":"x","args":{}}]}]}}`,
				`messages [{"type":"tool","tool_call_id":"t1","name":"task","content":"1"},{}]`,
				`updates|tools:b {"n":{"messages":[{"type":"ai","id":"m2","content":"","tool_calls":[{"id":"c2","name":"x","args":{}}]}]}}`},
			[]string{`{"type":"tool_call","tool_name":"task","tool_call_id":"t1","tool_args":{}}`, `{"type":"tool_call","tool_name":"task","tool_call_id":"t2","tool_args":{}}`,
				`{"type":"tool_call","tool_name":"x","tool_call_id":"c1","tool_args":{}}`, `{"type":"tool_result","tool_name":"task","tool_call_id":"t1","tool_result":"1"}`,
				`{"type":"tool_call","tool_name":"x","tool_call_id":"c2","tool_args":{},"parent_tool_call_id":"t2"}`}},
		"files as lines, bytes, deleted and written twice": {
			[]string{`updates {"tools":{"files":{"/a.txt":{"content":["one","two"]},"/b.bin":{"content":{"0":1,"2":255,"1":2},"mimeType":"image/x"},"/c":null}}}`,
				`updates {"tools":{"files":{"/a.txt":{"content":"one\ntwo"}}}}`, `updates|tools:s {"tools":{"files":{"/d":{"content":"a sub-agent's, which its parent tells"}}}}`},
			[]string{`{"type":"artifact","artifact":{"name":"/a.txt","media_type":"text/plain","size":7,"checksum":"sha256:f55fb808f9936e0a2d51c01ae0d88b56ca4d32f7c2b9a5ea1a9e8a33f2d6e0c1"}}`,
				`{"type":"artifact","artifact":{"name":"/b.bin","media_type":"image/x","size":3,"checksum":"sha256:0"}}`}},
		"interrupts of any value": {
			[]string{`updates {"__interrupt__":[{"id":"i","value":"Left?"},{"id":"j","value":{"q":1}}]}`, `updates {"__interrupt__":[{"id":"i","value":"Left?"}]}`},
			[]string{`{"type":"tool_call","tool_name":"request_input","tool_call_id":"i","tool_args":{"value":"Left?"},"external":true}`,
				`{"type":"tool_call","tool_name":"request_input","tool_call_id":"j","tool_args":{"q":1},"external":true}`}},
		"an error that is a bare string": {[]string{`error "Run not found"`}, []string{`{"type":"error","error_code":"Error","error_message":"Run not found"}`}},
		"a graph's own artifact": {[]string{`custom {"type":"artifact","artifact":{"name":"x"}}`, `custom {"type":"artifact"}`, `custom 7`},
			[]string{`{"type":"artifact","artifact":{"name":"x"}}`, `{"type":"state_change","state":"custom"}`, `{"type":"state_change","state":"custom"}`}},
		"what is not known, or cannot be read": {[]string{`checkpoints {"x":1}`, `values {"messages":[]}`, `tasks [1]`, `messages {"x":1}`, `messages []`, `updates [1]`, `updates {"n":7,"m":null}`, `updates {"__interrupt__":7}`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMapper()
			var got []agent.Event
			for _, text := range c.frames {
				name, data, _ := strings.Cut(text, " ")
				got = append(got, m.take(parseFrame(sse.Frame{Event: name, Data: data}))...)
			}
			var want []agent.Event
			for _, line := range c.want {
				e, err := agent.Decode([]byte(line))
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, e)
			}
			for i := range got {
				if got[i].Type == agent.Artifact && got[i].Bytes != nil && i < len(want) {
					var described struct{ Size int }
					if json.Unmarshal(got[i].Artifact, &described) != nil || described.Size != len(got[i].Bytes) {
						t.Errorf("%s has %d bytes", got[i].Artifact, len(got[i].Bytes))
					}
					got[i].Bytes = nil
					got[i].Artifact, want[i].Artifact = cutChecksum(got[i].Artifact), cutChecksum(want[i].Artifact)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// cutChecksum leaves a checksum out of a comparison that is not about it.
func cutChecksum(raw json.RawMessage) json.RawMessage {
	before, _, _ := bytes.Cut(raw, []byte(`,"checksum"`))
	return before
}

func FuzzMapper(f *testing.F) {
	f.Add("messages", `[{"type":"ai","id":"m","content":[{"type":"text","text":"x"}],"tool_call_chunks":[]},{}]`)
	f.Add("updates|a|b", `{"n":{"messages":[{"type":"tool","tool_call_id":"c","content":"x"}],"files":{"/a":{"content":{"0":1}}}}}`)
	f.Add("updates", `{"__interrupt__":[{"id":"i","value":null}]}`)
	f.Add("error", `"x"`)
	f.Fuzz(func(t *testing.T, event, data string) {
		m := newMapper()
		for range 2 {
			for _, e := range m.take(parseFrame(sse.Frame{Event: event, Data: data})) {
				for _, raw := range []json.RawMessage{e.Block, e.ToolArgs, e.ToolResult, e.Artifact} {
					if raw != nil && !json.Valid(raw) {
						t.Fatalf("%+v", e)
					}
				}
			}
		}
	})
}
