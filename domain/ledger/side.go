package ledger

import "context"

// Note is one event of a side stream.
type Note struct {
	Seq  uint64 // its place in the stream, from 1; given by the store
	Type string
	Data []byte // JSON
}

// Side keeps what instances tell each other beside the runs: heartbeats,
// commands, agents' snapshots. Its streams are small, are written without an
// expected revision, and may be trimmed; an unknown outcome means that a note may
// be there twice. Safe for concurrent use. Errors are *UnavailableError or ctx's,
// unless a method says more.
type Side interface {
	// Note appends notes, all or none, and returns the last one's seq.
	Note(ctx context.Context, stream string, notes ...Note) (last uint64, err error)

	// Keep stores a note as the first of its stream, unless there is one.
	Keep(ctx context.Context, stream string, note Note) error

	// Notes returns at most limit notes after seq after, in order, as the leader
	// has them. A stream that does not exist has none.
	Notes(ctx context.Context, stream string, after uint64, limit int) ([]Note, error)

	// Listen calls deliver with each note after seq after, in order, until ctx
	// ends or deliver fails; it returns that error. It outlives outages, passes
	// over what was trimmed, and waits for a stream that does not exist.
	Listen(ctx context.Context, stream string, after uint64, deliver func(Note) error) error

	// Bound makes a stream keep its newest notes only, whatever else becomes of
	// it. It is asked for by who writes the stream, before it does.
	Bound(ctx context.Context, stream string, most int) error

	// Trim drops the notes before seq first.
	Trim(ctx context.Context, stream string, first uint64) error

	// Drop deletes a stream that ends at seq last; it may begin again later.
	// *ConflictError: it ends elsewhere.
	Drop(ctx context.Context, stream string, last uint64) error
}
