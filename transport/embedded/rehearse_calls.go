package embedded

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/gossip"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/serverfeatures"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// wantsLeader reports whether a caller accepts no other node's answer.
func wantsLeader(ctx context.Context) bool {
	asked, _ := metadata.FromIncomingContext(ctx)
	for _, value := range asked.Get("requires-leader") {
		if wanted, err := strconv.ParseBool(value); err == nil && wanted {
			return true
		}
	}
	return false
}

// about is the right that a call on a stream needs, and on which stream: a
// stream's metadata stands in another one.
func about(right byte, stream string) (byte, string) {
	if len(stream) > 2 && stream[:2] == "$$" {
		return 'm', stream[2:]
	}
	return right, stream
}

// unary plays on Delete, Tombstone, the features and the gossip.
func (s *stage) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	a := asked{leader: wantsLeader(ctx)}
	switch r := request.(type) {
	case *streams.DeleteReq:
		a.right, a.stream, a.leader = 'd', string(r.GetOptions().GetStreamIdentifier().GetStreamName()), true
	case *streams.TombstoneReq:
		a.right, a.stream, a.leader = 'd', string(r.GetOptions().GetStreamIdentifier().GetStreamName()), true
	}
	if err := s.judge(ctx, a); err != nil {
		return nil, err
	}
	now := s.scene.Load()
	if a.right != 0 {
		s.quorum(ctx, now)
	}
	answer, err := handler(ctx, request)
	if err != nil {
		return answer, err
	}
	if features, ok := answer.(*serverfeatures.SupportedMethods); ok && now.version != "" {
		features.EventStoreServerVersion = now.version
	}
	now.spread(answer)
	return answer, nil
}

// cluster shows the node as the follower of the leader that is rehearsed.
func (s *stage) cluster(c *gossip.ClusterInfo) {
	host, port, err := net.SplitHostPort(s.scene.Load().leader)
	if err != nil {
		return // none is
	}
	number, _ := strconv.ParseUint(port, 10, 16)
	c.Members[0].State = gossip.MemberInfo_Follower
	c.Members = append(c.Members, &gossip.MemberInfo{
		InstanceId: &shared.UUID{Value: &shared.UUID_String_{String_: uuid.NewString()}}, TimeStamp: c.Members[0].GetTimeStamp(),
		State: gossip.MemberInfo_Leader, IsAlive: true, HttpEndPoint: &gossip.EndPoint{Address: host, Port: uint32(number)},
	})
}

// stream plays on Append, BatchAppend and Read.
func (s *stage) stream(server any, call grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	switch info.FullMethod {
	case streams.Streams_Append_FullMethodName:
		return s.append(server, call, handler)
	case streams.Streams_Read_FullMethodName:
		return s.read(server, call, handler)
	case streams.Streams_BatchAppend_FullMethodName:
		return handler(server, &batchCall{ServerStream: call, stage: s})
	}
	return handler(server, call)
}

// appendCall gives a handler an append that was read whole, and takes its answer.
type appendCall struct {
	grpc.ServerStream
	ctx      context.Context
	messages []*streams.AppendReq
	answer   any
}

func (c *appendCall) Context() context.Context { return c.ctx }

func (c *appendCall) RecvMsg(into any) error {
	if len(c.messages) == 0 {
		return io.EOF
	}
	proto.Merge(into.(proto.Message), c.messages[0])
	c.messages = c.messages[1:]
	return nil
}

func (c *appendCall) SendMsg(answer any) error {
	c.answer = answer
	return nil
}

// append plays on one append: what was read of it is decided as on the plain
// node, and answered, late or not at all.
func (s *stage) append(server any, call grpc.ServerStream, handler grpc.StreamHandler) error {
	ctx, now := call.Context(), s.scene.Load()
	held := &appendCall{ServerStream: call, ctx: ctx}
	for size := 0; ; {
		m := &streams.AppendReq{}
		err := call.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		held.messages = append(held.messages, m)
		if o := m.GetOptions(); o != nil { // judged before any event is read (wire 2.1)
			a := asked{leader: true}
			a.right, a.stream = about('w', string(o.GetStreamIdentifier().GetStreamName()))
			if err := s.judge(ctx, a); err != nil {
				return err
			}
		}
		// All of it counts, as on 24.10.
		p := m.GetProposedMessage()
		size += len(p.GetData()) + len(p.GetCustomMetadata()) + 2*len(p.GetMetadata()[typeKey])
		if now.maxAppend > 0 && size > now.maxAppend {
			return tooLarge(ctx, now.maxAppend)
		}
	}
	if now.once("no-answer", now.silent) {
		if now.once("lost", 2) {
			_ = handler(server, held) // stored or not: nobody hears of it
		}
		select {
		case <-ctx.Done():
			return rpcstatus.FromContextError(ctx.Err()).Err() // its deadline may pass here before it does there
		case <-s.node.stopping:
		}
		return handlerThrew()
	}
	if s.quorum(ctx, now) {
		// What the leader has taken it stores, whoever still waits for it.
		held.ctx = context.WithoutCancel(ctx)
	}
	if err := handler(server, held); err != nil {
		return err
	}
	if now.once("sparse", now.sparse) {
		s.statistics()
	}
	if now.late.to > 0 && now.once("late-answer", now.lateEvery) {
		s.rest(ctx, now.within("late by", now.late))
	}
	now.spread(held.answer)
	return call.SendMsg(held.answer)
}

// quorum waits until there is one, and reports whether it had to.
func (s *stage) quorum(ctx context.Context, now *scene) bool {
	rest := now.open(now.noQuorum)
	if rest > 0 {
		s.rest(context.WithoutCancel(ctx), rest)
	}
	return rest > 0
}

// statistics is what a node writes by itself between its clients' events.
func (s *stage) statistics() {
	event := store.Proposed{ID: store.ID(newUUID()), Type: "$statsCollected", JSON: true, Data: []byte(`{"rehearsed":true}`)}
	if _, err := s.node.store.Append(context.Background(), "$stats-127.0.0.1:2113", store.Any, []store.Proposed{event}); err != nil {
		s.node.log.Debug().Err(err).Msg("rehearsing: no statistics")
	}
}

// readCall is a Read whose answers are played with.
type readCall struct {
	grpc.ServerStream
	now     *scene
	request *streams.ReadReq // nil: taken
	slow    bool             // its reader has kept the node waiting
}

// slowReader is how long a reader may keep the node waiting before it is told
// that it fell behind.
const slowReader = 200 * time.Millisecond

// read plays on one read or subscription.
func (s *stage) read(server any, call grpc.ServerStream, handler grpc.StreamHandler) error {
	r := &streams.ReadReq{}
	if err := call.RecvMsg(r); err != nil {
		return err
	}
	o := r.GetOptions()
	a := asked{leader: wantsLeader(call.Context()), stream: "$all"}
	if o.GetStream() != nil {
		a.stream = string(o.GetStream().GetStreamIdentifier().GetStreamName())
	}
	a.right, a.stream = about('r', a.stream)
	if err := s.judge(call.Context(), a); err != nil {
		return err
	}
	now := s.scene.Load()
	if p := o.GetAll().GetPosition(); p != nil && now.split {
		at, ok := narrow(p.GetCommitPosition())
		if !ok {
			return unexpected("ReadAllResult", "InvalidPosition")
		}
		p.CommitPosition, p.PreparePosition = at, at
	}
	return handler(server, &readCall{ServerStream: call, now: now, request: r})
}

func (c *readCall) RecvMsg(into any) error {
	if c.request == nil {
		return c.ServerStream.RecvMsg(into)
	}
	proto.Merge(into.(proto.Message), c.request)
	subscribed := c.request.GetOptions().GetSubscription() != nil
	c.request = nil
	if !subscribed {
		c.now = &scene{Rehearsal: Rehearsal{split: c.now.split}} // what follows is said to subscribers
	}
	return nil
}

func (c *readCall) SendMsg(answer any) error {
	m, _ := answer.(*streams.ReadResp)
	c.now.spread(m)
	if m.GetCaughtUp() != nil && c.now.caughtUp {
		m.GetCaughtUp().ProtoReflect().SetUnknown(laterFields())
	}
	began := time.Now()
	if m.GetEvent() != nil && (c.slow || c.now.once("fellbehind", c.now.behind)) {
		for _, hint := range []*streams.ReadResp{
			{Content: &streams.ReadResp_FellBehind_{FellBehind: &streams.ReadResp_FellBehind{}}},
			{Content: &streams.ReadResp_CaughtUp_{CaughtUp: &streams.ReadResp_CaughtUp{}}},
		} {
			if err := c.ServerStream.SendMsg(hint); err != nil {
				return err
			}
		}
	}
	err := c.ServerStream.SendMsg(answer)
	c.slow = c.now.behind > 0 && time.Since(began) > slowReader
	return err
}

// batchCall is a BatchAppend: many appends, each of which may be refused or
// never answered.
type batchCall struct {
	grpc.ServerStream
	stage   *stage
	sending sync.Mutex
}

func (c *batchCall) RecvMsg(into any) error {
	for {
		if err := c.ServerStream.RecvMsg(into); err != nil {
			return err
		}
		m := into.(*streams.BatchAppendReq)
		if m.GetOptions() == nil {
			return nil
		}
		a := asked{leader: true}
		a.right, a.stream = about('w', string(m.GetOptions().GetStreamIdentifier().GetStreamName()))
		err := c.stage.judge(c.Context(), a)
		if rpcstatus.Code(err) != codes.PermissionDenied {
			return err // nil; or the whole call ends, as on a node that is no leader any more
		}
		detail, err := anypb.New(&shared.AccessDenied{})
		if err != nil {
			return err
		}
		denied := &streams.BatchAppendResp{
			CorrelationId: m.GetCorrelationId(), StreamIdentifier: m.GetOptions().GetStreamIdentifier(),
			Result: &streams.BatchAppendResp_Error{Error: &status.Status{
				Code: int32(codes.PermissionDenied), Message: "AccessDenied", Details: []*anypb.Any{detail},
			}},
		}
		if err := c.send(denied); err != nil {
			return err
		}
		proto.Reset(m)
	}
}

func (c *batchCall) SendMsg(answer any) error {
	now := c.stage.scene.Load()
	if now.once("no-answer", now.silent) {
		return nil
	}
	if now.late.to > 0 && now.once("late-answer", now.lateEvery) {
		c.stage.rest(c.Context(), now.within("late by", now.late))
	}
	now.spread(answer)
	return c.send(answer)
}

func (c *batchCall) send(answer any) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.ServerStream.SendMsg(answer)
}
