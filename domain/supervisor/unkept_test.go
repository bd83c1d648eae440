package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
)

func TestAnArtifactThatIsTooLargeIsTheRuntimes(t *testing.T) {
	large := fmt.Errorf("keep an artifact of run r: %w", &blob.TooLargeError{Limit: 5})
	if l := unkept(large); l.code != "artifact_too_large" || l.retryable || l.message != "the runtime reported an artifact of more than 5 bytes" {
		t.Errorf("%+v", l)
	}
	full := fmt.Errorf("keep an artifact of run r: %w", &blob.StoreError{Cause: blob.Full, Err: errors.New("no space")})
	if l := unkept(full); l.code != "blob_store_failed" || !l.retryable {
		t.Errorf("%+v", l)
	}
}

// shelf is a blob store that has the same bytes under every checksum.
type shelf struct {
	blob.Store
	content []byte
}

type open struct{ *bytes.Reader }

func (open) Close() error { return nil }

func (s shelf) Open(context.Context, string) (io.ReadSeekCloser, error) {
	return open{bytes.NewReader(s.content)}, nil
}

// A runtime never gets what is not what was answered.
func TestADamagedAnswerIsNotHandedOver(t *testing.T) {
	for content, right := range map[string]bool{`{"a":1}`: true, `{"a":2}`: false, `{"a":`: false, ``: false, `{"a":1} `: false} {
		q := newQuestions(newClock(Limits{}), shelf{content: []byte(content)}, nil)
		got, err := q.whole(t.Context(), agent.Answer{ToolCallID: "c", Full: &agent.Full{Checksum: run.Checksum([]byte(`{"a":1}`)), Size: 7, MediaType: "application/json"}})
		var failure *agent.Failure
		if right && (err != nil || string(got.Result) != content) || !right && !errors.As(err, &failure) {
			t.Errorf("%q: %s, %v", content, got.Result, err)
		}
	}
}
