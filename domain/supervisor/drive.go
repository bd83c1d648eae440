package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// neverStarted is the proof for a run that was stopped before its turn.
const neverStarted = "the runtime was never started"

// drive lets the run have its turn, and sees to its end. hard ends with the
// process: what is not recorded then is left to the other instances, and over is
// false.
func (s *Supervisor) drive(hard context.Context, r *owned) (over bool) {
	recorder, release := s.config.Runs.Use(r.id)
	defer release()
	push := recorder.Drive(r.summary.Epoch)
	out := result{stop: agent.Stop{Proof: neverStarted}}
	place, mine := s.turn(hard, r)
	if out.told = r.told(); mine {
		out = s.execute(hard, r, push)
		defer func() {
			if out.late != nil { // recorded without it; its place is still taken
				<-out.late
			}
			place()
		}()
	}
	defer r.finish()
	return s.finish(hard, r, push, out)
}

// turn waits until the run may be driven, and returns the call that gives its
// place back; mine is false where it is to end before. What was taken over runs
// already, and does not wait.
func (s *Supervisor) turn(hard context.Context, r *owned) (place func(), mine bool) {
	if r.rejoin != nil {
		s.begun(r)
		return func() {}, true
	}
	if !r.placed && !s.queue(hard, r) {
		return nil, false
	}
	place = func() { <-s.slots }
	r.placed = false
	if r.told() != nil { // drained or cancelled while it was being started, or waited
		place()
		return nil, false
	}
	s.begun(r)
	return place, true
}

func (s *Supervisor) begun(r *owned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.driven = true
}

// queue waits for a slot, and until the run's stream says that its turn has come:
// until then whoever inherits it may start the runtime. false: it is to end before.
func (s *Supervisor) queue(hard context.Context, r *owned) bool {
	timer := time.NewTimer(s.config.QueueTime)
	defer timer.Stop()
	select {
	case s.slots <- struct{}{}:
	case <-r.ending:
		return false
	case <-timer.C:
		r.end(&limit{run.QueueTimeout, "the run waited too long for its turn", true})
		return false
	case <-hard.Done():
		return false
	}
	r.placed = true
	ctx, cancel := context.WithCancel(hard)
	defer cancel()
	var err error
	recorded := make(chan struct{})
	go func() { // ends with ctx at the latest
		defer close(recorded)
		_, err = s.config.Runs.Dequeue(ctx, r.id, r.summary.Epoch, time.Since(r.since))
	}()
	select {
	case <-recorded:
	case <-r.ending:
		cancel()
		<-recorded
	}
	if err != nil && hard.Err() == nil {
		r.end(broken(err)) // unless it is to end already
	}
	return true
}

// result is how a runtime ended. At most one of word and told is set; without
// them it has stopped by itself, and err says how.
type result struct {
	word *agent.Event // it reported its end
	told error        // it was told to stop, for this reason
	stop agent.Stop
	err  error
	late <-chan struct{} // closed when it has stopped after all; nil: it has
}

// execute runs the runtime until it has ended, or was told to, for which it has
// stopTime. What it reported last stays the reason of its end whatever comes at
// the same time.
func (s *Supervisor) execute(hard context.Context, r *owned, push *record.Push) result {
	ctx, stop := context.WithCancelCause(hard)
	defer stop(nil)
	var out result
	last := make(chan result, 1)
	exited := make(chan struct{})
	r.clock.start()
	go func() {
		defer close(exited)
		out.stop, out.err = r.agent.Runner.Run(ctx, r.task(), s.emitter(ctx, stop, r, push, last))
	}()
	ended := func() *result { // by itself; nil: it has not
		gone := false
		select {
		case <-exited:
			gone = true
		default:
		}
		select {
		case said := <-last: // it came before the exit
			said.late = exited
			return &said
		default:
		}
		if gone {
			return &out
		}
		return nil
	}
	for r.told() == nil && hard.Err() == nil {
		reached, in := r.clock.next()
		if by := ended(); by != nil { // before any limit
			return *by
		}
		if reached != nil {
			r.end(reached)
			break
		}
		timer := time.NewTimer(max(in, 0))
		if in == 0 { // there is no limit
			timer.Stop()
		}
		select {
		case <-ctx.Done(): // it has reported its end
		case <-exited:
		case <-timer.C:
		case <-r.clock.changed:
		case <-push.Broken():
			_, err := push.Wait(hard)
			r.end(broken(err))
		case <-r.ending:
		case <-hard.Done():
		}
		timer.Stop()
	}
	if by := ended(); by != nil { // at the same time; it was first
		return *by
	}
	stop(r.told()) // nil: the process ends
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-exited:
		out.told = r.told()
		return out
	case <-timer.C:
		return result{told: r.told(), late: exited}
	}
}

// emitter returns what the runtime reports through. What ends the run is not handed
// over but returned by way of last, and ends ctx: it is recorded by finish, as every
// end is.
func (s *Supervisor) emitter(ctx context.Context, stop context.CancelCauseFunc, r *owned, push *record.Push, last chan<- result) func(agent.Event) error {
	line := 0
	end := func(how result, cause error) error {
		select {
		case last <- how:
		default: // it was said before
		}
		stop(cause)
		return agent.ErrEnded
	}
	refuse := func(err error, l *limit) error {
		s.config.Observer.RuntimeFailed(r.id, err)
		return end(result{told: l}, l)
	}
	return func(e agent.Event) error {
		if ctx.Err() != nil {
			return agent.ErrEnded
		}
		defer r.clock.reporting()()
		s.config.Observer.Reported(e.Type)
		if err := e.Check(); err != nil {
			return refuse(err, &limit{run.InvalidEvent, err.Error(), false})
		}
		r.questions.follow(&e)
		if err := blob.Offload(ctx, s.config.Blobs, r.id, s.config.Inline, &e); err != nil {
			if ctx.Err() != nil {
				return agent.ErrEnded
			}
			return refuse(err, unkept(err))
		}
		if e.Type == agent.Done || e.Type == agent.Error {
			return end(result{word: &e}, agent.ErrEnded)
		}
		line++
		if push.Send(ctx, line, e) != nil {
			return agent.ErrEnded
		}
		return nil
	}
}

// unkept is how a run ends whose runtime reported what cannot be kept.
func unkept(err error) *limit {
	var large *blob.TooLargeError
	if errors.As(err, &large) {
		return &limit{"artifact_too_large", "the runtime reported an artifact of " + large.Error(), false}
	}
	return &limit{"blob_store_failed", "what the runtime reported could not be kept", true}
}
