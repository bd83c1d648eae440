package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// logWatch is a log that tells of one message when it comes.
type logWatch struct {
	mu    sync.Mutex
	text  bytes.Buffer
	want  string
	found chan map[string]any
}

func watchLog(message string) *logWatch {
	return &logWatch{want: message, found: make(chan map[string]any, 1)}
}

func (l *logWatch) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	for line := range bytes.Lines(b) {
		var fields map[string]any
		if json.Unmarshal(line, &fields) == nil && fields["message"] == l.want {
			select {
			case l.found <- fields:
			default:
			}
		}
	}
	return len(b), nil
}

func (l *logWatch) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serveForTest runs the serve command on a free port and an embedded node in a
// folder of its own, and returns its URL. It is stopped with the test.
func serveForTest(t testing.TB, flags ...string) string {
	t.Helper()
	url, stop := startServer(t, t.TempDir(), flags...)
	t.Cleanup(stop)
	return url
}

// startServer is serveForTest with a folder that outlives the server.
func startServer(t testing.TB, data string, flags ...string) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := watchLog("serving")
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--data-dir", data}, flags...)
	done := make(chan int, 1)
	go func() { done <- run(ctx, args, io.Discard, log) }()
	select {
	case fields := <-log.found:
		url = fmt.Sprint(fields["url"])
	case code := <-done:
		cancel()
		t.Fatalf("serve ended with %d: %s", code, log)
	}
	return url, sync.OnceFunc(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("serve ended with %d: %s", code, log)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

// createRun starts a pushed run and returns its id.
func createRun(t testing.TB, url string) string {
	t.Helper()
	body := `{"agent_id":"test_agent","runtime":"push","input":{"q":"hi"}}`
	response, err := http.Post(url+"/api/agent-runs", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var summary struct {
		RunID string `json:"run_id"`
	}
	if err := json.NewDecoder(response.Body).Decode(&summary); err != nil || response.StatusCode != http.StatusCreated {
		t.Fatalf("create: %s, %v", response.Status, err)
	}
	return summary.RunID
}
