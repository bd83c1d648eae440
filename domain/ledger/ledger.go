// Package ledger is the port to the store of record.
//
// A Ledger keeps one append-only stream of events per run. It promises that an
// append is atomic and happens only at the expected seq, that events are read
// back in seq order byte for byte, and that an acknowledged event survives.
// It refuses to guess: an append has three outcomes, stored, refused and
// unknown, and they are kept apart by type (errors.go).
package ledger

import (
	"context"
	"math"

	"github.com/runfacts/runfacts/domain/run"
)

// Appender writes. Safe for concurrent use.
type Appender interface {
	// Append stores events, all or none, directly after seq after; after 0
	// means that the run must not exist yet. The events are sealed: they carry
	// their ids (Event.EventID) and seqs after+1, after+2, … Sending the same append
	// again at the same seq is safe and answers as the first time.
	//
	// nil: stored, and there. *ConflictError: refused, the stream ends elsewhere
	// (the events there may be one's own: compare ids). ErrErased: refused for
	// ever; ErrDeleted, which is one: the store took it somewhere else, since the
	// stream had been deleted by hand, and it was undone.
	// *RefusedError: refused, sending it again will not help. *UnknownError:
	// it may or may not be stored, now or later.
	Append(ctx context.Context, id run.ID, after run.Seq, events []run.Event) error

	// Erase tombstones a run that ends at seq last: nothing can be read from
	// it or written to it again. Errors as for Append; erasing an erased run is
	// ErrErased.
	Erase(ctx context.Context, id run.ID, last run.Seq) error

	// End asks the store's writer where the run ends; 0: it never began. The
	// writer knows of appends that reads do not show yet, other instances'
	// among them; what is read afterwards goes that far. It costs a call, and
	// is for where a stale "no" would be a wrong one. Errors: ErrErased,
	// *UnavailableError.
	End(ctx context.Context, id run.ID) (run.Seq, error)
}

// Reader reads at the leader: it sees every append that was acknowledged to its
// user, told by a conflict or by End. Safe for concurrent use. Errors:
// ErrNotFound, ErrErased (ErrDeleted), *TruncatedError, *CorruptError,
// *SetBackError, *UnavailableError.
type Reader interface {
	// Read returns a page of events after seq after, in order, at most
	// limit.Events of them, ending early once limit.Bytes of payload are
	// passed (but with at least one event where there is one). Beyond the
	// end the page is empty.
	Read(ctx context.Context, id run.ID, after run.Seq, limit Page) ([]run.Event, error)

	// Last returns the newest event of the run, by one backward read.
	Last(ctx context.Context, id run.ID) (run.Event, error)
}

// Page bounds one read, so that it can be held in memory and its store stream
// closed before anything is written to a viewer.
type Page struct {
	Events int // at least 1
	Bytes  int // of payload; at least 1
}

// Follower subscribes. Safe for concurrent use.
type Follower interface {
	// Follow calls deliver with each event after seq after, in order and
	// without a gap, replayed and live, until ctx ends, deliver fails or the
	// stream can give no more. It outlives outages of the store: it
	// subscribes again behind the last event delivered. Following a run that
	// does not exist yet waits for it.
	//
	// Always returns an error: ctx's, deliver's, ErrErased (ErrDeleted),
	// *TruncatedError, *SetBackError or *CorruptError.
	Follow(ctx context.Context, id run.ID, after run.Seq, deliver func(run.Event) error) error
}

// Ledger is the whole port.
type Ledger interface {
	Appender
	Reader
	Follower
}

// Impossible is a seq that no run ends at. An append there is refused in any
// case, and shows a reason that comes before the conflict, if there is one.
const Impossible run.Seq = math.MaxInt64
