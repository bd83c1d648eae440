package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"

	"github.com/runfacts/runfacts/transport/embedded"
)

// rehearse runs a node that behaves as text says, and a raw client of it.
func rehearse(t *testing.T, text string) (*embedded.Node, *suite) {
	t.Helper()
	r, err := embedded.ParseRehearsal(text)
	if err != nil {
		t.Fatal(err)
	}
	node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop(), Rehearse: &r})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("node: %v", err)
		}
	})
	return node, &suite{StreamsClient: rawClient(t, node.Addr().String()), prefix: "rehearsed"}
}

func TestARehearsalIsReadAndItsFaultsAreNamed(t *testing.T) {
	for _, good := range []string{
		"", "worst", "worst,seed=7", "read-lag=0..200ms,seed=1", "read-lag=10ms", "page-size=3", "election=1s/5s", "no-quorum=2s",
		"denied=rw:agent_run-,denied=a:/1s/9s", "late-answer=1s/3", "cut=100..2000", "set-back=3",
	} {
		if _, err := embedded.ParseRehearsal(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"sloth", "seed=x", "read-lag=5", "read-lag=2s..1s", "page-size=0", "election=5s/1s", "denied=x:", "denied=:a", "late-answer=1s/0",
		"caughtup-fields=1", "cut=5..1", "no-answer=-1",
	} {
		if _, err := embedded.ParseRehearsal(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestAnAppendIsAcknowledgedBeforeItCanBeRead(t *testing.T) {
	_, s := rehearse(t, "read-lag=300ms")
	stream := s.stream()
	began := time.Now()
	s.must(t, stream, "none", fresh(2)...)
	if got, err := s.tell(t, read(stream, "start", false, 10)); got != "not-found" || err != nil {
		t.Errorf("at once: %q, %v", got, err)
	}
	// The writer decides by what is stored.
	if r, _, err := s.append(within(t), stream, "none", fresh(1)...); err != nil || r.GetWrongExpectedVersion().GetCurrentRevision() != 1 {
		t.Errorf("conflict: %v, %v", r, err)
	}
	live := s.listen(t, subscription(read(stream, "start", false, 0)))
	seen := 0
	for seen < 2 {
		if r, err := live.call.Recv(); err != nil {
			t.Fatal(err)
		} else if r.GetEvent() != nil {
			seen++
		}
	}
	if time.Since(began) < 300*time.Millisecond {
		t.Error("a subscription saw it early")
	}
	if got, _ := s.tell(t, read(stream, "start", false, 10)); got != "0 1" {
		t.Errorf("later: %q", got)
	}
	// What comes while it is followed arrives as well, and only once.
	s.must(t, stream, 1, fresh(3)...)
	for want := uint64(2); want < 5; {
		r, err := live.call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e := r.GetEvent(); e != nil {
			if e.GetEvent().GetStreamRevision() != want {
				t.Fatalf("revision %d, want %d", e.GetEvent().GetStreamRevision(), want)
			}
			want++
		}
	}
}

func TestASlowIndexLosesNothing(t *testing.T) {
	_, s := rehearse(t, "read-lag=0..20ms,page-size=1..5,fellbehind=3,caughtup-fields,sparse=2")
	stream := s.stream()
	const many = 600 // more than a subscriber's buffer holds
	one := s.listen(t, subscription(read(stream, "start", false, 0)))
	everything := s.listen(t, subscription(all("start", false, 0)))
	for n := range many {
		if n == 0 {
			s.must(t, stream, "none", fresh(1)...)
		} else {
			s.must(t, stream, n-1, fresh(1)...)
		}
	}
	for name, l := range map[string]*live{"stream": one, "$all": everything} {
		for want := uint64(0); want < many; {
			r, err := l.call.Recv()
			if err != nil {
				t.Fatal(name, err)
			}
			e := r.GetEvent().GetEvent()
			if e == nil || string(e.GetStreamIdentifier().GetStreamName()) != stream {
				continue
			}
			if e.GetStreamRevision() != want {
				t.Fatalf("%s: revision %d, want %d", name, e.GetStreamRevision(), want)
			}
			want++
		}
	}
}

func TestHintsComeAtAnyTime(t *testing.T) {
	_, s := rehearse(t, "fellbehind=1,caughtup-fields")
	stream := s.stream()
	s.must(t, stream, "none", fresh(1)...)
	live := s.listen(t, subscription(read(stream, "start", false, 0)))
	var said []string
	for len(said) < 5 {
		r, err := live.call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetFellBehind() != nil {
			said = append(said, "fell-behind")
			continue
		}
		said = append(said, say(r))
		if r.GetCaughtUp() != nil && len(said) == 5 && len(r.GetCaughtUp().ProtoReflect().GetUnknown()) == 0 {
			t.Error("no fields in caught-up")
		}
	}
	if got := said; got[1] != "fell-behind" || got[2] != "caught-up" || got[3] != "0" || got[4] != "caught-up" {
		t.Errorf("%v", got)
	}
}

func TestAnAppendIsNeverAnswered(t *testing.T) {
	_, s := rehearse(t, "no-answer=1,seed=2")
	stored := 0
	const tries = 8
	for range tries {
		stream := s.stream()
		ctx, cancel := context.WithTimeout(within(t), 100*time.Millisecond)
		_, _, err := s.append(ctx, stream, "none", fresh(1)...)
		cancel()
		if status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("answered: %v", err)
		}
		if got, _ := s.tell(t, read(stream, "start", false, 1)); got == "0" {
			stored++
		}
	}
	if stored == 0 || stored == tries {
		t.Errorf("%d of %d are stored", stored, tries)
	}
}

func TestAnAnswerComesLate(t *testing.T) {
	_, s := rehearse(t, "late-answer=150ms")
	began := time.Now()
	s.must(t, s.stream(), "none", fresh(1)...)
	if time.Since(began) < 150*time.Millisecond {
		t.Error("at once")
	}
}

func TestAConnectionBreaksInTheMiddle(t *testing.T) {
	_, s := rehearse(t, "cut=3000..9000")
	stream := s.stream()
	s.must(t, stream, "none", fresh(200)...)
	broken := false
	for range 20 {
		_, err := s.tell(t, read(stream, "start", false, 1000))
		broken = broken || status.Code(err) == codes.Unavailable
	}
	if !broken {
		t.Error("it does not")
	}
}

func TestWhoWantsTheLeaderIsSentAway(t *testing.T) {
	node, s := rehearse(t, "not-leader=1")
	var named, unnamed int
	for range 10 {
		_, trailer, err := s.append(within(t), s.stream(), "none", fresh(1)...)
		switch {
		case status.Code(err) == codes.NotFound && trailer.Get("exception")[0] == "not-leader" && trailer.Get("leader-endpoint-host")[0] == "127.0.0.1":
			named++
		case status.Code(err) == codes.Unknown:
			unnamed++
		default:
			t.Fatal(err)
		}
	}
	if named == 0 || unnamed == 0 {
		t.Errorf("%d with an address, %d without", named, unnamed)
	}
	if got, err := s.tell(t, read("nobody", "start", false, 1)); got != "not-found" {
		t.Errorf("who does not ask for the leader is answered: %q, %v", got, err)
	}
	call, err := s.Read(metadata.AppendToOutgoingContext(within(t), "requires-leader", "true"), read("nobody", "start", false, 1))
	if err == nil {
		_, err = call.Recv()
	}
	if err == nil {
		t.Error("a read that wants the leader is answered")
	}
	play(t, node, "")
	s.must(t, s.stream(), "none", fresh(1)...)
}

// play changes what a node rehearses.
func play(t *testing.T, node *embedded.Node, text string) {
	t.Helper()
	r, err := embedded.ParseRehearsal(text)
	if err != nil {
		t.Fatal(err)
	}
	if !node.Rehearse(r) {
		t.Fatal("the node rehearses nothing")
	}
}

func TestThereIsNoLeaderForAWhile(t *testing.T) {
	node, s := rehearse(t, "election=1h")
	if _, _, err := s.append(within(t), s.stream(), "none", fresh(1)...); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unknown {
		t.Error(err)
	}
	play(t, node, "election=1h/2h") // its end is an hour away
	s.must(t, s.stream(), "none", fresh(1)...)
}

func TestWithoutAQuorumAnAppendWaitsAndIsStoredAllTheSame(t *testing.T) {
	_, s := rehearse(t, "no-quorum=500ms")
	stream := s.stream()
	began := time.Now()
	ctx, cancel := context.WithTimeout(within(t), 100*time.Millisecond)
	defer cancel()
	if _, _, err := s.append(ctx, stream, "none", fresh(1)...); status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if got, _ := s.tell(t, read(stream, "start", false, 1)); got != "not-found" {
		t.Errorf("shown before it is replicated: %q", got)
	}
	// Behind the first in the same queue, as on a leader.
	for r := (*streams.AppendResp)(nil); r.GetWrongExpectedVersion() == nil; {
		var err error
		if r, _, err = s.append(within(t), stream, "none", fresh(1)...); err != nil {
			t.Fatal(err)
		}
		if r.GetSuccess() != nil { // it was faster
			break
		}
	}
	if time.Since(began) < 500*time.Millisecond {
		t.Error("acknowledged without a quorum")
	}
	for {
		if got, _ := s.tell(t, read(stream, "start", false, 5)); got == "0" {
			break
		}
	}
}

func TestRightsAreRefused(t *testing.T) {
	node, s := rehearse(t, "denied=wd:locked_,denied=m:rehearsed")
	for stream, want := range map[string]codes.Code{"locked_1": codes.PermissionDenied, "open_1": codes.OK, "$$rehearsed-1": codes.PermissionDenied} {
		_, trailer, err := s.append(within(t), stream, "any", fresh(1)...)
		if status.Code(err) != want {
			t.Errorf("append to %s: %v", stream, err)
		}
		if want != codes.OK && trailer.Get("exception")[0] != "access-denied" {
			t.Errorf("%v", trailer)
		}
	}
	if _, err := s.remove(t, true, "locked_1", "any"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("tombstone: %v", err)
	}
	if got, err := s.tell(t, read("locked_1", "start", false, 1)); got != "not-found" {
		t.Errorf("reading is allowed: %q, %v", got, err)
	}
	play(t, node, "denied=a:")
	if _, err := s.tell(t, read("open_1", "start", false, 1)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a password: %v", err)
	}
}

func TestANodeTakesLessInOneAppend(t *testing.T) {
	_, s := rehearse(t, "max-append=1000")
	for size, want := range map[int]codes.Code{900: codes.OK, 995: codes.InvalidArgument} {
		e := event("6dbf64b8-7a4b-4d0b-8b7c-97c6a2e9b5aa", "tick", string(make([]byte, size)))
		if _, trailer, err := s.append(within(t), s.stream(), "any", e); status.Code(err) != want {
			t.Errorf("%d bytes: %v", size, err)
		} else if err != nil && trailer.Get("maximum-append-size")[0] != "1000" {
			t.Errorf("%v", trailer)
		}
	}
}

func TestPositionsAreNoCounts(t *testing.T) {
	_, s := rehearse(t, "commit-not-prepare")
	r, _, err := s.append(within(t), s.stream(), "none", fresh(1)...)
	if err != nil {
		t.Fatal(err)
	}
	at := r.GetSuccess().GetPosition()
	if at.GetCommitPosition() <= at.GetPreparePosition() {
		t.Errorf("%v", at)
	}
	for want, position := range map[codes.Code]uint64{codes.OK: at.GetCommitPosition(), codes.Unknown: at.GetCommitPosition() + 1} {
		call, err := s.Read(within(t), all(position, false, 1))
		if err != nil {
			t.Fatal(err)
		}
		got, err := call.Recv()
		if status.Code(err) != want {
			t.Errorf("at %d: %v", position, err)
		}
		if e := got.GetEvent().GetEvent(); err == nil && (e.GetCommitPosition() != at.GetCommitPosition() || e.GetPreparePosition() != at.GetPreparePosition()) {
			t.Errorf("%v", e)
		}
	}
}

func TestTheStoreIsSetBack(t *testing.T) {
	node, s := rehearse(t, "set-back=3")
	kept, cutShort, gone := s.stream(), s.stream(), s.stream()
	s.must(t, cutShort, "none", fresh(2)...)
	s.must(t, kept, "none", fresh(1)...)
	s.must(t, cutShort, 1, fresh(2)...)
	s.must(t, gone, "none", fresh(1)...)
	live := s.listen(t, subscription(read(cutShort, "start", false, 0)))
	if n, err := node.SetBack(t.Context()); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for {
		if _, err := live.call.Recv(); err != nil {
			break // its connection was cut
		}
	}
	for stream, want := range map[string]string{kept: "0", cutShort: "0 1", gone: "not-found"} {
		got, err := s.tell(t, read(stream, "start", false, 10))
		for status.Code(err) == codes.Unavailable {
			got, err = s.tell(t, read(stream, "start", false, 10))
		}
		if got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", stream, got, err, want)
		}
	}
	if last := s.must(t, cutShort, 1, fresh(1)...); last != 2 {
		t.Errorf("it goes on at %d", last)
	}
	if n, err := node.SetBack(t.Context()); n != 0 || err != nil {
		t.Errorf("once more: %d, %v", n, err)
	}
}

func TestTheSameSeedMakesTheSameChoices(t *testing.T) {
	outcome := func() (said string) {
		_, s := rehearse(t, "not-leader=3,seed=5")
		for range 30 {
			if _, _, err := s.append(within(t), s.stream(), "none", fresh(1)...); err == nil {
				said += "."
			} else {
				said += "x"
			}
		}
		return said
	}
	if a, b := outcome(), outcome(); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}

func TestAPlainNodeRehearsesNothing(t *testing.T) {
	node, _ := startNode(t, t.TempDir())
	if node.Rehearse(embedded.Rehearsal{}) {
		t.Error("it does")
	}
	if n, err := node.SetBack(t.Context()); n != 0 || err != nil {
		t.Errorf("set back: %d, %v", n, err)
	}
}

// The conformance suite over what changes no answer.
func TestConformanceRehearsed(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"read stream": TestReadStream, "as written": TestEventsAreReadAsWritten, "decisions": TestAppendDecisions, "soft delete": TestSoftDelete,
		"tombstone": TestTombstone, "metadata": TestMetadataHides, "all": TestAll, "filters": TestFilters, "to stream": TestSubscribeToStream,
		"slow": TestASlowSubscriberMissesNothing, "to all": TestSubscribeToAll, "links": TestLinks, "batch": TestBatchAppend,
	} {
		t.Run(name, test)
	}
}
