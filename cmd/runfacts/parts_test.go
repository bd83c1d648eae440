package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/blob"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/transport/blobfolder"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
	"github.com/runfacts/runfacts/transport/metrics"
)

// A part that ends ends the process: it would go on answering, and never serve.
func TestAPartThatEndsEndsTheWhole(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		run  func(context.Context) error
		want error
	}{
		"with an error": {func(context.Context) error { return broken }, broken},
		"without one":   {func(context.Context) error { return nil }, nil},
	} {
		ctx, fail := context.WithCancelCause(t.Context())
		var err error
		end := supervise(&err, fail, part("the part", c.run))
		<-ctx.Done()
		end()
		if err == nil || !strings.Contains(err.Error(), "the part") || c.want != nil && !errors.Is(err, c.want) || !errors.Is(context.Cause(ctx), err) && failure(ctx) == nil {
			t.Errorf("%s: %v, %v", name, err, context.Cause(ctx))
		}
	}
	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	var err error
	supervise(&err, fail, part("the part", func(ctx context.Context) error { <-ctx.Done(); return nil }))()
	if err != nil || ctx.Err() != nil {
		t.Errorf("told to end: %v, %v", err, ctx.Err())
	}
	told, cancel := context.WithCancel(t.Context())
	cancel()
	if failure(told) != nil {
		t.Error("a signal is no failure")
	}
}

// brokenListener accepts nothing, for a reason that does not pass.
type brokenListener struct {
	net.Listener
	err error
}

func (b brokenListener) Accept() (net.Conn, error) { return nil, b.err }

// crowded is a listener that has no descriptor at first.
type crowded struct {
	net.Listener
	times int
}

func (c *crowded) Accept() (net.Conn, error) {
	if c.times > 0 {
		c.times--
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return c.Listener.Accept()
}

func serveOn(t *testing.T, ctx context.Context, listener net.Listener, log io.Writer) <-chan error {
	t.Helper()
	node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, node.Run)
	store, err := eventstore.Open(eventstore.Config{ConnectionString: node.ConnectionString(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	c := serveCmd{Lease: 15 * time.Second, MaxAppend: 1 << 20, InlineLimit: 48 << 10, MaxArtifact: 1 << 20, MaxRuns: 1, QueueTime: time.Minute, StorePatience: time.Second, KeepAlive: time.Second}
	c.DataDir = t.TempDir()
	done := make(chan error, 1)
	go func() {
		defer store.Close()
		done <- c.serve(ctx, listener, store, nil, zerolog.New(log))
	}()
	return done
}

func TestAListenerThatBreaksEndsTheServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	log := watchLog("stopping, since a part has failed")
	if err := <-serveOn(t, t.Context(), brokenListener{listener, broken}, log); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if fields := <-log.found; fields["level"] != "error" || !strings.Contains(fields["error"].(string), "broken") {
		t.Errorf("%v", fields)
	}
}

func TestAListenerWithoutDescriptorsWaitsForThem(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	log := watchLog("http: Accept error: accept: accept4: too many open files; retrying in 5ms")
	done := serveOn(t, ctx, &crowded{listener, 3}, log)
	if fields := <-log.found; fields["from"] != "net/http" || fields["level"] != "warn" { // a line like all others
		t.Errorf("%v", fields)
	}
	response, err := http.Get("http://" + listener.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("%v", err)
	}
}

// The first signal lets owned runs finish; who sends a second one does not want to
// wait for them.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	script, config := filepath.Join(folder, "s.ndjson"), filepath.Join(folder, "runfacts.yaml")
	text := "agents:\n  slow: {runtime: scripted, scripted: {file: s.ndjson, pause: 10m}}\n"
	if err := errors.Join(os.WriteFile(script, []byte(`{"type":"done"}`), 0o600), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	address := freePort(t)
	p := spawn(t, "serve", "--listen", address, "--data-dir", data, "--config", config, "--drain", "10m")
	c := client{t, "http://" + address}
	if status, _, body := c.call("POST", "/api/agent-runs", "application/json", `{"agent_id":"slow"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for draining := false; !draining; { // it listens no more then
		response, err := http.Get(c.url + "/readyz")
		if draining = err != nil; !draining {
			response.Body.Close()
		}
	}
	again := time.NewTicker(50 * time.Millisecond) // the first one may still be on its way
	defer again.Stop()
	for ended := false; !ended; {
		_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended
		select {
		case <-p.done:
			ended = true
		case <-again.C:
		}
	}
	if code := p.end(syscall.SIGKILL); code != -1 {
		t.Errorf("exit code %d, and not by the signal", code)
	}
}

func TestLogLinesAreOrderedWithinASecond(t *testing.T) {
	var b bytes.Buffer
	log := logFlags{LogLevel: "info"}.logger(streams{nil, &b})
	log.Info().Msg("x")
	plain(log).Print("y")
	was, flags := stdlog.Writer(), stdlog.Flags()
	defer func() { stdlog.SetOutput(was); stdlog.SetFlags(flags) }()
	plainly(streams{nil, &b})
	stdlog.Print("z")
	for line := range bytes.Lines(b.Bytes()) {
		var fields struct{ Time, Message string }
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if _, err := time.Parse("2006-01-02T15:04:05.000Z07:00", fields.Time); err != nil {
			t.Errorf("%s", line)
		}
	}
}

// failing is a blob store that fails while cause is set.
type failing struct {
	blob.Store
	cause blob.Cause
}

func (f *failing) err() error {
	if f.cause == "" {
		return nil
	}
	return &blob.StoreError{Cause: f.cause, Err: errors.New("why")}
}

func (f *failing) Put(ctx context.Context, id runs.ID, content io.Reader, limit int64) (string, int64, error) {
	if err := f.err(); err != nil {
		return "", 0, err
	}
	return f.Store.Put(ctx, id, content, limit)
}

func TestTheBlobStoresTroubleIsToldOncePerChange(t *testing.T) {
	kept, err := blobfolder.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	m := metrics.New()
	inner := &failing{Store: kept}
	w := &watchedBlobs{Store: inner, most: 5, metrics: m, log: zerolog.New(&log)}
	put := func(text string) error {
		_, _, err := w.Put(t.Context(), "r", strings.NewReader(text), 1<<20)
		return err
	}
	var large *blob.TooLargeError
	if err := put("123456"); !errors.As(err, &large) || large.Limit != 5 {
		t.Errorf("whoever brings it: %v", err)
	}
	for _, cause := range []blob.Cause{"", blob.Full, blob.Full, blob.ReadOnly, "", ""} {
		inner.cause = cause
		if err := put("x"); (err != nil) != (cause != "") {
			t.Errorf("%s: %v", cause, err)
		}
		if _, err := w.Open(t.Context(), "nothing"); !errors.Is(err, blob.ErrNotFound) { // reading goes on, and says nothing of writing
			t.Errorf("%v", err)
		}
	}
	var told []string
	for line := range bytes.Lines(log.Bytes()) {
		var fields map[string]string
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatal(err)
		}
		told = append(told, fields["level"]+" "+fields["cause"])
	}
	if got := strings.Join(told, ", "); got != "error full, error read_only, info " {
		t.Errorf("%q", got)
	}
}

func TestCheckWalksBlobs(t *testing.T) {
	data := t.TempDir()
	url, stop := startServer(t, data)
	id := createRun(t, url)
	request, err := http.NewRequest("PUT", url+"/api/agent-runs/"+id+"/artifacts/x", strings.NewReader("right"))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	stop()
	check := func() (int, string) {
		var out bytes.Buffer
		code := run(t.Context(), []string{"eventstore", "check", "--data-dir", data}, &out, &out)
		return code, out.String()
	}
	if code, out := check(); code != 0 || !strings.Contains(out, "1 blobs, 5 bytes") {
		t.Errorf("exit %d: %s", code, out)
	}
	found, err := filepath.Glob(filepath.Join(data, "blobs", "??", "*", "content"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if err := os.WriteFile(found[0], []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := check(); code != 1 || !strings.Contains(out, "its 5 bytes are others (of runs: "+id+")") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestHeartbeatsAreToldOncePerChange(t *testing.T) {
	var log bytes.Buffer
	o := &observer{metrics: metrics.New(), log: zerolog.New(&log)}
	away := errors.New("away")
	for _, err := range []error{nil, away, away, away, nil, nil, away} {
		o.Beat(err, time.Millisecond)
	}
	o.Ended("r", true, runs.Completed)
	var told []string
	for line := range bytes.Lines(log.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatal(err)
		}
		told = append(told, strings.TrimSpace(strings.Join([]string{fields["level"].(string), fields["message"].(string)}, " ")))
	}
	if got := strings.Join(told, ", "); got != "warn heartbeat, info heartbeat, warn heartbeat, info run ended" {
		t.Errorf("%s", got)
	}
}
