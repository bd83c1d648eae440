package run

import (
	"encoding/json"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// Start is what a run begins with.
type Start struct {
	ID              ID
	AgentID         string
	Runtime         string
	ThreadID        string            // "": none
	Input           json.RawMessage   // in its stored form (agent.Compact); nil is null
	InputFull       *agent.Full       // the whole input, where Input is only its beginning
	Labels          map[string]string // kept, not copied
	ParentRunID     string            // "": none
	RetryOf         string            // "": none
	StartedAt       time.Time         // of an imported run; zero: now
	Queued          bool              // it waits for its turn
	TraceID, SpanID string
	RequestID       string // of the HTTP request
	Snapshot        string // checksum of the agent's effective configuration
	RequestChecksum string // over the request's body, as sent
	Owner           string // the instance that drives the runtime; "": the run is pushed
}

// Begin returns a new run's state and its first facts, run.started before all,
// which are in the state already. Seal them before the append after seq 0.
func Begin(s Start, now time.Time) (*State, []Candidate) {
	at := now.UTC().Truncate(time.Microsecond)
	state := &State{RunID: s.ID, Snapshot: s.Snapshot, RequestChecksum: s.RequestChecksum, Owner: s.Owner}
	if s.Owner != "" {
		state.Epoch = 1
	}
	started := &RunStarted{
		StartedAt: at, AgentID: s.AgentID, Runtime: s.Runtime, ThreadID: s.ThreadID, Input: s.Input,
		Labels: s.Labels, ParentRunID: s.ParentRunID, RetryOf: s.RetryOf, Queued: s.Queued,
	}
	if !s.StartedAt.IsZero() {
		started.StartedAt = s.StartedAt.UTC().Truncate(time.Microsecond)
	}
	d := draft{state: state, at: at, trace: s.TraceID, span: s.SpanID, request: s.RequestID}
	d.add(started)
	started.Full = d.keep(s.InputFull, "input") // behind its event: run.started is the first
	state.Take(d.out)
	return state, d.out.Candidates
}

// UnconfiguredSnapshot is the agent_snapshot_checksum of an agent that is not
// configured: nothing is stored under it.
func UnconfiguredSnapshot(agentID, runtime string) string {
	return Checksum(newObject(64).str("agent_id", agentID).str("runtime", runtime).close())
}
