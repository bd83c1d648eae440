package embedded_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
)

// remove deletes or tombstones; the expectation is a revision, "any", "none"
// or "exists".
func (s *suite) remove(t *testing.T, tombstone bool, stream string, expected any) (metadata.MD, error) {
	t.Helper()
	var trailer metadata.MD
	var positioned bool
	var err error
	if tombstone {
		o := &streams.TombstoneReq_Options{StreamIdentifier: ident(stream)}
		switch expected {
		case "any":
			o.ExpectedStreamRevision = &streams.TombstoneReq_Options_Any{Any: none}
		case "none":
			o.ExpectedStreamRevision = &streams.TombstoneReq_Options_NoStream{NoStream: none}
		case "exists":
			o.ExpectedStreamRevision = &streams.TombstoneReq_Options_StreamExists{StreamExists: none}
		default:
			o.ExpectedStreamRevision = &streams.TombstoneReq_Options_Revision{Revision: uint64(expected.(int))}
		}
		var r *streams.TombstoneResp
		r, err = s.Tombstone(within(t), &streams.TombstoneReq{Options: o}, grpc.Trailer(&trailer))
		positioned = r.GetPosition() != nil
	} else {
		o := &streams.DeleteReq_Options{StreamIdentifier: ident(stream)}
		switch expected {
		case "any":
			o.ExpectedStreamRevision = &streams.DeleteReq_Options_Any{Any: none}
		case "none":
			o.ExpectedStreamRevision = &streams.DeleteReq_Options_NoStream{NoStream: none}
		case "exists":
			o.ExpectedStreamRevision = &streams.DeleteReq_Options_StreamExists{StreamExists: none}
		default:
			o.ExpectedStreamRevision = &streams.DeleteReq_Options_Revision{Revision: uint64(expected.(int))}
		}
		var r *streams.DeleteResp
		r, err = s.Delete(within(t), &streams.DeleteReq{Options: o}, grpc.Trailer(&trailer))
		positioned = r.GetPosition() != nil
	}
	if err == nil && !positioned {
		t.Error("[run] without a position the Go client fails")
	}
	return trailer, err
}

func (s *suite) describe(t *testing.T, stream, document string) {
	t.Helper()
	s.must(t, "$$"+stream, "any", event(uuid.NewString(), "$metadata", document))
}

func wantCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("[code] %v, want %s %q", err, code, text)
	}
}

func TestSoftDelete(t *testing.T) { // wire 2.7, 3.3
	s := openSuite(t)
	stream := s.stream()
	trailer, err := s.remove(t, false, stream, "any")
	wantCode(t, err, codes.FailedPrecondition, "Actual version: -1")
	if strings.Join(trailer.Get("exception"), "") != "wrong-expected-version" || strings.Join(trailer.Get("actual-version"), "") != "-1" {
		t.Errorf("[code] trailers %v", trailer)
	}
	s.must(t, stream, "none", fresh(3)...)
	s.describe(t, stream, `{"$maxCount":100,"custom":1}`)
	_, err = s.remove(t, false, stream, 1)
	wantCode(t, err, codes.FailedPrecondition, "Delete failed due to WrongExpectedVersion. Stream: "+stream+", Expected version: 1, Actual version: 2")
	if _, err := s.remove(t, false, stream, 2); err != nil {
		t.Fatal(err)
	}
	s.wants(t, "code", read(stream, "start", false, 9), "not-found", codes.OK)
	s.wants(t, "code", read(stream, "end", true, 9), "not-found", codes.OK)
	s.wants(t, "code", read("$$"+stream, "start", false, 9), "1", codes.OK)
	if _, err := s.remove(t, false, stream, "any"); err != nil {
		t.Errorf("[code] again: %v", err)
	}
	_, err = s.remove(t, false, stream, "exists")
	wantCode(t, err, codes.FailedPrecondition, "is deleted")
	_, trailer, err = s.append(within(t), stream, "exists", fresh(1)...)
	wantCode(t, err, codes.FailedPrecondition, "Event stream '"+stream+"' is deleted.")
	if strings.Join(trailer.Get("stream-name"), "") != stream {
		t.Errorf("[code] trailers %v", trailer)
	}
	// Written anew, numbers go on, and the metadata follows.
	if got := s.must(t, stream, "none", fresh(2)...); got != 4 {
		t.Errorf("[code] revision %d, want 4", got)
	}
	s.wants(t, "code", read(stream, "start", false, 9), "3 4", codes.OK)
	s.wants(t, "code", read("$$"+stream, "end", true, 9), "3", codes.OK)
	// A client's metadata keeps the numbers going too.
	if _, err := s.remove(t, false, stream, "any"); err != nil {
		t.Fatal(err)
	}
	s.describe(t, stream, `{"custom":2}`)
	s.wants(t, "code", read(stream, "start", false, 9), "", codes.OK)
}

func TestTombstone(t *testing.T) { // wire 2.7, 3.4
	s := openSuite(t)
	stream := s.stream()
	s.must(t, stream, "none", fresh(2)...)
	_, err := s.remove(t, true, stream, 0)
	wantCode(t, err, codes.FailedPrecondition, "WrongExpectedVersion")
	if _, err := s.remove(t, true, stream, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.remove(t, true, s.stream(), "any"); err != nil {
		t.Errorf("[code] of a stream that never was: %v", err)
	}
	for _, name := range []string{stream, "$$" + stream} {
		s.wants(t, "code", read(name, "start", false, 9), "", codes.FailedPrecondition)
		s.wants(t, "code", subscription(read(name, "start", false, 0)), "", codes.FailedPrecondition)
		_, trailer, err := s.append(within(t), name, "any", fresh(1)...)
		wantCode(t, err, codes.FailedPrecondition, "is deleted")
		if strings.Join(trailer.Get("exception"), "") != "stream-deleted" {
			t.Errorf("[code] trailers %v", trailer)
		}
	}
	for _, tombstone := range []bool{true, false} {
		_, err := s.remove(t, tombstone, stream, "any")
		wantCode(t, err, codes.FailedPrecondition, "is deleted")
	}
}

func TestMetadataHides(t *testing.T) { // wire 2.4, 2.8
	s := openSuite(t)
	for _, c := range []struct{ document, want string }{
		{`{"$maxCount":2}`, "3 4"},
		{`{"$tb":3}`, "3 4"},
		{`{"$tb":1,"$maxCount":2}`, "3 4"},
		{`{"$tb":9}`, ""},
		{`{"$maxAge":3600}`, "0 1 2 3 4"},
		{`{"$maxCount":0}`, "0 1 2 3 4"},
		{`{"$maxCount":2.5}`, "0 1 2 3 4"},
		{`{"$maxCount":2,"$acl":"$userStreamAcl"}`, "0 1 2 3 4"},
		{`{"$maxCount":2,"$acl":{"$r":["a","b"],"$w":"c"},"unknown":[]}`, "3 4"},
		{`[]`, "0 1 2 3 4"},
		{`not json`, "0 1 2 3 4"},
	} {
		stream := s.stream()
		s.must(t, stream, "none", fresh(5)...)
		s.describe(t, stream, c.document)
		s.wants(t, "code", read(stream, "start", false, 9), c.want, codes.OK)
	}
	// A metadata stream keeps its newest event only, found from the start too.
	stream := s.stream()
	for range 3 {
		s.describe(t, stream, `{"x":1}`)
	}
	s.wants(t, "run", read("$$"+stream, "start", false, 1), "2", codes.OK)
	s.wants(t, "run", read("$$"+stream, "end", true, 1), "2", codes.OK)
	s.wants(t, "code", read(stream, "start", false, 1), "not-found", codes.OK)
	if r, _, err := s.append(within(t), stream, "exists", fresh(1)...); err != nil || r.GetSuccess() == nil {
		t.Errorf("[code] exists, with metadata only: %v, %v", r, err)
	}
}

// ours keeps what of $all belongs to this suite.
func (s *suite) ours(t *testing.T, r *streams.ReadReq, count int) []*streams.ReadResp_ReadEvent_RecordedEvent {
	t.Helper()
	call, err := s.Read(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	var got []*streams.ReadResp_ReadEvent_RecordedEvent
	for len(got) < count {
		m, err := call.Recv()
		if err != nil {
			break
		}
		if e := m.GetEvent().GetEvent(); e != nil && strings.Contains(string(e.StreamIdentifier.StreamName), s.prefix) {
			got = append(got, e)
		}
	}
	return got
}

func TestAll(t *testing.T) { // wire 2.6
	s := openSuite(t)
	a, b := s.stream(), s.stream()
	for i := range 3 {
		s.must(t, a, i-1, fresh(1)...) // revision -1 on the wire is none
		s.must(t, b, i-1, fresh(1)...)
	}
	s.describe(t, a, `{"$maxCount":1}`)
	if _, err := s.remove(t, true, b, 2); err != nil {
		t.Fatal(err)
	}
	got := s.ours(t, all("start", false, 100_000), 8)
	if len(got) != 8 {
		t.Fatalf("[code] %d events: $all hides nothing", len(got))
	}
	for i, e := range got[:6] {
		if string(e.StreamIdentifier.StreamName) != []string{a, b}[i%2] || e.StreamRevision != uint64(i/2) {
			t.Errorf("[code] event %d is %d of %s", i, e.StreamRevision, e.StreamIdentifier.StreamName)
		}
	}
	if last := got[7]; last.StreamRevision != math.MaxInt64 || last.Metadata["type"] != "$streamDeleted" || len(last.Data) != 0 {
		t.Errorf("[code] the tombstone is %v", last)
	}
	at := got[2].CommitPosition
	if e := s.ours(t, all(at, false, 1), 1); len(e) != 1 || e[0].CommitPosition != at {
		t.Errorf("[code] forwards is inclusive: %v", e)
	}
	if e := s.ours(t, all(at, true, 1), 1); len(e) != 1 || e[0].CommitPosition != got[1].CommitPosition {
		t.Errorf("[code] backwards is exclusive: %v", e)
	}
	for _, name := range []string{"$persistentsubscription-$all::" + s.prefix + "-parked", "$persistentsubscription-$all::" + s.prefix + "-checkpoint"} {
		s.must(t, name, "any", fresh(1)...)
	}
	s.must(t, a, "any", fresh(1)...)
	if e := s.ours(t, all("end", true, 1_000_000), 1); len(e) != 1 || string(e[0].StreamIdentifier.StreamName) != a {
		t.Errorf("[code] the newest is %v", e)
	}
	if e := s.ours(t, all(got[7].CommitPosition+1, false, 1_000_000), 100); len(e) != 1 {
		t.Errorf("[code] %d events behind the tombstone: $all shows what it must hide", len(e))
	}
	s.wants(t, "code", all("end", false, 9), "", codes.OK)
	s.wants(t, "code", all("start", true, 9), "", codes.OK)
	bad := all(at, false, 1)
	bad.Options.GetAll().GetPosition().PreparePosition = at + 1
	s.wants(t, "code", bad, "", codes.Unknown)
}

func TestFilters(t *testing.T) { // wire 4
	s := openSuite(t)
	a, b := s.stream(), s.stream()
	s.must(t, a, "any", event(uuid.NewString(), "order-placed", "{}"), event(uuid.NewString(), "shipped", "{}"))
	s.must(t, b, "any", event(uuid.NewString(), "order-paid", "{}"))
	by := func(kind bool, regex string, prefixes ...string) *streams.ReadReq_Options_FilterOptions {
		o := prefixFilter("")
		x := &streams.ReadReq_Options_FilterOptions_Expression{Regex: regex, Prefix: prefixes}
		o.Filter = &streams.ReadReq_Options_FilterOptions_StreamIdentifier{StreamIdentifier: x}
		if kind {
			o.Filter = &streams.ReadReq_Options_FilterOptions_EventType{EventType: x}
		}
		return o
	}
	for name, c := range map[string]struct {
		filter *streams.ReadReq_Options_FilterOptions
		want   int
	}{
		"stream prefix":            {by(false, "", a), 2},
		"several prefixes":         {by(false, "", "nothing", a, b), 3},
		"type prefix":              {by(true, "", "order-"), 2},
		"stream expression":        {by(false, "^"+s.prefix+"-\\d+$"), 3},
		".NET look-ahead":          {by(true, `^(?!\$|ship)`), 2},
		"an expression wins":       {by(true, "shipped", "order-"), 1},
		"empty matches nothing":    {by(true, ""), 0},
		"an expression unanchored": {by(true, "hip"), 1},
	} {
		if got := s.ours(t, filtered(all("start", false, 1_000_000), c.filter), 1000); len(got) != c.want {
			t.Errorf("[code] %s: %d events, want %d", name, len(got), c.want)
		}
	}
	s.wants(t, "code", filtered(all("start", false, 9), by(true, "(")), "", codes.Unknown)
	windowless := by(true, "x")
	windowless.Window = nil
	s.wants(t, "code", filtered(all("start", false, 9), windowless), "", codes.InvalidArgument)
	multiplier := by(true, "x")
	multiplier.CheckpointIntervalMultiplier = 0
	s.wants(t, "code", subscription(filtered(all("start", false, 0), multiplier)), "", codes.Unknown)
}

// live is a subscription that is listened to word by word.
type live struct {
	t    *testing.T
	call streams.Streams_ReadClient
}

func (s *suite) listen(t *testing.T, r *streams.ReadReq) *live {
	t.Helper()
	call, err := s.Read(within(t), subscription(r))
	if err != nil {
		t.Fatal(err)
	}
	return &live{t, call}
}

func (l *live) hears(want ...string) {
	l.t.Helper()
	for _, w := range want {
		m, err := l.call.Recv()
		if err != nil {
			l.t.Fatalf("want %s: %v", w, err)
		}
		if got := say(m); got != w {
			l.t.Fatalf("heard %s, want %s", got, w)
		}
	}
}

// until listens to the end of a sentence and returns it. Others may write to the
// same store, so that how many checkpoints there are is not known.
func (l *live) until(want string) string {
	l.t.Helper()
	var told []string
	for len(told) == 0 || told[len(told)-1] != want {
		m, err := l.call.Recv()
		if err != nil {
			l.t.Fatalf("want %s behind %q: %v", want, told, err)
		}
		told = append(told, say(m))
	}
	return strings.Join(told, " ")
}

func TestSubscribeToStream(t *testing.T) { // wire 5.1, 5.2
	s := openSuite(t)
	stream := s.stream()
	early := s.listen(t, read(stream, "start", false, 0))
	early.hears("confirmed", "caught-up")
	s.must(t, stream, "none", fresh(3)...)
	early.hears("0", "1", "2")
	behind := s.listen(t, read(stream, 0, false, 0))
	behind.hears("confirmed", "1", "2", "caught-up")
	end := s.listen(t, read(stream, "end", false, 0))
	end.hears("confirmed", "caught-up")
	future := s.listen(t, read(stream, 3, false, 0))
	future.hears("confirmed", "caught-up")
	s.must(t, stream, 2, fresh(2)...)
	for _, l := range []*live{early, behind, end} {
		l.hears("3", "4")
	}
	future.hears("4")
	if _, err := s.remove(t, false, stream, "any"); err != nil {
		t.Fatal(err)
	}
	s.must(t, stream, "any", fresh(1)...)
	early.hears("5")
	s.describe(t, stream, `{"$maxCount":1}`)
	s.listen(t, read(stream, "start", false, 0)).hears("confirmed", "5", "caught-up")
	if _, err := s.remove(t, true, stream, "any"); err != nil {
		t.Fatal(err)
	}
	end.hears("5", "tombstone")
	_, err := end.call.Recv()
	wantCode(t, err, codes.FailedPrecondition, "is deleted")
}

func TestASlowSubscriberMissesNothing(t *testing.T) { // wire 5.1, item 6
	s := openSuite(t)
	stream := s.stream()
	l := s.listen(t, read(stream, "start", false, 0))
	l.hears("confirmed", "caught-up")
	const appends, each = 60, 50
	payload := strings.Repeat("x", 2000) // so that windows fill up
	for i := range appends {
		var events []*streams.AppendReq_ProposedMessage
		for range each {
			events = append(events, event(uuid.NewString(), "t", `"`+payload+`"`))
		}
		s.must(t, stream, i*each-1, events...)
	}
	for next := uint64(0); next < appends*each; {
		m, err := l.call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e := m.GetEvent().GetEvent(); e != nil {
			if e.StreamRevision != next {
				t.Fatalf("heard %d, want %d", e.StreamRevision, next)
			}
			next++
		} else if m.GetCaughtUp() == nil {
			t.Fatalf("heard %s", say(m))
		}
	}
}

func TestSubscribeToAll(t *testing.T) { // wire 5.3, 5.4
	s := openSuite(t)
	a, b := s.stream(), s.stream()
	s.must(t, a, "any", fresh(3)...)
	first := s.ours(t, all("start", false, 100_000), 3)
	fromA := func(r *streams.ReadReq) *streams.ReadReq {
		o := prefixFilter(a)
		o.Window = &streams.ReadReq_Options_FilterOptions_Max{Max: 4}
		return filtered(r, o)
	}
	l := s.listen(t, fromA(all(first[0].CommitPosition, false, 0)))
	if told := l.until("caught-up"); !strings.HasPrefix(told, "confirmed ") || !strings.HasSuffix(told, " checkpoint caught-up") || !strings.Contains(told, "1 2") {
		t.Errorf("[code] heard %q: exclusive, and a checkpoint before it has caught up", told)
	}
	s.must(t, b, "any", fresh(4)...)
	l.until("checkpoint") // what does not match counts too
	s.must(t, a, "any", fresh(1)...)
	l.until("3")
	end := s.listen(t, fromA(all("end", false, 0)))
	end.until("caught-up")
	s.must(t, a, "any", fresh(1)...)
	end.until("4")
	l.until("4")
}

func TestLinks(t *testing.T) { // wire 2.5
	s := openSuite(t)
	target, links := s.stream(), s.stream()
	s.must(t, target, "any", fresh(2)...)
	s.must(t, links, "any", event(uuid.NewString(), "$>", "1@"+target), event(uuid.NewString(), "$>", "7@"+target), event(uuid.NewString(), "$>", "nonsense"))
	s.wants(t, "code", read(links, "start", false, 9), "0 1 2", codes.OK)
	r := read(links, "start", false, 9)
	r.Options.ResolveLinks = true
	s.wants(t, "code", r, "1 broken-link 2", codes.OK)
}

func TestBatchAppend(t *testing.T) { // wire 2.2
	s := openSuite(t)
	call, err := s.BatchAppend(within(t))
	if err != nil {
		t.Fatal(err)
	}
	proposed := func(n int) (all []*streams.BatchAppendReq_ProposedMessage) {
		for _, e := range fresh(n) {
			all = append(all, &streams.BatchAppendReq_ProposedMessage{Id: e.Id, Metadata: e.Metadata, Data: e.Data})
		}
		return all
	}
	options := func(stream string) *streams.BatchAppendReq_Options {
		return &streams.BatchAppendReq_Options{StreamIdentifier: ident(stream), ExpectedStreamPosition: &streams.BatchAppendReq_Options_Any{Any: &emptypb.Empty{}}}
	}
	ask := func(o *streams.BatchAppendReq_Options, final bool, events ...*streams.BatchAppendReq_ProposedMessage) string {
		id := uuid.NewString()
		if err := call.Send(&streams.BatchAppendReq{CorrelationId: &shared.UUID{Value: &shared.UUID_String_{String_: id}}, Options: o, ProposedMessages: events, IsFinal: final}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	answer := func(id string) *streams.BatchAppendResp {
		t.Helper()
		r, err := call.Recv()
		if err != nil || r.GetCorrelationId().GetString_() != id {
			t.Fatalf("[code] %v, %v; want an answer to %s, as a string", r, err, id)
		}
		return r
	}
	refusal := func(r *streams.BatchAppendResp, code codes.Code, text, detail string) {
		t.Helper()
		e := r.GetError()
		if codes.Code(e.GetCode()) != code || e.GetMessage() != text || len(e.GetDetails()) != 1 || !strings.HasSuffix(e.GetDetails()[0].GetTypeUrl(), "event_store.client."+detail) {
			t.Errorf("[code] %v; want %s %s", r, code, detail)
		}
	}
	stream := s.stream()
	if r := answer(ask(options(stream), true, proposed(3)...)); r.GetSuccess().GetCurrentRevision() != 2 || r.GetSuccess().GetPosition() == nil || string(r.GetStreamIdentifier().GetStreamName()) != stream {
		t.Errorf("[code] %v", r)
	}
	wrong := options(stream)
	wrong.ExpectedStreamPosition = &streams.BatchAppendReq_Options_StreamPosition{StreamPosition: 0}
	refusal(answer(ask(wrong, true, proposed(1)...)), codes.AlreadyExists, "WrongExpectedVersion", "WrongExpectedVersion")
	late := options(stream)
	late.DeadlineOption = &streams.BatchAppendReq_Options_Deadline_21_10_0{Deadline_21_10_0: timestamppb.New(time.Now().Add(-time.Second))}
	refusal(answer(ask(late, true, proposed(1)...)), codes.DeadlineExceeded, "Timeout", "Timeout")
	roomy := options(stream)
	roomy.DeadlineOption = &streams.BatchAppendReq_Options_Deadline{Deadline: &durationpb.Duration{Seconds: 315576000000}}
	if r := answer(ask(roomy, true, proposed(1)...)); r.GetSuccess().GetCurrentRevision() != 3 {
		t.Errorf("[code] %v", r)
	}
	refusal(answer(ask(&streams.BatchAppendReq_Options{ExpectedStreamPosition: options("").ExpectedStreamPosition}, true)), codes.InvalidArgument, "BadRequest", "BadRequest")
	big := proposed(1)
	big[0].Data = make([]byte, 1<<20+1)
	refusal(answer(ask(options(stream), true, big...)), codes.InvalidArgument, "MaximumAppendSizeExceeded", "MaximumAppendSizeExceeded")
	untyped := proposed(1)
	delete(untyped[0].Metadata, "type")
	refusal(answer(ask(options(stream), true, untyped...)), codes.InvalidArgument, "BadRequest", "BadRequest")
	unfinished := ask(options(stream), false, proposed(1)...) // it is answered after 2 s
	refusal(answer(unfinished), codes.DeadlineExceeded, "Timeout", "Timeout")
	if _, err := s.remove(t, true, stream, "any"); err != nil {
		t.Fatal(err)
	}
	refusal(answer(ask(options(stream), true, proposed(1)...)), codes.NotFound, "StreamDeleted", "StreamDeleted")

	const many = 1000 // at once, on one call
	pending := map[string]bool{}
	for i := range many {
		pending[ask(options(fmt.Sprintf("%s-many-%d", s.prefix, i%50)), true, proposed(1)...)] = true
	}
	for range many {
		r, err := call.Recv()
		if err != nil || r.GetSuccess() == nil || !pending[r.GetCorrelationId().GetString_()] {
			t.Fatalf("%v, %v", r, err)
		}
		delete(pending, r.GetCorrelationId().GetString_())
	}
	if err := call.CloseSend(); err != nil {
		t.Error(err)
	}
}
