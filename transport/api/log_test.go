package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/tail"
)

// journal keeps log lines and hands them out as they come.
type journal struct {
	t     *testing.T
	mu    sync.Mutex
	text  bytes.Buffer
	lines chan map[string]any
}

// logged makes a Server log into a journal.
func logged(t *testing.T) (*journal, func(*Server)) {
	j := &journal{t: t, lines: make(chan map[string]any, 1000)}
	return j, func(s *Server) { s.config.Log = zerolog.New(j) }
}

func (j *journal) Write(b []byte) (int, error) {
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		j.t.Errorf("a line that is no JSON: %s", b)
	}
	j.mu.Lock()
	j.text.Write(b)
	j.mu.Unlock()
	j.lines <- fields
	return len(b), nil
}

// next waits for a line with this message.
func (j *journal) next(message string) map[string]any {
	j.t.Helper()
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	for {
		select {
		case fields := <-j.lines:
			if fields["message"] == message {
				return fields
			}
		case <-timer.C:
			j.t.Fatalf("no line says %q", message)
		}
	}
}

func TestEachRequestHasALine(t *testing.T) {
	log, to := logged(t)
	h := open(t, to)
	a := h.do("POST", "/api/agent-runs?secret=hunter2", `{"agent_id":"a","runtime":"push","run_id":"r"}`, "X-Request-Id", "mine-1")
	if a.header.Get("X-Request-Id") != "mine-1" {
		t.Errorf("%v", a.header)
	}
	if got := log.next("run started"); got["run_id"] != "r" || got["request_id"] != "mine-1" || got["level"] != "info" || got["agent_id"] != "a" || got["runtime"] != "push" {
		t.Errorf("%v", got)
	}
	if got := log.next("request"); got["request_id"] != "mine-1" || got["status"] != 201.0 || got["method"] != "POST" || got["path"] != "/api/agent-runs" ||
		got["level"] != "info" || got["took_ms"] == nil || got["remote"] != "127.0.0.1" || got["bytes"].(float64) < 10 {
		t.Errorf("%v", got)
	}
	a = h.do("GET", "/api/agent-runs/nobody?ticket=hunter2", "", "X-Request-Id", "a b\"c")
	id := a.header.Get("X-Request-Id")
	if got := log.next("request"); id == "" || strings.Contains(id, " ") || got["request_id"] != id || a.fields["request_id"] != id || got["code"] != "run_not_found" || got["status"] != 404.0 || got["run_id"] != "nobody" {
		t.Errorf("%v %s", got, a.text)
	}
	if a := h.do("GET", "/healthz", "", "X-Request-Id", strings.Repeat("x", 129)); len(a.header.Get("X-Request-Id")) > 100 {
		t.Errorf("%v", a.header)
	}
	if got := log.next("request"); got["level"] != "debug" {
		t.Errorf("a probe is news: %v", got)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if strings.Contains(log.text.String(), "hunter2") {
		t.Errorf("a query stands in the log: %s", log.text.String())
	}
	if e := h.mem.Events("r"); e[0].RequestID != "mine-1" {
		t.Errorf("the fact does not know its request: %+v", e[0])
	}
}

func TestAPanicIsLoggedAsAllElseIs(t *testing.T) {
	log, to := logged(t)
	h := open(t, to, func(s *Server) {
		s.echo.GET("/panic", func(echo.Context) error { panic("oh") })
		s.echo.GET("/abort", func(echo.Context) error { abort(); return nil })
	})
	if a := h.do("GET", "/panic", ""); a.status != 500 || a.fields["code"] != "internal" || strings.Contains(a.text, "oh") {
		t.Errorf("%d %s", a.status, a.text)
	}
	if got := log.next("handler panicked"); got["level"] != "error" || got["error"] != "oh" || !strings.Contains(got["stack"].(string), "log_test.go") || got["request_id"] == nil {
		t.Errorf("%v", got)
	}
	log.next("request")
	if response, err := h.client.Get(h.url + "/abort"); err == nil {
		response.Body.Close()
		t.Error("the connection was not cut")
	}
	if got := log.next("request"); got["aborted"] != true {
		t.Errorf("%v", got)
	}
}

// breaking is a ledger whose subscriptions break.
type breaking struct {
	tail.Source
	why error
}

func (b breaking) Follow(context.Context, run.ID, run.Seq, func(run.Event) error) error { return b.why }

// What ends a stream in its middle is told as what it is: damage is not a viewer
// that went away.
func TestAStreamThatBreaksOffSaysWhy(t *testing.T) {
	for _, c := range []struct {
		why         error
		level, code string
	}{
		{&ledger.CorruptError{Run: "run_1", Seq: 2, Err: errors.New("damage")}, "error", "run_corrupt"},
		{errors.New("event 7 does not follow event 3"), "error", "internal"},
		{&ledger.TruncatedError{Run: "run_1", First: 3}, "info", "run_truncated"},
		{ledger.ErrErased, "info", "run_erased"},
	} {
		log, to := logged(t)
		ctx, cancel := context.WithCancel(context.Background())
		var tails *tail.Tails
		h := open(t, to, func(s *Server) {
			tails = tail.New(breaking{s.config.Reader.(tail.Source), c.why}, AppendFrame)
			s.config.Tails = tails
		})
		done := make(chan error)
		go func() { done <- tails.Run(ctx) }()
		path := h.create()
		response, err := h.client.Get(h.url + path + "/events")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		// It may show before the headers are sent; then it is a problem.
		if response.StatusCode == http.StatusOK {
			if got := log.next("stream broken off"); got["level"] != c.level || got["code"] != c.code || got["error"] != c.why.Error() || got["run_id"] != "run_1" || got["request_id"] == nil {
				t.Errorf("%v: %v", c.why, got)
			}
		}
		if got := log.next("request"); got["status"] != 201.0 && got["code"] != c.code {
			t.Errorf("%v: %v %s", c.why, got, text)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestAnUploadThatIsAbortedIsTheClients(t *testing.T) {
	log, to := logged(t)
	h := open(t, to)
	path := h.create()
	c := h.dial()
	begin(c, t, "PUT", path+"/artifacts/x", "text/plain", "half")
	c.Close()
	log.next("request") // the create's
	if got := log.next("request refused"); got["level"] != "debug" || got["status"] != 400.0 {
		t.Errorf("%v", got)
	}
	if got := log.next("request"); got["code"] != "body_unreadable" {
		t.Errorf("%v", got)
	}
}

func TestAStoreThatIsAwayIsNotToldByEachRequest(t *testing.T) {
	log, to := logged(t)
	h := open(t, to)
	path := h.create()
	h.mem.Away(true)
	defer h.mem.Away(false)
	if a := h.do("GET", path, ""); a.status != 503 {
		t.Errorf("%d %s", a.status, a.text)
	}
	if got := log.next("request refused"); got["level"] != "debug" {
		t.Errorf("%v", got)
	}
	if got := log.next("request"); got["code"] != "store_unavailable" || got["level"] != "info" {
		t.Errorf("%v", got)
	}
}
