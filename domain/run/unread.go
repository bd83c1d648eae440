package run

// Codes of run.failed that say that the run's own record is at fault.
const (
	RunUnreadable = "run_unreadable" // an event of it cannot be read: damaged, gone, or a stranger's
	RecordFailed  = "record_failed"  // what its runtime reported could not be recorded
	InvalidEvent  = "invalid_event"  // its runtime reported what is no AgentEvent
)

// Unread returns the state of a run that cannot be folded, as far as its newest
// event's envelope shows it. It is good for ending the run behind that event, and
// for nothing else: calls that are open stay so.
func Unread(last *Event) *State {
	s := &State{
		RunID: last.RunID, AgentID: last.AgentID, ThreadID: last.ThreadID, Snapshot: last.Snapshot,
		Owner: last.Owner, Epoch: last.Epoch, LastSeq: last.Seq, chain: last.ChainChecksum,
	}
	if Terminal(last.Type) {
		s.ending, s.EndedAt = last.Type, last.OccurredAt
	}
	return s
}
