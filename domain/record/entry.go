package record

import (
	"sync/atomic"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// act decides what somebody does to a run who is not its runtime: cancels it,
// closes it, takes it over. No facts and no error: it is as wished already. It
// may be called again with what other instances wrote meanwhile; the last call
// counts.
//
// fault is why the run cannot be read, and given to final acts only: then s knows
// the newest event's envelope and nothing more (run.Unread). nil: s is whole.
type act func(s *run.State, fault error) (run.Decision, error)

// entry is one thing that waits for a run's writer: an AgentEvent of a push, an
// act, the wish to see the state as the leader has it, or what only the package
// itself asks for (seed, letGo).
type entry struct {
	event agent.Event
	push  *Push // nil: not an AgentEvent
	line  int
	whole bool // a delta that waited for the other half of a character, and waits no longer

	act   act
	final bool        // the act ends the run
	brief bool        // the act comes to nothing when who asks for it gives up before its facts are on their way
	lapse atomic.Bool // it is not sent again either where its outcome is unknown
	done  chan answer // for what is not an AgentEvent; holds the one answer, never blocks

	seed  *run.State // what a run that was started here begins with; handed over
	letGo bool       // no half character is to wait any longer

	producer string       // whose mark the answer tells
	size     int          // bytes that the queue counts for it
	fate     atomic.Int32 // open, until the one of the following that is first

	last int // in a batch: the index of the last event that holds its facts
}

// What an entry's fate may be.
const (
	open      = iota
	taken     // its facts are on their way
	withdrawn // nobody wants it any more
)

// take makes sure that the entry cannot be withdrawn any more; false: it has been.
func (e *entry) take() bool {
	return e.fate.CompareAndSwap(open, taken) || e.fate.Load() == taken
}

// withdraw makes sure that the entry comes to nothing; false: it was taken.
func (e *entry) withdraw() bool { return e.fate.CompareAndSwap(open, withdrawn) }

// answer is what comes of an entry that is not an AgentEvent.
type answer struct {
	summary Summary // zero: the run's state is not known
	err     error
}

// beside is about what an entry takes in memory beside the texts that it holds:
// itself, its places in slices, an answer.
const beside = 512

func newReport(p *Push, line int, e agent.Event) *entry {
	texts := len(e.Content) + len(e.Block) + len(e.BlockType) + len(e.BlockID) + len(e.Author) + len(e.ToolName) +
		len(e.ToolCallID) + len(e.ParentToolCallID) + len(e.ToolArgs) + len(e.ToolResult) + len(e.Artifact) + len(e.Answer) +
		len(e.Usage) + len(e.ErrorCode) + len(e.ErrorMessage) + len(e.State) + len(e.TraceID) + len(e.SpanID)
	if e.Cursor != nil {
		texts += len(*e.Cursor)
	}
	return &entry{event: e, push: p, line: line, producer: p.from.Producer, size: beside + texts}
}

func newAsk(producer string) *entry {
	return &entry{producer: producer, size: beside, done: make(chan answer, 1)}
}

func newAct(a act, final bool) *entry {
	e := newAsk("")
	e.act, e.final = a, final
	return e
}

// dropped reports whether nobody wants the entry any more: its push failed, or
// who asked gave up, before it was taken.
func (e *entry) dropped() bool {
	return e.fate.Load() == withdrawn || e.push != nil && !e.whole && e.push.failed()
}

func (e *entry) waits() bool { return !e.dropped() }

// looks reports whether the entry only wants to see the leader's state.
func (e *entry) looks() bool { return e.push == nil && e.act == nil && !e.letGo }

// closes reports whether half characters must not wait beyond the entry: it may
// end the run.
func (e *entry) closes() bool {
	return e.final || e.letGo || e.push != nil && (e.event.Type == agent.Done || e.event.Type == agent.Error)
}

// halved reports whether the entry is a delta that ends in half a character and
// may still wait for the other half.
func (e *entry) halved() bool {
	return e.push != nil && e.event.Type == agent.Delta && !e.whole && e.event.Content.EndsInHalf()
}
