package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
)

// dial opens a connection on which a test writes what it likes.
func (h *house) dial() net.Conn {
	h.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// reply reads the one answer on a connection.
func (h *house) reply(c net.Conn) answer {
	h.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		h.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	a := answer{status: response.StatusCode, header: response.Header, text: string(text)}
	_ = json.Unmarshal(text, &a.fields)
	return a
}

func begin(c net.Conn, t *testing.T, method, path, kind, part string) {
	t.Helper()
	_, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nX-Part: %d\r\nTransfer-Encoding: chunked\r\n\r\n", method, path, kind, len(part))
	if err == nil && part != "" {
		_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(part), part)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bodied are the calls that read a body, and the beginning of one.
func bodied(path string) [][4]string {
	return [][4]string{
		{"POST", path + "/agent-events", ndjson, `{"type":"delta","content":"half of a li`},
		{"POST", path + "/agent-events", ndjson, ""},
		{"POST", path + "/agent-events", "application/json", `[{"type":"delta"`},
		{"POST", "/api/agent-runs", "application/json", `{"agent_id":"a"`},
		{"POST", path + "/cancel", "application/json", `{"reason`},
		{"POST", path + "/tool-results", "application/json", `{"tool_call_id`},
		{"PUT", path + "/artifacts/x", "text/plain", `half`},
	}
}

// What a read error leaves behind is no line and no document, whoever's fault it is.
func TestABodyThatIsCutIsNotTakenForWhole(t *testing.T) {
	h := open(t)
	path := h.create()
	for _, b := range bodied(path) {
		c := h.dial()
		begin(c, t, b[0], b[1], b[2], b[3])
		if err := c.(*net.TCPConn).CloseWrite(); err != nil { // in the middle of a chunked body
			t.Fatal(err)
		}
		if a := h.reply(c); a.status != 400 || a.fields["code"] != "body_unreadable" {
			t.Errorf("%s %s %q: %d %s", b[0], b[1], b[3], a.status, a.text)
		}
	}
	if a := h.do("GET", path, ""); a.fields["last_seq"] != 1.0 {
		t.Errorf("something of it was taken: %s", a.text)
	}
}

// watched is a body that tells when somebody waits for more of it than X-Part.
type watched struct {
	io.ReadCloser
	left    int
	waiting chan<- struct{}
}

func (w *watched) Read(b []byte) (int, error) {
	if w.left == 0 {
		w.left--
		w.waiting <- struct{}{}
	}
	n, err := w.ReadCloser.Read(b)
	w.left -= n
	return n, err
}

func TestADrainInTheMiddleOfABodySaysStopping(t *testing.T) {
	waiting := make(chan struct{})
	h := open(t, func(s *Server) {
		s.echo.Pre(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				r := c.Request()
				if n, err := strconv.Atoi(r.Header.Get("X-Part")); err == nil {
					r.Body = &watched{r.Body, n, waiting}
				}
				return next(c)
			}
		})
	})
	path := h.create()
	var all []net.Conn
	for _, b := range bodied(path) {
		c := h.dial()
		begin(c, t, b[0], b[1], b[2], b[3])
		all = append(all, c)
		<-waiting
	}
	h.server.Drain(time.Second)
	for i, b := range bodied(path) {
		if a := h.reply(all[i]); a.status != 503 || a.fields["code"] != "stopping" || a.header.Get("Retry-After") == "" {
			t.Errorf("%s %s %q: %d %s", b[0], b[1], b[3], a.status, a.text)
		}
	}
}

// Bodies that never come are cut: each would hold a connection for ever.
func TestABodyThatNeverComesIsCut(t *testing.T) {
	short := pace{idle: 50 * time.Millisecond, whole: 50 * time.Millisecond}
	h := open(t, func(s *Server) { s.paces, s.config.PushIdle = paces{short, short}, 50*time.Millisecond })
	path := h.create()
	for _, b := range bodied(path) {
		c := h.dial()
		begin(c, t, b[0], b[1], b[2], b[3])
		if a := h.reply(c); a.status != 408 || a.fields["code"] != "body_timeout" {
			t.Errorf("%s %s %q: %d %s", b[0], b[1], b[3], a.status, a.text)
		}
	}
	// Also where nobody reads it.
	for _, call := range []string{"GET " + path, "DELETE " + path, "GET /nothing", "POST /api/agents"} {
		c := h.dial()
		if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", call); err != nil {
			t.Fatal(err)
		}
		if a := h.reply(c); a.status == 0 {
			t.Errorf("%s: %s", call, a.text)
		}
	}
}

// A push that says something now and then is not cut, however long it lasts, and
// the bound of a request's reading is not that of a stream's lifetime.
func TestWhatComesSlowlyIsWaitedFor(t *testing.T) {
	for what, c := range map[string]struct {
		p              pace
		read           int64
		sinceStart     time.Duration
		left, leftMost time.Duration
	}{
		"a small one":             {usual.small, 0, 10 * time.Second, 20 * time.Second, 20 * time.Second},
		"a small one, late":       {usual.small, 1 << 20, 40 * time.Second, -10 * time.Second, -10 * time.Second},
		"an upload, at once":      {usual.upload, 0, 0, 30 * time.Second, 30 * time.Second},
		"an upload that goes on":  {usual.upload, 1 << 20, 100 * time.Second, 30 * time.Second, 30 * time.Second},
		"an upload that drips":    {usual.upload, 100, 31 * time.Second, -time.Second, -time.Second},
		"a push, after a day":     {pace{idle: time.Minute}, 10, 24 * time.Hour, time.Minute, time.Minute},
		"a pace without a bound ": {pace{}, 0, time.Hour, -1 << 62, 1 << 62},
	} {
		began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := began.Add(c.sinceStart)
		until := c.p.until(began, now, c.read)
		if left := until.Sub(now); !until.IsZero() && (left < c.left || left > c.leftMost) {
			t.Errorf("%s: %s left", what, left)
		}
	}
	// The bound of a body is not one of the work that is done once it is there.
	h := open(t, func(s *Server) {
		s.paces.small = pace{whole: 50 * time.Millisecond}
		s.echo.POST("/work", func(c echo.Context) error {
			if _, err := io.ReadAll(c.Request().Body); err != nil {
				return err
			}
			over := time.NewTimer(150 * time.Millisecond)
			defer over.Stop()
			select {
			case <-over.C:
				return c.NoContent(http.StatusNoContent)
			case <-c.Request().Context().Done():
				return c.Request().Context().Err()
			}
		})
	})
	if a := h.do("POST", "/work", "{}"); a.status != http.StatusNoContent {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// Who asks before it sends is told at once, and sends nothing.
func TestARefusalCostsNoUpload(t *testing.T) {
	h := open(t)
	c := h.dial()
	if _, err := fmt.Fprint(c, "PUT /api/agent-runs/nobody/artifacts/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if a := h.reply(c); a.status != 404 || a.fields["code"] != "run_not_found" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func pack(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGzipBodies(t *testing.T) {
	h := open(t)
	path := h.create()
	line := `{"type":"delta","content":"zipped"}` + "\n"
	gz := func(method, path, kind, body string) answer {
		return h.do(method, path, body, "Content-Type", kind, "Content-Encoding", "gzip")
	}
	if a := gz("POST", path+"/agent-events", ndjson, pack(t, line)+pack(t, line)); a.status != 200 || a.fields["accepted"] != 2.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := gz("POST", path+"/agent-events", "application/json", pack(t, "["+line+"]")); a.status != 200 || a.fields["accepted"] != 1.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := gz("POST", "/api/agent-runs", "application/json", pack(t, `{"agent_id":"a","runtime":"push"}`)); a.status != 201 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := gz("PUT", path+"/artifacts/r.json", "application/json", pack(t, `{"a":1}`)); a.status != 201 || a.fields["size"] != 7.0 {
		t.Errorf("%d %s", a.status, a.text)
	}
	whole := pack(t, line)
	for what, c := range map[string]struct {
		body string
		code string
	}{
		"cut":         {whole[:len(whole)-3], "body_unreadable"},
		"not gzip":    {line, "body_unreadable"},
		"empty":       {"", ""},
		"wrong sum":   {whole[:len(whole)-8] + "xxxxxxxx", "body_unreadable"},
		"a long line": {pack(t, `{"type":"delta","content":"`+strings.Repeat("x", maxLine)), "event_too_large"},
	} {
		if a := gz("POST", path+"/agent-events", ndjson, c.body); c.code != "" && a.fields["code"] != c.code {
			t.Errorf("%s: %d %s", what, a.status, a.text)
		}
	}
	if a := gz("POST", "/api/agent-runs", "application/json", pack(t, strings.Repeat(" ", maxBody+1))); a.status != 413 {
		t.Errorf("a small body that becomes a large one: %d %s", a.status, a.text)
	}
	if a := gz("PUT", path+"/artifacts/bomb", "text/plain", pack(t, strings.Repeat(" ", 1<<20))); a.status != 413 {
		t.Errorf("an artifact likewise: %d %s", a.status, a.text)
	}
	for _, encoding := range []string{"br", "deflate", "zstd", "gzip, gzip", "gzip, br"} {
		if a := h.do("POST", path+"/agent-events", line, "Content-Type", ndjson, "Content-Encoding", encoding); a.status != 415 || a.fields["code"] != "unsupported_encoding" || a.header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("%s: %d %s", encoding, a.status, a.text)
		}
	}
}
