package blob

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// previewed is how much of an offloaded value stays in its event, in bytes as JSON.
const previewed = 4 << 10

// Text is the media type of a value that was a string: what is kept is its UTF-8,
// not its JSON.
const Text = "text/plain; charset=utf-8"

const document = "application/json"

// Long reports whether Offload has something to keep.
func Long(e *agent.Event, limit int) bool {
	switch e.Type {
	case agent.Delta: // its text is split instead
		return len(e.Block) > limit
	case agent.ToolCall:
		return len(e.ToolArgs) > limit
	case agent.ToolResult:
		return len(e.ToolResult) > limit
	case agent.Artifact:
		return e.Bytes != nil || e.Source != nil || len(e.Artifact) > limit
	case agent.Done:
		return agent.JSONLen(e.Answer.String()) > limit
	case agent.Error:
		return agent.JSONLen(e.ErrorMessage) > limit
	}
	return false
}

// Offload keeps what an event carries beside itself (an artifact's bytes), and
// its value where that takes more than limit bytes as JSON. What stays in the
// event is its beginning; of a structured block nothing, and of an artifact's
// description the members that have a meaning. Errors as for Store.Put.
func Offload(ctx context.Context, s Store, id run.ID, limit int, e *agent.Event) (err error) {
	if !Long(e, limit) {
		return nil
	}
	switch e.Type {
	case agent.Delta:
		e.Full, err = keep(ctx, s, id, e.Block, document)
		e.Block = json.RawMessage("null")
	case agent.ToolCall:
		e.ToolArgs, e.Full, err = offload(ctx, s, id, e.ToolArgs)
	case agent.ToolResult:
		e.ToolResult, e.Full, err = offload(ctx, s, id, e.ToolResult)
	case agent.Artifact:
		err = offloadArtifact(ctx, s, id, limit, e)
	case agent.Done:
		var text string
		text, e.Full, err = offloadText(ctx, s, id, e.Answer.String())
		e.Answer = agent.Unicode(text)
	case agent.Error:
		e.ErrorMessage, e.Full, err = offloadText(ctx, s, id, e.ErrorMessage)
	}
	return err
}

// OffloadAnswer is Offload for an answer from outside.
func OffloadAnswer(ctx context.Context, s Store, id run.ID, limit int, a *agent.Answer) (err error) {
	if len(a.Result) <= limit {
		return nil
	}
	a.Result, a.Full, err = offload(ctx, s, id, a.Result)
	return err
}

// offload keeps a JSON value: a string as its text, anything else as it is
// written, so that the checksum is the one that the event tells. It returns the
// beginning, a string.
func offload(ctx context.Context, s Store, id run.ID, value json.RawMessage) (json.RawMessage, *agent.Full, error) {
	content, media := []byte(value), document
	if content[0] == '"' {
		content, media = []byte(agent.Unquote(value).String()), Text
	}
	full, err := keep(ctx, s, id, content, media)
	if err != nil {
		return value, nil, err
	}
	beginning, err := quote(preview(string(content)))
	return beginning, full, err
}

func offloadText(ctx context.Context, s Store, id run.ID, text string) (string, *agent.Full, error) {
	full, err := keep(ctx, s, id, []byte(text), Text)
	if err != nil {
		return text, nil, err
	}
	return preview(text), full, nil
}

// described are the members of an artifact that have a meaning (agent.Event.Check
// bounds them).
var described = []string{"artifact_id", "name", "media_type", "size", "checksum", "url"}

func offloadArtifact(ctx context.Context, s Store, id run.ID, limit int, e *agent.Event) error {
	content := e.Source // which its runner has bounded
	if e.Bytes != nil {
		content = bytes.NewReader(e.Bytes)
	}
	if content != nil {
		if _, _, err := s.Put(ctx, id, content, math.MaxInt64-1); err != nil {
			return fmt.Errorf("keep an artifact of run %s: %w", id, err)
		}
		e.Bytes, e.Source, e.Stored = nil, nil, true
	}
	if len(e.Artifact) <= limit {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(e.Artifact, &members); err != nil {
		return fmt.Errorf("read the artifact's description: %w", err)
	}
	full, err := keep(ctx, s, id, e.Artifact, document)
	if err != nil {
		return err
	}
	var known []byte
	for _, name := range described {
		if value, ok := members[name]; ok {
			known = append(append(known, `,"`+name+`":`...), value...)
		}
	}
	e.Artifact, e.Full = append(append([]byte("{"), bytes.TrimPrefix(known, []byte(","))...), '}'), full
	return nil
}

func keep(ctx context.Context, s Store, id run.ID, content []byte, media string) (*agent.Full, error) {
	checksum, size, err := s.Put(ctx, id, bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("keep a value of run %s: %w", id, err)
	}
	return &agent.Full{Checksum: checksum, Size: size, MediaType: media}, nil
}

// preview is the beginning of text, in whole characters.
func preview(text string) string {
	return strings.ToValidUTF8(agent.JSONBeginning(text, previewed), "\uFFFD")
}

// quote writes text as JSON in its stored form.
func quote(text string) (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		return nil, err
	}
	return agent.Compact(b.Bytes())
}

// OffloadInput is Offload for what a run begins with.
func OffloadInput(ctx context.Context, s Store, limit int, start *run.Start) (err error) {
	if len(start.Input) <= limit {
		return nil
	}
	start.Input, start.InputFull, err = offload(ctx, s, start.ID, start.Input)
	return err
}
