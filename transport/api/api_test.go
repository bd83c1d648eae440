package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/transport/blobfolder"
	"github.com/runfacts/runfacts/transport/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is the API on a ledger in memory.
type house struct {
	t      *testing.T
	mem    *ledgertest.Memory
	server *Server
	url    string
	client *http.Client
}

func open(t *testing.T, alter ...func(*Server)) *house {
	t.Helper()
	h := &house{t: t, mem: ledgertest.NewMemory(t), client: &http.Client{Transport: &http.Transport{}}}
	m := metrics.New()
	ids := 0
	runs := record.NewRuns(record.Config{Ledger: h.mem, MaxAppend: 100_000, Now: time.Now, Watcher: nobody{}, Observer: counted{m},
		Nonce: func() string { return strconv.FormatInt(time.Now().UnixNano(), 36) }})
	tails := tail.New(h.mem, AppendFrame)
	blobs, err := blobfolder.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	owner := supervisor.New(supervisor.Config{
		Runs: runs, Reader: h.mem, Follower: h.mem, Side: ledgertest.NewNotes().For(), Blobs: blobs, Inline: 1000, Watch: nobody{}, Observer: nobody{}, Instance: "me",
		Agents:  []supervisor.Agent{{ID: "echo", Runtime: "test", Runner: echoes{}, Config: []byte(`{"agent_id":"echo"}`)}},
		MaxRuns: 1, MaxQueue: 1, QueueTime: time.Minute,
	})
	server, err := New(Config{Runs: runs, Supervisor: owner, Blobs: blobs, Inline: 1000, MaxArtifact: 100_000, Reader: h.mem, Tails: tails, Metrics: m, Log: zerolog.Nop(),
		NewID: func() run.ID { ids++; return run.ID(fmt.Sprint("run_", ids)) },
		Ready: func() Readiness { return Readiness{Reached: true, Up: true} }, Patience: 300 * time.Millisecond,
		KeepAlive: 15 * time.Second, PushIdle: time.Minute,
		CORSOrigins: []string{"https://page.example"}, CORSWriters: []string{"https://console.example"}})
	if err != nil {
		t.Fatal(err)
	}
	h.server = server
	for _, a := range alter {
		a(server)
	}
	web := httptest.NewServer(h.server.Handler())
	h.url = web.URL
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	go func() { done <- owner.Run(ctx) }()
	go func() { done <- runs.Run(ctx) }()
	go func() { done <- tails.Run(ctx) }()
	t.Cleanup(func() {
		h.client.CloseIdleConnections()
		web.Close()
		cancel()
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return h
}

// nobody watches over runs, and listens to nothing.
type nobody struct{}

func (nobody) Announce(context.Context, run.ID, lease.Kind) error { return nil }
func (nobody) Heard(run.ID, run.Seq, bool)                        {}
func (nobody) Ended(run.ID)                                       {}
func (nobody) Forget(run.ID, lease.Kind)                          {}
func (nobody) Confirm(run.ID, lease.Kind, run.Seq)                {}
func (nobody) Withdraw(run.ID, lease.Kind)                        {}
func (nobody) Alive(string) bool                                  { return false }
func (nobody) Reported(agent.Type)                                {}
func (nobody) RuntimeFailed(run.ID, error)                        {}
func (nobody) TakenOver(run.ID, string)                           {}
func (nobody) Lost(run.ID, string, time.Duration)                 {}

// counted counts what the ledger does.
type counted struct{ *metrics.Metrics }

func (c counted) Ended(_ run.ID, _ bool, status run.Status) { c.Metrics.Ended(status) }

// echoes is a runtime that says what it is told, and then waits for its end.
type echoes struct{}

func (echoes) Run(ctx context.Context, task agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	if err := emit(agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(task.Input)}); err != nil {
		return agent.Stop{}, err
	}
	<-ctx.Done()
	return agent.Stop{Proof: "it said so"}, nil
}

// answer is a response, read whole.
type answer struct {
	status int
	header http.Header
	text   string
	fields map[string]any
}

func (h *house) send(request *http.Request) answer {
	h.t.Helper()
	response, err := h.client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	a := answer{status: response.StatusCode, header: response.Header, text: string(text)}
	_ = json.Unmarshal(text, &a.fields) // not every answer is an object
	return a
}

func (h *house) do(method, path, body string, headers ...string) answer {
	h.t.Helper()
	request, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return h.send(request)
}

func (h *house) create() string {
	h.t.Helper()
	a := h.do("POST", "/api/agent-runs", `{"agent_id":"a","runtime":"push"}`)
	if a.status != http.StatusCreated {
		h.t.Fatalf("%d %s", a.status, a.text)
	}
	return "/api/agent-runs/" + a.fields["run_id"].(string)
}

func (h *house) push(path, lines string) answer {
	h.t.Helper()
	return h.do("POST", path+"/agent-events", lines, "Content-Type", ndjson)
}

func TestEveryErrorIsAProblem(t *testing.T) {
	h := open(t)
	path := h.create()
	ended := h.create()
	h.push(ended, `{"type":"done"}`+"\n")
	for _, c := range []struct {
		method, path, body, contentType string
		status                          int
		code                            string
	}{
		{"GET", "/nothing", "", "", 404, "not_found"},
		{"GET", "/api/agent-runs", "", "", 405, "method_not_allowed"},
		{"PUT", path, "", "", 405, "method_not_allowed"},
		{"GET", "/api/agent-runs/unknown", "", "", 404, "run_not_found"},
		{"GET", "/api/agent-runs/a%20b", "", "", 404, "run_not_found"},
		{"POST", "/api/agent-runs", "{", "", 400, "invalid_json"},
		{"POST", "/api/agent-runs", "\xff", "", 400, "invalid_json"},
		{"POST", "/api/agent-runs", "[]", "", 422, "invalid_request"},
		{"POST", "/api/agent-runs", `{"agent_id":3}`, "", 422, "invalid_request"},
		{"POST", "/api/agent-runs", `{"agent_id":"a","runtime":"langgraph"}`, "", 422, "unknown_agent"},
		{"POST", "/api/agent-runs", `{"agent_id":"` + strings.Repeat("x", 200) + `","runtime":"push"}`, "", 422, "invalid_request"},
		{"POST", "/api/agent-runs", strings.Repeat(" ", maxBody+1), "", 413, "body_too_large"},
		{"POST", path + "/agent-events", "x", "text/plain", 415, "unsupported_media_type"},
		{"POST", path + "/agent-events", "{}", "application/json", 400, "invalid_json"},
		{"POST", path + "/agent-events", "null", "application/json", 400, "invalid_json"},
		{"POST", path + "/agent-events", "{}\n", ndjson, 422, "invalid_event"},
		{"POST", path + "/agent-events", `{"type":"delta","content":"` + strings.Repeat("x", maxLine) + `"}`, ndjson, 413, "event_too_large"},
		{"POST", path + "/agent-events?producer=" + strings.Repeat("p", 200), "", ndjson, 422, "invalid_request"},
		{"POST", path + "/cancel", "{", "", 400, "invalid_json"},
		{"POST", path + "/cancel", `{"reason":7}`, "", 422, "invalid_request"},
		{"DELETE", path, "", "", 409, "run_not_ended"},
		{"POST", ended + "/cancel", "", "", 409, "run_terminal"},
		{"GET", path + "/events?view=secret", "", "", 422, "invalid_request"},
		{"GET", path + "/events?after_seq=", "", "", 422, "invalid_cursor"},
		{"GET", path + "/events?after_seq=2", "", "", 422, "cursor_diverged"},
	} {
		headers := []string{"Content-Type", c.contentType}
		if c.contentType == "" {
			headers = nil
		}
		a := h.do(c.method, c.path, c.body, headers...)
		if a.status != c.status || a.fields["code"] != c.code || a.header.Get("Content-Type") != "application/problem+json" ||
			a.fields["status"] != float64(c.status) || a.fields["request_id"] == nil {
			t.Errorf("%s %.60s %.40q: %d %.300s, want %d %s", c.method, c.path, c.body, a.status, a.text, c.status, c.code)
		}
	}
}

func TestReceiptsStandInProblemsToo(t *testing.T) {
	h := open(t)
	path := h.create()
	a := h.push(path, `{"type":"delta","content":"a","producer_seq":1}`+"\n\n"+`{"type":"dance"}`+"\n")
	if a.status != 422 || a.fields["line"] != 3.0 || a.fields["accepted"] != 1.0 || a.fields["producer_seq"] != 1.0 || a.fields["last_seq"] != 3.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := h.push(path, ""); a.status != 200 || a.fields["last_seq"] != 3.0 {
		t.Errorf("an empty push: %d %s", a.status, a.text)
	}
	if a := h.push("/api/agent-runs/unknown", ""); a.status != 404 {
		t.Errorf("an empty push to nobody: %d %s", a.status, a.text)
	}
}

func TestCrossOriginReadersHearErrorsToo(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"done"}`+"\n")
	for _, target := range []string{path, path + "/events?after_seq=4", path + "/events?after_seq=x", "/api/agent-runs/unknown"} {
		if got := h.do("GET", target, "", "Origin", "https://page.example").header.Get("Access-Control-Allow-Origin"); got != "https://page.example" {
			t.Errorf("%s: %q", target, got)
		}
		if got := h.do("GET", target, "", "Origin", "https://evil.example").header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("%s: a stranger may read: %q", target, got)
		}
	}
	a := h.do("OPTIONS", path+"/events", "", "Origin", "https://page.example", "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "last-event-id")
	if a.status != http.StatusNoContent || !strings.Contains(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")), "last-event-id") {
		t.Errorf("preflight: %d %v", a.status, a.header)
	}
}

func TestAStoreThatIsAway(t *testing.T) {
	h := open(t)
	path := h.create()
	h.mem.Away(true)
	a := h.do("GET", path+"/events", "")
	var wait int
	if _, err := fmt.Sscanf(a.text, "retry: %d\n", &wait); a.status != 200 || err != nil || wait < 5000 || wait > 10000 {
		t.Errorf("an EventSource would give up: %d %q", a.status, a.text)
	}
	for what, a := range map[string]answer{
		"page":    h.do("GET", path+"/events", "", "Accept", "application/json"),
		"summary": h.do("GET", path, ""),
		"push":    h.push(path, `{"type":"delta","content":"x","producer_seq":1}`+"\n"),
		"create":  h.do("POST", "/api/agent-runs", `{"agent_id":"a","runtime":"push"}`),
	} {
		if a.status != 503 || a.fields["code"] != "store_unavailable" || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", what, a.status, a.text)
		}
	}
	if a := h.do("POST", "/api/agent-runs/unknown/cancel", ""); a.status != 503 {
		t.Errorf("cancel of a run that nobody knows: %d %s", a.status, a.text)
	}
	h.mem.Away(false)
	// The push may have been stored since; its number says so.
	for range 20 { // the Recorder asks again in its own time, within a second
		if a = h.push(path, `{"type":"delta","content":"x","producer_seq":1}`+"\n"); a.status == 200 {
			break
		}
	}
	if a.status != 200 || a.fields["producer_seq"] != 1.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestACancelThatCannotBeRecordedYetIsAccepted(t *testing.T) {
	h := open(t)
	path := h.create()
	h.mem.Away(true)
	if a := h.do("POST", path+"/cancel", ""); a.status != 202 || a.fields["status"] != "running" {
		t.Errorf("%d %s", a.status, a.text)
	}
	h.mem.Away(false)
	var a answer
	for range 20 { // until the Recorder has asked again
		if a = h.do("POST", path+"/cancel", ""); a.status == 200 {
			break
		}
	}
	if a.status != 200 || a.fields["status"] != "cancelled" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestATruncatedRunSaysWhereItStarts(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"done"}`+"\n")
	h.mem.Truncate("run_1", 2)
	for _, accept := range []string{"text/event-stream", "application/json"} {
		a := h.do("GET", path+"/events", "", "Accept", accept)
		if a.status != 410 || a.fields["code"] != "run_truncated" || a.fields["first_seq"] != 3.0 {
			t.Errorf("%s: %d %s", accept, a.status, a.text)
		}
	}
}

func TestPagesAndStreamsVary(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"delta","content":"<b>"}`+"\n"+`{"type":"done"}`+"\n")
	a := h.do("GET", path+"/events?limit=2&after_seq=1", "", "Accept", "application/json")
	if a.status != 200 || a.header.Get("Vary") == "" || a.header.Get("Cache-Control") != "no-store" || !strings.Contains(a.text, "<b>") || a.fields["terminal"] != true {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
	for accept, page := range map[string]bool{
		"": false, "*/*": false, "text/event-stream": false, "application/json": true, "application/json;q=0.9, */*": false,
		"text/event-stream, application/json": false, "text/html, application/json": true,
	} {
		if wantsPage([]string{accept}) != page {
			t.Errorf("Accept %q: page %v", accept, !page)
		}
	}
}

func TestDrainingEndsStreamsAndPushes(t *testing.T) {
	h := open(t)
	path := h.create()
	response, err := h.client.Get(h.url + path + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	reader, writer := io.Pipe()
	pushed := make(chan answer, 1)
	go func() {
		request, err := http.NewRequest("POST", h.url+path+"/agent-events", reader)
		if err != nil {
			t.Error(err)
			return
		}
		request.Header.Set("Content-Type", ndjson)
		response, err := h.client.Do(request)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		var a answer
		a.status = response.StatusCode
		_ = json.NewDecoder(response.Body).Decode(&a.fields) // what is missing shows below
		pushed <- a
	}()
	if _, err := writer.Write([]byte(`{"type":"delta","content":"x","producer_seq":1}` + "\n")); err != nil {
		t.Fatal(err)
	}
	h.server.Drain(time.Second)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("the stream did not end at a frame: %v", err)
	}
	var wait int
	if _, err := fmt.Sscanf(string(text[bytes.LastIndex(text, []byte("retry: ")):]), "retry: %d\n", &wait); err != nil || wait < 4000 || wait > 8000 {
		t.Errorf("a browser would meet the proxy's 502: %q", text)
	}
	if a := <-pushed; a.status != 503 || a.fields["code"] != "stopping" {
		t.Errorf("push: %d %v", a.status, a.fields)
	}
	writer.Close()
	if a := h.do("GET", "/readyz", ""); a.status != 503 || a.fields["draining"] != true {
		t.Errorf("readyz: %d %s", a.status, a.text)
	}
}

// FuzzCursor: a cursor is a plain decimal number or refused.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"0", "7", "-1", "+1", " 1", "1.5", "0x1", "1_0", "9223372036854775807", "9223372036854775808", "٣", "007"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		seq, err := parseCursor(text)
		plain := text != "" && strings.Trim(text, "0123456789") == ""
		switch {
		case err == nil && !plain:
			t.Errorf("%q was taken for %d", text, seq)
		case err == nil && strconv.FormatUint(uint64(seq), 10) != strings.TrimLeft(text[:len(text)-1], "0")+text[len(text)-1:]:
			t.Errorf("%q became %d", text, seq)
		case err != nil && plain && len(text) < 19:
			t.Errorf("%q was refused", text)
		}
	})
}

func TestMetricsTellWhatHappened(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"state_change","state":"x"}`+"\n"+`{"type":"done"}`+"\n")
	h.do("GET", path+"/events", "")
	text := h.do("GET", "/metrics", "").text
	for _, want := range []string{
		"runfacts_runs_started_total 1\n", `runfacts_runs_ended_total{state="completed"} 1` + "\n",
		`runfacts_agent_events_total{type="state_change"} 1` + "\n", `runfacts_appends_total{outcome="stored"} 2` + "\n",
		"runfacts_conflicts_total 0\n", "runfacts_append_seconds_count 2\n", `runfacts_viewers{view="client"} 0` + "\n",
		"runfacts_frames_sent_total 4\n", "runfacts_commit_to_write_seconds_count 0\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "run_1") {
		t.Error("a run has become a label")
	}
}

func TestConfiguredAgents(t *testing.T) {
	h := open(t)
	a := h.do("GET", "/api/agents", "")
	if want := `{"agents":[{"agent_id":"echo","runtime":"test","agent_snapshot_checksum":"` + run.Checksum([]byte(`{"agent_id":"echo"}`)) + `"}]}`; strings.TrimSpace(a.text) != want {
		t.Errorf("%s", a.text)
	}
	path := "/api/agent-snapshots/" + run.Checksum([]byte(`{"agent_id":"echo"}`))
	if a := h.do("GET", path, ""); a.status != 404 || a.fields["code"] != "snapshot_not_found" {
		t.Errorf("before any run: %d %s", a.status, a.text)
	}
	a = h.do("POST", "/api/agent-runs", `{"run_id":"owned","agent_id":"echo","input":{"n":12345678901234567890}}`)
	if a.status != 201 || a.fields["runtime"] != "test" || a.header.Get("Location") != "/api/agent-runs/owned" {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if a := h.do("GET", path, ""); a.status != 200 || a.text != `{"agent_id":"echo"}` || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := h.do("POST", "/api/agent-runs", `{"run_id":"owned","agent_id":"echo","input":{"n":12345678901234567890}}`); a.status != 200 {
		t.Errorf("the same again: %d %s", a.status, a.text)
	}
	if a := h.push("/api/agent-runs/owned", `{"type":"delta","content":"mine"}`); a.status != 409 || a.fields["code"] != "run_not_pushed" {
		t.Errorf("a push into an owned run: %d %s", a.status, a.text)
	}
	for body, code := range map[string]string{
		`{"agent_id":"stranger"}`:                       "unknown_agent",
		`{"agent_id":"echo","runtime":"langgraph"}`:     "unknown_agent",
		`{"agent_id":"stranger","runtime":"langgraph"}`: "unknown_agent",
	} {
		if a := h.do("POST", "/api/agent-runs", body); a.status != 422 || a.fields["code"] != code {
			t.Errorf("%s: %d %s", body, a.status, a.text)
		}
	}
	h.do("POST", "/api/agent-runs", `{"run_id":"queued","agent_id":"echo"}`)
	if a := h.do("POST", "/api/agent-runs", `{"agent_id":"echo"}`); a.status != 503 || a.fields["code"] != "at_capacity" || a.header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d %s", a.status, a.text)
	}
	for _, c := range [][2]string{{"queued", "the runtime was never started"}, {"owned", "it said so"}} {
		id, proof := c[0], c[1]
		if a := h.do("POST", "/api/agent-runs/"+id+"/cancel", `{"reason":"enough"}`); a.status != 200 || a.fields["status"] != "cancelled" {
			t.Errorf("%s: %d %s", id, a.status, a.text)
		}
		if a := h.do("GET", "/api/agent-runs/"+id+"/events", "", "Accept", "application/json"); !strings.Contains(a.text, `"proof":"`+proof+`"`) {
			t.Errorf("%s: %s", id, a.text)
		}
	}
	if a := h.do("GET", "/api/agent-runs/owned/events", "", "Accept", "application/json"); !strings.Contains(a.text, `12345678901234567890}"`) {
		t.Errorf("the input did not arrive to the letter: %s", a.text)
	}
}

func TestArtifacts(t *testing.T) {
	h := open(t)
	run1 := h.create()
	page := func(path string) string {
		return h.do("GET", path+"/events", "", "Accept", "application/json").text
	}
	a := h.do("PUT", run1+"/artifacts/report.csv", "a,b\n1,2\n", "Content-Type", "text/csv")
	if a.status != 201 || a.fields["checksum"] != run.Checksum([]byte("a,b\n1,2\n")) || a.fields["size"] != 8.0 {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if want := `"payload":{"artifact_id":"artifact_1","name":"report.csv","media_type":"text/csv","size":8,"checksum":"` +
		run.Checksum([]byte("a,b\n1,2\n")) + `","url":"` + run1 + `/artifacts/artifact_1"}`; !strings.Contains(page(run1), want) {
		t.Errorf("%s lacks %s", page(run1), want)
	}
	a = h.do("GET", run1+"/artifacts/artifact_1", "")
	if a.status != 200 || a.text != "a,b\n1,2\n" || a.header.Get("Content-Type") != "text/csv" || a.header.Get("X-Content-Type-Options") != "nosniff" ||
		a.header.Get("Content-Disposition") != "inline; filename=report.csv" {
		t.Errorf("%d %q %v", a.status, a.text, a.header)
	}
	if a := h.do("GET", run1+"/artifacts/artifact_1", "", "Range", "bytes=4-6"); a.status != 206 || a.text != "1,2" || a.header.Get("Content-Range") != "bytes 4-6/8" {
		t.Errorf("a range: %d %q", a.status, a.text)
	}
	if a := h.do("GET", run1+"/artifacts/artifact_1", "", "If-None-Match", a.header.Get("ETag")); a.status != 304 {
		t.Errorf("known already: %d", a.status)
	}
	// A page that somebody brings is not one of ours.
	h.do("PUT", run1+"/artifacts/page.html", "<script>", "Content-Type", "text/html")
	if a := h.do("GET", run1+"/artifacts/artifact_2", ""); !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") || !strings.Contains(a.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%v", a.header)
	}
	h.push(run1, `{"type":"artifact","artifact":{"artifact_id":"elsewhere","name":"x","checksum":"sha256:`+strings.Repeat("0", 64)+`"}}`)
	for path, code := range map[string]string{"/artifacts/nobody": "artifact_not_found", "/artifacts/elsewhere": "artifact_not_stored"} {
		if a := h.do("GET", run1+path, ""); a.status != 404 || a.fields["code"] != code {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	if a := h.do("PUT", run1+"/artifacts/large", strings.Repeat("x", 100_001)); a.status != 413 || a.fields["code"] != "artifact_too_large" {
		t.Errorf("%d %s", a.status, a.text)
	}

	// Long values are kept whole, beside a preview.
	long := strings.Repeat("0123456789", 500)
	h.push(run1, `{"type":"tool_call","tool_name":"t","tool_call_id":"c","tool_args":{"text":"`+long+`"}}`+"\n"+
		`{"type":"tool_result","tool_name":"t","tool_call_id":"c","tool_result":"é`+long+`"}`+"\n"+`{"type":"done","answer":"`+long+`"}`)
	events := page(run1)
	for id, want := range map[string]string{"artifact_4": `{"text":"` + long + `"}`, "artifact_5": "é" + long, "artifact_6": long} {
		if a := h.do("GET", run1+"/artifacts/"+id, ""); a.text != want {
			t.Errorf("%s: %d %.100q", id, a.status, a.text)
		}
		full := fmt.Sprintf(`"truncated":true,"full":{"artifact_id":%q,"size":%d,"checksum":%q}`, id, len(want), run.Checksum([]byte(want)))
		if !strings.Contains(events, full) {
			t.Errorf("no event has %s", full)
		}
	}
	if !strings.Contains(events, `"result_checksum":"`+run.Checksum([]byte("é"+long))+`"`) || !strings.Contains(events, `"content_checksum":"`+run.Checksum([]byte(long))+`"`) {
		t.Error("the checksums are not of the whole")
	}
	if a := h.do("PUT", run1+"/artifacts/late", "x"); a.status != 409 || a.fields["code"] != "run_terminal" {
		t.Errorf("after the end: %d %s", a.status, a.text)
	}

	// What another run refers to stays when a run is erased.
	run2 := h.create()
	h.do("PUT", run2+"/artifacts/same", "a,b\n1,2\n")
	if a := h.do("DELETE", run1, ""); a.status != 202 {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if a := h.do("GET", run1+"/artifacts/artifact_1", ""); a.status != 410 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := h.do("GET", run2+"/artifacts/artifact_1", ""); a.text != "a,b\n1,2\n" {
		t.Errorf("%d %s", a.status, a.text)
	}
	h.push(run2, `{"type":"done"}`)
	h.do("DELETE", run2, "")
	for _, text := range []string{"a,b\n1,2\n", "<script>", long} {
		if r, err := h.server.config.Blobs.Open(t.Context(), run.Checksum([]byte(text))); err == nil {
			r.Close()
			t.Errorf("%.20q is still kept", text)
		}
	}
}

func TestAnswersFromOutside(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"tool_call","tool_name":"ask","tool_call_id":"q","external":true}`+"\n"+`{"type":"tool_call","tool_name":"own","tool_call_id":"own"}`)
	if a := h.do("GET", path, ""); a.fields["status"] != "waiting" {
		t.Errorf("%s", a.text)
	}
	for _, c := range []struct {
		body   string
		status int
		code   any
	}{
		{`{"tool_call_id":"own","result":1}`, 404, "tool_call_not_found"},
		{`{"tool_call_id":"nobody","result":1}`, 404, "tool_call_not_found"},
		{`{"tool_call_id":"q"}`, 422, "invalid_request"},
		{`{"result":1}`, 422, "invalid_request"},
		{`{"tool_call_id":"q","result":{"n": 12345678901234567890}}`, 200, nil},
		{`{"tool_call_id":"q","result":{"n":12345678901234567890}}`, 200, nil},
		{`{"tool_call_id":"q","result":{"n":12345678901234567890},"is_error":true}`, 409, "already_answered"},
		{`{"tool_call_id":"q","result":"other"}`, 409, "already_answered"},
	} {
		if a := h.do("POST", path+"/tool-results", c.body); a.status != c.status || a.fields["code"] != c.code {
			t.Errorf("%s: %d %s", c.body, a.status, a.text)
		}
	}
	if a := h.do("GET", path, ""); a.fields["status"] != "running" {
		t.Errorf("%s", a.text)
	}
	h.push(path, `{"type":"tool_result","tool_name":"ask","tool_call_id":"q","tool_result":"mine"}`+"\n"+`{"type":"done"}`)
	if a := h.do("GET", path+"/events", "", "Accept", "application/json"); strings.Count(a.text, "tool.call.completed") != 2 || !strings.Contains(a.text, `"result":{"n":12345678901234567890}`) {
		t.Errorf("%s", a.text)
	}
	if a := h.do("POST", path+"/tool-results", `{"tool_call_id":"q","result":{"n":12345678901234567890}}`); a.status != 200 {
		t.Errorf("the same after the end: %d %s", a.status, a.text)
	}
	if a := h.do("POST", "/api/agent-runs/nobody/tool-results", `{"tool_call_id":"q","result":1}`); a.status != 404 || a.fields["code"] != "run_not_found" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// Who answers a run that was taken over meanwhile is told to ask again.
func TestAFencedAnswerIsAConflict(t *testing.T) {
	if p := problemOf(&run.FencedError{Run: "r", Epoch: 2}); p.Status != http.StatusConflict || p.Code != "run_taken_over" {
		t.Errorf("%+v", p)
	}
}
