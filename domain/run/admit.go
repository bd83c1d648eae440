package run

import (
	"errors"
	"fmt"
)

// ErrDuplicate: the facts of an AgentEvent with this number are committed.
var ErrDuplicate = errors.New("committed already")

// GapError refuses a number that is not the producer's next.
type GapError struct {
	Run      ID
	Producer string
	Got      uint64
	Next     uint64 // from here the producer goes on
}

func (e *GapError) Error() string {
	return fmt.Sprintf("run %s: producer %q sent number %d, expected %d", e.Run, e.Producer, e.Got, e.Next)
}

// Mark is how far a producer has come: its life, and the highest of its numbers
// in that. The zero value stands before the first.
type Mark struct {
	Epoch uint64
	Seq   uint64
}

// Before reports whether m comes before other, in an earlier life or in this one.
func (m Mark) Before(other Mark) bool {
	return m.Epoch < other.Epoch || m.Epoch == other.Epoch && m.Seq < other.Seq
}

// ProducerFencedError refuses a producer's earlier life.
type ProducerFencedError struct {
	Run      ID
	Producer string
	Epoch    uint64 // the one that counts
}

func (e *ProducerFencedError) Error() string {
	return fmt.Sprintf("run %s: producer %q is in epoch %d", e.Run, e.Producer, e.Epoch)
}

// Admit judges an AgentEvent of a producer's epoch by its number (protocol
// section 2, Resending): nil, ErrDuplicate, *EndedError, *GapError or
// *ProducerFencedError. received is the highest that this instance has taken
// from the producer; number 0 is none.
func (s *State) Admit(producer string, epoch, number uint64, received Mark) error {
	mark := s.Mark(producer)
	known := mark
	if known.Before(received) {
		known = received
	}
	switch {
	case epoch < known.Epoch:
		return &ProducerFencedError{s.RunID, producer, known.Epoch}
	case number != 0 && epoch == mark.Epoch && number <= mark.Seq:
		return ErrDuplicate
	case s.Terminal():
		return &EndedError{s.RunID, s.Status()}
	}
	next := uint64(1)
	if epoch == known.Epoch {
		next = known.Seq + 1
	}
	if number > next {
		return &GapError{s.RunID, producer, number, next}
	}
	return nil
}
