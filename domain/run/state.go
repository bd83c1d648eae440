package run

import (
	"fmt"
	"slices"
	"time"
)

// Status is where a run stands.
type Status string

// The six statuses. A run is queued until its turn comes, and waits while a call
// that somebody outside answers is open.
const (
	Queued    Status = "queued"
	Running   Status = "running"
	Waiting   Status = "waiting"
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// State is a run folded from its events, as far as the next decision needs
// it. The zero value is a run without events. It is not safe for concurrent use.
type State struct {
	RunID           ID
	AgentID         string
	Runtime         string
	ThreadID        string
	Labels          map[string]string // not to be changed
	ParentRunID     string
	RetryOf         string
	Snapshot        string
	RequestChecksum string
	StartedAt       time.Time
	EndedAt         time.Time // zero: not ended
	Failure         *Failure  // of a failed run
	LastSeq         Seq
	Owner           string  // of an owned run: the instance that drives its runtime
	Epoch           uint64  // of an owned run: 1, and one more with each take-over
	Cursor          *string // the runtime's own position after what is recorded; nil: none given

	ending    string // the terminal event's type; "": not ended
	queued    bool
	chain     string // the last event's chain checksum
	marks     layered[string, Mark]
	message   string // the open message's id; "": none
	messages  int
	blocks    blocks
	text      transcript
	calls     calls
	artifacts layered[string, Artifact]
	products  int      // artifacts so far
	claims    []string // taken, and not yet written (Event.Claims)
}

// Status tells where the run stands.
func (s *State) Status() Status {
	switch {
	case s.ending == TypeRunCompleted:
		return Completed
	case s.ending == TypeRunFailed:
		return Failed
	case s.ending == TypeRunCancelled:
		return Cancelled
	case s.queued:
		return Queued
	case s.calls.external > 0:
		return Waiting
	}
	return Running
}

// Terminal reports whether the run has ended.
func (s *State) Terminal() bool { return s.ending != "" }

// Mark is how far a producer's AgentEvents are committed.
func (s *State) Mark(producer string) Mark {
	m, _ := s.marks.get(producer)
	return m
}

// Chain is the chain checksum of the state's last event; "": it has none.
func (s *State) Chain() string { return s.chain }

// Fork returns a state that can be carried on and thrown away. At most one
// fork may be in use, and s must not change while it is.
func (s *State) Fork() *State {
	f := *s
	f.marks, f.artifacts = s.marks.fork(), s.artifacts.fork()
	f.calls, f.blocks, f.text = s.calls.fork(), s.blocks.fork(), s.text.fork()
	f.claims = slices.Clip(s.claims)
	return &f
}

// Adopt makes s what its fork has become.
func (s *State) Adopt(fork *State) {
	marks, artifacts, c, b := s.marks, s.artifacts, s.calls, s.blocks
	marks.merge(fork.marks)
	artifacts.merge(fork.artifacts)
	c.merge(fork.calls)
	b.merge(fork.blocks)
	*s = *fork
	s.marks, s.artifacts, s.calls, s.blocks = marks, artifacts, c, b
}

// Apply folds a committed event into the state. An event type that is not
// known leaves it as it is, but for seq, chain and marks. After an error the
// state is as it was. Errors: a gap in seq, *BrokenChainError, *DamagedError, a
// payload that cannot be read.
func (s *State) Apply(e *Event) error {
	switch {
	case e.Seq != s.LastSeq+1:
		return fmt.Errorf("event %d of run %s does not follow event %d", e.Seq, e.RunID, s.LastSeq)
	case e.ChainChecksum != e.chain(s.chain):
		return &BrokenChainError{e.RunID, e.Seq}
	case e.PayloadChecksum != Checksum(e.Payload):
		return &DamagedError{e.RunID, e.Seq}
	}
	p, err := DecodePayload(e.Type, e.Payload)
	if err != nil {
		return fmt.Errorf("run %s, seq %d: %w", e.RunID, e.Seq, err)
	}
	s.fold(p, e.OccurredAt)
	if e.Type == TypeRunStarted {
		s.RunID, s.Snapshot, s.RequestChecksum = e.RunID, e.Snapshot, e.RequestChecksum
	}
	if e.Epoch != 0 {
		s.Owner, s.Epoch = e.Owner, e.Epoch
	}
	for _, id := range e.Claims {
		s.calls.claimed.set(id, struct{}{})
	}
	s.advance(e.Seq, e.ChainChecksum, e.Source)
	return nil
}

// Ends reports whether e is the event that the state was last folded from.
func (s *State) Ends(e *Event) bool { return e.Seq == s.LastSeq && e.ChainChecksum == s.chain }

// advance notes what every event brings, whatever its type.
func (s *State) advance(seq Seq, chain string, source *Source) {
	s.LastSeq, s.chain = seq, chain
	if source == nil {
		return
	}
	if m := (Mark{source.Epoch, source.Seq}); s.Mark(source.Producer).Before(m) {
		s.marks.set(source.Producer, m)
	}
	if source.Cursor != nil {
		s.Cursor = source.Cursor
	}
}

// fold is what an event means for the next decision.
func (s *State) fold(payload Payload, at time.Time) {
	switch p := payload.(type) {
	case *RunStarted:
		s.AgentID, s.Runtime, s.ThreadID, s.StartedAt = p.AgentID, p.Runtime, p.ThreadID, p.StartedAt
		s.Labels, s.ParentRunID, s.RetryOf, s.queued = p.Labels, p.ParentRunID, p.RetryOf, p.Queued
	case *RunDequeued:
		s.queued = false
	case *RunResumed:
		s.Owner, s.Epoch = p.Owner, p.Epoch
	case *MessageStarted:
		s.message, s.messages = p.MessageID, s.messages+1
		s.blocks, s.text = blocks{byKey: s.blocks.byKey.cleared()}, transcript{}
	case *MessageDelta:
		s.blocks.fold(p)
		if p.BlockType == "" {
			s.text.write(p.ContentIndex, p.BlockID != "", p.Delta)
		}
	case *ToolCallStarted:
		s.calls.start(p)
		s.blocks.last.left = true
	case *ToolCallCompleted:
		s.calls.complete(p)
	case *ArtifactCreated:
		s.artifacts.set(p.ArtifactID, p.described())
		s.products++
	case *MessageCompleted:
		s.message = ""
	case *RunCompleted:
		s.end(TypeRunCompleted, at)
	case *RunFailed:
		s.Failure = &p.Failure
		s.end(TypeRunFailed, at)
	case *RunCancelled:
		s.end(TypeRunCancelled, at)
	}
}

func (s *State) end(kind string, at time.Time) {
	s.ending, s.EndedAt = kind, at
	s.message, s.text = "", transcript{} // nothing is decided any more
}

// Weight is about what the state takes in memory, in bytes.
func (s *State) Weight() int {
	return 1024 + cap(s.text.kept) + s.text.held + 256*len(s.calls.byID.base) + 256*len(s.artifacts.base) + 128*len(s.blocks.byKey.base) + 64*len(s.marks.base)
}
