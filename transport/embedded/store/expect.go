package store

import "fmt"

// Expected is what a writer expects to be a stream's last number: a number, or
// one of the wishes below (with the numbers that EventStoreDB uses on its wire).
type Expected int64

// Wishes.
const (
	NoStream Expected = -1
	Any      Expected = -2
	Exists   Expected = -4
)

// WrongVersionError refuses a write whose expectation is not met.
type WrongVersionError struct {
	Stream   string
	Expected Expected
	Current  int64 // last number; -1: none
}

func (e *WrongVersionError) Error() string {
	return fmt.Sprintf("stream %q: expected version %d, actual version %d", e.Stream, e.Expected, e.Current)
}

// DeletedError refuses what a deleted stream cannot give.
type DeletedError struct{ Stream string }

func (e *DeletedError) Error() string { return fmt.Sprintf("event stream '%s' is deleted", e.Stream) }
