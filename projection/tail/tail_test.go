package tail_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/projection/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a ledger in memory with tails on it.
type stage struct {
	t      testing.TB
	mem    *ledgertest.Memory
	tails  *tail.Tails
	script *ledgertest.Script

	mu      sync.Mutex
	encoded int
}

func open(t testing.TB) *stage {
	t.Helper()
	s := &stage{t: t, mem: ledgertest.NewMemory(t)}
	s.tails = tail.New(s.mem, func(b []byte, f view.Frame) ([]byte, error) {
		s.mu.Lock()
		s.encoded++
		s.mu.Unlock()
		return fmt.Appendf(b, "%d,", f.ID), nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.tails.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	script, started := ledgertest.NewScript("tail")
	s.script = script
	s.append(started)
	return s
}

func (s *stage) append(events []run.Event) {
	s.t.Helper()
	if err := s.mem.Append(context.Background(), s.script.ID, events[0].Seq-1, events); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) commit(texts ...string) { s.t.Helper(); s.append(s.script.Deltas(texts...)) }

func (s *stage) view(after run.Seq) *tail.Viewer {
	s.t.Helper()
	last, err := s.mem.Last(context.Background(), s.script.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	viewer, err := s.tails.Open(after, view.Client, &last)
	if err != nil {
		s.t.Fatal(err)
	}
	return viewer
}

// sees takes what a viewer gets up to seq last.
func (s *stage) sees(viewer *tail.Viewer, first, last run.Seq) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var got, want strings.Builder
	for seq := first; seq <= last; seq++ {
		fmt.Fprintf(&want, "%d,", seq)
	}
	for got.Len() < want.Len() {
		batch, more, err := viewer.Next(ctx)
		if err != nil {
			s.t.Fatalf("after %s: %v", got.String(), err)
		}
		for _, frame := range batch.Frames {
			got.Write(frame)
		}
		if len(batch.Frames) == 0 {
			select {
			case <-more:
			case <-ctx.Done():
				s.t.Fatalf("nothing behind %s", got.String())
			}
		}
	}
	if got.String() != want.String() {
		s.t.Fatalf("saw %s, want %s", got.String(), want.String())
	}
}

func TestReplayThenLive(t *testing.T) {
	s := open(t)
	s.commit("a", "b")
	v := s.view(0)
	defer v.Close()
	s.sees(v, 1, 4)
	s.commit("c")
	s.sees(v, 5, 5)
	joined := s.view(3)
	defer joined.Close()
	s.sees(joined, 4, 5)
	s.append(s.script.Done())
	s.sees(v, 6, 7)
	s.sees(joined, 6, 7)
}

// What is committed between the reading of the end and the subscription is
// neither lost nor doubled.
func TestTheHandOverHasNoHole(t *testing.T) {
	s := open(t)
	last, err := s.mem.Last(context.Background(), s.script.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.commit("between")
	v, err := s.tails.Open(0, view.Client, &last)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	s.sees(v, 1, 3)
}

func TestAViewerThatFellOutOfTheRingReadsTheStore(t *testing.T) {
	s := open(t)
	slow, quick := s.view(0), s.view(0)
	defer slow.Close()
	defer quick.Close()
	s.sees(quick, 1, 1)
	for range 30 {
		s.commit(strings.Repeat("x", 15_000), "y", "z") // far beyond the ring
	}
	s.sees(quick, 2, s.script.Last())
	s.sees(slow, 1, s.script.Last())
	s.commit("live")
	s.sees(slow, s.script.Last(), s.script.Last())
}

func TestManyViewersCostOneSubscriptionAndOneEncoding(t *testing.T) {
	s := open(t)
	viewers := make([]*tail.Viewer, 50)
	for i := range viewers {
		viewers[i] = s.view(1)
	}
	for range 10 {
		s.commit("x")
	}
	for _, v := range viewers {
		s.sees(v, 2, 12)
		v.Close()
	}
	if n := s.mem.Count("follow"); n != 1 {
		t.Errorf("%d subscriptions", n)
	}
	if s.encoded > 11 {
		t.Errorf("%d encodings of 11 events", s.encoded)
	}
}

func TestAFinishedRunNeedsNoSubscription(t *testing.T) {
	s := open(t)
	s.append(s.script.Done())
	v := s.view(1)
	defer v.Close()
	s.sees(v, 2, s.script.Last())
	if n := s.mem.Count("follow"); n != 0 {
		t.Errorf("%d subscriptions", n)
	}
}

func TestASubscriptionEndsWithItsLastViewer(t *testing.T) {
	s := open(t)
	a, b := s.view(0), s.view(0)
	a.Close()
	s.commit("x")
	s.sees(b, 1, s.script.Last())
	b.Close()
	again := s.view(0) // a new one, since the old has nobody
	defer again.Close()
	s.sees(again, 1, s.script.Last())
	s.commit("y")
	s.sees(again, s.script.Last(), s.script.Last())
	if n := s.mem.Count("follow"); n != 2 {
		t.Errorf("%d subscriptions", n)
	}
}

func TestAnOutageIsOutlived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		s.commit("a")
		v := s.view(0)
		defer v.Close()
		s.mem.Away(true)
		batch, more, err := v.Next(t.Context())
		if err != nil || len(batch.Frames) != 0 || more == nil {
			t.Fatalf("%v, %v", batch, err)
		}
		<-more // and the store is still away
		s.mem.Away(false)
		s.sees(v, 1, 3)
	})
}

// After 15 silent seconds a tail looks at the leader, and subscribes again.
func TestASilentSubscriptionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		v := s.view(0)
		defer v.Close()
		s.sees(v, 1, 1)
		synctest.Wait()
		s.mem.Silence(s.script.ID)
		s.commit("unheard")
		begun := time.Now()
		s.sees(v, 2, 3)
		if took := time.Since(begun); took < 10*time.Second || took > 20*time.Second {
			t.Errorf("healed after %s", took)
		}
	})
}

func TestWhatEndsAViewing(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(s *stage)
		want func(error) bool
	}{
		"erased": {func(s *stage) {
			if err := s.mem.Erase(context.Background(), s.script.ID, s.script.Last()); err != nil {
				s.t.Fatal(err)
			}
		}, func(err error) bool { return errors.Is(err, ledger.ErrErased) }},
		"truncated": {func(s *stage) { s.mem.Truncate(s.script.ID, 99) }, func(err error) bool {
			var truncated *ledger.TruncatedError
			return errors.As(err, &truncated)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			v := s.view(0)
			defer v.Close()
			s.sees(v, 1, 1)
			end.do(s)
			for {
				_, more, err := v.Next(context.Background())
				if err != nil {
					if !end.want(err) {
						t.Errorf("%v", err)
					}
					return
				}
				<-more
			}
		})
	}
}

// Viewers come at any time and anywhere, read at any pace, and each sees every
// event behind its cursor once, in order.
func TestAnyInterleaving(t *testing.T) {
	s := open(t)
	const viewers, appends = 20, 60
	var all sync.WaitGroup
	last := run.Seq(appends*3 + 2)
	for range viewers {
		after := run.Seq(rand.IntN(2))
		v := s.view(after)
		all.Go(func() {
			defer v.Close()
			s.sees(v, after+1, last)
		})
	}
	for i := range appends {
		s.commit(strings.Repeat("x", rand.IntN(15_000)), "y", "z")
		if i%10 == 0 {
			after := s.script.Last()
			v := s.view(after)
			all.Go(func() {
				defer v.Close()
				s.sees(v, after+1, last)
			})
		}
	}
	all.Wait()
}

// BenchmarkFanOut is one event to all viewers of a run.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b)
			viewers := make([]*tail.Viewer, n)
			for i := range viewers {
				viewers[i] = s.view(1)
				defer viewers[i].Close()
			}
			for b.Loop() {
				first := s.script.Last() + 1
				s.commit("x")
				for _, v := range viewers {
					s.sees(v, first, s.script.Last())
				}
			}
		})
	}
}
