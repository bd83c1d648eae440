package record_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// house is Runs on a ledger in memory, running until the test ends.
type house struct {
	*record.Runs
	mem    *ledgertest.Memory
	counts *counts
}

type counts struct {
	mu       sync.Mutex
	outcomes map[record.Outcome]int
	ended    map[run.Status]int
}

func (c *counts) Appended(o record.Outcome, _ int, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[o]++
}

func (c *counts) Started() {}

// noWatch is a Watcher that does nothing.
type noWatch struct{}

func (noWatch) Heard(run.ID, run.Seq, bool) {}
func (noWatch) Ended(run.ID)                {}

func (c *counts) Ended(_ run.ID, _ bool, s run.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[s]++
}

func open(t *testing.T, mem *ledgertest.Memory) *house {
	t.Helper()
	c := &counts{outcomes: make(map[record.Outcome]int), ended: make(map[run.Status]int)}
	var mu sync.Mutex
	nonces := 0
	runs := record.NewRuns(record.Config{
		Ledger: mem, MaxAppend: 100_000, Now: func() time.Time { return time.Unix(1_700_000_000, 0) }, Watcher: noWatch{}, Observer: c,
		Nonce: func() string {
			mu.Lock()
			defer mu.Unlock()
			nonces++
			return fmt.Sprintf("%p-%d", c, nonces)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runs.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &house{runs, mem, c}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start begins a run named after the test.
func (h *house) start(t *testing.T) run.ID {
	t.Helper()
	_, created, err := h.Start(within(t), run.Start{ID: "run_1", AgentID: "a", Runtime: "push", RequestChecksum: "sha256:1"})
	if err != nil || !created {
		t.Fatalf("start: created %v, %v", created, err)
	}
	return "run_1"
}

func delta(seq uint64, text string) agent.Event {
	return agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(text), ProducerSeq: seq}
}

func done(seq uint64) agent.Event { return agent.Event{Type: agent.Done, ProducerSeq: seq} }

// push sends events as one request would and waits for the receipt.
func (h *house) push(t *testing.T, id run.ID, events ...agent.Event) (record.Receipt, error) {
	t.Helper()
	return h.pushAs(t, id, "", events...)
}

func (h *house) pushAs(t *testing.T, id run.ID, producer string, events ...agent.Event) (record.Receipt, error) {
	t.Helper()
	recorder, release := h.Use(id)
	defer release()
	p := recorder.Push(run.Origin{Producer: producer})
	for i, e := range events {
		if p.Send(within(t), i+1, e) != nil {
			break // Wait tells
		}
	}
	return p.Wait(within(t))
}

// text is what the run's deltas say.
func (h *house) text(t *testing.T, id run.ID) string {
	t.Helper()
	var b strings.Builder
	for _, e := range h.mem.Events(id) {
		if e.Type == run.TypeMessageDelta {
			b.WriteString(deltaOf(t, &e))
		}
	}
	return b.String()
}

func (h *house) want(t *testing.T, r record.Receipt, err error, want record.Receipt) {
	t.Helper()
	if err != nil || r != want {
		t.Errorf("receipt %+v, %v; want %+v", r, err, want)
	}
}

func TestPushIsCommittedInOrder(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	r, err := h.push(t, id, agent.Event{Type: agent.StateChange, State: "running", ProducerSeq: 1}, delta(2, "a"), delta(3, "b"), done(4))
	if err != nil || r.Accepted != 4 || r.Duplicates != 0 || r.ProducerSeq != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := h.text(t, id); got != "ab" {
		t.Errorf("text %q", got)
	}
	h.counts.mu.Lock()
	defer h.counts.mu.Unlock()
	if h.counts.ended[run.Completed] != 1 {
		t.Errorf("ended %v", h.counts.ended)
	}
}

func TestWhatWaitsGoesIntoTheNextAppend(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	release := h.mem.Hold()
	recorder, free := h.Use(id)
	defer free()
	p := recorder.Push(run.Origin{})
	for i := range uint64(50) {
		if err := p.Send(within(t), int(i), delta(i+1, "x")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-h.mem.Arrived() // the first is in flight; the others will wait
		}
	}
	before := h.mem.Count("append")
	release()
	r, err := p.Wait(within(t))
	if err != nil || r.Accepted != 50 || r.ProducerSeq != 50 {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := h.mem.Count("append") - before; n != 1 {
		t.Errorf("%d appends for what waited", n)
	}
	if n := len(h.mem.Events(id)); n != 4 { // started, started, first delta, the joined others
		t.Errorf("%d events", n)
	}
}

func TestUnknownOutcomesAreSentAgain(t *testing.T) {
	for name, faults := range map[string][]ledgertest.Fault{
		"not stored":            {ledgertest.NotStored},
		"stored":                {ledgertest.StoredUnseen},
		"several":               {ledgertest.NotStored, ledgertest.StoredUnseen, ledgertest.NotStored},
		"ended by the server":   {ledgertest.Ended, ledgertest.Ended},
		"ended, then a probe":   {ledgertest.Ended, ledgertest.Ended, ledgertest.Ended},
		"the probe is unknown":  {ledgertest.Ended, ledgertest.Ended, ledgertest.Ended, ledgertest.NotStored},
		"the probe is unseen":   {ledgertest.Ended, ledgertest.Ended, ledgertest.Ended, ledgertest.StoredUnseen},
		"stored and then ended": {ledgertest.StoredUnseen, ledgertest.Ended, ledgertest.Ended, ledgertest.Ended},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, ledgertest.NewMemory(t))
			id := h.start(t)
			h.mem.Fail(faults...)
			r, err := h.push(t, id, delta(0, "a"), agent.Event{Type: agent.ToolCall, ToolCallID: "c", ToolName: "t", ToolArgs: []byte("{}")}, delta(0, "b"), done(0))
			if err != nil || r.Accepted != 4 {
				t.Fatalf("%+v, %v", r, err)
			}
			if got := h.text(t, id); got != "ab" {
				t.Errorf("text %q", got)
			}
			if n := len(h.mem.Events(id)); n != 8 {
				t.Errorf("%d events, want 8", n)
			}
		})
	}
}

func TestALateAppendIsNotWrittenTwice(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	h.mem.Fail(ledgertest.Late, ledgertest.NotStored)
	release := h.mem.Hold()
	recorder, free := h.Use(id)
	defer free()
	p := recorder.Push(run.Origin{})
	if err := p.Send(within(t), 1, delta(1, "once")); err != nil {
		t.Fatal(err)
	}
	<-h.mem.Arrived()
	release()
	// The append that came late lands while it is sent again and again.
	for {
		h.mem.Deliver()
		if len(h.mem.Events(id)) > 1 {
			break
		}
	}
	r, err := p.Wait(within(t))
	h.want(t, r, err, record.Receipt{Accepted: 1, LastSeq: 3, ProducerSeq: 1})
	if got := h.text(t, id); got != "once" {
		t.Errorf("text %q", got)
	}
}

func TestConflictsAreReadOnAndDecidedAgain(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	a, b := open(t, mem), open(t, mem)
	id := a.start(t)
	// Each knows only its own part until it conflicts.
	for i := range uint64(10) {
		h := a
		if i%2 == 1 {
			h = b
		}
		r, err := h.push(t, id, delta(i+1, fmt.Sprint(i)))
		if err != nil || r.ProducerSeq != i+1 {
			t.Fatalf("%d: %+v, %v", i, r, err)
		}
	}
	r, err := a.push(t, id, delta(9, "8"), delta(10, "9"), done(11))
	if err != nil || r.Duplicates != 2 || r.Accepted != 1 {
		t.Errorf("resend: %+v, %v", r, err)
	}
	if got := a.text(t, id); got != "0123456789" {
		t.Errorf("text %q", got)
	}
	var ended *run.EndedError
	if _, err := b.push(t, id, delta(12, "late")); !errors.As(err, &ended) || ended.Status != run.Completed {
		t.Errorf("after the end: %v", err)
	}
	if r, err := b.push(t, id, done(11)); err != nil || r.Duplicates != 1 {
		t.Errorf("the end again: %+v, %v", r, err)
	}
}

func TestGapsAreJudgedByTheLeader(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	a, b := open(t, mem), open(t, mem)
	id := a.start(t)
	if _, err := b.push(t, id, delta(1, "1")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.push(t, id, delta(2, "2")); err != nil {
		t.Fatal(err)
	}
	// b has not seen 2, and 3 is no gap all the same.
	if r, err := b.push(t, id, delta(3, "3")); err != nil || r.ProducerSeq != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	var gap *run.GapError
	var push *record.PushError
	r, err := b.push(t, id, delta(4, "4"), delta(6, "6"), delta(5, "5"))
	if !errors.As(err, &gap) || gap.Next != 5 || !errors.As(err, &push) || push.Line != 2 || r.Accepted != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := a.text(t, id); got != "1234" {
		t.Errorf("text %q: what follows a refused line must not be written", got)
	}
}

func TestAnEventThatCannotFitIsRefusedAloneAndBefore(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	var large *run.TooLargeError
	r, err := h.push(t, id, delta(0, "before"), delta(0, strings.Repeat("x", 200_000)), delta(0, "after"))
	if !errors.As(err, &large) || r.Accepted != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	// A batch beyond the limit is split.
	r, err = h.push(t, id, delta(0, strings.Repeat("a", 60_000)), delta(0, strings.Repeat("b", 60_000)), delta(0, strings.Repeat("c", 60_000)))
	if err != nil || r.Accepted != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := len(h.text(t, id)); got != len("before")+180_000 {
		t.Errorf("%d bytes of text", got)
	}
}

func TestARefusalNamesTheEventAtFault(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	h := open(t, mem)
	id := h.start(t)
	mem.Limit(20_000) // the cluster allows less than we think
	release := mem.Hold()
	recorder, free := h.Use(id)
	defer free()
	first := recorder.Push(run.Origin{Producer: "first"})
	if err := first.Send(within(t), 1, delta(0, "go")); err != nil {
		t.Fatal(err)
	}
	<-mem.Arrived()
	small, big := recorder.Push(run.Origin{Producer: "small"}), recorder.Push(run.Origin{Producer: "big"})
	for _, send := range []error{
		small.Send(within(t), 1, delta(0, "small")),
		big.Send(within(t), 7, delta(0, strings.Repeat("x", 40_000))),
		small.Send(within(t), 2, delta(0, "er")),
	} {
		if send != nil {
			t.Fatal(send)
		}
	}
	release()
	for _, p := range []*record.Push{first, small} {
		if _, err := p.Wait(within(t)); err != nil {
			t.Error(err)
		}
	}
	var refused *ledger.RefusedError
	var push *record.PushError
	if _, err := big.Wait(within(t)); !errors.As(err, &refused) || !refused.TooLarge || !errors.As(err, &push) || push.Line != 7 {
		t.Errorf("%v", err)
	}
	if got := h.text(t, id); got != "gosmaller" {
		t.Errorf("text %q", got)
	}
}

func TestHalvesWaitForTheOtherHalf(t *testing.T) {
	const high, low = "\xed\xa0\xbd", "\xed\xb8\x80" // of U+1F600
	for name, c := range map[string]struct {
		first, second []agent.Event
		want          string
		mark          uint64 // after the first push
	}{
		"joined":               {[]agent.Event{delta(1, "a"+high)}, []agent.Event{delta(2, low+"b")}, "a\U0001F600b", 0},
		"in one push":          {[]agent.Event{delta(1, "a"+high), delta(2, low+"b")}, nil, "a\U0001F600b", 2},
		"alone":                {[]agent.Event{delta(1, "a"+high)}, []agent.Event{delta(2, "b")}, "a\uFFFDb", 0},
		"at the end":           {[]agent.Event{delta(1, "a"+high)}, []agent.Event{done(2)}, "a\uFFFD", 0},
		"sent again":           {[]agent.Event{delta(1, "a"+high)}, []agent.Event{delta(1, "a"+high), delta(2, low)}, "a\U0001F600", 0},
		"two halves in a row":  {[]agent.Event{delta(1, "a"+high)}, []agent.Event{delta(2, low+high), delta(3, low)}, "a\U0001F600\U0001F600", 0},
		"an older duplicate":   {[]agent.Event{delta(1, "a"), delta(2, high)}, []agent.Event{delta(1, "a"), delta(3, low)}, "a\U0001F600", 1},
		"another block's half": {[]agent.Event{delta(1, "a"+high)}, []agent.Event{{Type: agent.Delta, BlockType: agent.Reasoning, Content: low + "r", ProducerSeq: 2}}, "a\uFFFD\uFFFDr", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, ledgertest.NewMemory(t))
			id := h.start(t)
			r, err := h.push(t, id, c.first...)
			if err != nil || r.ProducerSeq != c.mark || r.Accepted != len(c.first) {
				t.Fatalf("first: %+v, %v", r, err)
			}
			if _, err := h.push(t, id, c.second...); err != nil {
				t.Fatal(err)
			}
			if got := h.text(t, id); got != c.want {
				t.Errorf("text %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheEndLetsEveryHalfGo(t *testing.T) {
	const high = "\xed\xa0\xbd"
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	for _, producer := range []string{"p", "q"} {
		if _, err := h.pushAs(t, id, producer, delta(1, producer+high)); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := h.Cancel(within(t), id, 0, run.Cancellation{Reason: "test"}); err != nil || s.Status != run.Cancelled {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := h.text(t, id); got != "p\uFFFDq\uFFFD" {
		t.Errorf("text %q", got)
	}
}

func TestAPushThatGivesUpIsWithdrawn(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	id := h.start(t)
	release := h.mem.Hold()
	recorder, free := h.Use(id)
	defer free()
	stuck := recorder.Push(run.Origin{Producer: "stuck"})
	if err := stuck.Send(within(t), 1, delta(1, "frozen ")); err != nil {
		t.Fatal(err)
	}
	<-h.mem.Arrived()
	if err := stuck.Send(within(t), 2, delta(2, "withdrawn ")); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var unknown *ledger.UnknownError
	if _, err := stuck.Wait(over); !errors.As(err, &unknown) {
		t.Fatalf("%v", err)
	}
	release()
	// The producer compares with the mark, and sends what is above it.
	s, err := h.Summary(within(t), id, "stuck")
	if err != nil || s.ProducerSeq != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := h.pushAs(t, id, "stuck", delta(2, "again")); err != nil {
		t.Fatal(err)
	}
	if got := h.text(t, id); got != "frozen again" {
		t.Errorf("text %q", got)
	}
}

func TestStartIsIdempotent(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	h := open(t, mem)
	start := run.Start{ID: "run_s", AgentID: "a", Runtime: "push", RequestChecksum: "sha256:1"}
	mem.Fail(ledgertest.StoredUnseen)
	if _, created, err := h.Start(within(t), start); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	if _, created, err := open(t, mem).Start(within(t), start); err != nil || created {
		t.Errorf("again: created %v, %v", created, err)
	}
	start.RequestChecksum = "sha256:2"
	var exists *record.ExistsError
	if _, _, err := h.Start(within(t), start); !errors.As(err, &exists) {
		t.Errorf("another request: %v", err)
	}
}

func TestEraseNeedsAnEndAndIsForEver(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	h, other := open(t, mem), open(t, mem)
	id := h.start(t)
	var running *record.NotEndedError
	if err := h.Erase(within(t), id); !errors.As(err, &running) {
		t.Errorf("running: %v", err)
	}
	if _, err := h.push(t, id, done(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Summary(within(t), id, ""); err != nil {
		t.Fatal(err)
	}
	if err := h.Erase(within(t), id); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*house{h, other} { // the other one still has the state
		for what, err := range map[string]error{
			"push":    last(h.push(t, id, done(2))),
			"resend":  last(h.push(t, id, done(1))),
			"cancel":  last(h.Cancel(within(t), id, 0, run.Cancellation{})),
			"summary": last(h.Summary(within(t), id, "")),
			"erase":   h.Erase(within(t), id),
		} {
			if !errors.Is(err, ledger.ErrErased) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

func last[T any](_ T, err error) error { return err }

func TestUnknownRunsAreNotFound(t *testing.T) {
	h := open(t, ledgertest.NewMemory(t))
	if _, err := h.push(t, "run_none", done(1)); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("push: %v", err)
	}
	if _, err := h.Summary(within(t), "run_none", ""); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("summary: %v", err)
	}
}

// Ten pushes, two cancels and two instances race for the end of each run.
func TestRacesLeaveOneEnd(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	houses := []*house{open(t, mem), open(t, mem)}
	for i := range 20 {
		id := run.ID(fmt.Sprintf("run_%d", i))
		if _, _, err := houses[0].Start(within(t), run.Start{ID: id, AgentID: "a", Runtime: "push"}); err != nil {
			t.Fatal(err)
		}
		var racers sync.WaitGroup
		for j := range 12 {
			h := houses[j%2]
			racers.Go(func() {
				if j >= 10 {
					_, _ = h.Cancel(within(t), id, 0, run.Cancellation{}) // any outcome is fine
					return
				}
				_, _ = h.push(t, id, delta(0, "x"), done(0))
			})
		}
		racers.Wait()
		events := mem.Events(id)
		ends := 0
		for _, e := range events {
			if run.Terminal(e.Type) {
				ends++
			}
		}
		if ends != 1 || !run.Terminal(events[len(events)-1].Type) {
			t.Errorf("run %s has %d ends in %d events", id, ends, len(events))
		}
	}
}

func TestStoppingAnswersWhatWaits(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	runs := record.NewRuns(record.Config{Ledger: mem, MaxAppend: 1 << 20, Now: time.Now, Nonce: func() string { return "n" },
		Watcher: noWatch{}, Observer: &counts{outcomes: make(map[record.Outcome]int), ended: make(map[run.Status]int)}})
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() { finished <- runs.Run(ctx) }()
	h := &house{runs, mem, nil}
	id := h.start(t)
	release := mem.Hold()
	defer release()
	recorder, free := h.Use(id)
	defer free()
	p := recorder.Push(run.Origin{})
	if err := p.Send(within(t), 1, delta(0, "x")); err != nil {
		t.Fatal(err)
	}
	<-mem.Arrived()
	if err := p.Send(within(t), 2, delta(0, "y")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-finished; err != nil {
		t.Error(err)
	}
	var unknown *ledger.UnknownError
	if _, err := p.Wait(within(t)); !errors.As(err, &unknown) && !errors.Is(err, record.ErrStopping) {
		t.Errorf("%v", err)
	}
	if _, err := h.push(t, id, done(0)); !errors.Is(err, record.ErrStopping) {
		t.Errorf("after the stop: %v", err)
	}
}

func deltaOf(t *testing.T, e *run.Event) string {
	t.Helper()
	p, err := run.DecodePayload(e.Type, e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if delta, ok := p.(*run.MessageDelta); ok {
		return delta.Delta
	}
	return ""
}
