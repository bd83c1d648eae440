package langgraph

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/internal/langgraphserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is what plays the supervisor for one run.
type stage struct {
	mu      sync.Mutex
	events  []agent.Event
	on      func(agent.Event) error // nil: takes everything
	answers map[string]string
}

func (s *stage) emit(e agent.Event) error {
	s.mu.Lock()
	s.events = append(s.events, e)
	on := s.on
	s.mu.Unlock()
	if on != nil {
		return on(e)
	}
	return nil
}

func (s *stage) answer(ctx context.Context, id string) (agent.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, result := range s.answers {
		if key == id || key == "*" {
			return agent.Answer{ToolCallID: id, Result: json.RawMessage(result)}, nil
		}
	}
	return agent.Answer{}, errors.New("no answer for " + id)
}

// story is what was said, called and made, without the pieces it came in.
func story(events []agent.Event) string {
	var b strings.Builder
	kind := ""
	for _, e := range events {
		k := fmt.Sprint(e.Type, e.BlockType)
		if e.Type == agent.StateChange {
			continue
		}
		if k != kind || e.Type != agent.Delta {
			fmt.Fprintf(&b, "\n%s ", strings.TrimSuffix(k, agent.Text))
		}
		kind = k
		switch e.Type {
		case agent.Delta:
			b.WriteString(e.Content.String() + string(e.Block))
		case agent.ToolCall:
			fmt.Fprintf(&b, "%s %s %s", e.ToolCallID, e.ToolName, e.ToolArgs)
			if e.ParentToolCallID != "" {
				b.WriteString(" for " + e.ParentToolCallID)
			}
			if e.External {
				b.WriteString(" external")
			}
		case agent.ToolResult:
			fmt.Fprintf(&b, "%s %s", e.ToolCallID, e.ToolResult)
			if e.IsError {
				b.WriteString(" failed")
			}
		case agent.Artifact:
			fmt.Fprintf(&b, "%s with %d bytes", e.Artifact, len(e.Bytes))
		case agent.Done:
			b.WriteString(e.Answer.String())
		case agent.Error:
			b.WriteString(e.ErrorCode + " " + e.ErrorMessage)
		}
	}
	return strings.TrimSpace(b.String())
}

func open(t *testing.T, server *langgraphserver.Server, graph string) *Runner {
	r := New(Config{URL: server.URL, Assistant: graph})
	r.hung = time.Second
	t.Cleanup(r.client.http.CloseIdleConnections)
	return r
}

var hello = json.RawMessage(`{"messages":[{"role":"user","content":"hi"}],"n":4}`)

// play drives a graph to its end.
func play(t *testing.T, server *langgraphserver.Server, graph string, s *stage, change func(*agent.Task)) (agent.Stop, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	task := agent.Task{RunID: "run_" + strings.ReplaceAll(t.Name(), "/", "_"), Input: hello, Answer: s.answer}
	if change != nil {
		change(&task)
	}
	return open(t, server, graph).Run(ctx, task, s.emit)
}

func TestGraphsOnTheRealServer(t *testing.T) {
	server := langgraphserver.Start(t)
	for graph, want := range map[string]string{
		"react": `
delta Let me look that up. 
tool_call call_A weather {"city":"Paris"}
tool_result call_A "{\"city\":\"Paris\",\"celsius\":21}"
delta Now two at once. 
tool_call call_B nap {"ms":400}
tool_call call_C nap {"ms":50}
tool_result call_C "napped 50"
tool_result call_B "napped 400"
tool_call call_D broken {}
tool_result call_D "Error: relation does not exist\n Please fix your mistakes." failed
delta Paris has 21 degrees, and the database failed.
done Paris has 21 degrees, and the database failed.`,
		"deep": `
tool_call call_1 write_todos {"todos":[{"content":"ask","status":"in_progress"}]}
tool_result call_1 "Updated todo list to [{\"content\":\"ask\",\"status\":\"in_progress\"}]"
tool_call call_2 task {"description":"Research owls","subagent_type":"researcher"}
tool_call call_1@SUB weather {"city":"Owlton"} for call_2
tool_result call_1@SUB "{\"city\":\"Owlton\",\"celsius\":21}"
tool_result call_2 "Owls fly."
tool_call call_3 write_file {"file_path":"/owl.md","content":"# Owls\nThey fly.\n"}
tool_result call_3 "Successfully wrote to '/owl.md'"
artifact {"name":"/owl.md","media_type":"text/markdown","size":17,"checksum":"` + run.Checksum([]byte("# Owls\nThey fly.\n")) + `"} with 17 bytes
delta Done: /owl.md
done Done: /owl.md`,
		"boom": `
delta Prepared. I will fail now 
error Error upstream 529 overloaded`,
		"custom": `
artifact {"name":"report.csv","media_type":"text/csv","url":"https://example.test/r"} with 0 bytes
delta Worked.
done Worked.`,
		"blocks": `
deltareasoning The user wants a picture.
delta Here is a pixel:
deltareasoning (a thought)
deltaimage {"type":"image","mimeType":"image/png","data":"iVBORw0KGgo=","index":2}
done Here is a pixel:`,
		"plain": `done {"n":8}`,
		"approve": `
delta May I? 
tool_call call_W write_file {"file_path":"/plan.md","content":"A plan."}
tool_call ID request_input QUESTION external
tool_result call_W "Successfully wrote to '/plan.md'"
artifact {"name":"/plan.md","media_type":"text/markdown","size":7,"checksum":"` + run.Checksum([]byte("A plan.")) + `"} with 7 bytes
delta Written.
done Written.`,
		"hitl": `
delta I want to deploy. 
tool_call ID request_input {"question":"Deploy?","options":["yes","no"]} external
delta They said {"sure":12345678901234567}. Deployed now.
done Deployed now.`,
		"two": `
tool_call ID request_input {"value":"Left?"} external
tool_call ID request_input {"value":"Right?"} external
delta left 1. right 1. 
done right 1. `,
	} {
		t.Run(graph, func(t *testing.T) {
			t.Parallel()
			s := &stage{answers: map[string]string{"*": "1"}}
			if graph == "approve" {
				s.answers["*"] = `{"decisions":[{"type":"approve"}]}`
			}
			if graph == "hitl" {
				s.answers["*"] = `{"sure":12345678901234567}`
			}
			if _, err := play(t, server, graph, s, nil); err != nil {
				t.Fatal(err)
			}
			got := story(s.events)
			for _, e := range s.events { // ids that the server makes
				if _, sub, ok := strings.Cut(e.ToolCallID, "@"); ok {
					got = strings.ReplaceAll(got, sub, "SUB")
				}
				if e.External && graph == "approve" { // it says much
					got = strings.ReplaceAll(got, string(e.ToolArgs), "QUESTION")
				}
				if e.External {
					got = strings.ReplaceAll(got, e.ToolCallID, "ID")
				}
			}
			if graph == "hitl" { // JavaScript has no integer of that size
				got = strings.ReplaceAll(got, "12345678901234568", "12345678901234567")
			}
			if want = strings.TrimSpace(want); strings.TrimSpace(got) != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// Whoever joins behind an event reports exactly what is behind it.
func TestRejoinBehindAnEvent(t *testing.T) {
	server := langgraphserver.Start(t)
	for _, graph := range []string{"react", "deep", "hitl"} {
		t.Run(graph, func(t *testing.T) {
			t.Parallel()
			whole := &stage{answers: map[string]string{"*": `"yes"`}}
			if _, err := play(t, server, graph, whole, nil); err != nil {
				t.Fatal(err)
			}
			for i, e := range whole.events {
				if e.Cursor == nil || i%4 != 1 { // some, since each takes the server a second
					continue
				}
				s := &stage{answers: whole.answers}
				if _, err := play(t, server, graph, s, func(task *agent.Task) { task.Rejoin = &agent.Rejoin{Cursor: e.Cursor} }); err != nil {
					t.Fatalf("behind %s: %v", *e.Cursor, err)
				}
				if got, want := story(s.events), story(whole.events[i+1:]); got != want {
					t.Fatalf("behind %s: got\n%s\nwant\n%s", *e.Cursor, got, want)
				}
			}
		})
	}
}

// A run that nobody has recorded anything of is found by our id, not made twice.
func TestRejoinWithoutACursor(t *testing.T) {
	server := langgraphserver.Start(t)
	first, again := &stage{}, &stage{}
	if _, err := play(t, server, "react", first, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := play(t, server, "react", again, func(task *agent.Task) { task.Rejoin = &agent.Rejoin{} }); err != nil {
		t.Fatal(err)
	}
	if len(first.events) != len(again.events) || *first.events[3].Cursor != *again.events[3].Cursor {
		t.Errorf("%d and %d events", len(first.events), len(again.events))
	}
	// One that never got there is begun.
	s := &stage{}
	if _, err := play(t, server, "plain", s, func(task *agent.Task) { task.RunID, task.Rejoin = "another", &agent.Rejoin{} }); err != nil || story(s.events) != `done {"n":8}` {
		t.Errorf("%s, %v", story(s.events), err)
	}
}

func TestCancelIsConfirmed(t *testing.T) {
	server := langgraphserver.Start(t)
	for _, graph := range []string{"slow", "stubborn"} {
		t.Run(graph, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			seen := 0
			s := &stage{on: func(agent.Event) error {
				if seen++; seen == 5 {
					cancel(errors.New("cancelled"))
				}
				return nil
			}}
			stop, err := open(t, server, graph).Run(ctx, agent.Task{RunID: "run_" + graph, Input: hello}, s.emit)
			if err != nil || !strings.Contains(stop.Proof, "as interrupted") {
				t.Errorf("%+v, %v", stop, err)
			}
		})
	}
	t.Run("taken over", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		s := &stage{on: func(agent.Event) error { cancel(agent.ErrTakenOver); return agent.ErrEnded }}
		r := open(t, server, "slow")
		if stop, err := r.Run(ctx, agent.Task{RunID: "run_taken", Input: hello}, s.emit); err != nil || stop.Proof != "" {
			t.Errorf("%+v, %v", stop, err)
		}
		runs, err := r.client.runs(context.Background(), threadOf(agent.Task{RunID: "run_taken"}), "run_taken")
		if err != nil || len(runs) != 1 || runs[0].ended() {
			t.Errorf("%+v, %v", runs, err)
		}
	})
}

// A server that dies, hangs for too long or forgets is told as lost; one that is
// dead within ten seconds.
func TestALostServer(t *testing.T) {
	lose := func(name string, hurt func(*langgraphserver.Server)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := langgraphserver.Start(t)
			seen := 0
			s := &stage{on: func(agent.Event) error {
				if seen++; seen == 5 {
					hurt(server)
				}
				return nil
			}}
			began := time.Now()
			_, err := play(t, server, "slow", s, nil)
			var f *agent.Failure
			if !errors.As(err, &f) || f.Code != run.RuntimeLost || !f.Retryable {
				t.Errorf("%v", err)
			}
			t.Logf("%s after %s: %v", name, time.Since(began).Round(100*time.Millisecond), err)
		})
	}
	lose("killed", (*langgraphserver.Server).Kill)
	lose("paused", func(s *langgraphserver.Server) { s.Pause(); t.Cleanup(s.Resume) })
	t.Run("restarted", func(t *testing.T) {
		t.Parallel()
		server := langgraphserver.Start(t)
		at := "01a2310c-0000-7000-8000-000000000000/7/1"
		for _, rejoin := range []*agent.Rejoin{{Cursor: &at}} {
			_, err := play(t, server, "slow", &stage{}, func(task *agent.Task) { task.Rejoin = rejoin })
			var f *agent.Failure
			if !errors.As(err, &f) || f.Code != run.RuntimeLost {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("never there", func(t *testing.T) {
		t.Parallel()
		r := New(Config{URL: "http://127.0.0.1:1", Assistant: "x"})
		_, err := r.Run(context.Background(), agent.Task{RunID: "r"}, (&stage{}).emit)
		var f *agent.Failure
		if !errors.As(err, &f) || f.Code != run.RuntimeLost {
			t.Errorf("%v", err)
		}
	})
	t.Run("no such graph", func(t *testing.T) {
		t.Parallel()
		server := langgraphserver.Start(t)
		_, err := play(t, server, "nobody", &stage{}, nil)
		var f *agent.Failure
		if !errors.As(err, &f) || f.Code != "langgraph_refused" {
			t.Errorf("%v", err)
		}
	})
}
