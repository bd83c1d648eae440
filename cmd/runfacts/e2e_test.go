package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/runfacts/runfacts/transport/sse"
)

// asBinary makes the test binary be the program.
const asBinary = "RUNFACTS_TEST_AS_BINARY"

// process is the program in a process of its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	line string // the first line that says where it serves
	done chan struct{}
}

func spawn(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asBinary+"=1")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	ready := make(chan string, 1)
	go func() {
		defer close(p.done)
		defer reader.Close()
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			if text := lines.Text(); strings.Contains(text, `"serving"`) || strings.Contains(text, "esdb://") {
				select {
				case ready <- text:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() { p.end(syscall.SIGKILL) })
	select {
	case p.line = <-ready:
	case <-p.done:
		t.Fatalf("%v ended at once", args)
	}
	return p
}

// end signals the process and waits for it; it returns the exit code.
func (p *process) end(s syscall.Signal) int {
	_ = p.cmd.Process.Signal(s) // it may have ended
	<-p.done
	_ = p.cmd.Wait() // the code says it
	return p.cmd.ProcessState.ExitCode()
}

// client puts requests to a server.
type client struct {
	t   testing.TB
	url string
}

func (a client) call(method, path, contentType, body string, headers ...string) (int, map[string]any, http.Header) {
	a.t.Helper()
	request, err := http.NewRequest(method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	var fields map[string]any
	_ = json.Unmarshal(text, &fields) // not every answer is an object
	return response.StatusCode, fields, response.Header
}

func (a client) push(id, lines string) (int, map[string]any) {
	a.t.Helper()
	status, fields, _ := a.call("POST", "/api/agent-runs/"+id+"/agent-events", "application/x-ndjson", lines)
	return status, fields
}

// watch opens a run's stream behind seq after.
func (a client) watch(id string, after int) (*sse.Reader, func()) {
	a.t.Helper()
	request, err := http.NewRequest("GET", a.url+"/api/agent-runs/"+id+"/events", nil)
	if err != nil {
		a.t.Fatal(err)
	}
	request.Header.Set("Last-Event-ID", fmt.Sprint(after))
	response, err := http.DefaultClient.Do(request) //nolint:bodyclose // the caller closes it
	if err != nil || response.StatusCode != http.StatusOK {
		a.t.Fatalf("watch %s behind %d: %v, %v", id, after, response, err)
	}
	return sse.NewReader(response.Body, 1<<20), func() { response.Body.Close() }
}

func line(n int) string {
	return fmt.Sprintf("{\"type\":\"delta\",\"content\":\"%d \",\"producer_seq\":%d}\n", n, n)
}

// The README's story: push, watch, kill -9 in the middle, start again, resume.
func TestKilledInTheMiddleNothingIsLost(t *testing.T) {
	data, port := t.TempDir(), freePort(t)
	start := func() (*process, client) {
		return spawn(t, "serve", "--listen", port, "--data-dir", data), client{t, "http://" + port}
	}
	server, a := start()
	if status, fields, h := a.call("POST", "/api/agent-runs", "application/json", `{"run_id":"story","agent_id":"a","runtime":"push"}`); status != 201 || h.Get("Location") != "/api/agent-runs/story" {
		t.Fatalf("%d %v", status, fields)
	}
	var seen []sse.Frame
	for round := range 3 {
		r, closeStream := a.watch("story", len(seen))
		for n := round*5 + 1; n <= round*5+5; n++ {
			if status, fields := a.push("story", line(n)); status != 200 || fields["producer_seq"] != float64(n) {
				t.Fatalf("%d %v", status, fields)
			}
		}
		for want := 2 + (round+1)*5; len(seen) < want; {
			f, err := nextEvent(r)
			if err != nil || f.ID != fmt.Sprint(len(seen)+1) {
				t.Fatalf("%+v, %v; want event %d", f, err, len(seen)+1)
			}
			seen = append(seen, f)
		}
		server.end(syscall.SIGKILL)
		if _, err := nextEvent(r); err == nil {
			t.Error("a stream outlived its server")
		}
		closeStream()
		http.DefaultClient.CloseIdleConnections()
		server, a = start()
	}
	if status, fields := a.push("story", line(15)+`{"type":"done","producer_seq":16}`+"\n"); status != 200 || fields["duplicates"] != 1.0 {
		t.Fatalf("%d %v", status, fields)
	}
	r, closeStream := a.watch("story", 0)
	defer closeStream()
	var text strings.Builder
	for i := 0; ; i++ {
		f, err := nextEvent(r)
		if err != nil {
			break
		}
		if i < len(seen) && f != seen[i] {
			t.Errorf("event %d is %+v and was %+v", i+1, f, seen[i])
		}
		var d struct{ Payload struct{ Delta string } }
		if err := json.Unmarshal([]byte(f.Data), &d); err != nil {
			t.Fatal(err)
		}
		text.WriteString(d.Payload.Delta)
	}
	if want := "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 "; text.String() != want {
		t.Errorf("%q", text.String())
	}
	if code := server.end(syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM: exit %d", code)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"eventstore", "check", "--data-dir", data}, &out, &errs); code != 0 || !strings.Contains(out.String(), "in order") {
		t.Errorf("check: exit %d, %s%s", code, out.String(), errs.String())
	}
}

// Two instances write one run on one node, which is killed and comes back.
func TestTwoInstancesOutliveTheStore(t *testing.T) {
	data, port := t.TempDir(), freePort(t)
	node := spawn(t, "eventstore", "--listen", port, "--data-dir", data)
	url := node.line[strings.Index(node.line, "esdb://"):]
	instances := make([]client, 2)
	for i := range instances {
		address := freePort(t)
		spawn(t, "serve", "--listen", address, "--eventstore", url)
		instances[i] = client{t, "http://" + address}
	}
	a := instances[0]
	a.call("POST", "/api/agent-runs", "application/json", `{"run_id":"shared","agent_id":"a","runtime":"push"}`)
	r, closeStream := a.watch("shared", 0)
	defer closeStream()
	for n := 1; n <= 10; n++ {
		if status, fields := instances[n%2].push("shared", line(n)); status != 200 {
			t.Fatalf("%d: %d %v", n, status, fields)
		}
	}
	node.end(syscall.SIGKILL)
	answered := make(chan int, 1)
	go func() {
		status, _ := instances[1].push("shared", line(11))
		answered <- status
	}()
	spawn(t, "eventstore", "--listen", port, "--data-dir", data)
	if status := <-answered; status != 200 && status != 503 {
		t.Errorf("a push during the outage: %d", status)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		status, fields := a.push("shared", line(11)+line(12)+`{"type":"done","producer_seq":13}`+"\n")
		if status == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %v", status, fields)
		}
	}
	next := 1
	for {
		f, err := nextEvent(r)
		if err != nil {
			break
		}
		if f.ID != fmt.Sprint(next) {
			t.Fatalf("event %s, want %d", f.ID, next)
		}
		next++
	}
	if status, fields, _ := instances[1].call("GET", "/api/agent-runs/shared", "", ""); status != 200 || fields["status"] != "completed" || fields["last_seq"] != float64(next-1) {
		t.Errorf("%d %v, and the viewer saw up to %d", status, fields, next-1)
	}
}

func freePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// The node inside serve is this process's alone: whoever reaches loopback finds
// the HTTP API there, and nothing else of ours.
func TestServeListensOnOnePort(t *testing.T) {
	server := spawn(t, "serve", "--listen", "127.0.0.1:0", "--data-dir", t.TempDir())
	descriptors := fmt.Sprintf("/proc/%d/fd/", server.cmd.Process.Pid)
	fds, err := os.ReadDir(descriptors)
	if err != nil {
		t.Skip("this system does not tell a process's sockets: ", err)
	}
	ours := make(map[string]bool)
	for _, fd := range fds {
		if name, err := os.Readlink(descriptors + fd.Name()); err == nil { // it may be closed meanwhile
			ours[strings.Trim(strings.TrimPrefix(name, "socket:"), "[]")] = true
		}
	}
	const listening = "0A"
	var ports []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6, perhaps
		}
		for row := range strings.Lines(string(text)) {
			if f := strings.Fields(row); len(f) > 9 && f[3] == listening && ours[f[9]] {
				ports = append(ports, f[1])
			}
		}
	}
	if len(ports) != 1 {
		t.Errorf("it listens on %v", ports)
	}
}
