package ledger

import (
	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// act decides what somebody does to a run who is not its runtime: cancels it,
// closes it, takes it over. No facts and no error: it is as wished already.
type act func(*run.State) (run.Decision, error)

// entry is one thing that waits for a run's Recorder: an AgentEvent of a push,
// an act, or the wish to see the state as the leader has it (neither).
type entry struct {
	event agent.Event
	push  *Push // nil: not an AgentEvent
	line  int
	whole bool // its half surrogate waits no longer
	act   act
	final bool       // the act ends the run
	done  chan error // for what is not an AgentEvent; holds the one answer

	last int // in a batch: the index of the last event that holds its facts
}

// size is about what the entry takes in memory.
func (e *entry) size() int {
	return 256 + len(e.event.Content) + len(e.event.Block) + len(e.event.ToolArgs) +
		len(e.event.ToolResult) + len(e.event.Artifact) + len(e.event.Answer) + len(e.event.ErrorMessage)
}

// dropped reports whether nobody wants the entry any more: its push failed
// before it was taken.
func (e *entry) dropped() bool { return e.push != nil && !e.whole && e.push.failed() }

// looks reports whether the entry only wants to see the leader's state.
func (e *entry) looks() bool { return e.push == nil && e.act == nil }

// ends reports whether the entry may end the run.
func (e *entry) ends() bool {
	return e.final || e.event.Type == agent.Done || e.event.Type == agent.Error
}

func (e *entry) producer() string {
	if e.push == nil {
		return ""
	}
	return e.push.producer
}

// settle gives the one answer: nil for taken. What has waited for half a
// character was answered when it began to wait.
func (e *entry) settle(err error) {
	switch {
	case e.whole:
	case e.push != nil:
		e.push.settle(e.line, err)
	default:
		e.done <- err
	}
}

func settleAll(work []*entry, err error) {
	for _, e := range work {
		e.settle(err)
	}
}
