package run

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"time"
	"unicode/utf8"
)

// Status is where a run stands.
type Status string

// The five statuses. A run waits while a call that somebody outside answers is open.
const (
	Running   Status = "running"
	Waiting   Status = "waiting"
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// keptText is how much of the answer's text a state keeps, in bytes, for a
// runtime that ends without an answer of its own: as much as one append may
// hold by default. Longer texts are cut there, and the checksum is of the whole.
const keptText = 1 << 20

// State is a run folded from its events, as far as the next decision needs
// it. The zero value is a run without events. It is not safe for concurrent use.
type State struct {
	RunID           ID
	AgentID         string
	Runtime         string
	ThreadID        string
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
	chain     string // the last event's chain checksum
	marks     layered[string, uint64]
	message   string // the open message's id; "": none
	messages  int
	block     block
	text      transcript
	calls     calls
	artifacts layered[string, Artifact]
	products  int // artifacts so far
}

// block is the message block that the last delta wrote to.
type block struct {
	open  bool // there is one
	index uint64
	kind  string // "" is text
	left  bool   // a tool call has started since
}

// transcript is the text so far: its beginning, and the hash of the whole.
type transcript struct {
	kept []byte
	size int
	sum  hash.Hash
}

func (t *transcript) write(text string) {
	if t.sum == nil {
		t.sum = sha256.New()
	}
	t.sum.Write([]byte(text))
	if t.size == len(t.kept) { // nothing was cut so far
		end := min(keptText-len(t.kept), len(text))
		for end < len(text) && end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		t.kept = append(t.kept, text[:end]...)
	}
	t.size += len(text)
}

// checksum is of the whole text, kept or not.
func (t *transcript) checksum() string {
	if t.sum == nil {
		return Checksum(nil)
	}
	return formatSum(t.sum.Sum(nil))
}

// Status tells where the run stands.
func (s *State) Status() Status {
	switch {
	case s.ending == RunCompleted:
		return Completed
	case s.ending == RunFailed:
		return Failed
	case s.ending == RunCancelled:
		return Cancelled
	case s.calls.external > 0:
		return Waiting
	}
	return Running
}

// Terminal reports whether the run has ended.
func (s *State) Terminal() bool { return s.ending != "" }

// Mark is the highest producer_seq of a producer whose facts the state holds.
func (s *State) Mark(producer string) uint64 {
	n, _ := s.marks.get(producer)
	return n
}

// Fork returns a state that can be carried on and thrown away. At most one
// fork may be in use, and s must not change while it is.
func (s *State) Fork() *State {
	f := *s
	f.marks, f.artifacts = s.marks.fork(), s.artifacts.fork()
	f.calls = s.calls.fork()
	if s.text.sum != nil {
		// hash.Cloner, which crypto/sha256 implements, cannot fail for it.
		sum, err := s.text.sum.(hash.Cloner).Clone()
		if err != nil {
			panic("run: sha256 state cannot be cloned: " + err.Error())
		}
		f.text.sum = sum
	}
	return &f
}

// Adopt makes s what its fork has become.
func (s *State) Adopt(fork *State) {
	marks, artifacts, c := s.marks, s.artifacts, s.calls
	marks.merge(fork.marks)
	artifacts.merge(fork.artifacts)
	c.merge(fork.calls)
	*s = *fork
	s.marks, s.artifacts, s.calls = marks, artifacts, c
}

// Apply folds a committed event into the state. An event type that is not
// known leaves it as it is, but for seq, chain and marks. Errors: a gap in seq,
// a payload that cannot be read.
func (s *State) Apply(e *Event) error {
	if e.Seq != s.LastSeq+1 {
		return fmt.Errorf("event %d of run %s does not follow event %d", e.Seq, e.RunID, s.LastSeq)
	}
	var p Payload
	if known(e.Type) {
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return fmt.Errorf("payload of %s, run %s, seq %d: %w", e.Type, e.RunID, e.Seq, err)
		}
	}
	s.fold(e.Type, &p, e.OccurredAt)
	if e.Type == RunStarted {
		s.RunID, s.Snapshot, s.RequestChecksum = e.RunID, e.Snapshot, e.RequestChecksum
	}
	if e.Epoch != 0 {
		s.Owner, s.Epoch = e.Owner, e.Epoch
	}
	s.advance(e.Seq, e.ChainChecksum, e.Source)
	return nil
}

// advance notes what every event brings, whatever its type.
func (s *State) advance(seq Seq, chain string, source *Source) {
	s.LastSeq, s.chain = seq, chain
	if source == nil {
		return
	}
	if source.Seq > s.Mark(source.Producer) {
		s.marks.set(source.Producer, source.Seq)
	}
	if source.Cursor != nil {
		s.Cursor = source.Cursor
	}
}

func known(kind string) bool {
	switch kind {
	case RunStarted, RunResumed, MessageStarted, MessageDelta, ToolCallStarted, ToolCallCompleted, ArtifactCreated,
		MessageCompleted, RunCompleted, RunFailed, RunCancelled:
		return true
	}
	return false
}

// fold is what each event type means for the next decision.
func (s *State) fold(kind string, p *Payload, at time.Time) {
	switch kind {
	case RunStarted:
		s.AgentID, s.Runtime, s.ThreadID, s.StartedAt = p.AgentID, p.Runtime, p.ThreadID, at
	case RunResumed:
		s.Owner, s.Epoch = p.Owner, p.Epoch
	case MessageStarted:
		s.message, s.messages = p.MessageID, s.messages+1
		s.block, s.text = block{}, transcript{}
	case MessageDelta:
		s.block = block{open: true, index: p.ContentIndex, kind: p.BlockType}
		if p.BlockType == "" {
			s.text.write(p.Delta)
		}
	case ToolCallStarted:
		s.calls.start(p)
		s.block.left = true
	case ToolCallCompleted:
		s.calls.complete(p)
	case ArtifactCreated:
		s.artifacts.set(p.ArtifactID, p.described())
		s.products++
	case MessageCompleted:
		s.message = ""
	case RunCompleted, RunFailed, RunCancelled:
		s.ending, s.EndedAt, s.Failure = kind, at, p.Error
		s.message, s.text = "", transcript{} // nothing is decided any more
	}
}

// Weight is about what the state takes in memory, in bytes.
func (s *State) Weight() int {
	return 1024 + len(s.text.kept) + 256*len(s.calls.byID.base) + 256*len(s.artifacts.base)
}
