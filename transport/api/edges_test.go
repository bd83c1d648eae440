package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestHeadAnswersAsGetDoes(t *testing.T) {
	h := open(t)
	path := h.create()
	h.do("PUT", path+"/artifacts/a", "content", "Content-Type", "text/plain")
	live := h.create() // whose stream has no end
	for _, target := range []string{
		"/", "/api", "/healthz", "/readyz", "/metrics", "/api/agents", path, path + "/events", live + "/events", path + "/artifacts/artifact_1",
		"/api/agent-runs/nobody", "/nothing", path + "/events?after_seq=x",
	} {
		h.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		head := h.do("HEAD", target, "")
		request, err := http.NewRequest("GET", h.url+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := h.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close() // a stream's goes on
		if head.status != response.StatusCode || head.text != "" || head.header.Get("Content-Type") != response.Header.Get("Content-Type") {
			t.Errorf("%s: HEAD %d %q %s, GET %d %s", target, head.status, head.text, head.header.Get("Content-Type"), response.StatusCode, response.Header.Get("Content-Type"))
		}
	}
	for _, other := range []string{"/api/agent-runs", path + "/cancel", path + "/agent-events"} {
		if a := h.do("HEAD", other, ""); a.status != 405 {
			t.Errorf("%s: %d", other, a.status)
		}
	}
}

func TestAcceptCountsByItsWeights(t *testing.T) {
	for accept, page := range map[string]bool{
		"application/json;q=0, text/event-stream": false, "text/event-stream;q=0, application/json": true, "application/json, text/event-stream": false,
		"application/json;q=0.9, text/event-stream;q=0.1": true, "application/json;q=0.1, text/event-stream;q=0.9": false, "*/*": false, "": false,
		"*/*;q=0.1, application/json;q=0.2": true, "application/*": true, "application/*, text/*": false, "text/*;q=0.5, application/json": true,
		"application/json;q=0, */*": false, "text/event-stream;q=0, */*": true, "APPLICATION/JSON ; Q=1": true, "application/json;q=2": false,
		"application/json;q=x": false, "application/json;charset=utf-8;q=0.5, text/event-stream;q=0.4": true, "text/html": false, ",,": false, "application/json;q=": false,
	} {
		if got := wantsPage([]string{accept}); got != page {
			t.Errorf("%q: page %v", accept, got)
		}
	}
	if !wantsPage([]string{"text/event-stream;q=0.5", "application/json"}) {
		t.Error("two headers are one list")
	}
}

func TestWhatIsNotKnownIsNotDroppedInSilence(t *testing.T) {
	h := open(t)
	path := h.create()
	for _, c := range []struct{ target, body, field string }{
		{"/api/agent-runs", `{"agent_id":"a","runtime":"push","tags":["a"]}`, "tags"},
		{"/api/agent-runs", `{"agent_id":"a","runtime":"push","run-id":"x"}`, "run-id"},
		{"/api/agent-runs", `{"agent_id":"a","runtime":"push","metadata":null}`, "metadata"},
		{"/api/agent-runs", `{"Agent_ID":"a","runtime":"push"}`, "Agent_ID"},
		{"/api/agent-runs", `{"agent_id":"a","RUNTIME":"push"}`, "RUNTIME"},
		{"/api/agent-runs", `{"agent_id":"a","runtime":"push","":1}`, ""},
		{path + "/cancel", `{"why":"x"}`, "why"},
		{path + "/cancel", `{"Reason":"x"}`, "Reason"},
		{path + "/tool-results", `{"tool_call_id":"c","result":1,"error":true}`, "error"},
		{path + "/tool-results", `{"tool_call_id":"c","Result":1}`, "Result"},
	} {
		a := h.do("POST", c.target, c.body)
		if field, _ := a.fields["field"].(string); a.status != 422 || field != c.field || !strings.Contains(a.text, c.field) {
			t.Errorf("%s: %d %s", c.body, a.status, a.text)
		}
	}
	for _, body := range []string{`{"agent_id":"a"} x`, `{"agent_id":"a"`, `"`, ``, `nul`} {
		if a := h.do("POST", "/api/agent-runs", body, "Content-Type", "application/json"); a.status != 400 || a.fields["code"] != "invalid_json" {
			t.Errorf("%q: %d %s", body, a.status, a.text)
		}
	}
	for _, depth := range []int{300, 9_000, 20_000} { // encoding/json gives up at 10,000
		deep := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		for target, body := range map[string]string{
			"/api/agent-runs": `{"agent_id":"a","runtime":"push","input":` + deep + `}`, path + "/tool-results": `{"tool_call_id":"c","result":` + deep + `}`,
			path + "/agent-events": `[{"type":"tool_result","tool_name":"t","tool_call_id":"c","tool_result":` + deep + `}]`,
		} {
			if a := h.do("POST", target, body); a.status != 422 || !strings.Contains(a.text, "256 levels") {
				t.Errorf("%s, %d deep: %d %.200s", target, depth, a.status, a.text)
			}
		}
	}
	for _, body := range []string{`null`, `3`, `"x"`, `[]`} {
		if a := h.do("POST", "/api/agent-runs", body); a.status != 422 {
			t.Errorf("%q: %d %s", body, a.status, a.text)
		}
	}
}

func TestWhatACreateMaySay(t *testing.T) {
	h := open(t)
	all := `{"run_id":"one","agent_id":"Ägent 1","runtime":"push","thread_id":"t","input":{"a":1},"labels":{"env":"prod","release.x_y-1":"é"},"parent_run_id":"p1",` +
		`"retry_of":"p2","started_at":"2020-02-03T04:05:06.789+02:00","trace_id":"t1","span_id":"s1"}`
	a := h.do("POST", "/api/agent-runs", all)
	want := map[string]any{"run_id": "one", "agent_id": "Ägent 1", "parent_run_id": "p1", "retry_of": "p2", "started_at": "2020-02-03T02:05:06.789000Z", "thread_id": "t"}
	for range 2 {
		for k, v := range want {
			if a.fields[k] != v {
				t.Errorf("%s is %v: %s", k, a.fields[k], a.text)
			}
		}
		if l, _ := a.fields["labels"].(map[string]any); len(l) != 2 || l["env"] != "prod" || l["release.x_y-1"] != "é" {
			t.Errorf("%s", a.text)
		}
		a = h.do("GET", "/api/agent-runs/one", "")
	}
	if e := h.mem.Events("one")[0]; e.TraceID != "t1" || e.SpanID != "s1" {
		t.Errorf("%+v", e)
	}
	trace, span := strings.Repeat("ab", 16), strings.Repeat("cd", 8)
	for header, known := range map[string]bool{
		"00-" + trace + "-" + span + "-01": true, "cc-" + trace + "-" + span + "-01-more": true,
		"00-" + trace + "-" + span + "-01-more": false, "ff-" + trace + "-" + span + "-01": false, "00-" + strings.Repeat("0", 32) + "-" + span + "-01": false,
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01": false, "00-" + strings.ToUpper(trace) + "-" + span + "-01": false, "x": false,
	} {
		a := h.do("POST", "/api/agent-runs", `{"agent_id":"a","runtime":"push"}`, "traceparent", header)
		got := h.do("GET", "/api/agent-runs/"+a.fields["run_id"].(string)+"/events?view=full", "", "Accept", "application/json").text
		if strings.Contains(got, trace) != known || strings.Contains(got, span) != known {
			t.Errorf("%s: %s", header, got)
		}
	}
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprintf(`"l%d":"x"`, i)
	}
	deep := strings.Repeat("[", 256) + strings.Repeat("]", 256)
	for member, field := range map[string]string{
		`"labels":{"Env":"x"}`: "labels", `"labels":{"":"x"}`: "labels", `"labels":{"a":1}`: "labels", `"labels":[]`: "labels", `"labels":{"a b":"x"}`: "labels",
		`"labels":{"a":"` + strings.Repeat("x", 257) + `"}`: "labels", `"labels":{` + strings.Join(many, ",") + `}`: "labels", `"labels":{"` + strings.Repeat("k", 65) + `":""}`: "labels",
		`"parent_run_id":"a b"`: "parent_run_id", `"retry_of":"-x"`: "retry_of", `"retry_of":""`: "retry_of", `"run_id":""`: "run_id",
		`"started_at":"yesterday"`: "started_at", `"started_at":"9999-12-31T23:59:59-01:00"`: "started_at", `"started_at":"0000-01-01T00:00:00Z"`: "started_at", `"started_at":5`: "started_at",
		`"trace_id":"` + strings.Repeat("x", 129) + `"`: "trace_id", `"thread_id":"` + strings.Repeat("x", 257) + `"`: "thread_id", `"input":` + deep: "input",
	} {
		if a := h.do("POST", "/api/agent-runs", `{"agent_id":"a","runtime":"push",`+member+`}`); a.status != 422 || a.fields["code"] != "invalid_request" || !strings.HasPrefix(fmt.Sprint(a.fields["field"]), field) {
			t.Errorf("%.60s: %d %s", member, a.status, a.text)
		}
	}
	for _, id := range []string{"", " ", "\\t", "a\\u0000b", "\\u0000", "a/b", ".", "..", "a\\nb", "\\u007f", "\\u00a0"} {
		if a := h.do("POST", "/api/agent-runs", `{"agent_id":"`+id+`","runtime":"push"}`); a.status != 422 || a.fields["field"] != "agent_id" {
			t.Errorf("agent_id %q: %d %s", id, a.status, a.text)
		}
	}
}

// A long input is kept whole beside its beginning; no line gets long by it, and a
// runtime gets the whole.
func TestALongInputIsKeptBeside(t *testing.T) {
	h := open(t)
	input := `{"text":"` + strings.Repeat("0123456789", 6_000) + `"}`
	a := h.do("POST", "/api/agent-runs", `{"run_id":"long","agent_id":"echo","input":`+input+`}`)
	if a.status != 201 {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if a := h.do("POST", "/api/agent-runs", `{"run_id":"long","agent_id":"echo","input":`+input+`}`); a.status != 200 {
		t.Errorf("the same again: %d %s", a.status, a.text)
	}
	if a := h.do("GET", "/api/agent-runs/long/artifacts/artifact_1", ""); a.text != input {
		t.Errorf("%d %.60s", a.status, a.text)
	}
	first := h.do("GET", "/api/agent-runs/long/events?limit=1", "", "Accept", "application/json").text
	if len(first) > 8<<10 || !strings.Contains(first, `"truncated":true,"full":{"artifact_id":"artifact_1"`) {
		t.Errorf("%d bytes: %.300s", len(first), first)
	}
	h.do("POST", "/api/agent-runs/long/cancel", "") // stops the runtime, which has said what it was told
	text := h.do("GET", "/api/agent-runs/long/events?limit=1000", "", "Accept", "application/json").text
	if n := strings.Count(text, "0123456789"); n < 6_000 {
		t.Errorf("the runtime was told %d of 6000", n)
	}
}

func TestNamesInPathsAreDecodedOnce(t *testing.T) {
	h := open(t)
	path := h.create()
	for i, name := range []string{"Report (1).pdf", "100%.txt", "100%25.txt", "a b+c&d=e;f", "é/ü.txt", "日本.csv", "a%2Fb", "?x#y", "~!*'()"} {
		escaped := strings.NewReplacer("+", "%20", "%28", "(", "%29", ")", "%21", "!", "%27", "'", "%2A", "*", "%7E", "~").Replace(url.QueryEscape(name)) // as encodeURIComponent does
		for _, text := range []string{escaped, url.PathEscape(name)} {
			if a := h.do("PUT", path+"/artifacts/"+text, "x", "Content-Type", "text/plain"); a.status != 201 || a.fields["name"] != name {
				t.Errorf("%d %s as %s: %d %s", i, name, text, a.status, a.text)
			}
		}
	}
	for _, wrong := range []string{"%00", "a%0Ab", "%ff", strings.Repeat("x", 129), "%7F", "a%C2%85b"} {
		if a := h.do("PUT", path+"/artifacts/"+wrong, "x"); a.status != 422 {
			t.Errorf("%s: %d %s", wrong, a.status, a.text)
		}
	}
	h.push(path, `{"type":"artifact","artifact":{"artifact_id":"a b/c%","name":"x","checksum":"sha256:`+strings.Repeat("0", 64)+`"}}`)
	if a := h.do("GET", path+"/artifacts/a%20b%2Fc%25", ""); a.fields["code"] != "artifact_not_stored" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestTwoLivesOfOneProducer(t *testing.T) {
	h := open(t)
	path := h.create()
	push := func(epoch string, seq int) answer {
		return h.do("POST", path+"/agent-events?producer=p&epoch="+epoch, fmt.Sprintf(`{"type":"delta","content":"x","producer_seq":%d}`, seq), "Content-Type", ndjson)
	}
	push("1", 1)
	if a := push("2", 1); a.status != 200 || a.fields["accepted"] != 1.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := push("1", 2); a.status != 409 || a.fields["code"] != "producer_fenced" || a.fields["epoch"] != 2.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
	for _, wrong := range []string{"x", "-1", "%2B1", "1.5", "9007199254740992", ""} {
		if a := push(wrong, 2); a.status != 422 || a.fields["field"] != "epoch" {
			t.Errorf("epoch %q: %d %s", wrong, a.status, a.text)
		}
	}
}

func TestTheStartLeadsSomewhere(t *testing.T) {
	h := open(t)
	a := h.do("GET", "/", "")
	if a.status != 200 || a.fields["name"] != "Runfacts" || !strings.Contains(a.text, "/api/agent-runs/{run_id}/events") {
		t.Errorf("%d %s", a.status, a.text)
	}
	for _, r := range h.server.routes() {
		if strings.HasPrefix(r.path, "/api/") && !strings.Contains(a.text, r.meaning) {
			t.Errorf("the index lacks %s", r.path)
		}
	}
}

func TestARunMayHaveSoManyOpenCalls(t *testing.T) {
	h := open(t)
	path := h.create()
	var calls strings.Builder
	for i := range 600 {
		fmt.Fprintf(&calls, `{"type":"tool_call","tool_name":"t","tool_call_id":"c%d"}`+"\n", i)
	}
	last := h.push(path, calls.String())
	if last.status != 409 || last.fields["code"] != "too_many_calls" || last.fields["open_calls"] == nil {
		t.Errorf("%d %s", last.status, last.text)
	}
	if a := h.push(path, `{"type":"delta","content":"small"}`+"\n"+`{"type":"done"}`); a.status != 200 {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// slow is a ResponseWriter that knows its deadlines.
type slow struct {
	*httptest.ResponseRecorder
	deadlines int
	largest   int
	full      bool
}

func (s *slow) SetWriteDeadline(t time.Time) error {
	if left := time.Until(t); left < writeTime/2 || left > writeTime {
		return errors.New("no deadline that helps")
	}
	s.deadlines++
	return nil
}

func (s *slow) Write(b []byte) (int, error) {
	if s.full {
		return 0, io.ErrShortWrite
	}
	s.largest = max(s.largest, len(b))
	return s.ResponseRecorder.Write(b)
}

// A frame of a megabyte passes a line that takes half a minute for each part of it:
// the time counts per step, never for a whole batch.
func TestEachStepOfAResponseHasItsOwnDeadline(t *testing.T) {
	to := &slow{ResponseRecorder: httptest.NewRecorder()}
	w := &steady{to, http.NewResponseController(to)}
	large := bytes.Repeat([]byte("0123456789"), 100_000)
	n, err := w.Write(large)
	if n != len(large) || err != nil || !bytes.Equal(to.Body.Bytes(), large) {
		t.Errorf("%d, %v", n, err)
	}
	if steps := (len(large) + writeStep - 1) / writeStep; to.deadlines != steps || to.largest > writeStep {
		t.Errorf("%d deadlines for %d steps, of up to %d bytes", to.deadlines, steps, to.largest)
	}
	if err := http.NewResponseController(w).Flush(); err != nil || !to.Flushed {
		t.Errorf("%v", err)
	}
	to.full = true
	if n, err := w.Write(large); n != 0 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestAStreamBeginsWithoutAnEmptyBlock(t *testing.T) {
	h := open(t, func(s *Server) { s.config.KeepAlive = 10 * time.Millisecond })
	path := h.create()
	response, err := h.client.Get(h.url + path + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var text []byte
	for part := make([]byte, 1024); bytes.Count(text, []byte(": keep-alive\n")) < 3; {
		n, err := response.Body.Read(part)
		if text = append(text, part[:n]...); err != nil {
			t.Fatal(err)
		}
	}
	head, rest, ok := bytes.Cut(text, []byte("\n\n"))
	var wait int
	if _, err := fmt.Sscanf(string(head), "retry: %d\n: open\nid: 1\nevent: run.started\ndata: {", &wait); err != nil || !ok || wait < 1000 || wait > 2000 {
		t.Errorf("%v: %q", err, head)
	}
	if string(bytes.ReplaceAll(rest, []byte(": keep-alive\n"), nil)) != "" {
		t.Errorf("%q", rest)
	}
}
