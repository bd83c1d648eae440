package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/internal/langgraphserver"
	"github.com/runfacts/runfacts/transport/sse"
)

// graphs configures each of some graphs of a server as an agent.
func graphs(t testing.TB, server *langgraphserver.Server, names ...string) string {
	t.Helper()
	text := "agents:\n"
	for _, name := range names {
		text += fmt.Sprintf("  %s: {runtime: langgraph, langgraph: {url: %q, assistant: %s}}\n", name, server.URL, name)
	}
	path := filepath.Join(t.TempDir(), "runfacts.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tale is what a run's events say, without the pieces that its text came in.
func tale(t testing.TB, url, id string) string {
	t.Helper()
	var page struct {
		Events []struct {
			EventType string `json:"event_type"`
			Payload   json.RawMessage
		}
	}
	request, err := http.NewRequest("GET", url+"/api/agent-runs/"+id+"/events?limit=1000", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	delta := false
	for _, e := range page.Events {
		payload, err := runs.DecodePayload(e.EventType, e.Payload)
		if err != nil {
			t.Fatal(err)
		}
		switch p := payload.(type) {
		case *runs.RunResumed, *runs.RunStarted:
			continue
		case *runs.MessageDelta:
			if !delta {
				b.WriteString("\nsays ")
			}
			b.WriteString(p.Delta)
		case *runs.ToolCallStarted:
			fmt.Fprintf(&b, "\ncalls %s %s %s", p.ToolCallID, p.ToolName, p.Arguments)
		case *runs.ToolCallCompleted:
			fmt.Fprintf(&b, "\nresult %s %s %v", p.ToolCallID, p.Result, p.IsError)
		case *runs.MessageCompleted:
			fmt.Fprintf(&b, "\n%s %s", e.EventType, p.Content)
		default:
			fmt.Fprintf(&b, "\n%s ", e.EventType)
		}
		delta = e.EventType == runs.TypeMessageDelta
	}
	return b.String()
}

// The process is killed at many points of a run, and started again: what the
// ledger says in the end is what an uninterrupted run says.
func TestKilledOwnersRunsGoOn(t *testing.T) {
	kills := 4
	if text := os.Getenv("RUNFACTS_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	server := langgraphserver.Start(t)
	f := newFleetOf(t, 1, graphs(t, server, "react"), "--lease", "600ms")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(kills)*10*time.Second)
	defer cancel()
	store := f.store()
	if err := f.start(ctx, "whole", "react"); err != nil {
		t.Fatal(err)
	}
	if end, err := f.watch(ctx, "whole"); err != nil || end != runs.TypeRunCompleted {
		t.Fatalf("%s, %v", end, err)
	}
	want := tale(t, f.urls[0], "whole")
	last, err := store.Last(ctx, "whole")
	if err != nil {
		t.Fatal(err)
	}
	for k := range kills {
		id := fmt.Sprint("killed_", k)
		if err := f.start(ctx, id, "react"); err != nil {
			t.Fatal(err)
		}
		at := k * int(last.Seq) / kills // killed behind this event, spread over the run
		frames, closeStream := client{t, f.urls[0]}.watch(id, 0)
		for range at {
			if _, err := nextEvent(frames); err != nil {
				t.Fatal(err)
			}
		}
		f.members[0].end(syscall.SIGKILL)
		closeStream()
		http.DefaultClient.CloseIdleConnections()
		f.spawn(0)
		end, err := f.watch(ctx, id)
		if err != nil || end != runs.TypeRunCompleted {
			t.Fatalf("killed behind event %d: %s, %v", at, end, err)
		}
		if err := verify(ctx, store, runs.ID(id)); err != nil {
			t.Error(err)
		}
		if got := tale(t, f.urls[0], id); got != want {
			t.Errorf("killed behind event %d:\n%s\nwant\n%s", at, got, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	impatient.CloseIdleConnections()
}

// A question to a human waits, whoever owns the run; the answer may be given to
// any instance.
func TestQuestionsToHumans(t *testing.T) {
	server := langgraphserver.Start(t)
	f := newFleetOf(t, 2, graphs(t, server, "hitl"), "--lease", "1s")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, b := client{t, f.urls[0]}, client{t, f.urls[1]}
	ask := func(id string) (call string) {
		t.Helper()
		if status, fields, _ := a.call("POST", "/api/agent-runs", "application/json", fmt.Sprintf(`{"run_id":%q,"agent_id":"hitl","input":"hi"}`, id)); status != 201 {
			t.Fatalf("%d %v", status, fields)
		}
		frames, closeStream := b.watch(id, 0)
		defer closeStream()
		for {
			frame, err := nextEvent(frames)
			if err != nil {
				t.Fatal(err)
			}
			if frame.Event == runs.TypeToolCallStarted {
				var d struct {
					Payload struct {
						External   bool
						ToolCallID string `json:"tool_call_id"`
					}
				}
				if err := json.Unmarshal([]byte(frame.Data), &d); err != nil || !d.Payload.External {
					t.Fatalf("%s, %v", frame.Data, err)
				}
				return d.Payload.ToolCallID
			}
		}
	}
	answer := func(c client, id, call, result string) (int, map[string]any) {
		status, fields, _ := c.call("POST", "/api/agent-runs/"+id+"/tool-results", "application/json", fmt.Sprintf(`{"tool_call_id":%q,"result":%s}`, call, result))
		return status, fields
	}
	call := ask("asked")
	if status, fields, _ := b.call("GET", "/api/agent-runs/asked", "", ""); fields["status"] != "waiting" {
		t.Errorf("%d %v", status, fields)
	}
	if status, fields := answer(b, "asked", "nobody", `1`); status != 404 || fields["code"] != "tool_call_not_found" {
		t.Errorf("%d %v", status, fields)
	}
	if status, fields := answer(b, "asked", call, `"yes"`); status != 200 {
		t.Errorf("%d %v", status, fields)
	}
	if end, err := f.watch(ctx, "asked"); err != nil || end != runs.TypeRunCompleted {
		t.Errorf("%s, %v", end, err)
	}
	for _, c := range []client{a, b} {
		if status, fields := answer(c, "asked", call, ` "yes" `); status != 200 {
			t.Errorf("the same again: %d %v", status, fields)
		}
		if status, fields := answer(c, "asked", call, `"no"`); status != 409 {
			t.Errorf("another one: %d %v", status, fields)
		}
	}
	if got := tale(t, f.urls[1], "asked"); !strings.Contains(got, `They said "yes"`) || !strings.HasSuffix(got, "message.completed Deployed now.\nrun.completed ") {
		t.Errorf("%s", got)
	}

	// The owner dies while the run waits; its successor gets the answer.
	call = ask("orphaned")
	f.members[0].end(syscall.SIGKILL)
	http.DefaultClient.CloseIdleConnections()
	frames, closeStream := b.watch("orphaned", 0)
	for {
		frame, err := nextEvent(frames)
		if err != nil {
			t.Fatal(err)
		}
		if frame.Event == runs.TypeRunResumed {
			break
		}
	}
	closeStream()
	if status, fields := answer(b, "orphaned", call, `"yes"`); status != 200 {
		t.Errorf("%d %v", status, fields)
	}
	f.urls = f.urls[1:]
	if end, err := f.watch(ctx, "orphaned"); err != nil || end != runs.TypeRunCompleted {
		t.Errorf("%s, %v", end, err)
	}
	http.DefaultClient.CloseIdleConnections()
	impatient.CloseIdleConnections()
}

// BenchmarkLangGraph compares a run of 1,000 deltas by way of Runfacts with the
// server's own stream, from the request to the last token.
func BenchmarkLangGraph(b *testing.B) {
	server := langgraphserver.Start(b)
	url := serveForTest(b, "--config", graphs(b, server, "long"))
	var direct, facts time.Duration
	n := 0
	for b.Loop() {
		n++
		direct += directly(b, server.URL)
		began := time.Now()
		c := client{b, url}
		id := fmt.Sprint("long_", n)
		if status, fields, _ := c.call("POST", "/api/agent-runs", "application/json", fmt.Sprintf(`{"run_id":%q,"agent_id":"long","input":"hi"}`, id)); status != 201 {
			b.Fatalf("%d %v", status, fields)
		}
		frames, closeStream := c.watch(id, 0)
		for {
			frame, err := nextEvent(frames)
			if err != nil {
				b.Fatal(err)
			}
			if strings.Contains(frame.Data, "w999 ") {
				break
			}
		}
		facts += time.Since(began)
		closeStream()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(direct.Milliseconds())/float64(n), "direct-ms")
	b.ReportMetric(float64(facts.Milliseconds())/float64(n), "runfacts-ms")
	b.ReportMetric(float64(facts)/float64(direct), "ratio")
}

// directly reads a run of the graph from its own server to its last token.
func directly(b *testing.B, url string) time.Duration {
	began := time.Now()
	post := func(path, body string) *http.Response {
		response, err := http.Post(url+path, "application/json", strings.NewReader(body))
		if err != nil || response.StatusCode != http.StatusOK {
			b.Fatalf("%s: %v, %v", path, response, err)
		}
		return response
	}
	var thread struct {
		ID string `json:"thread_id"`
	}
	response := post("/threads", "{}")
	err := json.NewDecoder(response.Body).Decode(&thread)
	response.Body.Close()
	if err != nil {
		b.Fatal(err)
	}
	response = post("/threads/"+thread.ID+"/runs/stream", `{"assistant_id":"long","input":{"messages":[{"role":"user","content":"hi"}]},`+
		`"stream_mode":["messages-tuple","updates","custom"],"stream_subgraphs":true,"stream_resumable":true}`)
	defer response.Body.Close()
	frames := sse.NewReader(response.Body, 8<<20)
	for {
		frame, err := frames.Next()
		if err != nil {
			b.Fatal(err)
		}
		if strings.Contains(frame.Data, `"w999 "`) {
			took := time.Since(began)
			_, _ = io.Copy(io.Discard, response.Body) // the server is done then
			return took
		}
	}
}

// A deep agent's file is an artifact whose bytes can be had, and its sub-agent's
// calls know their parent.
func TestDeepAgentsFiles(t *testing.T) {
	server := langgraphserver.Start(t)
	url := serveForTest(t, "--config", graphs(t, server, "deep"))
	f := &fleet{t: t, urls: []string{url}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.start(ctx, "deep", "deep"); err != nil {
		t.Fatal(err)
	}
	if end, err := f.watch(ctx, "deep"); err != nil || end != runs.TypeRunCompleted {
		t.Fatalf("%s, %v", end, err)
	}
	response, err := http.Get(url + "/api/agent-runs/deep/artifacts/artifact_1")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || string(content) != "# Owls\nThey fly.\n" || response.Header.Get("Content-Type") != "text/markdown" {
		t.Errorf("%s %q %v", response.Status, content, response.Header)
	}
	_, page, _ := client{t, url}.call("GET", "/api/agent-runs/deep/events", "", "", "Accept", "application/json")
	if text := fmt.Sprint(page); !strings.Contains(text, "parent_tool_call_id:call_2") || !strings.Contains(text, "name:/owl.md") {
		t.Errorf("%s", text)
	}
	impatient.CloseIdleConnections()
}

// An owner that was paused, and taken for dead, lets go of what another one
// drives now: the runtime runs on.
func TestAPausedOwnerLetsGo(t *testing.T) {
	server := langgraphserver.Start(t)
	f := newFleetOf(t, 2, graphs(t, server, "slow"), "--lease", "1s")
	old, heir := client{t, f.urls[0]}, client{t, f.urls[1]}
	if status, fields, _ := old.call("POST", "/api/agent-runs", "application/json", `{"run_id":"paused","agent_id":"slow","input":"hi"}`); status != 201 {
		t.Fatalf("%d %v", status, fields)
	}
	frames, closeStream := heir.watch("paused", 0)
	defer closeStream()
	until := func(what string, n int) {
		t.Helper()
		for n > 0 {
			frame, err := nextEvent(frames)
			if err != nil {
				t.Fatal(err)
			}
			if frame.Event == what {
				n--
			} else if runs.Terminal(frame.Event) {
				t.Fatalf("%s %s", frame.Event, frame.Data)
			}
		}
	}
	until(runs.TypeMessageDelta, 5)
	_ = f.members[0].cmd.Process.Signal(syscall.SIGSTOP)
	until(runs.TypeRunResumed, 1)
	_ = f.members[0].cmd.Process.Signal(syscall.SIGCONT)
	until(runs.TypeMessageDelta, 20) // a second of it
	status, fields, _ := old.call("POST", "/api/agent-runs/paused/cancel", "", "")
	if status != 200 || fields["status"] != "cancelled" {
		t.Errorf("%d %v", status, fields)
	}
	if _, page, _ := heir.call("GET", "/api/agent-runs/paused/events?limit=1000", "", "", "Accept", "application/json"); !strings.Contains(fmt.Sprint(page), "as interrupted") {
		t.Errorf("%v", page["events"].([]any)[len(page["events"].([]any))-1])
	}
	http.DefaultClient.CloseIdleConnections()
}
