package supervisor

import (
	"context"
	"encoding/json"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Each instance has a mailbox, a side stream, where the others put what somebody
// wants of the runs that it owns. These are the notes' types.
const (
	cancelType = "run.cancel.requested"
	answerType = "tool.result.given"
)

// command is a cancel's data.
type command struct {
	RunID  run.ID `json:"run_id"`
	Reason string `json:"reason"`
}

// given is an answer's data.
type given struct {
	RunID      run.ID          `json:"run_id"`
	ToolCallID string          `json:"tool_call_id"`
	Result     json.RawMessage `json:"result"`
	IsError    bool            `json:"is_error,omitempty"`
	Full       *agent.Full     `json:"full,omitempty"`
}

func (g *given) answer() agent.Answer {
	return agent.Answer{ToolCallID: g.ToolCallID, Result: g.Result, IsError: g.IsError, Full: g.Full}
}

func newCommand(id run.ID, reason string) ledger.Note {
	data, err := json.Marshal(command{id, reason})
	if err != nil { // two strings
		panic("supervisor: " + err.Error())
	}
	return ledger.Note{Type: cancelType, Data: data}
}

// trimEvery is after how many commands the older ones are dropped.
const trimEvery = 100

// mailKept is how many commands a mailbox keeps, if they cannot be trimmed: what
// a dead owner has not done must still be there for its heir.
const mailKept = 10_000

// obey does what other instances ask of the runs that are owned here.
func (s *Supervisor) obey(ctx context.Context) {
	stream := lease.Mailbox(s.config.Instance)
	_ = s.config.Side.Bound(ctx, stream, mailKept)                       // it only saves room
	_ = s.config.Side.Listen(ctx, stream, 0, func(n ledger.Note) error { // ends with ctx
		var c command
		var g given
		switch {
		case n.Type == cancelType && json.Unmarshal(n.Data, &c) == nil:
			if r := s.owned(c.RunID); r != nil {
				r.end(&cancel{c.Reason})
			}
		case n.Type == answerType && json.Unmarshal(n.Data, &g) == nil:
			if r := s.owned(g.RunID); r != nil {
				s.spawn(func(hard context.Context) {
					// Who gave it looks at the run; an error is its answer.
					_, _ = s.commitAnswer(hard, r, g.answer())
				})
			}
		}
		if n.Seq%trimEvery == 0 {
			_ = s.config.Side.Trim(ctx, stream, n.Seq) // the next time does it as well
		}
		return nil
	})
}

// demands is what a dead owner was asked to do with a run.
type demands struct {
	cancelled bool
	reason    string
	answers   []agent.Answer
}

// demanded reads what a dead owner may have left undone.
func (s *Supervisor) demanded(ctx context.Context, owner string, id run.ID) (d demands, err error) {
	for after := uint64(0); ; {
		notes, err := s.config.Side.Notes(ctx, lease.Mailbox(owner), after, 1000)
		if err != nil || len(notes) == 0 {
			return d, err
		}
		for _, n := range notes {
			after = n.Seq
			var c command
			var g given
			switch {
			case n.Type == cancelType && json.Unmarshal(n.Data, &c) == nil && c.RunID == id:
				d.cancelled, d.reason = true, c.Reason
			case n.Type == answerType && json.Unmarshal(n.Data, &g) == nil && g.RunID == id:
				d.answers = append(d.answers, g.answer())
			}
		}
	}
}
