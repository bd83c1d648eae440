package blob_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
)

// memory is a blob store in memory, of one run.
type memory map[string]string

func (m memory) Put(_ context.Context, _ run.ID, content io.Reader, _ int64) (string, int64, error) {
	b, err := io.ReadAll(content)
	m[run.Checksum(b)] = string(b)
	return run.Checksum(b), int64(len(b)), err
}
func (memory) Open(context.Context, string) (io.ReadSeekCloser, error) { return nil, blob.ErrNotFound }
func (memory) Release(context.Context, run.ID) error                   { return nil }

const limit = 10_000

// Whatever is long in an event becomes a blob, whole; what stays is short, passes
// the event's own gate and says where the whole is.
func TestWhatIsLongIsKeptBeside(t *testing.T) {
	long, control := strings.Repeat("é<\"", 4000), strings.Repeat("\x01", 3000) // 3,000 bytes, 18,000 as JSON
	raw := func(v any) json.RawMessage {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			t.Fatal(err)
		}
		return bytes.TrimSpace(b.Bytes())
	}
	object := raw(map[string]string{"text": long})
	artifact := raw(map[string]any{"name": "n", "url": "u", "size": 5, "checksum": "c", "artifact_id": "id", "media_type": "m", "more": long})
	for name, c := range map[string]struct {
		event agent.Event
		whole string
		media string
		left  func(*agent.Event) string // what stays in the event
	}{
		"a block":           {agent.Event{Type: agent.Delta, BlockType: "image", Block: object}, string(object), "application/json", func(e *agent.Event) string { return string(e.Block) }},
		"arguments":         {agent.Event{Type: agent.ToolCall, ToolCallID: "c", ToolArgs: object}, string(object), "application/json", func(e *agent.Event) string { return string(e.ToolArgs) }},
		"a result":          {agent.Event{Type: agent.ToolResult, ToolCallID: "c", ToolResult: object}, string(object), "application/json", func(e *agent.Event) string { return string(e.ToolResult) }},
		"a text":            {agent.Event{Type: agent.ToolResult, ToolCallID: "c", ToolResult: raw(long)}, long, "text/plain; charset=utf-8", func(e *agent.Event) string { return string(e.ToolResult) }},
		"an answer":         {agent.Event{Type: agent.Done, Answer: agent.Unicode(long)}, long, "text/plain; charset=utf-8", func(e *agent.Event) string { return string(e.Answer) }},
		"control answer":    {agent.Event{Type: agent.Done, Answer: agent.Unicode(control)}, control, "text/plain; charset=utf-8", func(e *agent.Event) string { return string(e.Answer) }},
		"an error's text":   {agent.Event{Type: agent.Error, ErrorCode: "x", ErrorMessage: control}, control, "text/plain; charset=utf-8", func(e *agent.Event) string { return e.ErrorMessage }},
		"an artifact's own": {agent.Event{Type: agent.Artifact, Artifact: artifact}, string(artifact), "application/json", func(e *agent.Event) string { return string(e.Artifact) }},
	} {
		m, e := memory{}, c.event
		if err := e.Check(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !blob.Long(&e, limit) {
			t.Errorf("%s is not long", name)
		}
		if err := blob.Offload(t.Context(), m, "r", limit, &e); err != nil || e.Full == nil {
			t.Fatalf("%s: %+v, %v", name, e.Full, err)
		}
		if m[e.Full.Checksum] != c.whole || e.Full.Size != int64(len(c.whole)) || e.Full.MediaType != c.media {
			t.Errorf("%s: %+v", name, e.Full)
		}
		if left := c.left(&e); agent.JSONLen(left) > 7000 || left == "" {
			t.Errorf("%s leaves %d bytes", name, agent.JSONLen(left))
		}
		if err := e.Check(); err != nil {
			t.Errorf("%s does not pass its gate again: %v", name, err)
		}
		short := c.event
		if err := blob.Offload(t.Context(), m, "r", 100_000, &short); err != nil || short.Full != nil || len(m) != 1 {
			t.Errorf("%s was short enough: %v", name, err)
		}
	}
	e := agent.Event{Type: agent.Artifact, Artifact: artifact, Bytes: []byte("bytes")}
	m := memory{}
	if err := blob.Offload(t.Context(), m, "r", limit, &e); err != nil || !e.Stored || e.Bytes != nil || m[run.Checksum([]byte("bytes"))] != "bytes" ||
		string(e.Artifact) != `{"artifact_id":"id","name":"n","media_type":"m","size":5,"checksum":"c","url":"u"}` {
		t.Errorf("%s, %v", e.Artifact, err)
	}
	start := run.Start{ID: "r", Input: object}
	if err := blob.OffloadInput(t.Context(), m, limit, &start); err != nil || m[start.InputFull.Checksum] != string(object) || len(start.Input) > 5000 || start.Input[0] != '"' {
		t.Errorf("%.50s, %v", start.Input, err)
	}
	answer := agent.Answer{Result: raw(long)}
	if err := blob.OffloadAnswer(t.Context(), m, "r", limit, &answer); err != nil || m[answer.Full.Checksum] != long || strings.Contains(string(answer.Result), `\u003c`) {
		t.Errorf("%.50s, %v", answer.Result, err)
	}
}

func TestAReaderGivesNothingDamagedAwayWhole(t *testing.T) {
	for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 200_000, 256 << 10} {
		good := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		sum := run.Checksum(good)
		r := blob.NewReader(bytes.NewReader(good), sum)
		if err := iotest.TestReader(io.MultiReader(r), good); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if r.Err() != nil {
			t.Errorf("%d bytes: %v", size, r.Err())
		}
		if err := blob.Check(bytes.NewReader(good), sum); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		for _, bad := range [][]byte{append(bytes.Clone(good), 0), good[:max(0, size-1)], bytes.ToUpper(good)} {
			if bytes.Equal(bad, good) {
				continue
			}
			var damaged *blob.DamagedError
			r := blob.NewReader(bytes.NewReader(bad), sum)
			got, err := io.ReadAll(r)
			if !errors.As(err, &damaged) || !errors.As(r.Err(), &damaged) || len(got) >= len(bad) && len(bad) > 0 {
				t.Errorf("%d of %d bytes were given away: %v", len(got), len(bad), err)
			}
		}
	}
	var failed *blob.StoreError
	if _, err := io.ReadAll(blob.NewReader(failing{}, "sha256:")); !errors.As(err, &failed) {
		t.Errorf("%v", err)
	}
	r := blob.NewReader(strings.NewReader("abc"), run.Checksum([]byte("abc")))
	if _, err := r.Seek(1, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err == nil {
		t.Error("a part was compared with the whole's checksum")
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "abc" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// failing is content on a disk that is broken.
type failing struct{}

func (failing) Read([]byte) (int, error)       { return 0, errors.New("input/output error") }
func (failing) Seek(int64, int) (int64, error) { return 0, nil }
