package run

import (
	"fmt"
	"time"
)

// Codes of run.failed that are ours, not a runtime's. All are stable.
const (
	RuntimeLost     = "runtime_lost"     // its owner, or its producers, fell silent
	StoreDiverged   = "store_diverged"   // the store was set back, and facts are gone
	InstanceStopped = "instance_stopped" // its owner was told to stop
	RunTimeout      = "run_timeout"      // it took longer than it may
	RunSilent       = "run_silent"       // its runtime reported nothing for longer than it may
	WaitTimeout     = "wait_timeout"     // nobody answered its external calls for longer than it may wait
	QueueTimeout    = "queue_timeout"    // it waited longer than it may for its turn
	RuntimeFailed   = "runtime_failed"   // its runtime ended badly and gave no code of its own
)

// Evidence is why a run's runtime was taken for lost: what its observer saw, by
// its own clock.
type Evidence struct {
	Owner    string        // who was silent; "": the producers of a pushed run
	Observer string        // the instance that waited
	Silence  time.Duration // as measured; stored in milliseconds
	LastSeq  Seq           // the run's end when it was declared lost
}

func (e *Evidence) fields(c *codec) {
	silence, last := uint64(e.Silence.Milliseconds()), uint64(e.LastSeq)
	c.orNull("owner", &e.Owner)
	c.str("observer", &e.Observer)
	c.num("silence_ms", &silence)
	c.num("last_seq", &last)
	e.Silence, e.LastSeq = time.Duration(silence)*time.Millisecond, Seq(last)
}

// OwnedError refuses AgentEvents that are pushed into a run whose runtime an
// instance drives.
type OwnedError struct{ Run ID }

func (e *OwnedError) Error() string { return fmt.Sprintf("run %s is driven, not pushed", e.Run) }

// FencedError refuses what an owner wants to add after another one took its
// run over: it must stop the runtime and write nothing more.
type FencedError struct {
	Run   ID
	Epoch uint64 // the run's
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("run %s was taken over, its epoch is %d", e.Run, e.Epoch)
}

// MayWrite judges the writer of an epoch, 0 being nobody in particular: nil,
// *OwnedError or *FencedError.
func (s *State) MayWrite(epoch uint64) error {
	switch epoch {
	case s.Epoch:
		return nil
	case 0:
		return &OwnedError{s.RunID}
	}
	return &FencedError{s.RunID, s.Epoch}
}

// Lose returns the facts that end a run whose runtime was lost. It can be tried
// again. Error: *EndedError.
func (s *State) Lose(e Evidence, now time.Time) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	who := "the run's owner"
	if e.Owner == "" {
		who = "the run's producers"
	}
	d := draft{state: s, message: s.message, at: now.UTC().Truncate(time.Microsecond)}
	d.closeCalls()
	d.add(&RunFailed{Evidence: &e, Failure: Failure{
		Code: RuntimeLost, Retryable: true,
		Message: fmt.Sprintf("%s gave no sign of life for %s", who, e.Silence.Round(time.Millisecond)),
	}})
	return d.out, nil
}

// Resume returns the fact that makes owner the run's owner, in the next epoch.
// Error: *EndedError.
func (s *State) Resume(owner string, e Evidence, now time.Time) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	d := draft{state: s, message: s.message, at: now.UTC().Truncate(time.Microsecond)}
	d.add(&RunResumed{Owner: owner, PreviousOwner: s.Owner, Epoch: s.Epoch + 1, Evidence: &e})
	return d.out, nil
}
