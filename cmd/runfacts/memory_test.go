package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

// resident is what a process has in memory, in bytes.
func resident(t *testing.T, p *process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skip("memory is looked up in /proc, which this system does not have")
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:") // at most, so far
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// Much is pushed at once against a store that takes little: the body is read as
// fast as it is committed, and what waits is bounded. RUNFACTS_PUSH_MB=1000 is the
// long form.
func TestAPushIsReadAsFastAsItIsCommitted(t *testing.T) {
	mb := 60
	if n, err := strconv.Atoi(os.Getenv("RUNFACTS_PUSH_MB")); err == nil {
		mb = n
	}
	f := newFleet(t, 1, "--store-patience", "10m")
	f.proxies[0].Throttle(10 << 20)
	id := createRun(t, f.urls[0])
	before := resident(t, f.members[0])
	line := fmt.Sprintf("{\"type\":\"delta\",\"content\":%q}\n", strings.Repeat("x", 10_000))
	body, into := io.Pipe()
	go func() { // ends with the request at the latest
		for range mb * 100 {
			if _, err := io.WriteString(into, line); err != nil {
				return
			}
		}
		into.Close()
	}()
	response, err := http.Post(f.urls[0]+"/api/agent-runs/"+id+"/agent-events", "application/x-ndjson", body)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", response.Status, answer)
	}
	grown := resident(t, f.members[0]) - before
	t.Logf("%d MB were pushed, and memory grew by %d MB", mb, grown>>20)
	if grown > 40<<20 {
		t.Errorf("memory grew by %d MB", grown>>20)
	}
}
