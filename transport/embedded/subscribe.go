package embedded

import (
	"errors"
	"math"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// wait returns when the subscriber has news; an error when the call must end.
func (r *reading) wait(sub subscriber) error {
	select {
	case <-sub.News():
		return nil
	case <-sub.Shown():
		return nil
	case <-r.call.Context().Done():
		return status.FromContextError(r.call.Context().Err()).Err()
	case <-r.node.stopping:
		return status.Error(codes.Unavailable, "Server Is Not Ready")
	}
}

// subscribeStream follows one stream (wire 5.1, 5.2): what is stored behind
// the given revision, then what comes. A subscriber that falls behind its
// buffer reads the store again; it loses nothing.
func (r *reading) subscribeStream(o *streams.ReadReq_Options_StreamOptions) error {
	name := string(o.GetStreamIdentifier().GetStreamName())
	sub := r.node.index.Subscribe(name)
	defer sub.Close()
	window, err := r.node.index.Window(name)
	if err != nil && !errors.Is(err, store.ErrNoStream) {
		return failure(r.call.Context(), err)
	}
	var last int64 // the number of the last event delivered, or passed over
	switch v := o.GetRevisionOption().(type) {
	case *streams.ReadReq_Options_StreamOptions_Revision:
		last = int64(min(v.Revision, math.MaxInt64))
	case *streams.ReadReq_Options_StreamOptions_Start:
		last = -1
	case *streams.ReadReq_Options_StreamOptions_End:
		last = window.Last
	default:
		return nil // the server swallows it
	}
	if err := r.confirm(uuid.NewString()); err != nil {
		return err
	}
	r.count = math.MaxUint64
	for {
		if last, err = r.catchUp(name, last); err != nil {
			return err
		}
		if err := r.caughtUp(); err != nil {
			return err
		}
		for missed := false; !missed; {
			if err := r.wait(sub); err != nil {
				return err
			}
			var events []*store.Event
			events, missed = sub.Take()
			for _, e := range events {
				if e.Number <= last {
					continue
				}
				if err := r.one(e); err != nil {
					return err
				}
				if last = e.Number; last == store.Deleted {
					return failure(r.call.Context(), &store.DeletedError{Stream: name})
				}
			}
		}
	}
}

// catchUp sends what is stored of a stream behind number last.
func (r *reading) catchUp(name string, last int64) (int64, error) {
	for last < math.MaxInt64 {
		window, err := r.node.index.Window(name)
		if errors.Is(err, store.ErrNoStream) {
			return last, nil
		}
		if err != nil {
			return last, failure(r.call.Context(), err)
		}
		events, next, err := r.node.index.Forward(window, last+1, math.MaxUint64)
		if err != nil {
			return last, failure(r.call.Context(), err)
		}
		if err := r.send(events); err != nil {
			return last, err
		}
		if len(events) == 0 && next <= window.Last && next > last+1 {
			last = next - 1 // a page of expired events
			continue
		}
		if len(events) == 0 {
			return last, nil
		}
		last = next - 1
	}
	return last, nil
}

// subscribeAll follows $all (wire 5.3, 5.4).
func (r *reading) subscribeAll(o *streams.ReadReq_Options_AllOptions, match *filter) error {
	sub := r.node.index.SubscribeAll()
	defer sub.Close()
	progress := progress{reading: r, match: match}
	switch v := o.GetAllOption().(type) {
	case *streams.ReadReq_Options_AllOptions_Position:
		at, err := position(v.Position)
		if err != nil {
			return err
		}
		if progress.at = at; at == unknown {
			progress.at = r.node.index.Position()
		}
	case *streams.ReadReq_Options_AllOptions_Start:
	case *streams.ReadReq_Options_AllOptions_End:
		progress.at = r.node.index.Position()
	default:
		return nil // the server swallows it
	}
	progress.marked = progress.at
	if err := r.confirm(uuid.NewString()); err != nil {
		return err
	}
	for {
		if err := progress.catchUp(); err != nil {
			return err
		}
		if err := r.caughtUp(); err != nil {
			return err
		}
		for missed := false; !missed; {
			if err := r.wait(sub); err != nil {
				return err
			}
			var events []*store.Event
			events, missed = sub.Take()
			for _, e := range events {
				if err := progress.pass(e); err != nil {
					return err
				}
			}
		}
		if err := progress.mark(); err != nil { // before falling back (wire 5.4)
			return err
		}
	}
}

// progress is how far a subscription to $all has come, and what the client
// knows of that.
type progress struct {
	*reading
	match  *filter
	at     uint64 // the last position looked at
	marked uint64 // the last checkpoint, or where the subscription began
	looked uint64 // events since then
}

// pass delivers an event that the filter lets through, and a checkpoint where
// one is due: every event counts, whether it matches or not.
func (p *progress) pass(e *store.Event) error {
	if e.Position <= p.at {
		return nil
	}
	p.at = e.Position
	if p.match.match(e) {
		if err := p.one(e); err != nil {
			return err
		}
	}
	if p.match == nil {
		return nil
	}
	if p.looked++; p.looked >= p.match.interval {
		return p.mark()
	}
	return nil
}

// mark sends a checkpoint, unless the client has it: everything up to there
// was delivered, and a client may resume from it.
func (p *progress) mark() error {
	if p.match == nil || p.at <= p.marked {
		return nil
	}
	p.marked, p.looked = p.at, 0
	return p.checkpoint(p.at)
}

// catchUp passes what is stored behind the last position, and ends, for a
// filtered subscription, with a checkpoint.
func (p *progress) catchUp() error {
	for {
		events, err := p.node.index.All(p.at+1, math.MaxUint64)
		if err != nil {
			return failure(p.call.Context(), err)
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if err := p.pass(e); err != nil {
				return err
			}
		}
	}
	return p.mark()
}
