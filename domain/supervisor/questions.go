package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
)

// questions are a run's external calls, as its owner knows them: they stop its
// clock while one of them is open, and bring the answers to the runtime. Safe for
// concurrent use.
type questions struct {
	clock *clock
	blobs blob.Store
	named func(ctx context.Context, call string) (canonical string, err error)

	mu      sync.Mutex
	open    map[string]bool          // by canonical id, or by the runtime's own where that is not known yet
	answers map[string]agent.Answer  // committed
	giving  map[string]chan struct{} // answers that are being committed; closed when that is over
	changed chan struct{}            // closed and replaced when an answer comes
}

func newQuestions(c *clock, blobs blob.Store, named func(context.Context, string) (string, error)) *questions {
	return &questions{
		clock: c, blobs: blobs, named: named, open: make(map[string]bool), answers: make(map[string]agent.Answer),
		giving: make(map[string]chan struct{}), changed: make(chan struct{}),
	}
}

// follow notes what a runtime is about to report: the clock stops before anybody
// can hear of a question.
func (q *questions) follow(e *agent.Event) {
	switch {
	case e.Type == agent.ToolCall && e.External:
		q.mu.Lock()
		defer q.mu.Unlock()
		q.open[e.ToolCallID] = true // it may be another one of that name
		q.clock.wait(true)
	case e.Type == agent.ToolResult:
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.open, e.ToolCallID)
		q.clock.wait(len(q.open) > 0)
	}
}

// ask notes that a call is recorded, which may have its answer already: an heir
// reads of both in any order.
func (q *questions) ask(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, answered := q.answers[id]; !answered {
		q.open[id] = true
		q.clock.wait(true)
	}
}

// deliver hands a committed answer to the runtime.
func (q *questions) deliver(a agent.Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, a.ToolCallID)
	if i := strings.LastIndexByte(a.ToolCallID, '~'); i > 0 { // the runtime's own name, where the call was not asked for yet
		delete(q.open, a.ToolCallID[:i])
	}
	q.answers[a.ToolCallID] = a
	q.clock.wait(len(q.open) > 0)
	close(q.changed)
	q.changed = make(chan struct{})
}

// give makes the caller the one who commits a call's answer, until it calls over;
// mine is false where somebody does already: then giving is closed once that is
// over.
func (q *questions) give(id string) (giving chan struct{}, over func(), mine bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if giving := q.giving[id]; giving != nil {
		return giving, nil, false
	}
	giving = make(chan struct{})
	q.giving[id] = giving
	return giving, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.giving, id)
		close(giving)
	}, true
}

// answer implements agent.Task.Answer: it waits for the answer to the newest call of
// that name and returns it whole.
func (q *questions) answer(ctx context.Context, id string) (agent.Answer, error) {
	canonical, err := q.named(ctx, id)
	switch {
	case ctx.Err() != nil:
		return agent.Answer{}, ctx.Err()
	case err == nil:
		q.name(id, canonical)
		id = canonical
	}
	for {
		q.mu.Lock()
		a, ok := q.answers[id]
		changed := q.changed
		q.mu.Unlock()
		if ok {
			return q.whole(ctx, a)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return agent.Answer{}, ctx.Err()
		}
	}
}

// name notes by which canonical id a call goes.
func (q *questions) name(id, canonical string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, id)
	if _, answered := q.answers[canonical]; !answered {
		q.open[canonical] = true
	}
	q.clock.wait(len(q.open) > 0)
}

// blobPause is how long a blob store that fails is left alone.
const blobPause = time.Second

// whole returns an answer with its whole result, which may be kept beside its
// event. Errors: ctx's, *agent.Failure.
func (q *questions) whole(ctx context.Context, a agent.Answer) (agent.Answer, error) {
	if a.Full == nil {
		return a, nil
	}
	var damaged *blob.DamagedError
	for {
		content, err := q.read(ctx, a.Full)
		switch {
		case err == nil && a.Full.MediaType == blob.Text:
			a.Result, err = json.Marshal(string(content))
			a.Full = nil
			return a, err
		case err == nil:
			a.Result, a.Full = content, nil
			return a, nil
		case errors.Is(err, blob.ErrNotFound), errors.As(err, &damaged):
			return agent.Answer{}, &agent.Failure{Code: "blob_store_failed", Message: "an answer to the runtime is not kept here"}
		}
		timer := time.NewTimer(blobPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return agent.Answer{}, ctx.Err()
		}
	}
}

func (q *questions) read(ctx context.Context, full *agent.Full) ([]byte, error) {
	content, err := q.blobs.Open(ctx, full.Checksum)
	if err != nil {
		return nil, err
	}
	defer content.Close() //nolint:errcheck // it was read only
	return io.ReadAll(blob.NewReader(content, full.Checksum))
}
