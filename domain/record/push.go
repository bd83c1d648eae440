package record

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Receipt is what came of a push. LastSeq and ProducerSeq are the run's, and
// its producer's mark, at the moment of the answer.
type Receipt struct {
	Accepted    int // AgentEvents taken, whether they brought facts or not
	Duplicates  int // numbers whose facts were committed before
	LastSeq     run.Seq
	ProducerSeq uint64
}

// PushError says which line of a push could not be taken, and why. The lines
// before it stay taken; those after it are not.
type PushError struct {
	Line int // from 1; 0: none in particular
	Err  error
}

func (e *PushError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *PushError) Unwrap() error { return e.Err }

// Push is one producer's AgentEvents on their way into a run, in order: what
// one request brings. Send and Wait belong to one goroutine.
type Push struct {
	recorder *Recorder
	from     run.Origin
	epoch    uint64 // of the owner that drives the run; 0: the run is pushed
	broken   chan struct{}

	mu         sync.Mutex
	sent       int
	settled    int // answered without a failure
	accepted   int
	duplicates int
	err        *PushError
	news       chan struct{} // holds a hint that something was answered
}

// Push begins a push; "" is a producer too.
func (r *Recorder) Push(from run.Origin) *Push {
	return r.drive(from, 0)
}

// Drive begins what the run's owner reports of its runtime. It is fenced: once
// the run is in another epoch nothing more of it is taken (*run.FencedError).
func (r *Recorder) Drive(epoch uint64) *Push { return r.drive(run.Origin{}, epoch) }

func (r *Recorder) drive(from run.Origin, epoch uint64) *Push {
	return &Push{recorder: r, from: from, epoch: epoch, broken: make(chan struct{}), news: make(chan struct{}, 1)}
}

// Broken is closed once an event of this push has failed: nothing more will be
// taken.
func (p *Push) Broken() <-chan struct{} { return p.broken }

// Send hands over one AgentEvent, which stood on line, and returns when it is
// queued, not when it is committed. It waits while the run holds as much as it
// may that is not committed. Errors: *PushError once an event of this push has
// failed; ctx's, ErrStopping: this one was not taken.
func (p *Push) Send(ctx context.Context, line int, e agent.Event) error {
	p.mu.Lock()
	if err := p.err; err != nil {
		p.mu.Unlock()
		return err
	}
	p.sent++
	p.mu.Unlock()
	err := p.recorder.add(ctx, newReport(p, line, e))
	if err != nil {
		p.mu.Lock()
		p.sent--
		p.mu.Unlock()
	}
	return err
}

// Wait returns once all that was sent is settled: committed, or taken without
// facts. When ctx ends first the outcome is open: what was not frozen in an
// append yet is withdrawn, and the error is an
// *ledger.UnknownError.
// Errors: *PushError around *run.EndedError, *run.GapError, *run.TooLargeError,
// *ledger.RefusedError, *ledger.UnknownError, ledger.ErrNotFound, ledger.ErrErased,
// ErrStopping and others.
func (p *Push) Wait(ctx context.Context) (Receipt, error) {
	for {
		p.mu.Lock()
		settled, err := p.settled >= p.sent, p.err
		p.mu.Unlock()
		if err != nil {
			return p.receipt(), err
		}
		if settled {
			return p.receipt(), nil
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			p.fail(0, &ledger.UnknownError{Run: p.recorder.id, Err: p.recorder.public.because(context.Cause(ctx))})
		}
	}
}

func (p *Push) receipt() Receipt {
	seq, mark := p.recorder.public.position(p.from.Producer)
	p.mu.Lock()
	defer p.mu.Unlock()
	return Receipt{Accepted: p.accepted, Duplicates: p.duplicates, LastSeq: seq, ProducerSeq: mark}
}

func (p *Push) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil
}

// answered notes what came of one event: nil for taken.
func (p *Push) answered(line int, err error) {
	duplicate := errors.Is(err, run.ErrDuplicate)
	if err != nil && !duplicate {
		p.fail(line, err)
		return
	}
	p.mu.Lock()
	p.settled++
	if duplicate {
		p.duplicates++
	} else {
		p.accepted++
	}
	p.mu.Unlock()
	p.hint()
}

func (p *Push) fail(line int, err error) {
	p.mu.Lock()
	if p.err == nil {
		p.err = &PushError{line, err}
		close(p.broken)
	}
	p.mu.Unlock()
	p.hint()
}

func (p *Push) hint() {
	select {
	case p.news <- struct{}{}:
	default: // one hint is enough
	}
}
