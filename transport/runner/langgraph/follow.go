package langgraph

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/transport/sse"
)

// errGap: the server passed over frames, as it does where it does not know the
// id that it was asked to go on behind.
var errGap = errors.New("frames are missing")

// errQuiet: the stream says nothing, and the run has ended.
var errQuiet = errors.New("the stream fell silent")

// errUnknown: the server does not know the run, or runs it without a log.
var errUnknown = errors.New("the server has no log of the run")

// position is how far a run's stream was read.
type position struct {
	last   string // id of the last frame; "-1": none
	number int    // as a number, where ids count up from 0; -1: they do not, or none was read
	frames int
	quiet  int       // connections in a row that said nothing of a run that has ended
	silent time.Time // since when the server has not answered; zero: it has
}

// follow reads a run's stream to its end, over broken connections, and returns
// the status that the server gives it. Errors as for drive.
func (t *task) follow(ctx context.Context, id string) (status string, err error) {
	at := position{last: "-1", number: -1}
	for {
		before := at.frames
		broken := t.read(ctx, id, &at)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.Is(broken, errEmit):
			return "", agent.ErrEnded
		case errors.Is(broken, errUnknown):
			return "", lost("it has no log of the run")
		case errors.Is(broken, errGap) && at.last != "-1":
			// From the start again: what was read is passed over by number.
			at.last = "-1"
			continue
		case errors.Is(broken, errGap):
			return "", lost("its event log has a gap")
		}
		if at.frames > before {
			at.silent, at.quiet = time.Time{}, 0
		}
		if errors.Is(broken, errQuiet) {
			if at.quiet++; at.quiet > 1 {
				broken = nil // it keeps a finished run's stream open
			}
		}
		r, err := t.ask(ctx, id, &at)
		var answer *statusError
		switch {
		case errors.As(err, &answer) && answer.status == http.StatusNotFound:
			return "", lost("it does not know the run any more")
		case err != nil:
			if time.Since(at.silent) > t.patience(err) {
				return "", lost("it cannot be reached")
			}
		case r.ended() && broken == nil:
			if at.frames == 0 {
				return "", lost("it has no log of the run")
			}
			return r.Status, nil
		}
		if !pause(ctx, pollTime) {
			return "", ctx.Err()
		}
	}
}

// ask asks for the run, and notes since when there is no answer.
func (t *task) ask(ctx context.Context, id string, at *position) (lgRun, error) {
	began := time.Now()
	r, err := t.client.run(ctx, t.thread, id)
	if err == nil {
		at.silent = time.Time{}
	} else if at.silent.IsZero() {
		at.silent = began
	}
	return r, err
}

// errEmit: nothing more is wanted.
var errEmit = errors.New("nothing more is recorded")

// read reads a connection to its end: nil is a clean one.
func (t *task) read(ctx context.Context, id string, at *position) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	frames := make(chan sse.Frame, 64) // a batch; when it is full the connection waits
	ended := make(chan error, 1)
	go func() {
		defer close(frames)
		ended <- t.receive(ctx, id, at.last, frames)
	}()
	defer func() {
		cancel()
		for range frames { // until the goroutine has ended
		}
	}()
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		select {
		case f, more := <-frames:
			if !more {
				return <-ended
			}
			idle.Reset(idleTime)
			if f.Event == "" {
				continue // a heartbeat
			}
			if f.Event == "end" {
				return nil // some servers say it
			}
			if err := t.frame(id, f, at); err != nil {
				return err
			}
		case <-idle.C:
			r, err := t.ask(ctx, id, at)
			switch {
			case err != nil:
				return err // follow goes on asking
			case r.ended():
				return errQuiet
			case r.Status == "running" && at.frames == 0:
				return errUnknown
			}
			idle.Reset(idleTime)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// receive puts what comes into frames.
func (t *task) receive(ctx context.Context, id, last string, frames chan<- sse.Frame) error {
	reader, closer, err := t.client.stream(ctx, t.thread, id, last)
	if err != nil {
		return err
	}
	defer closer.Close() //nolint:errcheck // it was read only
	for {
		f, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case frames <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// frame takes one frame in its order.
func (t *task) frame(id string, f sse.Frame, at *position) error {
	n, err := strconv.Atoi(f.ID)
	switch {
	case err != nil: // opaque
		if f.ID != "" && f.ID == at.last {
			return nil
		}
	case n <= at.number:
		return nil // read before
	case n != at.number+1:
		return errGap
	default:
		at.number = n
	}
	if f.Event == "error" && at.frames == 0 && f.Data == `"Run not found"` {
		return errUnknown
	}
	if f.ID != "" {
		at.last = f.ID
	}
	at.frames++
	if err := t.report(id, parseFrame(f)); err != nil {
		return errEmit
	}
	return nil
}
