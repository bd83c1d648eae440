package run

import (
	"fmt"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// Decision is what one AgentEvent adds to a run: facts that belong into one
// append, and at most one note that the next append carries in its envelope. The
// zero value adds nothing.
type Decision struct {
	Candidates []Candidate
	claims     string // a synthesized start whose real one this was
}

// EndedError refuses what comes after a run's end.
type EndedError struct {
	Run    ID
	Status Status
}

func (e *EndedError) Error() string { return fmt.Sprintf("run %s is %s already", e.Run, e.Status) }

// TooLargeError refuses an AgentEvent whose facts cannot fit one append.
type TooLargeError struct {
	Run   ID
	Limit int // bytes of one append
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("run %s: the event does not fit the %d bytes of one append", e.Run, e.Limit)
}

// Origin is who brought an AgentEvent.
type Origin struct {
	Producer  string
	Epoch     uint64 // of the producer
	RequestID string // of the HTTP request; "": none
}

// Decide is the Adapter: it returns the facts that an AgentEvent adds to the
// run, without applying them (see Take). The event has passed its gate
// (agent.Event.Check). It is a pure function of its arguments; now stands in
// where the event has no time of its own, and limit bounds the bytes of the
// append that must hold the facts.
// Errors: *EndedError, *TooLargeError, *TooManyCallsError.
func (s *State) Decide(e *agent.Event, from Origin, now time.Time, limit int) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	source := &Source{Producer: from.Producer, Epoch: from.Epoch, Seq: e.ProducerSeq, Cursor: e.Cursor}
	d := draft{state: s, message: s.message, at: now, trace: e.TraceID, span: e.SpanID, request: from.RequestID, source: source, limit: limit}
	if !e.OccurredAt.IsZero() {
		d.at = e.OccurredAt
	}
	d.at = d.at.UTC().Truncate(time.Microsecond)
	var err error
	switch e.Type {
	case agent.Delta:
		d.delta(e)
	case agent.ToolCall:
		err = d.toolCall(e)
	case agent.ToolResult:
		d.toolResult(e)
	case agent.Artifact:
		d.artifact(e)
	case agent.Done:
		d.done(e)
	case agent.Error:
		d.closeCalls()
		failed := &RunFailed{Failure: Failure{e.ErrorCode, e.ErrorMessage, e.Retryable}, Usage: e.Usage}
		failed.Full = d.keep(e.Full, "error message")
		d.add(failed)
	}
	if n := len(d.out.Candidates); n > 0 {
		d.out.Candidates[n-1].Source = source
	}
	switch {
	case err != nil:
		return Decision{}, err
	case d.size() > limit:
		return Decision{}, &TooLargeError{s.RunID, limit}
	}
	return d.out, nil
}

// TooManyCallsError refuses a call, since as many are open as the run's end can
// close in one append.
type TooManyCallsError struct {
	Run  ID
	Open int
}

func (e *TooManyCallsError) Error() string {
	return fmt.Sprintf("run %s has %d open calls, and may have no more until some are completed", e.Run, e.Open)
}

// Cancellation is what is known of a stop when it is recorded.
type Cancellation struct {
	Confirmed bool   // the runtime is known to have stopped
	Proof     string // what shows it; "" where nothing does
	Reason    string
}

// Cancel returns the facts that end the run as cancelled. Error: *EndedError.
func (s *State) Cancel(c Cancellation, now time.Time) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	d := draft{state: s, message: s.message, at: now.UTC().Truncate(time.Microsecond)}
	d.closeCalls()
	d.add(&RunCancelled{ExternalStopConfirmed: c.Confirmed, Proof: c.Proof, Reason: c.Reason})
	return d.out, nil
}

// Dequeue returns the fact that a queued run has its turn, after it has waited,
// or none where it has it already. Error: *EndedError.
func (s *State) Dequeue(waited time.Duration, now time.Time) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	d := draft{state: s, at: now.UTC().Truncate(time.Microsecond)}
	if s.queued {
		d.add(&RunDequeued{QueuedMS: uint64(max(0, waited.Milliseconds()))})
	}
	return d.out, nil
}

// Take folds a decision into the state, which must be the one that it was made
// for. It leaves seq and chain alone: they come with Seal.
func (s *State) Take(d Decision) {
	for i := range d.Candidates {
		c := &d.Candidates[i]
		s.fold(c.whole(), c.OccurredAt)
		s.advance(s.LastSeq, s.chain, c.Source)
	}
	if d.claims != "" {
		s.calls.claimed.set(d.claims, struct{}{})
		s.claims = append(s.claims, d.claims)
	}
}
