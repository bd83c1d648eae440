package embedded

import (
	"context"
	"errors"
	"io"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// streamsServer implements the Streams service (wire 2).
type streamsServer struct {
	streams.UnimplementedStreamsServer
	node *Node
}

// allStream is no stream that anybody can write to.
const allStream = "$all"

// Append implements wire 2.1.
func (s *streamsServer) Append(call streams.Streams_AppendServer) error {
	ctx := call.Context()
	first, err := call.Recv()
	if err != nil || first.GetOptions() == nil {
		return handlerThrew()
	}
	stream := string(first.GetOptions().GetStreamIdentifier().GetStreamName())
	expected, err := appendExpected(first.GetOptions())
	if err != nil {
		return err
	}
	if stream == "" || stream == allStream {
		return handlerThrew()
	}
	var events []store.Proposed
	size := 0
	for {
		message, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		p := message.GetProposedMessage()
		if p == nil {
			return handlerThrew()
		}
		e, err := event(p)
		var missing missingError
		if errors.As(err, &missing) {
			return missingProperty(ctx, string(missing))
		}
		if err != nil {
			return handlerThrew()
		}
		if size += len(e.Data); size > maxAppend { // data alone counts (wire 8, 26)
			return tooLarge(ctx, maxAppend)
		}
		events = append(events, e)
	}
	result, err := s.node.store.Append(ctx, stream, expected, events)
	var wrong *store.WrongVersionError
	switch {
	case errors.As(err, &wrong):
		return call.SendAndClose(conflict(wrong))
	case err != nil:
		return failure(ctx, err)
	}
	return call.SendAndClose(appended(result))
}

func appendExpected(o *streams.AppendReq_Options) (store.Expected, error) {
	switch v := o.GetExpectedStreamRevision().(type) {
	case *streams.AppendReq_Options_Any:
		return store.Any, nil
	case *streams.AppendReq_Options_NoStream:
		return store.NoStream, nil
	case *streams.AppendReq_Options_StreamExists:
		return store.Exists, nil
	case *streams.AppendReq_Options_Revision:
		expected, err := number(v.Revision)
		if err != nil {
			return 0, handlerThrew()
		}
		return expected, nil
	}
	return 0, status.Error(codes.InvalidArgument, "expected_stream_revision is missing")
}

func appended(r store.Result) *streams.AppendResp {
	success := &streams.AppendResp_Success{
		CurrentRevisionOption: &streams.AppendResp_Success_CurrentRevision{CurrentRevision: uint64(r.Last)},
		PositionOption:        &streams.AppendResp_Success_NoPosition{NoPosition: &shared.Empty{}},
	}
	if r.Last < 0 {
		success.CurrentRevisionOption = &streams.AppendResp_Success_NoStream{NoStream: &shared.Empty{}}
	}
	if r.Position != 0 {
		success.PositionOption = &streams.AppendResp_Success_Position{Position: &streams.AppendResp_Position{
			CommitPosition: r.Position, PreparePosition: r.Position,
		}}
	}
	return &streams.AppendResp{Result: &streams.AppendResp_Success_{Success: success}}
}

// conflict sets both generations of fields: clients read either.
func conflict(w *store.WrongVersionError) *streams.AppendResp {
	out := &streams.AppendResp_WrongExpectedVersion{}
	if w.Current < 0 {
		out.CurrentRevisionOption = &streams.AppendResp_WrongExpectedVersion_CurrentNoStream{CurrentNoStream: &shared.Empty{}}
		out.CurrentRevisionOption_20_6_0 = &streams.AppendResp_WrongExpectedVersion_NoStream_20_6_0{NoStream_20_6_0: &shared.Empty{}}
	} else {
		out.CurrentRevisionOption = &streams.AppendResp_WrongExpectedVersion_CurrentRevision{CurrentRevision: uint64(w.Current)}
		out.CurrentRevisionOption_20_6_0 = &streams.AppendResp_WrongExpectedVersion_CurrentRevision_20_6_0{CurrentRevision_20_6_0: uint64(w.Current)}
	}
	old := &streams.AppendResp_WrongExpectedVersion_ExpectedRevision_20_6_0{ExpectedRevision_20_6_0: uint64(w.Expected)}
	switch w.Expected {
	case store.Any:
		out.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedAny{ExpectedAny: &shared.Empty{}}
		out.ExpectedRevisionOption_20_6_0 = &streams.AppendResp_WrongExpectedVersion_Any_20_6_0{Any_20_6_0: &shared.Empty{}}
	case store.Exists:
		out.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedStreamExists{ExpectedStreamExists: &shared.Empty{}}
		out.ExpectedRevisionOption_20_6_0 = &streams.AppendResp_WrongExpectedVersion_StreamExists_20_6_0{StreamExists_20_6_0: &shared.Empty{}}
	case store.NoStream: // whose number is the highest on the wire
		out.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedNoStream{ExpectedNoStream: &shared.Empty{}}
		out.ExpectedRevisionOption_20_6_0 = old
	default:
		out.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedRevision{ExpectedRevision: uint64(w.Expected)}
		out.ExpectedRevisionOption_20_6_0 = old
	}
	return &streams.AppendResp{Result: &streams.AppendResp_WrongExpectedVersion_{WrongExpectedVersion: out}}
}

// Delete implements wire 2.7 and 3.3.
func (s *streamsServer) Delete(ctx context.Context, r *streams.DeleteReq) (*streams.DeleteResp, error) {
	o := r.GetOptions()
	var expected store.Expected
	var err error
	switch v := o.GetExpectedStreamRevision().(type) {
	case *streams.DeleteReq_Options_Any:
		expected = store.Any
	case *streams.DeleteReq_Options_NoStream:
		expected = store.NoStream
	case *streams.DeleteReq_Options_StreamExists:
		expected = store.Exists
	case *streams.DeleteReq_Options_Revision:
		expected, err = number(v.Revision)
	default:
		return nil, status.Error(codes.InvalidArgument, "expected_stream_revision is missing")
	}
	stream := string(o.GetStreamIdentifier().GetStreamName())
	if err != nil || stream == "" || stream == allStream {
		return nil, handlerThrew()
	}
	result, err := s.node.store.Delete(ctx, stream, expected)
	if err != nil {
		return nil, failure(ctx, err)
	}
	return &streams.DeleteResp{PositionOption: &streams.DeleteResp_Position_{Position: &streams.DeleteResp_Position{
		CommitPosition: result.Position, PreparePosition: result.Position,
	}}}, nil
}

// Tombstone implements wire 2.7 and 3.4.
func (s *streamsServer) Tombstone(ctx context.Context, r *streams.TombstoneReq) (*streams.TombstoneResp, error) {
	o := r.GetOptions()
	var expected store.Expected
	var err error
	switch v := o.GetExpectedStreamRevision().(type) {
	case *streams.TombstoneReq_Options_Any:
		expected = store.Any
	case *streams.TombstoneReq_Options_NoStream:
		expected = store.NoStream
	case *streams.TombstoneReq_Options_StreamExists:
		expected = store.Exists
	case *streams.TombstoneReq_Options_Revision:
		expected, err = number(v.Revision)
	default:
		return nil, status.Error(codes.InvalidArgument, "expected_stream_revision is missing")
	}
	stream := string(o.GetStreamIdentifier().GetStreamName())
	if err != nil || stream == "" || stream == allStream {
		return nil, handlerThrew()
	}
	result, err := s.node.store.Tombstone(ctx, stream, expected)
	if err != nil {
		return nil, failure(ctx, err)
	}
	return &streams.TombstoneResp{PositionOption: &streams.TombstoneResp_Position_{Position: &streams.TombstoneResp_Position{
		CommitPosition: result.Position, PreparePosition: result.Position,
	}}}, nil
}
