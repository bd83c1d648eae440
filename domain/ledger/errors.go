package ledger

import (
	"errors"
	"fmt"

	"github.com/runfacts/runfacts/domain/run"
)

// Answers about a run as a whole.
var (
	// ErrNotFound: no such run.
	ErrNotFound = errors.New("no such run")
	// ErrErased: the run was tombstoned; nothing of it can be read or written again.
	ErrErased = errors.New("the run was erased")
	// ErrDeleted: somebody deleted the run's stream by hand (softly, as clients
	// do by default). It is an ErrErased as well: nothing comes back under its id.
	ErrDeleted = fmt.Errorf("%w: its stream was deleted on the store", ErrErased)
)

// ConflictError refuses an append whose expected seq is not the stream's end.
// The store's writer decides that before readers may see what caused it; a
// Reader asked afterwards by the same caller reads that far.
type ConflictError struct {
	Run      run.ID // "": a side stream
	Expected run.Seq
	Current  run.Seq // where the stream ends; 0: it is not there
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("run %s does not end at seq %d but at %d", e.Run, e.Expected, e.Current)
}

// SetBackError: the store ends before what it has acknowledged or shown, and
// says so again after a while: it was set back, to a backup for instance.
type SetBackError struct {
	Run   run.ID
	Known run.Seq // the last event that was known of
	Ends  run.Seq // where the stream ends now; 0: it is not there
}

func (e *SetBackError) Error() string {
	return fmt.Sprintf("run %s ended at seq %d when last seen, and ends at %d now: the store was set back", e.Run, e.Known, e.Ends)
}

// DeniedError: the store refuses us a right, or knows us no more. It is a state
// of the store like an outage, which ends when somebody grants the right again:
// found inside an *UnknownError or *UnavailableError. Nothing was done.
type DeniedError struct {
	Right string // what is missing, in words
	Err   error
}

func (e *DeniedError) Error() string { return "the store denies us " + e.Right }
func (e *DeniedError) Unwrap() error { return e.Err }

// RefusedError refuses an append for a reason that does not pass: it is too
// large for the store.
type RefusedError struct {
	Run      run.ID
	TooLarge bool
	Err      error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("append to run %s refused: %v", e.Run, e.Err)
}
func (e *RefusedError) Unwrap() error { return e.Err }

// UnknownError leaves an append's outcome open: it may be stored, now or later.
// Sending it again, byte for byte, is safe and finds out.
type UnknownError struct {
	Run run.ID
	// Answered: the server itself ended the call, on a healthy connection, and
	// the client lost its reason. It may be a refusal in disguise.
	Answered bool
	Err      error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("append to run %s: outcome unknown: %v", e.Run, e.Err)
}
func (e *UnknownError) Unwrap() error { return e.Err }

// UnavailableError: the store could not be asked.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return fmt.Sprintf("store unavailable: %v", e.Err) }
func (e *UnavailableError) Unwrap() error { return e.Err }

// TruncatedError: events that once were are gone (somebody set $tb or $maxCount).
type TruncatedError struct {
	Run   run.ID
	First run.Seq // the first that can still be read; 0: not known
}

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("run %s was truncated: it starts at seq %d", e.Run, e.First)
}

// CorruptError: a stored event is not one that Runfacts wrote, or is damaged.
type CorruptError struct {
	Run run.ID
	Seq run.Seq
	Err error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("run %s, seq %d: stored event cannot be read: %v", e.Run, e.Seq, e.Err)
}
func (e *CorruptError) Unwrap() error { return e.Err }
