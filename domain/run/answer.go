package run

import (
	"fmt"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// NoCallError refuses an answer to a call that nobody outside is asked for.
type NoCallError struct {
	Run        ID
	ToolCallID string
}

func (e *NoCallError) Error() string {
	return fmt.Sprintf("run %s has no external call %q", e.Run, e.ToolCallID)
}

// AnsweredError refuses another answer than the one that is recorded.
type AnsweredError struct {
	Run        ID
	ToolCallID string
}

func (e *AnsweredError) Error() string {
	return fmt.Sprintf("run %s: call %q has another answer already", e.Run, e.ToolCallID)
}

// ExternalCall returns the canonical id of the newest external call that a runtime
// names id; false: it has named none so.
func (s *State) ExternalCall(id string) (canonical string, ok bool) {
	for _, one := range s.calls.each(id) {
		if one.external {
			canonical, ok = one.id, true
		}
	}
	return canonical, ok
}

// Answer returns the fact that somebody outside answered an external call, or
// none where that very answer is recorded. limit is as for Decide.
// Errors: *NoCallError, *AnsweredError, *EndedError, *TooLargeError.
func (s *State) Answer(a agent.Answer, now time.Time, limit int) (Decision, error) {
	one, ok := s.calls.byID.get(a.ToolCallID)
	if !ok || !one.external {
		return Decision{}, &NoCallError{s.RunID, a.ToolCallID}
	}
	d := draft{state: s, message: s.message, at: now.UTC().Truncate(time.Microsecond)}
	given := d.complete(&ToolCallCompleted{ToolCallID: one.id, ToolName: one.name, Result: a.Result, IsError: a.IsError}, a.Full)
	switch {
	case !one.open && one.result == given && one.isError == a.IsError:
		return Decision{}, nil
	case s.Terminal():
		return Decision{}, &EndedError{s.RunID, s.Status()}
	case !one.open:
		return Decision{}, &AnsweredError{s.RunID, a.ToolCallID}
	case d.size() > limit:
		return Decision{}, &TooLargeError{s.RunID, limit}
	}
	return d.out, nil
}
