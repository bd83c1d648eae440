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

// Admit judges an AgentEvent by its number (protocol section 2, Resending):
// nil, ErrDuplicate, *EndedError or *GapError. received is the highest number
// that this instance has taken from the producer; number 0 is none.
func (s *State) Admit(producer string, number, received uint64) error {
	mark := s.Mark(producer)
	switch {
	case number != 0 && number <= mark:
		return ErrDuplicate
	case s.Terminal():
		return &EndedError{s.RunID, s.Status()}
	}
	if next := max(mark, received) + 1; number > next {
		return &GapError{s.RunID, producer, number, next}
	}
	return nil
}
