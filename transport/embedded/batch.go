package embedded

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// writeTimeout caps how long a batch may take, whatever its client allows (wire 2.2).
const writeTimeout = 2 * time.Second

// batches is one BatchAppend call: many appends, told apart by correlation id.
type batches struct {
	store  *store.Store
	call   streams.Streams_BatchAppendServer
	writes sync.WaitGroup

	sending sync.Mutex // one reply at a time
	ended   bool       // the call is over: nothing may be sent any more

	mu      sync.Mutex
	pending map[string]*pending // by correlation id, until its one reply
}

// pending is one append on its way in.
type pending struct {
	key      string
	id       *shared.UUID
	stream   *shared.StreamIdentifier
	expected store.Expected
	ctx      context.Context
	cancel   context.CancelFunc
	expiry   func() bool // stops the waiting for the deadline
	events   []store.Proposed
	size     int
}

// BatchAppend implements wire 2.2.
func (s *streamsServer) BatchAppend(call streams.Streams_BatchAppendServer) error {
	b := &batches{store: s.node.store, call: call, pending: make(map[string]*pending)}
	defer b.end()
	for {
		message, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		b.take(message)
	}
}

// end waits for the replies that are due, and lets no other out.
func (b *batches) end() {
	b.writes.Wait()
	b.sending.Lock()
	defer b.sending.Unlock()
	b.ended = true
}

func (b *batches) take(m *streams.BatchAppendReq) {
	key := m.GetCorrelationId().String()
	if m.GetOptions() != nil && b.find(key) == nil && !b.begin(key, m) {
		return
	}
	p := b.find(key)
	if p == nil {
		return // answered already, or never begun
	}
	for _, proposed := range m.GetProposedMessages() {
		e, err := event(proposed)
		if err != nil {
			b.refuse(p, codes.InvalidArgument, "BadRequest", &shared.BadRequest{Message: err.Error()})
			return
		}
		p.events = append(p.events, e)
		if p.size += len(e.Data); p.size > maxAppend {
			b.refuse(p, codes.InvalidArgument, "MaximumAppendSizeExceeded", &shared.MaximumAppendSizeExceeded{MaxAppendSize: maxAppend})
			return
		}
	}
	if m.GetIsFinal() {
		b.writes.Go(func() { b.write(p) })
	}
}

func (b *batches) find(key string) *pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending[key]
}

// begin registers a batch by its first message, or refuses it.
func (b *batches) begin(key string, m *streams.BatchAppendReq) bool {
	o := m.GetOptions()
	p := &pending{key: key, id: m.GetCorrelationId(), stream: o.GetStreamIdentifier()}
	p.ctx, p.cancel = context.WithTimeout(b.call.Context(), allowed(o))
	// A batch that never becomes final is answered too.
	p.expiry = context.AfterFunc(p.ctx, func() { b.refuse(p, codes.DeadlineExceeded, "Timeout", &shared.Timeout{}) })
	b.mu.Lock()
	b.pending[key] = p
	b.mu.Unlock()
	name := string(p.stream.GetStreamName())
	var err error
	switch v := o.GetExpectedStreamPosition().(type) {
	case *streams.BatchAppendReq_Options_Any:
		p.expected = store.Any
	case *streams.BatchAppendReq_Options_NoStream:
		p.expected = store.NoStream
	case *streams.BatchAppendReq_Options_StreamExists:
		p.expected = store.Exists
	case *streams.BatchAppendReq_Options_StreamPosition:
		p.expected, err = number(v.StreamPosition)
	default:
		err = errors.New("expected_stream_position is missing")
	}
	switch {
	case p.stream == nil:
		err = errors.New("Required field 'stream_identifier' is missing") //nolint:staticcheck // the wire's text
	case name == "" || name == allStream:
		err = errors.New("the stream cannot be written to")
	}
	switch {
	case err != nil:
		b.refuse(p, codes.InvalidArgument, "BadRequest", &shared.BadRequest{Message: err.Error()})
		return false
	case p.ctx.Err() != nil: // before it was registered, or since
		b.refuse(p, codes.DeadlineExceeded, "Timeout", &shared.Timeout{})
		return false
	}
	return true
}

// allowed is how long a batch may take from now.
func allowed(o *streams.BatchAppendReq_Options) time.Duration {
	wanted := time.Duration(math.MaxInt64)
	switch v := o.GetDeadlineOption().(type) {
	case *streams.BatchAppendReq_Options_Deadline:
		// Longer than a Duration can say is longer than the cap as well.
		if v.Deadline.GetSeconds() < int64(writeTimeout/time.Second)+1 {
			wanted = v.Deadline.AsDuration()
		}
	case *streams.BatchAppendReq_Options_Deadline_21_10_0:
		wanted = time.Until(v.Deadline_21_10_0.AsTime())
	}
	return min(wanted, writeTimeout)
}

func (b *batches) write(p *pending) {
	result, err := b.store.Append(p.ctx, string(p.stream.GetStreamName()), p.expected, p.events)
	var wrong *store.WrongVersionError
	var deleted *store.DeletedError
	switch {
	case err == nil:
		b.answer(p, &streams.BatchAppendResp{Result: batchSuccess(result)})
	case errors.As(err, &wrong):
		b.refuse(p, codes.AlreadyExists, "WrongExpectedVersion", batchConflict(wrong))
	case errors.As(err, &deleted):
		b.refuse(p, codes.NotFound, "StreamDeleted", &shared.StreamDeleted{StreamIdentifier: p.stream})
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		b.refuse(p, codes.DeadlineExceeded, "Timeout", &shared.Timeout{})
	case errors.Is(err, store.ErrStopped):
		b.refuse(p, codes.OK, "Server Is Not Ready", &emptypb.Empty{})
	default:
		b.refuse(p, codes.Unknown, "Unknown", &shared.Unknown{})
	}
}

func (b *batches) refuse(p *pending, code codes.Code, text string, detail proto.Message) {
	packed, err := anypb.New(detail)
	if err != nil {
		packed = &anypb.Any{}
	}
	b.answer(p, &streams.BatchAppendResp{Result: &streams.BatchAppendResp_Error{Error: &rpcstatus.Status{
		Code: int32(code), Message: text, Details: []*anypb.Any{packed},
	}}})
}

// answer sends a batch's one reply: whoever comes second is silent.
func (b *batches) answer(p *pending, r *streams.BatchAppendResp) {
	b.mu.Lock()
	mine := b.pending[p.key] == p
	if mine {
		delete(b.pending, p.key)
	}
	b.mu.Unlock()
	if !mine {
		return
	}
	p.expiry()
	p.cancel()
	r.CorrelationId, r.StreamIdentifier = p.id, p.stream
	b.sending.Lock()
	defer b.sending.Unlock()
	if b.ended {
		return
	}
	// If it cannot be sent the call is over, and its loop knows.
	_ = b.call.Send(r)
}

func batchSuccess(r store.Result) *streams.BatchAppendResp_Success_ {
	success := &streams.BatchAppendResp_Success{
		CurrentRevisionOption: &streams.BatchAppendResp_Success_CurrentRevision{CurrentRevision: uint64(r.Last)},
		PositionOption:        &streams.BatchAppendResp_Success_NoPosition{NoPosition: &emptypb.Empty{}},
	}
	if r.Last < 0 {
		success.CurrentRevisionOption = &streams.BatchAppendResp_Success_NoStream{NoStream: &emptypb.Empty{}}
	}
	if r.Position != 0 {
		success.PositionOption = &streams.BatchAppendResp_Success_Position{Position: &shared.AllStreamPosition{
			CommitPosition: r.Position, PreparePosition: r.Position,
		}}
	}
	return &streams.BatchAppendResp_Success_{Success: success}
}

func batchConflict(w *store.WrongVersionError) *shared.WrongExpectedVersion {
	out := &shared.WrongExpectedVersion{}
	if w.Current < 0 {
		out.CurrentStreamRevisionOption = &shared.WrongExpectedVersion_CurrentNoStream{CurrentNoStream: &emptypb.Empty{}}
	} else {
		out.CurrentStreamRevisionOption = &shared.WrongExpectedVersion_CurrentStreamRevision{CurrentStreamRevision: uint64(w.Current)}
	}
	switch w.Expected {
	case store.Any:
		out.ExpectedStreamPositionOption = &shared.WrongExpectedVersion_ExpectedAny{ExpectedAny: &emptypb.Empty{}}
	case store.Exists:
		out.ExpectedStreamPositionOption = &shared.WrongExpectedVersion_ExpectedStreamExists{ExpectedStreamExists: &emptypb.Empty{}}
	case store.NoStream:
		out.ExpectedStreamPositionOption = &shared.WrongExpectedVersion_ExpectedNoStream{ExpectedNoStream: &emptypb.Empty{}}
	default:
		out.ExpectedStreamPositionOption = &shared.WrongExpectedVersion_ExpectedStreamPosition{ExpectedStreamPosition: uint64(w.Expected)}
	}
	return out
}
