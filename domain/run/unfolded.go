package run

import "time"

// Unfolded returns the state of a run that cannot be folded, since an event of it
// cannot be read or is gone: enough to end it. last is its last event, as far as
// that can be read: RunID and Seq at least. Its calls are not known, and are not
// closed.
func Unfolded(last *Event) *State {
	s := &State{
		RunID: last.RunID, AgentID: last.AgentID, Snapshot: last.Snapshot, ThreadID: last.ThreadID,
		Owner: last.Owner, Epoch: last.Epoch, LastSeq: last.Seq, chain: last.ChainChecksum,
	}
	if Terminal(last.Type) {
		s.end(last.Type, last.OccurredAt)
	}
	return s
}

// Fail returns the facts that end the run as failed. Error: *EndedError.
func (s *State) Fail(f Failure, now time.Time) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	d := draft{state: s, message: s.message, at: now.UTC().Truncate(time.Microsecond)}
	d.closeCalls()
	d.add(&RunFailed{Failure: f})
	return d.out, nil
}
