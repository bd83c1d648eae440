// Package blob is the port to what is too large for an event: artifacts' bytes,
// and the values of events that would make a line too long. Bytes are kept under their
// checksum, once, for as long as a run refers to them, and they are kept before
// the event that names them is committed.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/runfacts/runfacts/domain/run"
)

// ErrNotFound: nothing is kept under that checksum.
var ErrNotFound = errors.New("no such blob")

// TooLargeError refuses content beyond a limit.
type TooLargeError struct{ Limit int64 }

func (e *TooLargeError) Error() string { return fmt.Sprintf("more than %d bytes", e.Limit) }

// Cause is why a store cannot do what it is for.
type Cause string

// The causes.
const (
	Full     Cause = "full"      // no room, or no more files
	ReadOnly Cause = "read_only" // it can be read, and not written
	Denied   Cause = "denied"    // this process may not
	Missing  Cause = "missing"   // the place itself is gone
	Failed   Cause = "failed"    // anything else
)

// StoreError: the store failed; what was asked is as undone as before. It may be
// asked again.
type StoreError struct {
	Cause Cause
	Err   error
}

func (e *StoreError) Error() string { return fmt.Sprintf("blob store %s: %v", e.Cause, e.Err) }
func (e *StoreError) Unwrap() error { return e.Err }

// Store keeps blobs. Safe for concurrent use.
type Store interface {
	// Put keeps content for a run and returns its checksum and size. The same
	// again mends what has been damaged meanwhile, and changes nothing else.
	// Errors: *TooLargeError, content's as they are, *StoreError.
	Put(ctx context.Context, id run.ID, content io.Reader, limit int64) (checksum string, size int64, err error)

	// Open returns a blob's bytes as they are kept, damaged or not: see Check
	// and NewReader. Errors: ErrNotFound, *StoreError.
	Open(ctx context.Context, checksum string) (io.ReadSeekCloser, error)

	// Release ends a run's referring to any blob; those that no other run
	// refers to are gone. A run that refers to none is fine. Error: *StoreError.
	Release(ctx context.Context, id run.ID) error
}
