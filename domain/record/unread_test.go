package record_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// A run with an event that cannot be read, wherever it stands, is ended and erased
// like any other, and its end names the fault.
func TestARunThatCannotBeReadIsEndedAllTheSame(t *testing.T) {
	ends := map[string]struct {
		end  func(*testing.T, *house, run.ID) error
		want string
	}{
		"cancelled": {func(t *testing.T, h *house, id run.ID) error {
			s, err := h.Cancel(within(t), id, 0, run.Cancellation{Reason: "enough"})
			if err == nil && s.Status != run.Cancelled {
				t.Errorf("%+v", s)
			}
			return err
		}, `"reason":"enough (run run_1, seq `},
		"lost": {func(t *testing.T, h *house, id run.ID) error {
			_, err := h.Lose(within(t), id, run.Evidence{Observer: "me", Silence: time.Minute})
			return err
		}, `"code":"run_unreadable","message":"no sign of life for 1m0s; run run_1, seq `},
	}
	for name, c := range ends {
		for _, damaged := range []run.Seq{1, 2, 3} { // the last one too
			t.Run(name, func(t *testing.T) {
				mem := ledgertest.NewMemory(t)
				h := open(t, mem)
				id := h.start(t)
				if _, err := h.push(t, id, delta(1, "x")); err != nil {
					t.Fatal(err)
				}
				mem.Corrupt(id, damaged)
				other := open(t, mem) // has not folded it before
				var corrupt *ledger.CorruptError
				if _, err := other.Summary(within(t), id, ""); !errors.As(err, &corrupt) || corrupt.Seq != damaged {
					t.Errorf("summary: %v", err)
				}
				var running *record.NotEndedError
				if err := other.Erase(within(t), id); !errors.As(err, &running) {
					t.Errorf("erase: %v", err)
				}
				mem.Fail(ledgertest.StoredUnseen) // the first answer is lost
				if err := c.end(t, other, id); err != nil {
					t.Fatal(err)
				}
				events := mem.Events(id)
				last := events[len(events)-1]
				if len(events) != 4 || !run.Terminal(last.Type) || !strings.Contains(string(last.Payload), c.want) {
					t.Errorf("%d events, the last: %s %s", len(events), last.Type, last.Payload)
				}
				if name == "cancelled" { // again
					if err := c.end(t, other, id); err != nil {
						t.Error(err)
					}
				}
				if err := other.Erase(within(t), id); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// The owner of a run that somebody damages ends it too, and nobody else's.
func TestAnOwnerEndsWhatItCannotRead(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	h := open(t, mem)
	if _, _, err := h.Start(within(t), run.Start{ID: "owned", AgentID: "a", Runtime: "r", Owner: "me"}); err != nil {
		t.Fatal(err)
	}
	mem.Corrupt("owned", 1)
	other := open(t, mem)
	var fenced *run.FencedError
	if _, err := other.Lose(within(t), "owned", run.Evidence{Owner: "somebody"}); !errors.As(err, &fenced) {
		t.Errorf("of another owner: %v", err)
	}
	mem.Corrupt("owned", 0)
	if _, err := h.Resume(within(t), "owned", "you", run.Evidence{LastSeq: 1}); err != nil {
		t.Fatal(err)
	}
	mem.Corrupt("owned", 1)
	if _, err := other.Finish(within(t), "owned", 1, agent.Event{Type: agent.Done}); !errors.As(err, &fenced) {
		t.Errorf("of an older epoch: %v", err)
	}
	if _, err := other.Finish(within(t), "owned", 2, agent.Event{Type: agent.Done}); err != nil {
		t.Error(err)
	}
	events := mem.Events("owned")
	if last := events[len(events)-1]; last.Type != run.TypeRunFailed || last.Owner != "you" || !strings.Contains(string(last.Payload), `"run_unreadable"`) {
		t.Errorf("%s %s", last.Type, last.Payload)
	}
}

// What a stranger wrote behind a run's end does not keep it from being erased.
func TestWhatStandsBehindTheEndIsErasedWithIt(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	h := open(t, mem)
	id := h.start(t)
	if _, err := h.push(t, id, delta(1, "x"), done(2)); err != nil {
		t.Fatal(err)
	}
	mem.Stranger(id)
	if err := open(t, mem).Erase(within(t), id); err != nil {
		t.Error(err)
	}
}

// A truncated run is ended and erased as well.
func TestATruncatedRunIsEndedAllTheSame(t *testing.T) {
	mem := ledgertest.NewMemory(t)
	h := open(t, mem)
	id := h.start(t)
	if _, err := h.push(t, id, delta(1, "x")); err != nil {
		t.Fatal(err)
	}
	mem.Truncate(id, 2)
	other := open(t, mem)
	if _, err := other.Cancel(within(t), id, 0, run.Cancellation{Reason: "enough"}); err != nil {
		t.Error(err)
	}
	if err := other.Erase(within(t), id); err != nil {
		t.Error(err)
	}
}
