package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/grpc"
)

// The suite speaks raw gRPC to the embedded node, and unchanged to the real
// EventStoreDB of RUNFACTS_TEST_EVENTSTORE. Each expectation is as certain as
// our account of the wire: [run] was observed, [code] read in the server's
// source, [known] is general knowledge. What a real server does differently is
// the account's fault.

type suite struct {
	streams.StreamsClient
	prefix string
	names  atomic.Int64
}

func openSuite(t *testing.T) *suite {
	t.Helper()
	target := os.Getenv("RUNFACTS_TEST_EVENTSTORE")
	if strings.HasPrefix(t.Name(), "TestConformanceRehearsed/") {
		_, s := rehearse(t, "page-size=1..7,caughtup-fields,late-answer=0..20ms/3,slow-auth=100us,version=24.10.0")
		return s
	}
	if target == "" {
		node, _ := startNode(t, t.TempDir())
		target = node.ConnectionString()
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return &suite{StreamsClient: rawClient(t, u.Host), prefix: fmt.Sprintf("conform%d", time.Now().UnixNano())}
}

func (s *suite) stream() string { return fmt.Sprintf("%s-%d", s.prefix, s.names.Add(1)) }

var none = &shared.Empty{}

func ident(stream string) *shared.StreamIdentifier {
	return &shared.StreamIdentifier{StreamName: []byte(stream)}
}

// expect makes an append's options; revisions and the wishes any, none, exists.
func expect(stream string, expected any) *streams.AppendReq_Options {
	o := &streams.AppendReq_Options{StreamIdentifier: ident(stream)}
	switch v := expected.(type) {
	case int:
		o.ExpectedStreamRevision = &streams.AppendReq_Options_Revision{Revision: uint64(v)}
	case uint64:
		o.ExpectedStreamRevision = &streams.AppendReq_Options_Revision{Revision: v}
	case string:
		switch v {
		case "any":
			o.ExpectedStreamRevision = &streams.AppendReq_Options_Any{Any: none}
		case "none":
			o.ExpectedStreamRevision = &streams.AppendReq_Options_NoStream{NoStream: none}
		case "exists":
			o.ExpectedStreamRevision = &streams.AppendReq_Options_StreamExists{StreamExists: none}
		}
	}
	return o
}

func event(id, kind, data string) *streams.AppendReq_ProposedMessage {
	return &streams.AppendReq_ProposedMessage{
		Id:       &shared.UUID{Value: &shared.UUID_String_{String_: id}},
		Metadata: map[string]string{"type": kind, "content-type": "application/json"},
		Data:     []byte(data), CustomMetadata: []byte(`{"m":1}`),
	}
}

func fresh(n int) (all []*streams.AppendReq_ProposedMessage) {
	for i := range n {
		all = append(all, event(uuid.NewString(), "tick", fmt.Sprintf(`{"n":%d}`, i)))
	}
	return all
}

func (s *suite) append(ctx context.Context, stream string, expected any, events ...*streams.AppendReq_ProposedMessage) (*streams.AppendResp, metadata.MD, error) {
	var trailer metadata.MD
	call, err := s.Append(ctx, grpc.Trailer(&trailer))
	if err != nil {
		return nil, nil, err
	}
	// What cannot be sent was refused early; the answer says why.
	_ = call.Send(&streams.AppendReq{Content: &streams.AppendReq_Options_{Options: expect(stream, expected)}})
	for _, e := range events {
		_ = call.Send(&streams.AppendReq{Content: &streams.AppendReq_ProposedMessage_{ProposedMessage: e}})
	}
	r, err := call.CloseAndRecv()
	return r, trailer, err
}

// must appends and returns the revision of the last event.
func (s *suite) must(t *testing.T, stream string, expected any, events ...*streams.AppendReq_ProposedMessage) uint64 {
	t.Helper()
	r, _, err := s.append(within(t), stream, expected, events...)
	if err != nil || r.GetSuccess() == nil {
		t.Fatalf("append to %s: %v, %v", stream, r, err)
	}
	return r.GetSuccess().GetCurrentRevision()
}

// read makes a request: from is a revision, "start" or "end".
func read(stream string, from any, backwards bool, count uint64) *streams.ReadReq {
	so := &streams.ReadReq_Options_StreamOptions{StreamIdentifier: ident(stream)}
	switch v := from.(type) {
	case int:
		so.RevisionOption = &streams.ReadReq_Options_StreamOptions_Revision{Revision: uint64(v)}
	case string:
		switch v {
		case "start":
			so.RevisionOption = &streams.ReadReq_Options_StreamOptions_Start{Start: none}
		case "end":
			so.RevisionOption = &streams.ReadReq_Options_StreamOptions_End{End: none}
		}
	}
	r := base(backwards, count)
	r.Options.StreamOption = &streams.ReadReq_Options_Stream{Stream: so}
	return r
}

func base(backwards bool, count uint64) *streams.ReadReq {
	o := &streams.ReadReq_Options{
		CountOption:  &streams.ReadReq_Options_Count{Count: count},
		FilterOption: &streams.ReadReq_Options_NoFilter{NoFilter: none},
		UuidOption:   &streams.ReadReq_Options_UUIDOption{Content: &streams.ReadReq_Options_UUIDOption_String_{String_: none}},
	}
	if backwards {
		o.ReadDirection = streams.ReadReq_Options_Backwards
	}
	return &streams.ReadReq{Options: o}
}

func all(from any, backwards bool, count uint64) *streams.ReadReq {
	r := base(backwards, count)
	ao := &streams.ReadReq_Options_AllOptions{}
	switch v := from.(type) {
	case uint64:
		ao.AllOption = &streams.ReadReq_Options_AllOptions_Position{Position: &streams.ReadReq_Options_Position{CommitPosition: v, PreparePosition: v}}
	case string:
		switch v {
		case "start":
			ao.AllOption = &streams.ReadReq_Options_AllOptions_Start{Start: none}
		case "end":
			ao.AllOption = &streams.ReadReq_Options_AllOptions_End{End: none}
		}
	}
	r.Options.StreamOption = &streams.ReadReq_Options_All{All: ao}
	return r
}

func filtered(r *streams.ReadReq, o *streams.ReadReq_Options_FilterOptions) *streams.ReadReq {
	r.Options.FilterOption = &streams.ReadReq_Options_Filter{Filter: o}
	return r
}

func subscription(r *streams.ReadReq) *streams.ReadReq {
	r.Options.CountOption = &streams.ReadReq_Options_Subscription{Subscription: &streams.ReadReq_Options_SubscriptionOptions{}}
	return r
}

// say renders what a server sends, in short: revisions of events, and names.
func say(r *streams.ReadResp) string {
	switch c := r.Content.(type) {
	case *streams.ReadResp_Event:
		if c.Event.Event == nil {
			return "broken-link"
		}
		if c.Event.Event.StreamRevision == math.MaxInt64 {
			return "tombstone"
		}
		return fmt.Sprint(c.Event.Event.StreamRevision)
	case *streams.ReadResp_StreamNotFound_:
		return "not-found"
	case *streams.ReadResp_Confirmation:
		return "confirmed"
	case *streams.ReadResp_CaughtUp_:
		return "caught-up"
	case *streams.ReadResp_Checkpoint_:
		return "checkpoint"
	case *streams.ReadResp_FirstStreamPosition:
		return fmt.Sprintf("first=%d", c.FirstStreamPosition)
	case *streams.ReadResp_LastStreamPosition:
		return fmt.Sprintf("last=%d", c.LastStreamPosition)
	}
	return fmt.Sprintf("%T", r.Content)
}

// tell reads to the end: what was said, and the status at the end.
func (s *suite) tell(t *testing.T, r *streams.ReadReq) (string, error) {
	t.Helper()
	call, err := s.Read(within(t), r)
	var said []string
	for err == nil {
		var m *streams.ReadResp
		if m, err = call.Recv(); err == nil {
			said = append(said, say(m))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.Join(said, " "), err
}

func (s *suite) wants(t *testing.T, certainty string, r *streams.ReadReq, want string, code codes.Code) {
	t.Helper()
	got, err := s.tell(t, r)
	if got != want || status.Code(err) != code {
		t.Errorf("[%s] said %q, %v; want %q, %s", certainty, got, err, want, code)
	}
}

func TestReadStream(t *testing.T) { // wire 2.3, 2.4
	s := openSuite(t)
	stream := s.stream()
	s.must(t, stream, "none", fresh(5)...)
	for _, c := range []struct {
		certainty, name string
		request         *streams.ReadReq
		want            string
		code            codes.Code
	}{
		{"code", "from the start", read(stream, "start", false, 100), "0 1 2 3 4", codes.OK},
		{"code", "inclusive", read(stream, 3, false, 100), "3 4", codes.OK},
		{"code", "count", read(stream, 1, false, 2), "1 2", codes.OK},
		{"code", "beyond the end", read(stream, 9, false, 2), "", codes.OK},
		{"code", "backwards from the end", read(stream, "end", true, 2), "4 3", codes.OK},
		{"code", "backwards from beyond", read(stream, 99, true, 2), "4 3", codes.OK},
		{"code", "backwards inclusive", read(stream, 1, true, 9), "1 0", codes.OK},
		{"code", "forwards from the end", read(stream, "end", false, 1), "", codes.Unknown},
		{"code", "count of nothing", read(stream, "start", false, 0), "", codes.Unknown},
		{"code", "no start", read(stream, nil, false, 1), "", codes.OK},
		{"code", "never written", read(s.stream(), "start", false, 1), "not-found", codes.OK},
		{"code", "its metadata, never written", read("$$"+stream, "start", false, 1), "not-found", codes.OK},
		{"code", "a stream of the name $all", read("$all", "start", false, 1), "not-found", codes.OK},
	} {
		t.Run(c.name, func(t *testing.T) { s.wants(t, c.certainty, c.request, c.want, c.code) })
	}
	for name, breakIt := range map[string]func(o *streams.ReadReq_Options){
		"no uuid option":        func(o *streams.ReadReq_Options) { o.UuidOption = nil },
		"neither stream nor":    func(o *streams.ReadReq_Options) { o.StreamOption = nil },
		"no filter option":      func(o *streams.ReadReq_Options) { o.FilterOption = nil },
		"stream with a filter":  func(o *streams.ReadReq_Options) { filtered(&streams.ReadReq{Options: o}, prefixFilter("x")) },
		"backward subscription": func(o *streams.ReadReq_Options) { subscription(&streams.ReadReq{Options: o}); o.ReadDirection = 1 },
	} {
		r := read(stream, "start", false, 1)
		breakIt(r.Options)
		s.wants(t, "code", r, "", codes.InvalidArgument)
		_ = name
	}
	compatible := read(stream, "start", false, 2)
	compatible.Options.ControlOption = &streams.ReadReq_Options_ControlOption{Compatibility: 1}
	s.wants(t, "code", compatible, "0 1 last=4", codes.OK)
	compatible = read(stream, 9, false, 2)
	compatible.Options.ControlOption = &streams.ReadReq_Options_ControlOption{Compatibility: 1}
	s.wants(t, "code", compatible, "first=5 last=4", codes.OK)
}

func prefixFilter(prefix string) *streams.ReadReq_Options_FilterOptions {
	return &streams.ReadReq_Options_FilterOptions{
		Filter:                       &streams.ReadReq_Options_FilterOptions_StreamIdentifier{StreamIdentifier: &streams.ReadReq_Options_FilterOptions_Expression{Prefix: []string{prefix}}},
		Window:                       &streams.ReadReq_Options_FilterOptions_Max{Max: 32},
		CheckpointIntervalMultiplier: 1,
	}
}

func TestEventsAreReadAsWritten(t *testing.T) { // wire 2.5
	s := openSuite(t)
	stream := s.stream()
	id := uuid.New()
	odd := event(id.String(), "odd", "\x00\xff")
	odd.Metadata["content-type"] = "text/plain"
	odd.Metadata["dropped"] = "yes"
	before := time.Now().UnixNano() / 100
	s.must(t, stream, "any", event(uuid.NewString(), "json", `{"a": 1}`), odd)
	r := read(stream, "start", false, 9)
	r.Options.UuidOption.Content = &streams.ReadReq_Options_UUIDOption_Structured{Structured: none}
	call, err := s.Read(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	first, err := call.Recv()
	if err != nil {
		t.Fatal(err)
	}
	second, err := call.Recv()
	if err != nil {
		t.Fatal(err)
	}
	a, b := first.GetEvent().GetEvent(), second.GetEvent().GetEvent()
	if string(a.Data) != `{"a": 1}` || a.Metadata["content-type"] != "application/json" || string(a.CustomMetadata) != `{"m":1}` {
		t.Errorf("%v", a)
	}
	if string(b.Data) != "\x00\xff" || b.Metadata["content-type"] != "application/octet-stream" || len(b.Metadata) != 3 {
		t.Errorf("%v", b)
	}
	var ticks int64
	if _, err := fmt.Sscan(b.Metadata["created"], &ticks); err != nil || ticks < before-10_000_000 || ticks > before+600_000_000 {
		t.Errorf("created %q is not now, in ticks", b.Metadata["created"])
	}
	if msb := b.Id.GetStructured().GetMostSignificantBits(); uint64(msb)>>56 != uint64(id[0]) {
		t.Errorf("id %v, want %s", b.Id, id)
	}
	if a.CommitPosition == 0 || a.CommitPosition != a.PreparePosition || b.CommitPosition <= a.CommitPosition || second.GetEvent().GetCommitPosition() != b.CommitPosition {
		t.Errorf("positions %v, %v", a, b)
	}
}

func TestAppendDecisions(t *testing.T) { // wire 2.1, 3.1
	s := openSuite(t)
	for _, c := range []struct {
		certainty, name string
		expected        any
		events          []int  // of ten, whose first three are written
		want            string // last revision, or the conflict's current one
	}{
		{"code", "the right revision", 2, []int{5}, "3"},
		{"code", "the right revision, the same ids: written again", 2, []int{2}, "3"},
		{"code", "any", "any", []int{5}, "3"},
		{"code", "any, all known: as before", "any", []int{1, 2}, "2"},
		{"code", "any, known out of order", "any", []int{2, 0}, "0"},
		{"code", "any, the first unknown", "any", []int{5, 1}, "4"},
		{"code", "any, a later one unknown", "any", []int{1, 5}, "conflict 2"},
		{"code", "exists", "exists", []int{5}, "3"},
		{"code", "none, the same ids: as before", "none", []int{0, 1, 2}, "2"},
		{"code", "none, fewer of them", "none", []int{0, 1}, "1"},
		{"code", "none, other ids", "none", []int{5}, "conflict 2"},
		{"code", "an earlier revision, the same ids", 0, []int{1, 2}, "2"},
		{"code", "an earlier revision, running past the end", 1, []int{2, 3}, "conflict 2"},
		{"code", "an earlier revision, other ids", 1, []int{7}, "conflict 2"},
		{"code", "a later revision", 7, []int{5}, "conflict 2"},
		{"code", "nothing, at the right revision", 2, nil, "2"},
		{"code", "nothing, at another", 1, nil, "conflict 2"},
		{"code", "nothing, any", "any", nil, "2"},
		{"code", "the highest revision is none", uint64(math.MaxUint64), []int{0, 1, 2}, "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream := s.stream()
			ten := fresh(10)
			s.must(t, stream, "none", ten[:3]...)
			var events []*streams.AppendReq_ProposedMessage
			for _, i := range c.events {
				events = append(events, ten[i])
			}
			r, _, err := s.append(within(t), stream, c.expected, events...)
			got := fmt.Sprint(r.GetSuccess().GetCurrentRevision())
			if w := r.GetWrongExpectedVersion(); w != nil {
				got = fmt.Sprintf("conflict %d", w.GetCurrentRevision())
			}
			if err != nil || got != c.want {
				t.Errorf("[%s] %s, %v; want %s", c.certainty, got, err, c.want)
			}
		})
	}
	t.Run("a stream that is not there", func(t *testing.T) {
		for _, expected := range []any{"exists", 0} {
			r, _, err := s.append(within(t), s.stream(), expected, fresh(1)...)
			if err != nil || r.GetWrongExpectedVersion().GetCurrentNoStream() == nil {
				t.Errorf("[code] %v: %v, %v", expected, r, err)
			}
		}
		r, _, err := s.append(within(t), s.stream(), "any")
		if err != nil || r.GetSuccess().GetNoStream() == nil {
			t.Errorf("[code] nothing to a new stream: %v, %v", r, err)
		}
	})
	t.Run("what is wrong with an event", func(t *testing.T) {
		untyped := event(uuid.NewString(), "x", "{}")
		delete(untyped.Metadata, "type")
		zero, empty := event(uuid.Nil.String(), "x", "{}"), event(uuid.NewString(), "", "{}")
		big := event(uuid.NewString(), "x", strings.Repeat("x", 1<<20+1))
		for _, c := range []struct {
			event     *streams.AppendReq_ProposedMessage
			code      codes.Code
			text      string
			exception string
		}{
			{untyped, codes.InvalidArgument, "Required Metadata Property 'type' is missing", "missing-required-metadata-property"},
			{zero, codes.Unknown, "Exception was thrown by handler.", ""},
			{empty, codes.Unknown, "Exception was thrown by handler.", ""},
			{big, codes.InvalidArgument, "Maximum Append Size of 1048576 Exceeded.", "maximum-append-size-exceeded"},
		} {
			_, trailer, err := s.append(within(t), s.stream(), "any", c.event)
			if status.Code(err) != c.code || status.Convert(err).Message() != c.text || strings.Join(trailer.Get("exception"), "") != c.exception {
				t.Errorf("[code] %v, %v; want %s", err, trailer, c.text)
			}
		}
		exact := event(uuid.NewString(), "x", strings.Repeat("x", 1<<20))
		s.must(t, s.stream(), "any", exact) // data alone counts
	})
	t.Run("an append without expectation or name", func(t *testing.T) {
		if _, _, err := s.append(within(t), s.stream(), nil, fresh(1)...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("[code] %v", err)
		}
		if _, _, err := s.append(within(t), "", "any", fresh(1)...); status.Code(err) != codes.Unknown {
			t.Errorf("[code] %v", err)
		}
	})
}
