package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Runner drives one configured agent's runtime: it makes a run happen somewhere
// else and reports what happens. Safe for concurrent use; each call is one run.
type Runner interface {
	// Run starts the runtime on a task, reports its AgentEvents in order
	// through emit, and returns once the runtime has stopped: by itself, since
	// ctx ended, or since emit failed. emit waits while the run's queue is
	// full. Once ctx has ended Run returns within a bounded time of its own,
	// whether the runtime obeys or not. Where ctx's cause is ErrTakenOver, or only
	// that the process ends (context.Canceled), somebody else may go on with the
	// runtime. After an error of emit ctx ends soon.
	//
	// nil: the runtime came to its end; where it reported neither done nor
	// error, it is done. *Failure: it failed, for a reason that the run shall
	// name. Any other error is recorded without its text.
	Run(ctx context.Context, task Task, emit func(Event) error) (Stop, error)
}

// Task is what a runtime is to do.
type Task struct {
	RunID    string
	ThreadID string          // "": none
	Input    json.RawMessage // compact JSON; nil is null

	// Rejoin is set where the runtime was driven by another instance before.
	// Only a Rejoiner gets such a task.
	Rejoin *Rejoin

	// Answer waits until the newest external call that the runtime reported under
	// that id is answered, and returns the answer whole. Errors: ctx's; a *Failure
	// where the answer is not kept any more. Safe for concurrent use.
	Answer func(ctx context.Context, toolCallID string) (Answer, error)
}

// Rejoin is where to go on.
type Rejoin struct {
	Cursor *string // the last one that is recorded; nil: none is
}

// Answer is what somebody outside answered to an external call.
type Answer struct {
	ToolCallID string
	Result     json.RawMessage // compact JSON
	IsError    bool
	Full       *Full // the whole result, where Result is only its beginning
}

// Rejoiner is a Runner whose runtimes outlive the instance that drives them:
// another one can go on behind a recorded cursor, without a lost or doubled event.
type Rejoiner interface {
	Runner
	Rejoins()
}

// Stop is what is known of a runtime's end.
type Stop struct {
	// Proof says what shows that the runtime has stopped, such as "exit status
	// 0"; "": nothing does.
	Proof string
}

// ErrTakenOver is ctx's cause where another instance drives the runtime now: what
// outlives its driver must be left running.
var ErrTakenOver = errors.New("another instance took the run over")

// ErrEnded is what emit answers once nothing more of the run is recorded: it has
// ended, or is not this instance's any more.
var ErrEnded = errors.New("the run takes no more events")

// Failure is why a runtime failed, as the run shall tell it. Its text is shown
// to strangers.
type Failure struct {
	Code      string
	Message   string
	Retryable bool
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Code, f.Message) }
