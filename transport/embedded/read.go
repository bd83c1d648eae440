package embedded

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// reading is one validated Read call.
type reading struct {
	node  *Node
	call  streams.Streams_ReadServer
	text  bool // ids as strings
	links bool // resolve them
	extra bool // first and last stream position are wanted (compatibility 1)
	count uint64
	sent  uint64
}

// Read implements wire 2.3 to 2.6 and 5.
func (s *streamsServer) Read(r *streams.ReadReq, call streams.Streams_ReadServer) error {
	o := r.GetOptions()
	_, structured := o.GetUuidOption().GetContent().(*streams.ReadReq_Options_UUIDOption_Structured)
	_, text := o.GetUuidOption().GetContent().(*streams.ReadReq_Options_UUIDOption_String_)
	backwards := o.GetReadDirection() == streams.ReadReq_Options_Backwards
	_, subscription := o.GetCountOption().(*streams.ReadReq_Options_Subscription)
	switch {
	case o.GetUuidOption() == nil || !structured && !text && o.GetUuidOption().GetContent() != nil:
		return invalidRead("uuid_option is missing")
	case o.GetStreamOption() == nil, o.GetCountOption() == nil, o.GetFilterOption() == nil:
		return invalidRead("The combination of options is invalid.")
	case o.GetStream() != nil && o.GetFilter() != nil, subscription && backwards:
		return invalidRead("The combination of options is invalid.")
	}
	read := &reading{
		node: s.node, call: call, text: text, links: o.GetResolveLinks(),
		extra: o.GetControlOption().GetCompatibility() >= 1, count: o.GetCount(),
	}
	var match *filter
	if o.GetFilter() != nil {
		var err error
		if match, err = newFilter(o.GetFilter(), subscription); err != nil {
			return err
		}
	}
	switch {
	case o.GetStream() != nil && subscription:
		return read.subscribeStream(o.GetStream())
	case o.GetStream() != nil:
		return read.stream(o.GetStream(), backwards)
	case subscription:
		return read.subscribeAll(o.GetAll(), match)
	}
	return read.all(o.GetAll(), backwards, match)
}

func invalidRead(text string) error { return status.Error(codes.InvalidArgument, text) }

// failed answers a call whose result the server has no message for.
func unexpected(kind, result string) error {
	return status.Errorf(codes.Unknown, "Unexpected %s: %s", kind, result)
}

// stream reads a count of one stream's events (wire 2.4).
func (r *reading) stream(o *streams.ReadReq_Options_StreamOptions, backwards bool) error {
	name := string(o.GetStreamIdentifier().GetStreamName())
	var from int64
	switch v := o.GetRevisionOption().(type) {
	case *streams.ReadReq_Options_StreamOptions_Revision:
		from = int64(min(v.Revision, math.MaxInt64))
	case *streams.ReadReq_Options_StreamOptions_Start:
	case *streams.ReadReq_Options_StreamOptions_End:
		if !backwards {
			return unexpected("ReadStreamResult", "Error")
		}
		from = math.MaxInt64
	default:
		return nil // the server swallows it
	}
	if r.count == 0 {
		return unexpected("ReadStreamResult", "Error")
	}
	window, err := r.node.index.Window(name)
	if errors.Is(err, store.ErrNoStream) {
		return r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_StreamNotFound_{StreamNotFound: &streams.ReadResp_StreamNotFound{
			StreamIdentifier: o.GetStreamIdentifier(),
		}}})
	}
	if err != nil {
		return failure(r.call.Context(), err)
	}
	start := from
	page := r.node.index.Forward
	if backwards {
		page = r.node.index.Backward
	}
	for r.sent < r.count {
		events, next, err := page(window, from, r.count-r.sent)
		if err != nil {
			return failure(r.call.Context(), err)
		}
		if len(events) == 0 && next == from || backwards && next < 0 && len(events) == 0 {
			break
		}
		if err := r.send(events); err != nil {
			return err
		}
		from = next
	}
	if !r.extra {
		return nil // other clients cannot bear what they do not know
	}
	if first := max(window.First, 0); !backwards && r.sent == 0 && (first > start || start > window.Last) {
		if start > window.Last {
			first = window.Last + 1
		}
		if err := r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_FirstStreamPosition{FirstStreamPosition: uint64(first)}}); err != nil {
			return err
		}
	}
	return r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_LastStreamPosition{LastStreamPosition: uint64(window.Last)}})
}

// all reads a count of $all's events (wire 2.6).
func (r *reading) all(o *streams.ReadReq_Options_AllOptions, backwards bool, match *filter) error {
	var at uint64
	switch v := o.GetAllOption().(type) {
	case *streams.ReadReq_Options_AllOptions_Position:
		p, err := position(v.Position)
		if err != nil {
			return err
		}
		at = p
	case *streams.ReadReq_Options_AllOptions_Start:
	case *streams.ReadReq_Options_AllOptions_End:
		at = math.MaxUint64
	default:
		return nil // the server swallows it
	}
	for r.sent < r.count {
		var events []*store.Event
		var err error
		if backwards {
			events, err = r.node.index.AllBackward(at, r.wanted(match))
		} else {
			events, err = r.node.index.All(at, r.wanted(match))
		}
		if err != nil {
			return failure(r.call.Context(), err)
		}
		if len(events) == 0 {
			return nil
		}
		at = events[len(events)-1].Position
		if !backwards {
			at++
		}
		if err := r.send(match.of(events)); err != nil {
			return err
		}
		if err := r.call.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	return nil
}

// wanted is how many events a page should bring: all that are left to send, or
// as many as may be where a filter takes some away.
func (r *reading) wanted(match *filter) uint64 {
	if match == nil {
		return r.count - r.sent
	}
	return math.MaxUint64
}

func position(p *streams.ReadReq_Options_Position) (uint64, error) {
	if p.GetCommitPosition() < p.GetPreparePosition() ||
		p.GetCommitPosition() > math.MaxInt64 && p.GetCommitPosition() != unknown {
		return 0, handlerThrew()
	}
	return p.GetCommitPosition(), nil
}

// send sends events up to the count.
func (r *reading) send(events []*store.Event) error {
	for _, e := range events {
		if r.sent == r.count {
			return nil
		}
		if err := r.one(e); err != nil {
			return err
		}
		r.sent++
	}
	return nil
}

// one sends an event, through its link where that is wanted (wire 2.5).
func (r *reading) one(e *store.Event) error {
	out := &streams.ReadResp_ReadEvent{
		Event:    recorded(e, r.text),
		Position: &streams.ReadResp_ReadEvent_CommitPosition{CommitPosition: e.Position},
	}
	if r.links && e.Type == linkType {
		if target, ok := r.target(e); ok {
			out.Link, out.Event = out.Event, nil
			if target != nil {
				out.Event = recorded(target, r.text)
			}
		}
	}
	return r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_Event{Event: out}})
}

// linkType is the type of an event that points to another: number@stream.
const linkType = "$>"

// target returns the event that a link points to, nil where it cannot be read.
// false: the link says nothing that could be followed.
func (r *reading) target(link *store.Event) (*store.Event, bool) {
	text, stream, found := strings.Cut(string(link.Data), "@")
	number, err := strconv.ParseInt(text, 10, 64)
	if !found || err != nil || number < 0 {
		return nil, false
	}
	window, err := r.node.index.Window(stream)
	if err != nil {
		return nil, true
	}
	events, _, err := r.node.index.Forward(window, number, 1)
	if err != nil || len(events) == 0 || events[0].Number != number {
		return nil, true
	}
	return events[0], true
}

func (r *reading) confirm(id string) error {
	return r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_Confirmation{
		Confirmation: &streams.ReadResp_SubscriptionConfirmation{SubscriptionId: id},
	}})
}

func (r *reading) caughtUp() error {
	return r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_CaughtUp_{CaughtUp: &streams.ReadResp_CaughtUp{}}})
}

func (r *reading) checkpoint(at uint64) error {
	return r.call.Send(&streams.ReadResp{Content: &streams.ReadResp_Checkpoint_{
		Checkpoint: &streams.ReadResp_Checkpoint{CommitPosition: at, PreparePosition: at},
	}})
}
