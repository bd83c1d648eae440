package api

import (
	"net/http"
	"strings"
	"testing"
)

// as sends a request as if it were for host.
func (h *house) as(host, method, path, body string, headers ...string) answer {
	h.t.Helper()
	request, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	request.Host = host
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return h.send(request)
}

func TestOnlyNamesOfThisMachineAreAnsweredOnLoopback(t *testing.T) {
	h := open(t, func(s *Server) { s.config.PublicOrigin = "https://runs.example" })
	g, err := newGuard(Config{PublicOrigin: "https://runs.example"})
	if err != nil {
		t.Fatal(err)
	}
	for host, known := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8080": true, "127.9.9.9": true, "[::1]": true, "[::1]:8080": true, "::1": true, "[::ffff:127.0.0.1]": true,
		"localhost": true, "LocalHost:1": true, "localhost.:1": true, "app.localhost": true, "runfacts:8080": true, "": true,
		"runs.example": true, "RUNS.example:443": true, "runs.example.": true,
		"evil.example": false, "evil.example:8080": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "xlocalhost.example": false,
		"10.0.0.1": false, "0.0.0.0": false, "[fe80::1]": false, "169.254.169.254:80": false, "127.0.0.1.": true, "a:b:c": false, "evilruns.example": false,
	} {
		if got := g.knows(host); got != known {
			t.Errorf("%q: %v", host, got)
		}
	}
	open := guard{anyHost: true}
	if !open.knows("evil.example") {
		t.Error("a server for everybody does not answer everybody")
	}
	for _, path := range []string{"/", "/api", "/healthz", "/api/agents", "/api/agent-runs/x", "/nothing"} {
		if a := h.as("evil.example", "GET", path, ""); a.status != 421 || a.fields["code"] != "misdirected" {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
}

func TestPagesOfStrangersCannotWrite(t *testing.T) {
	h := open(t)
	path := h.create()
	create := `{"agent_id":"a","runtime":"push","run_id":"driveby"}`
	own := strings.TrimPrefix(h.url, "http://")
	writes := [][3]string{
		{"POST", "/api/agent-runs", create}, {"POST", path + "/agent-events", `{"type":"done"}`}, {"POST", path + "/cancel", ""},
		{"POST", path + "/tool-results", `{"tool_call_id":"c","result":1}`}, {"PUT", path + "/artifacts/x", "x"}, {"DELETE", path, ""},
	}
	for _, w := range writes {
		for _, headers := range [][]string{
			{"Origin", "https://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Origin", "https://page.example"}, {"Origin", "http://" + own + ".evil.example"}, {"Origin", "https://console.example.evil.example"},
		} {
			a := h.as(own, w[0], w[1], w[2], append(headers, "Content-Type", "application/json")...)
			if a.status != 403 || a.fields["code"] != "foreign_origin" {
				t.Errorf("%s %s %v: %d %s", w[0], w[1], headers, a.status, a.text)
			}
		}
	}
	// What a page can send without asking its browser.
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json; charset=utf-16", "nonsense"} {
		for _, w := range writes[:4] {
			body := w[2]
			if body == "" {
				body = "{}"
			}
			if a := h.as(own, w[0], w[1], body, "Content-Type", kind); a.status != 415 || a.fields["code"] != "unsupported_media_type" {
				t.Errorf("%s %s as %q: %d %s", w[0], w[1], kind, a.status, a.text)
			}
		}
	}
	if a := h.do("GET", "/api/agent-runs/driveby", ""); a.status != 404 {
		t.Errorf("it was started: %s", a.text)
	}
	for _, headers := range [][]string{
		{"Origin", "http://" + own}, {"Origin", "http://" + own, "Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"},
		{"Origin", "https://console.example", "Sec-Fetch-Site", "cross-site"}, {},
	} {
		if a := h.as(own, "POST", "/api/agent-runs", create, append(headers, "Content-Type", "application/json; charset=UTF-8")...); a.status != 200 && a.status != 201 {
			t.Errorf("%v: %d %s", headers, a.status, a.text)
		}
	}
	if a := h.do("POST", path+"/cancel", ""); a.status != 200 {
		t.Errorf("without a body there is no type to tell: %d %s", a.status, a.text)
	}
}

func TestReadersMayReadAndWritersMayWrite(t *testing.T) {
	h := open(t)
	path := h.create()
	preflight := func(origin, method string) string {
		a := h.do("OPTIONS", path+"/cancel", "", "Origin", origin, "Access-Control-Request-Method", method, "Access-Control-Request-Headers", "content-type")
		if a.header.Get("Access-Control-Allow-Origin") != origin {
			return ""
		}
		return a.header.Get("Access-Control-Allow-Methods")
	}
	if got := preflight("https://page.example", "POST"); got != "GET,HEAD" {
		t.Errorf("a reader may %s", got)
	}
	if got := preflight("https://console.example", "POST"); !strings.Contains(got, "POST") || !strings.Contains(got, "DELETE") || !strings.Contains(got, "GET") {
		t.Errorf("a writer may %s", got)
	}
	if got := preflight("https://evil.example", "GET"); got != "" {
		t.Errorf("a stranger may %s", got)
	}
	// A page that is kept for one origin must not be shown to another.
	for _, origin := range []string{"", "https://page.example", "https://console.example", "https://evil.example"} {
		if a := h.do("GET", path, "", "Origin", origin); !strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Origin") {
			t.Errorf("%q: Vary is %q", origin, a.header.Values("Vary"))
		}
	}
}

func TestAnOriginIsASchemeAndAHost(t *testing.T) {
	for text, want := range map[string]string{
		"https://page.example": "https://page.example", "http://localhost:5173": "http://localhost:5173", "HTTPS://Page.Example:443": "https://page.example",
		"http://h:80": "http://h", "http://[::1]:3000": "http://[::1]:3000",
		"page.example": "", "https://": "", "https://page.example/": "", "https://page.example/x": "", "https://page.example?x": "", "https://page.example#x": "",
		"https://u:p@page.example": "", "*": "", "https://*.example": "", "null": "", "": "", "ftp://x": "", "//x": "", "https://a b": "", "https://bücher.example": "", "https://xn--bcher-kva.example": "https://xn--bcher-kva.example",
	} {
		got, err := ParseOrigin(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestAQueryThatCannotBeParsedIsRefused(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"delta","content":"x"}`)
	for _, query := range []string{"after_seq=2;x=1", "after_seq=2%zz", "limit=1;after_seq=2", "view=full&%", "%"} {
		for _, call := range [][2]string{{"GET", path + "/events"}, {"GET", path}, {"POST", path + "/agent-events"}, {"GET", "/api/agents"}} {
			a := h.do(call[0], call[1]+"?"+query, "", "Accept", "application/json", "Content-Type", ndjson)
			if a.status != 400 || a.fields["code"] != "invalid_query" {
				t.Errorf("%s %s?%s: %d %s", call[0], call[1], query, a.status, a.text)
			}
		}
	}
}

func TestCursorsFromEverywhere(t *testing.T) {
	h := open(t)
	path := h.create()
	h.push(path, `{"type":"delta","content":"x"}`+"\n"+`{"type":"done"}`) // ends at seq 5
	for query, want := range map[string]int{
		"?lastEventId=5": 204, "?lastEventId=": 200, "?lastEventId=5&after_seq=2": 204, "?after_seq=2&after_seq=5": 204, "?lastEventId=6": 422, "?lastEventId=x": 422,
	} {
		if a := h.do("GET", path+"/events"+query, ""); a.status != want {
			t.Errorf("%s: %d %s", query, a.status, a.text)
		}
	}
	if a := h.do("GET", path+"/events?lastEventId=2", "", "Last-Event-ID", "5"); a.status != 204 {
		t.Errorf("the larger one wins: %d", a.status)
	}
}
