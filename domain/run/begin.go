package run

import (
	"encoding/json"
	"time"
)

// Start is what a run begins with.
type Start struct {
	ID              ID
	AgentID         string
	Runtime         string
	ThreadID        string          // "": none
	Input           json.RawMessage // compact JSON; nil is null
	Snapshot        string          // checksum of the agent's effective configuration
	RequestChecksum string          // over the request's body, as sent
	Owner           string          // the instance that drives the runtime; "": the run is pushed
}

// Begin returns a new run's state and its first fact, run.started, which is in
// the state already. Seal it before the append after seq 0.
func Begin(s Start, now time.Time) (*State, []Candidate) {
	at := now.UTC().Truncate(time.Microsecond)
	state := &State{RunID: s.ID, Snapshot: s.Snapshot, RequestChecksum: s.RequestChecksum, Owner: s.Owner}
	if s.Owner != "" {
		state.Epoch = 1
	}
	started := []Candidate{{Type: RunStarted, OccurredAt: at, Payload: Payload{
		StartedAt: at.Format(TimeFormat), AgentID: s.AgentID, Runtime: s.Runtime,
		ThreadID: s.ThreadID, Input: s.Input,
	}}}
	state.Take(Decision{Candidates: started})
	return state, started
}

// UnconfiguredSnapshot is the agent_snapshot_checksum of an agent that is not
// configured: nothing is stored under it.
func UnconfiguredSnapshot(agentID, runtime string) string {
	return Checksum(newObject(64).str("agent_id", agentID).str("runtime", runtime).close())
}
