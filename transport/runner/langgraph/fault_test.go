package langgraph

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/internal/faultproxy"
	"github.com/runfacts/runfacts/internal/langgraphserver"
)

// A connection that is cut again and again loses and doubles nothing.
func TestCutConnections(t *testing.T) {
	server := langgraphserver.Start(t)
	proxy := faultproxy.Start(t, strings.TrimPrefix(server.URL, "http://"))
	r := New(Config{URL: "http://" + proxy.Addr(), Assistant: "long"})
	t.Cleanup(r.client.http.CloseIdleConnections)
	seen := 0
	s := &stage{on: func(agent.Event) error {
		if seen++; seen%100 == 0 {
			proxy.Cut()
		}
		return nil
	}}
	if _, err := r.Run(context.Background(), agent.Task{RunID: "cut", Input: hello}, s.emit); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for n := range 1000 {
		fmt.Fprintf(&want, "w%d ", n)
	}
	if got := story(s.events); got != "delta "+want.String()+"\ndone "+want.String() && got != "delta "+want.String()+"\ndone "+strings.TrimSpace(want.String()) {
		t.Errorf("%.200s", got)
	}
}

// imitation is a server that behaves as Python's does where that differs: opaque
// ids, heartbeats, an end event, other statuses. It keeps one run's frames.
type imitation struct {
	t      *testing.T
	frames []string // event and data
	drop   int      // the connection is cut behind this frame, once
	open   bool     // it keeps a finished stream open
	mute   bool     // it does not say end

	mu      sync.Mutex
	runs    []lgRun
	bodies  []map[string]any
	cancels int
	status  string
}

func (i *imitation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch path := r.URL.Path; {
	case r.Header.Get("X-Api-Key") != "key":
		http.Error(w, "no key", http.StatusForbidden)
	case r.Method == "POST" && path == "/threads":
		answer(map[string]string{})
	case r.Method == "POST" && strings.HasSuffix(path, "/runs"):
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			i.t.Error(err)
		}
		i.bodies = append(i.bodies, body)
		one := lgRun{ID: fmt.Sprint("lg_", len(i.runs)), Status: i.status, Created: time.Now(), Metadata: body["metadata"].(map[string]any)}
		i.runs = append(i.runs, one)
		if len(i.runs) == 1 && i.drop < 0 { // made, and not told
			panic(http.ErrAbortHandler)
		}
		answer(one)
	case strings.HasSuffix(path, "/runs"):
		answer(i.runs)
	case strings.HasSuffix(path, "/cancel"):
		i.cancels++
		for n := range i.runs {
			i.runs[n].Status = "interrupted"
		}
	case strings.HasSuffix(path, "/stream"):
		i.stream(w, r)
	case strings.HasSuffix(path, "/state"):
		answer(map[string]any{"values": map[string]any{"messages": []any{}}, "tasks": []any{map[string]any{"error": "it broke"}}})
	default:
		answer(i.runs[len(i.runs)-1])
	}
}

func (i *imitation) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	last := r.Header.Get("Last-Event-ID")
	if modes := r.URL.Query()["stream_mode"]; len(modes) != 0 { // to Python a filter
		i.t.Errorf("a join asked for %v", modes)
	}
	begun := last == "-1"
	for n, f := range i.frames {
		id := fmt.Sprintf("1756-%d", n)
		if begun {
			event, data, _ := strings.Cut(f, " ")
			fmt.Fprintf(w, ": heartbeat\r\n\r\nevent: %s\r\ndata: %s\r\nid: %s\r\n\r\n", event, data, id)
			if n+1 == i.drop {
				i.drop = 0
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		}
		begun = begun || id == last
	}
	if !i.mute {
		fmt.Fprint(w, "event: end\r\ndata: null\r\n\r\n")
	}
	_ = http.NewResponseController(w).Flush()
	if i.open {
		i.mu.Unlock()
		<-r.Context().Done()
		i.mu.Lock()
	}
}

var pythons = []string{
	`metadata {"run_id":"x"}`,
	`messages [{"type":"AIMessageChunk","id":"m","content":"Hello ","tool_call_chunks":[]},{}]`,
	`messages [{"type":"AIMessageChunk","id":"m","content":"there.","tool_call_chunks":[]},{}]`,
	`updates {"model":{"messages":[{"type":"ai","id":"m","content":"Hello there.","tool_calls":[]}]}}`,
}

func TestAServerLikePythons(t *testing.T) {
	for name, c := range map[string]struct {
		server *imitation
		want   string // the story
		fails  string // the failure's code
	}{
		"a whole run":                    {&imitation{frames: pythons, status: "success"}, "delta Hello there.\ndone Hello there.", ""},
		"a cut connection":               {&imitation{frames: pythons, status: "success", drop: 2}, "delta Hello there.\ndone Hello there.", ""},
		"a create that was not answered": {&imitation{frames: pythons, status: "success", drop: -1}, "delta Hello there.\ndone Hello there.", ""},
		"a stream that stays open":       {&imitation{frames: pythons, status: "success", open: true}, "delta Hello there.\ndone Hello there.", ""},
		"an error without a frame":       {&imitation{frames: pythons, status: "error"}, "delta Hello there.", "error"},
		"a timeout":                      {&imitation{frames: pythons, status: "timeout"}, "delta Hello there.", "timeout"},
		"somebody else's interrupt":      {&imitation{frames: pythons, status: "interrupted"}, "delta Hello there.", "interrupted"},
		"a finished run without a log":   {&imitation{status: "success", frames: nil}, "", run.RuntimeLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := c.server
			i.t = t
			web := httptest.NewServer(i)
			defer web.Close()
			r := New(Config{URL: web.URL + "/", Assistant: "a", APIKey: "key"})
			defer r.client.http.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			s := &stage{}
			_, err := r.Run(ctx, agent.Task{RunID: "run_1", Input: json.RawMessage(`"hi"`)}, s.emit)
			var f *agent.Failure
			switch {
			case c.fails == "" && err != nil, c.fails != "" && (!errors.As(err, &f) || f.Code != c.fails):
				t.Errorf("%v", err)
			}
			if got := story(s.events); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if len(i.runs) != 1 {
				t.Errorf("%d runs were made", len(i.runs))
			}
			if input := fmt.Sprint(i.bodies[0]["input"]); input != "map[messages:[map[content:hi role:user]]]" {
				t.Errorf("input %s", input)
			}
		})
	}
}

// A question on a server that tells it as interrupted, and a cancel while it
// waits.
func TestQuestionsOfAServerLikePythons(t *testing.T) {
	i := &imitation{t: t, status: "interrupted", frames: []string{pythons[0], `updates {"__interrupt__":[{"id":"q","value":"Sure?"}]}`}}
	web := httptest.NewServer(i)
	defer web.Close()
	r := New(Config{URL: web.URL, Assistant: "a", APIKey: "key"})
	defer r.client.http.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	s := &stage{}
	waiting := func(ctx context.Context, id string) (agent.Answer, error) {
		cancel(errors.New("cancelled"))
		<-ctx.Done()
		return agent.Answer{}, ctx.Err()
	}
	stop, err := r.Run(ctx, agent.Task{RunID: "run_1", Input: hello, Answer: waiting}, s.emit)
	if err != nil || !strings.Contains(stop.Proof, "lg_0 as interrupted") || i.cancels != 0 {
		t.Errorf("%+v, %v, %d cancels", stop, err, i.cancels)
	}
	if got := story(s.events); got != `tool_call q request_input {"value":"Sure?"} external` {
		t.Errorf("%s", got)
	}
}
