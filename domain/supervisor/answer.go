package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// answerType is the type of an answer's note in its owner's command stream.
const answerType = "tool.result.given"

// given is an answer's data.
type given struct {
	RunID      run.ID          `json:"run_id"`
	ToolCallID string          `json:"tool_call_id"`
	Result     json.RawMessage `json:"result"`
	IsError    bool            `json:"is_error,omitempty"`
	Full       *agent.Full     `json:"full,omitempty"`
}

func (g *given) answer() agent.Answer {
	return agent.Answer{ToolCallID: g.ToolCallID, Result: g.Result, IsError: g.IsError, Full: g.Full}
}

// calls is the external calls of a run, as its owner knows them. Safe for
// concurrent use.
type calls struct {
	mu      sync.Mutex
	open    map[string]bool
	answers map[string]agent.Answer // committed
	changed chan struct{}           // closed and replaced when an answer comes
}

// follow notes what a runtime reports of its external calls.
func (c *calls) follow(e *agent.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.Type == agent.ToolCall && e.External:
		if _, answered := c.answers[e.ToolCallID]; !answered {
			c.open[e.ToolCallID] = true
		}
	case e.Type == agent.ToolResult:
		delete(c.open, e.ToolCallID)
	}
}

// waits reports whether the run waits for somebody outside.
func (c *calls) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}

// deliver hands a committed answer to the runtime.
func (c *calls) deliver(a agent.Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, a.ToolCallID)
	c.answers[a.ToolCallID] = a
	close(c.changed)
	c.changed = make(chan struct{})
}

// answer implements agent.Task.Answer.
func (c *calls) answer(ctx context.Context, id string) (agent.Answer, error) {
	for {
		c.mu.Lock()
		a, ok := c.answers[id]
		changed := c.changed
		c.mu.Unlock()
		if ok {
			return a, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return agent.Answer{}, ctx.Err()
		}
	}
}

// Answer has somebody's answer to an external call committed, by the run's owner
// where it has one, which hands it to the runtime. The same answer again is fine.
// Errors as for record.Answer; ctx's end is an *UnavailableError: the answer may
// still be committed.
func (s *Supervisor) Answer(ctx context.Context, id run.ID, a agent.Answer) (record.Summary, error) {
	if s, err := s.config.Runs.Summary(ctx, id, ""); err != nil {
		return s, err // nothing is kept for a run that is not there
	}
	if err := blob.OffloadAnswer(ctx, s.config.Blobs, id, s.config.Inline, &a); err != nil {
		return record.Summary{}, err
	}
	summary, answered, err := s.config.Runs.Answer(ctx, id, 0, a, true)
	if err != nil || answered {
		return summary, err
	}
	if summary.Owner == "" {
		summary, _, err = s.config.Runs.Answer(ctx, id, 0, a, false)
		return summary, err
	}
	if r := s.owned(id); r != nil {
		return s.commitAnswer(ctx, r, summary.Epoch, a)
	}
	data, err := json.Marshal(given{id, a.ToolCallID, a.Result, a.IsError, a.Full})
	if err != nil {
		return summary, err
	}
	if _, err := s.config.Side.Note(ctx, lease.CommandStream(summary.Owner), ledger.Note{Type: answerType, Data: data}); err != nil {
		return summary, err
	}
	err = s.config.Follower.Follow(ctx, id, summary.LastSeq, func(e run.Event) error {
		if run.Terminal(e.Type) {
			return errOver
		}
		p, err := run.DecodePayload(e.Type, e.Payload)
		if done, ok := p.(*run.ToolCallCompleted); err != nil || ok && done.ToolCallID == a.ToolCallID {
			return errOver
		}
		return nil
	})
	if !errors.Is(err, errOver) {
		if ctx.Err() != nil {
			err = &ledger.UnavailableError{Err: context.Cause(ctx)}
		}
		return summary, err
	}
	summary, answered, err = s.config.Runs.Answer(ctx, id, 0, a, true)
	if err == nil && !answered { // the end of another call: it was not there yet when we looked
		err = &ledger.UnavailableError{Err: errors.New("the answer is not recorded yet")}
	}
	return summary, err
}

// commitAnswer commits an answer to a run that is owned here.
func (s *Supervisor) commitAnswer(ctx context.Context, r *owned, epoch uint64, a agent.Answer) (record.Summary, error) {
	summary, _, err := s.config.Runs.Answer(ctx, r.id, epoch, a, false)
	if err == nil {
		r.deliver(a)
		select {
		case r.answered <- struct{}{}:
		default: // one hint is enough
		}
	}
	return summary, err
}

// obeyAnswer commits what another instance was given.
func (s *Supervisor) obeyAnswer(ctx context.Context, g given) {
	r := s.owned(g.RunID)
	if r == nil {
		return
	}
	select {
	case <-r.started:
	case <-ctx.Done():
		return
	}
	// Who gave it looks at the run; an error is its answer.
	_, _ = s.commitAnswer(ctx, r, r.summary.Epoch, g.answer())
}
