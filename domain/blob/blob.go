// Package blob is the port to what is too large for an event: artifacts' bytes,
// and long tool results, arguments and answers. Bytes are kept under their
// checksum, once, for as long as a run refers to them, and they are kept before
// the event that names them is committed.
package blob

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// ErrNotFound: nothing is kept under that checksum.
var ErrNotFound = errors.New("no such blob")

// TooLargeError refuses content beyond a limit.
type TooLargeError struct{ Limit int64 }

func (e *TooLargeError) Error() string { return fmt.Sprintf("more than %d bytes", e.Limit) }

// Store keeps blobs. Safe for concurrent use.
type Store interface {
	// Put keeps content for a run and returns its checksum and size. The same
	// again changes nothing. Errors: *TooLargeError, content's, others.
	Put(ctx context.Context, id run.ID, content io.Reader, limit int64) (checksum string, size int64, err error)

	// Open returns a blob's bytes. Error: ErrNotFound.
	Open(ctx context.Context, checksum string) (io.ReadSeekCloser, error)

	// Release ends a run's referring to any blob; those that no other run
	// refers to are gone. A run that refers to none is fine.
	Release(ctx context.Context, id run.ID) error
}

// Text is the media type of a value that was a string: what is kept is its UTF-8,
// not its JSON.
const Text = "text/plain; charset=utf-8"

// previewed is how much of an offloaded value stays in its event, in bytes.
const previewed = 4 << 10

// Long reports whether Offload has something to keep.
func Long(e *agent.Event, limit int) bool {
	return e.Bytes != nil || e.Source != nil || len(e.ToolArgs) > limit || len(e.ToolResult) > limit || len(e.Answer) > limit
}

// Offload keeps what an event carries beside itself (an artifact's bytes), and a
// tool's arguments or result or an answer of more than limit bytes, of which it
// leaves a preview.
func Offload(ctx context.Context, s Store, id run.ID, limit int, e *agent.Event) error {
	switch {
	case e.Type == agent.Artifact && e.Bytes != nil:
		if _, _, err := s.Put(ctx, id, bytes.NewReader(e.Bytes), int64(len(e.Bytes))); err != nil {
			return fmt.Errorf("keep an artifact of run %s: %w", id, err)
		}
		e.Bytes, e.Stored = nil, true
		return nil
	case e.Type == agent.Artifact && e.Source != nil: // its runner has bounded it
		if _, _, err := s.Put(ctx, id, e.Source, math.MaxInt64-1); err != nil {
			return fmt.Errorf("keep an artifact of run %s: %w", id, err)
		}
		e.Source, e.Stored = nil, true
		return nil
	case e.Type == agent.ToolCall && len(e.ToolArgs) > limit:
		return offload(ctx, s, id, &e.ToolArgs, &e.Full)
	case e.Type == agent.ToolResult && len(e.ToolResult) > limit:
		return offload(ctx, s, id, &e.ToolResult, &e.Full)
	case e.Type == agent.Done && len(e.Answer) > limit:
		text := e.Answer.String()
		full, err := keep(ctx, s, id, []byte(text), Text)
		e.Full, e.Answer = full, agent.Unicode(beginning(text))
		return err
	}
	return nil
}

// OffloadAnswer is Offload for an answer from outside.
func OffloadAnswer(ctx context.Context, s Store, id run.ID, limit int, a *agent.Answer) error {
	if len(a.Result) <= limit {
		return nil
	}
	return offload(ctx, s, id, &a.Result, &a.Full)
}

// offload keeps a JSON value: a string as its text, anything else as it is
// written, so that the checksum is the one that the event tells.
func offload(ctx context.Context, s Store, id run.ID, value *json.RawMessage, full **agent.Full) (err error) {
	content, media := []byte(*value), "application/json"
	if content[0] == '"' {
		content, media = []byte(agent.Unquote(*value).String()), Text
	}
	if *full, err = keep(ctx, s, id, content, media); err != nil {
		return err
	}
	*value, err = json.Marshal(beginning(string(content)))
	return err
}

func keep(ctx context.Context, s Store, id run.ID, content []byte, media string) (*agent.Full, error) {
	checksum, size, err := s.Put(ctx, id, bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("keep a value of run %s: %w", id, err)
	}
	return &agent.Full{Checksum: checksum, Size: size, MediaType: media}, nil
}

// beginning is the preview of text, in whole characters.
func beginning(text string) string {
	n := min(previewed, len(text))
	for n < len(text) && n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.ToValidUTF8(text[:n], "\uFFFD")
}
