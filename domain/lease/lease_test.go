package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	term     = 6 * time.Second
	pushTerm = 20 * time.Second
)

// world is instances on the same side streams. It lives in a synctest bubble,
// where time passes only while everybody waits.
type world struct {
	t     *testing.T
	notes *ledgertest.Notes
	began time.Time

	mu      sync.Mutex
	settled map[run.ID]string // who settled a run, and when
	verdict map[run.ID]lease.Verdict
	asked   map[run.ID]lease.Expiry // what an adopter was asked last
	hold    func(run.ID)            // what keeps an heir; nil: nothing
}

func newWorld(t *testing.T) *world {
	return &world{t: t, notes: ledgertest.NewNotes(), began: time.Now(), settled: make(map[run.ID]string), verdict: make(map[run.ID]lease.Verdict), asked: make(map[run.ID]lease.Expiry)}
}

// instance is one of them; it is its own heir and observer.
type instance struct {
	*lease.Leases
	world *world
	name  string
	line  *ledgertest.Line
	end   context.CancelFunc
	done  chan struct{}

	mu     sync.Mutex
	lapsed int
	deaths map[string]int
	left   map[string]int
	last   run.Seq // what Adopt finds a living run at
}

// join starts an instance whose clock is off by skew.
func (w *world) join(name string, skew time.Duration) *instance {
	return w.joinWith(name, func(c *lease.Config) { c.Now = func() time.Time { return time.Now().Add(skew) } })
}

func (w *world) joinWith(name string, change func(*lease.Config)) *instance {
	i := &instance{world: w, name: name, line: w.notes.For(), done: make(chan struct{}), deaths: make(map[string]int), left: make(map[string]int)}
	c := lease.Config{
		Side: i.line, Instance: name, Lease: term, PushLease: pushTerm, Most: 100, MaxAppend: 64 << 10, Observer: i,
		Now: time.Now,
	}
	change(&c)
	i.line.Limit(c.MaxAppend)
	i.Leases = lease.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	i.end = cancel
	go func() {
		defer close(i.done)
		if err := i.Run(ctx, i); err != nil {
			w.t.Error(err)
		}
	}()
	return i
}

// stop ends an instance as a process ends that is told to.
func (i *instance) stop() {
	i.end()
	<-i.done
}

// kill ends an instance without a word to anybody.
func (i *instance) kill() {
	i.line.Away(true)
	i.stop()
}

func (i *instance) announce(id run.ID, kind lease.Kind) {
	i.world.t.Helper()
	if err := i.Announce(context.Background(), id, kind); err != nil {
		i.world.t.Errorf("announce %s: %v", id, err)
	}
	i.Confirm(id, kind, 0)
}

// Adopt implements lease.Adopter.
func (i *instance) Adopt(_ context.Context, id run.ID, d lease.Expiry) (lease.Verdict, run.Seq, error) {
	if hold := i.world.hold; hold != nil {
		hold(id)
	}
	i.world.mu.Lock()
	defer i.world.mu.Unlock()
	i.world.asked[id] = d
	if d.Look {
		return lease.Moving, i.last, nil
	}
	v := i.world.verdict[id]
	if v == lease.Closed && i.world.settled[id] == "" {
		i.world.settled[id] = fmt.Sprintf("%s for %q after %s", i.name, d.Holder, time.Since(i.world.began).Round(time.Second))
	}
	return v, i.last, nil
}

func (i *instance) count(m map[string]int, name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	m[name]++
}

func (i *instance) Lapsed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lapsed++
}
func (i *instance) Beat(error, time.Duration)         {}
func (i *instance) Joined(string)                     {}
func (i *instance) Died(name string, _ time.Duration) { i.count(i.deaths, name) }
func (i *instance) Left(name string)                  { i.count(i.left, name) }
func (i *instance) died(name string) int              { i.mu.Lock(); defer i.mu.Unlock(); return i.deaths[name] }
func (i *instance) hasLeft(name string) int           { i.mu.Lock(); defer i.mu.Unlock(); return i.left[name] }
func (w *world) ends(id run.ID, v lease.Verdict)      { w.mu.Lock(); defer w.mu.Unlock(); w.verdict[id] = v }
func (w *world) fate(id run.ID) string                { w.mu.Lock(); defer w.mu.Unlock(); return w.settled[id] }
func (w *world) wait(d time.Duration)                 { time.Sleep(d); synctest.Wait() }
func (w *world) expect(id run.ID, who string, owner string, least, most time.Duration) {
	w.t.Helper()
	for after := least.Round(time.Second); after <= most; after += time.Second {
		if w.fate(id) == fmt.Sprintf("%s for %q after %s", who, owner, after) {
			return
		}
	}
	w.t.Errorf("run %s: %q, want %s for %q after %s to %s", id, w.fate(id), who, owner, least, most)
}

// here runs a test in a bubble.
func here(t *testing.T, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t)) })
}

func TestTheDeadLeaveTheirRunsToTheLiving(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer b.stop()
		a.announce("owned", lease.Owned)
		a.announce("pushed", lease.Open)
		w.wait(10 * time.Second)
		a.kill()
		w.wait(time.Minute)
		// The last heartbeat was at most a third of a lease before the kill.
		w.expect("owned", "b", "a", 10*time.Second+term-term/3, 10*time.Second+term+term/20)
		// Its producers could be heard up to then, and are given a push lease.
		w.expect("pushed", "b", "", 10*time.Second-term/3+pushTerm, 10*time.Second+pushTerm+term/20)
		if b.died("a") != 1 || b.hasLeft("a") != 1 || b.Holds() != 0 {
			t.Errorf("a died %d times, left %d times; b holds %d", b.died("a"), b.hasLeft("a"), b.Holds())
		}
		if page, err := b.line.Notes(t.Context(), lease.HeartbeatStream("a"), 0, 10); err != nil || len(page) > 0 {
			t.Errorf("of a is left: %d notes, %v", len(page), err)
		}
	})
}

func TestAPredecessorIsSettledAfterARestart(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", 0)
		a.announce("owned", lease.Owned)
		a.kill()
		time.Sleep(time.Hour)
		w.began = time.Now()
		b := w.join("b", 0)
		defer b.stop()
		w.wait(time.Minute)
		w.expect("owned", "b", "a", term-time.Second, term+time.Second)
	})
}

func TestAnOutageIsNobodysDeath(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 10*time.Minute)
		defer a.stop()
		defer b.stop()
		a.announce("of_a", lease.Owned)
		b.announce("of_b", lease.Owned)
		b.announce("pushed", lease.Open)
		for range 5 {
			w.wait(7 * time.Second)
			a.line.Away(true)
			b.line.Away(true)
			w.wait(30 * time.Second)
			b.Heard("pushed", 2, true)
			a.line.Away(false)
			w.wait(500 * time.Millisecond)
			b.line.Away(false)
		}
		w.wait(15 * time.Second)
		if len(w.settled) > 0 || a.died("b")+b.died("a") > 0 {
			t.Errorf("settled %v", w.settled)
		}
		a.Forget("of_a", lease.Owned)
		b.Forget("of_b", lease.Owned)
		b.Forget("pushed", lease.Open)
	})
}

func TestWhoeverIsCutOffJudgesNobodyAndComesBack(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer a.stop()
		defer b.stop()
		a.announce("of_a", lease.Owned)
		b.announce("of_b", lease.Owned)
		w.wait(10 * time.Second)
		a.line.Away(true)
		w.wait(time.Minute)
		if w.fate("of_b") != "" || b.hasLeft("a") != 1 {
			t.Errorf("of_b: %q; a left %d times", w.fate("of_b"), b.hasLeft("a"))
		}
		w.expect("of_a", "b", "a", 10*time.Second+term-term/3, 10*time.Second+term+term/20)
		a.line.Away(false)
		w.wait(5 * time.Second)
		if a.lapsed == 0 || !b.Alive("a") {
			t.Errorf("a was told %d times that it was lapsed; b takes it for alive: %v", a.lapsed, b.Alive("a"))
		}
		// What it starts now is watched over again.
		a.announce("later", lease.Owned)
		a.kill()
		w.wait(time.Minute)
		if w.fate("later") == "" {
			t.Error("what a started after its return hangs")
		}
		b.Forget("of_b", lease.Owned)
	})
}

// An heir that is kept for so long that it went deaf meanwhile settles nothing
// more: the others may have been cut off as it was.
func TestAnHeirThatWentDeafStops(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer a.stop()
		defer b.stop()
		a.announce("one", lease.Owned)
		a.announce("two", lease.Owned)
		w.wait(10 * time.Second)
		asked := 0
		w.hold = func(run.ID) {
			if asked++; asked > 1 {
				return
			}
			b.line.Away(true)
			time.Sleep(2 * term)
			b.line.Away(false)
			time.Sleep(term / 2) // it hears again, and has not heard a yet
		}
		a.line.Away(true)
		w.wait(10*time.Second + 2*term)
		a.line.Away(false)
		w.wait(time.Minute)
		if asked != 1 || b.hasLeft("a") != 0 {
			t.Errorf("%d runs were settled; a left %d times", asked, b.hasLeft("a"))
		}
		a.Forget("one", lease.Owned)
		a.Forget("two", lease.Owned)
	})
}

func TestARunThatIsNotThereYetIsLookedForAgain(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer b.stop()
		w.ends("paused", lease.Missing)
		a.announce("paused", lease.Owned)
		a.kill()
		w.wait(10 * time.Minute)
		if b.hasLeft("a") != 0 {
			t.Error("a was struck off while a run of it was missing")
		}
		w.ends("paused", lease.Closed)
		w.wait(time.Minute)
		if w.fate("paused") == "" || b.hasLeft("a") != 1 {
			t.Errorf("fate %q", w.fate("paused"))
		}
	})
}

func TestAMovingRunHasALivingOwner(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer b.stop()
		w.ends("moving", lease.Moving)
		a.announce("moving", lease.Owned)
		a.announce("other", lease.Owned)
		a.kill()
		w.wait(10 * time.Minute)
		if b.hasLeft("a") != 0 {
			t.Error("a was struck off while it moved a run")
		}
	})
}

func TestPushedRunsLiveByEventAndMention(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer a.stop()
		defer b.stop()
		a.announce("quiet", lease.Open)
		a.announce("mentioned", lease.Open)
		a.announce("busy", lease.Open)
		for range 10 { // by way of b
			w.wait(pushTerm * 3 / 4)
			b.Heard("mentioned", 1, false)
			a.Heard("busy", 1, true)
		}
		w.expect("quiet", "a", "", pushTerm-time.Second, pushTerm+term)
		if w.fate("mentioned") != "" || w.fate("busy") != "" {
			t.Errorf("mentioned %q, busy %q", w.fate("mentioned"), w.fate("busy"))
		}
		w.wait(time.Hour)
		if w.fate("mentioned") == "" || w.fate("busy") == "" || a.Holds()+b.Holds() > 0 {
			t.Errorf("left: a %d, b %d", a.Holds(), b.Holds())
		}
	})
}

func TestWhoLeavesIsNotMourned(t *testing.T) {
	here(t, func(w *world) {
		a, b := w.join("a", 0), w.join("b", 0)
		defer b.stop()
		a.announce("done", lease.Owned)
		a.Forget("done", lease.Owned)
		w.wait(time.Second)
		a.stop()
		w.wait(time.Minute)
		if b.died("a") != 0 || b.hasLeft("a") != 1 || w.fate("done") != "" {
			t.Errorf("died %d, left %d, %q", b.died("a"), b.hasLeft("a"), w.fate("done"))
		}
	})
}

func TestHeartbeatsTakeLittleRoom(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", 0)
		defer a.stop()
		for n := range 300 {
			id := run.ID(fmt.Sprint("run_", n))
			a.announce(id, lease.Owned)
			a.Forget(id, lease.Owned)
		}
		a.announce("kept", lease.Owned)
		w.wait(10 * time.Minute)
		page, err := a.line.Notes(t.Context(), lease.HeartbeatStream("a"), 0, 1000)
		if err != nil || len(page) > 25 {
			t.Errorf("%d notes, %v", len(page), err)
		}
		// They are enough for a newcomer.
		b := w.join("b", 0)
		defer b.stop()
		w.wait(time.Second)
		a.kill()
		w.wait(time.Minute)
		if w.fate("kept") == "" || len(w.settled) != 1 {
			t.Errorf("%v", w.settled)
		}
	})
}

func TestManyInstancesComeAndGo(t *testing.T) {
	here(t, func(w *world) {
		stays := w.join("stays", 0)
		for n := range 600 {
			i := w.join(fmt.Sprint("visitor_", n), 0)
			synctest.Wait()
			i.stop()
		}
		w.wait(time.Minute)
		page, err := stays.line.Notes(t.Context(), lease.Registry, 0, 5000)
		if err != nil || len(page) > 2000 {
			t.Errorf("the registry has %d notes, %v", len(page), err)
		}
		late := w.join("late", 0)
		defer late.stop()
		w.wait(time.Second)
		if !late.Alive("stays") {
			t.Error("who joined long ago is not known to a newcomer")
		}
		stays.stop()
	})
}

func TestAnnounceHasBounds(t *testing.T) {
	here(t, func(w *world) {
		a := w.join("a", 0)
		for n := range 100 {
			a.announce(run.ID(fmt.Sprint("run_", n)), lease.Owned)
		}
		if err := a.Announce(t.Context(), "one_more", lease.Owned); !errors.Is(err, lease.ErrFull) {
			t.Errorf("%v", err)
		}
		a.announce("run_5", lease.Owned) // the same again
		a.line.Away(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a.Forget("run_7", lease.Owned)
		if err := a.Announce(ctx, "run_101", lease.Open); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a store: %v", err)
		}
		a.stop()
	})
}
