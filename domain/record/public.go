package record

import (
	"errors"
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/run"
)

// Summary is where a run stands. It is a value: nothing in it changes.
type Summary struct {
	RunID       run.ID
	AgentID     string
	Runtime     string
	ThreadID    string
	Labels      map[string]string
	ParentRunID string
	RetryOf     string
	Status      run.Status
	LastSeq     run.Seq
	StartedAt   time.Time
	EndedAt     time.Time // zero: not ended
	Failure     *run.Failure
	ProducerSeq uint64
	Owner       string  // the instance that drives it; "": the run is pushed
	Epoch       uint64  // the owner's; 0: the run is pushed
	Cursor      *string // the runtime's position after what is recorded; nil: none given
}

func summarize(s *run.State, producer string) Summary {
	return Summary{
		RunID: s.RunID, AgentID: s.AgentID, Runtime: s.Runtime, ThreadID: s.ThreadID,
		Labels: s.Labels, ParentRunID: s.ParentRunID, RetryOf: s.RetryOf, Status: s.Status(), LastSeq: s.LastSeq, StartedAt: s.StartedAt, EndedAt: s.EndedAt,
		Failure: s.Failure, ProducerSeq: s.Mark(producer).Seq,
		Owner: s.Owner, Epoch: s.Epoch, Cursor: s.Cursor,
	}
}

// public is what a run's writer last made known of the run, for those who cannot
// wait for it. Safe for concurrent use. The zero value: nothing is known.
type public struct {
	mu     sync.Mutex
	last   Summary           // of no producer; without RunID: nothing is known
	marks  map[string]uint64 // of the latest life of each
	weight int               // bytes that the state takes
	halves bool              // deltas wait for the other half of a character
	cause  error             // why the store has not answered the writer yet; nil: it has
}

// trouble makes known why the store does not answer; nil: it does.
func (p *public) trouble(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cause = err
}

// because adds to why somebody gave up waiting what the store said meanwhile.
func (p *public) because(gaveUp error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(gaveUp, p.cause)
}

// publish tells where the run stands now, and the marks of producers.
func (p *public) publish(s *run.State, producers ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = summarize(s, "")
	for _, producer := range producers {
		if mark := s.Mark(producer).Seq; mark > 0 || p.marks[producer] > 0 {
			if p.marks == nil {
				p.marks = make(map[string]uint64)
			}
			p.marks[producer] = mark
		}
	}
}

// forget makes nothing known.
func (p *public) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.marks = Summary{}, nil
}

// weigh notes what the run's state takes, in bytes, and whether deltas wait for the
// other half of a character.
func (p *public) weigh(bytes int, halves bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.weight, p.halves = bytes+128*len(p.marks), halves
}

// holds reports whether such deltas wait.
func (p *public) holds() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.halves
}

// kept returns what the run's state takes, and whether there is one.
func (p *public) kept() (weight int, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.weight, p.last.RunID != ""
}

// summary returns where the run stood when last heard of; zero: not known.
func (p *public) summary(producer string) Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.last
	s.ProducerSeq = p.marks[producer]
	return s
}

// position returns the run's last seq and a producer's mark.
func (p *public) position(producer string) (run.Seq, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.LastSeq, p.marks[producer]
}
