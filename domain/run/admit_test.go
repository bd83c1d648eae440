package run_test

import (
	"errors"
	"testing"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

func TestAdmit(t *testing.T) {
	s := given(t, numbered(text("a"), 1), numbered(text("b"), 2))
	for _, c := range []struct {
		number, received uint64
		next             uint64 // of the gap; 0: none
		err              error
	}{{0, 0, 0, nil}, {1, 0, 0, run.ErrDuplicate}, {2, 9, 0, run.ErrDuplicate}, {3, 0, 0, nil}, {4, 0, 3, nil}, {4, 3, 0, nil}, {6, 4, 5, nil}} {
		err := s.state.Admit("", 0, c.number, run.Mark{Seq: c.received})
		var gap *run.GapError
		if errors.As(err, &gap) != (c.next != 0) || c.next != 0 && gap.Next != c.next || c.next == 0 && !errors.Is(err, c.err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	var gap *run.GapError
	if err := s.state.Admit("other", 0, 2, run.Mark{}); !errors.As(err, &gap) || gap.Next != 1 {
		t.Errorf("another producer: %v", err)
	}
	s.when(numbered(done, 3))
	var ended *run.EndedError
	if err := s.state.Admit("", 0, 3, run.Mark{}); !errors.Is(err, run.ErrDuplicate) {
		t.Errorf("the end again: %v", err)
	}
	if err := s.state.Admit("", 0, 9, run.Mark{}); !errors.As(err, &ended) || ended.Status != run.Completed {
		t.Errorf("after the end: %v", err)
	}
}

// A producer's lives count from 1 each, and an earlier one is fenced.
func TestAdmitTellsLivesApart(t *testing.T) {
	s := given(t)
	push := func(epoch, number uint64) error {
		if err := s.state.Admit("p", epoch, number, run.Mark{}); err != nil {
			return err
		}
		e := agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: "x", ProducerSeq: number}
		d, err := s.state.Decide(&e, run.Origin{Producer: "p", Epoch: epoch}, noon, limit)
		s.by(d, err)
		return err
	}
	stored := func(err error) bool { return err == nil }
	duplicate := func(err error) bool { return errors.Is(err, run.ErrDuplicate) }
	fencedBy := func(epoch uint64) func(error) bool {
		return func(err error) bool {
			var fenced *run.ProducerFencedError
			return errors.As(err, &fenced) && fenced.Epoch == epoch
		}
	}
	for _, c := range []struct {
		epoch, number uint64
		ok            func(error) bool
	}{
		{1, 1, stored},
		{1, 2, stored},
		{1, 2, duplicate},
		{3, 2, func(err error) bool {
			var gap *run.GapError
			return errors.As(err, &gap) && gap.Next == 1
		}},
		{3, 1, stored},
		{1, 1, fencedBy(3)},
		{2, 0, fencedBy(3)},
		{3, 1, duplicate},
		{4, 0, stored}, // without a number it is another life all the same
		{3, 2, fencedBy(4)},
	} {
		if err := push(c.epoch, c.number); !c.ok(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := s.state.Admit("p", 4, 1, run.Mark{Epoch: 9, Seq: 3}); !fencedBy(9)(err) {
		t.Errorf("a later life that was only received: %v", err)
	}
	if back := refold(t, s.facts); back.Mark("p") != (run.Mark{Epoch: 4}) {
		t.Errorf("folded: %+v", back.Mark("p"))
	}
}
