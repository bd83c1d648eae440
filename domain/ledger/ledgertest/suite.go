package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// patience bounds what a test waits for, on the slowest machine.
const patience = 30 * time.Second

// Script makes sealed events of one run, as a Recorder would.
type Script struct {
	ID      run.ID
	state   *run.State
	appends int
}

// NewScript begins a run; unique tells runs of several tests apart.
func NewScript(unique string) (*Script, []run.Event) {
	id := run.ID("run_" + unique)
	state, started := run.Begin(run.Start{ID: id, AgentID: "suite", Runtime: "push", Snapshot: "sha256:0", RequestChecksum: "sha256:1"}, time.Unix(1, 0))
	s := &Script{ID: id, state: state}
	return s, state.Seal(started, s.nonce())
}

func (s *Script) nonce() string {
	s.appends++
	return fmt.Sprintf("nonce-%d", s.appends)
}

// Deltas seals one append with a delta for each text, none merged.
func (s *Script) Deltas(texts ...string) []run.Event {
	var all []run.Candidate
	for _, text := range texts {
		all = append(all, s.take(agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(text)})...)
	}
	return s.state.Seal(all, s.nonce())
}

// Done seals the append that ends the run.
func (s *Script) Done() []run.Event {
	return s.state.Seal(s.take(agent.Event{Type: agent.Done}), s.nonce())
}

func (s *Script) take(e agent.Event) []run.Candidate {
	d, err := s.state.Decide(&e, run.Origin{}, time.Unix(2, 0), 16<<20)
	if err != nil {
		panic(err)
	}
	s.state.Take(d)
	return d.Candidates
}

// Last is the seq of the newest event that was sealed.
func (s *Script) Last() run.Seq { return s.state.LastSeq }

// Run is what every ledger has to pass. open is called once; unique is a part
// of a run's id that no other call of the suite on the same store has.
func Run(t *testing.T, l ledger.Ledger, unique string) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	t.Cleanup(cancel)
	names := 0
	begin := func(t *testing.T) *Script {
		names++
		s, started := NewScript(fmt.Sprintf("%s-%d", unique, names)) // with a dash, which a category splits at
		must(t, l.Append(ctx, s.ID, 0, started))
		return s
	}
	everything := ledger.Page{Events: 1000, Bytes: 1 << 30}

	t.Run("what is appended is read back to the byte", func(t *testing.T) {
		s := begin(t)
		text := "é \u2028 <b>&\x00\U0001F600"
		sealed := s.Deltas(text, "two")
		must(t, l.Append(ctx, s.ID, 1, sealed))
		got := read(ctx, t, l, s.ID, 1, everything)
		if len(got) != len(sealed) {
			t.Fatalf("%d events, want %d", len(got), len(sealed))
		}
		for i := range got {
			if got[i].RecordedAt.IsZero() {
				t.Errorf("event %d has no recorded time", got[i].Seq)
			}
			same(t, got[i], sealed[i])
		}
		last, err := l.Last(ctx, s.ID)
		must(t, err)
		same(t, last, sealed[len(sealed)-1])
	})

	t.Run("the same append again is stored once", func(t *testing.T) {
		s := begin(t)
		sealed := s.Deltas("x")
		for range 3 {
			must(t, l.Append(ctx, s.ID, 1, sealed))
		}
		if got := read(ctx, t, l, s.ID, 0, everything); len(got) != 3 {
			t.Errorf("%d events, want 3", len(got))
		}
	})

	t.Run("an append elsewhere conflicts", func(t *testing.T) {
		s := begin(t)
		must(t, l.Append(ctx, s.ID, 1, s.Deltas("x")))
		other, _ := NewScript(string(s.ID)[len("run_"):])
		foreign := other.Deltas("y")
		for _, after := range []run.Seq{0, 1, 2, 7, ledger.Impossible} {
			var conflict *ledger.ConflictError
			if err := l.Append(ctx, s.ID, after, foreign); !errors.As(err, &conflict) || conflict.Expected != after || conflict.Current != s.Last() {
				t.Errorf("after %d: %v", after, err)
			}
		}
		var conflict *ledger.ConflictError
		if err := l.Append(ctx, "run_"+run.ID(unique)+"_nobody", 1, foreign); !errors.As(err, &conflict) || conflict.Current != 0 {
			t.Errorf("a run that does not exist: %v", err)
		}
		if end, err := l.End(ctx, s.ID); err != nil || end != s.Last() {
			t.Errorf("end: %d, %v; want %d", end, err, s.Last())
		}
		if end, err := l.End(ctx, "run_"+run.ID(unique)+"_nobody"); err != nil || end != 0 {
			t.Errorf("end of a run that does not exist: %d, %v", end, err)
		}
	})

	t.Run("of two writers one wins each seq", func(t *testing.T) {
		s := begin(t)
		var writers sync.WaitGroup
		var stored [2]int
		for w := range stored {
			mine, _ := NewScript(string(s.ID)[len("run_"):])
			sealed := mine.Deltas(fmt.Sprintf("writer %d", w))
			writers.Go(func() {
				if err := l.Append(ctx, s.ID, 1, sealed); err == nil {
					stored[w]++
				}
			})
		}
		writers.Wait()
		if stored[0]+stored[1] != 1 {
			t.Errorf("stored %v", stored)
		}
	})

	t.Run("pages end where they must", func(t *testing.T) {
		s := begin(t)
		must(t, l.Append(ctx, s.ID, 1, s.Deltas(slices.Repeat([]string{strings.Repeat("x", 1000)}, 20)...)))
		if got := read(ctx, t, l, s.ID, 5, ledger.Page{Events: 3, Bytes: 1 << 20}); len(got) != 3 || got[0].Seq != 6 {
			t.Errorf("by count: %d events", len(got))
		}
		if got := read(ctx, t, l, s.ID, 5, ledger.Page{Events: 100, Bytes: 2500}); len(got) != 3 {
			t.Errorf("by bytes: %d events", len(got))
		}
		if got := read(ctx, t, l, s.ID, 5, ledger.Page{Events: 100, Bytes: 1}); len(got) != 1 {
			t.Errorf("at least one: %d events", len(got))
		}
		for _, beyond := range []run.Seq{22, 1000, ledger.Impossible} {
			if got := read(ctx, t, l, s.ID, beyond, everything); len(got) != 0 {
				t.Errorf("behind %d: %d events", beyond, len(got))
			}
		}
	})

	t.Run("what is unknown is not found", func(t *testing.T) {
		_, err := l.Last(ctx, run.ID("run_"+unique+"_unknown"))
		if !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("last: %v", err)
		}
		if _, err = l.Read(ctx, run.ID("run_"+unique+"_unknown"), 0, everything); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("read: %v", err)
		}
	})

	t.Run("ten thousand events are followed, replayed and live", func(t *testing.T) {
		s := begin(t)
		follower := follow(ctx, l, s.ID, 0)
		for s.Last() < 10_000 {
			after := s.Last()
			must(t, l.Append(ctx, s.ID, after, s.Deltas(slices.Repeat([]string{"tick "}, 500)...)))
		}
		after := s.Last()
		must(t, l.Append(ctx, s.ID, after, s.Done()))
		follower.want(t, 1, s.Last())
		late := follow(ctx, l, s.ID, 4000)
		late.want(t, 4001, s.Last())
	})

	t.Run("who follows before the start sees the start", func(t *testing.T) {
		s, started := NewScript(unique + "-early")
		follower := follow(ctx, l, s.ID, 0)
		must(t, l.Append(ctx, s.ID, 0, started))
		follower.want(t, 1, 1)
	})

	t.Run("many follow at once while appends go on", func(t *testing.T) {
		s := begin(t)
		const many = 150 // more than one connection to a server takes
		followers := make([]*follower, many)
		for i := range followers {
			followers[i] = follow(ctx, l, s.ID, 0)
		}
		for range 20 {
			after := s.Last()
			must(t, l.Append(ctx, s.ID, after, s.Deltas("x")))
		}
		for _, f := range followers {
			f.want(t, 1, s.Last())
		}
	})

	t.Run("an erased run is gone for ever", func(t *testing.T) {
		s := begin(t)
		must(t, l.Append(ctx, s.ID, 1, s.Done()))
		_, again := NewScript(string(s.ID)[len("run_"):])
		follower := follow(ctx, l, s.ID, 0)
		follower.want(t, 1, s.Last())
		var conflict *ledger.ConflictError
		if err := l.Erase(ctx, s.ID, 1); !errors.As(err, &conflict) {
			t.Errorf("erase at another seq: %v", err)
		}
		must(t, l.Erase(ctx, s.ID, s.Last()))
		for what, err := range map[string]error{
			"append": l.Append(ctx, s.ID, 0, again),
			"erase":  l.Erase(ctx, s.ID, s.Last()),
			"end":    second(l.End(ctx, s.ID)),
			"last":   second(l.Last(ctx, s.ID)),
			"read":   second(l.Read(ctx, s.ID, 0, everything)),
			"follow": l.Follow(ctx, s.ID, 0, func(run.Event) error { return nil }),
			"viewer": follower.end(t),
		} {
			if !errors.Is(err, ledger.ErrErased) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(ctx context.Context, t *testing.T, l ledger.Reader, id run.ID, after run.Seq, p ledger.Page) []run.Event {
	t.Helper()
	events, err := l.Read(ctx, id, after, p)
	must(t, err)
	return events
}

// same compares everything that is stored.
func same(t *testing.T, got, want run.Event) {
	t.Helper()
	if got.Seq != want.Seq || got.Type != want.Type || string(got.Payload) != string(want.Payload) ||
		string(got.Metadata()) != string(want.Metadata()) {
		t.Errorf("read\n%s\nwant\n%s", got.Envelope(), want.Envelope())
	}
}

// follower follows on a goroutine that ends with its context.
type follower struct {
	seqs chan run.Seq
	done chan error
}

func follow(ctx context.Context, l ledger.Follower, id run.ID, after run.Seq) *follower {
	f := &follower{seqs: make(chan run.Seq, 1024), done: make(chan error, 1)}
	go func() {
		f.done <- l.Follow(ctx, id, after, func(e run.Event) error {
			select {
			case f.seqs <- e.Seq:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return f
}

// want waits for the seqs first to last, in order.
func (f *follower) want(t *testing.T, first, last run.Seq) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for seq := first; seq <= last; seq++ {
		select {
		case got := <-f.seqs:
			if got != seq {
				t.Fatalf("followed to %d, want %d", got, seq)
			}
		case err := <-f.done:
			t.Fatalf("ended before %d: %v", seq, err)
		case <-late.C:
			t.Fatalf("no event %d", seq)
		}
	}
}

func (f *follower) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f.done:
		return err
	case <-time.After(patience):
		t.Fatal("the following did not end")
		return nil
	}
}
