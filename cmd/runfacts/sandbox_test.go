package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/runfacts/runfacts/transport/sse"
)

// greedy are agents that take, or leave, more than they may, or all that they
// may; how a run of each ends.
var greedy = map[string]struct{ script, end string }{
	"root":    {"for i in range(100): open('/x%d'%i,'wb').write(bytes(60<<20))", "run.failed"},
	"memfd":   {"k=[]\nfor i in range(3000):\n  f=os.memfd_create('m'); k.append(f); os.write(f,bytes(1<<20))", "run.failed"},
	"deleted": {"k=[]\nfor i in range(3000):\n  f=open('/output/x','wb'); k.append(f); os.unlink('/output/x'); f.write(bytes(1<<20)); f.flush()", "run.failed"},
	"deep":    {"os.chdir('/output')\nfor i in range(25): os.mkdir('d'*200); os.chdir('d'*200)\nfor i in range(65): open('b%d'%i,'wb').write(bytes(1<<20))", "run.failed"},
	"folders": {"os.chdir('/output')\nfor i in range(3000): os.mkdir('de'[i%2]*200); os.chdir('de'[i%2]*200)\nopen('leaf','w').write('x')", "run.failed"},
	"many":    {"for i in range(16000): os.mkdir('/output/d%d'%i)", "run.failed"},
	"files":   {"for i in range(1500): open('/output/f%d'%i,'w').write('x')", "run.failed"},
	"holes":   {"for i in range(1000): open('/output/f%d'%i,'wb').truncate(64<<20)", "run.failed"},
	"large":   {"open('/output/large','wb').write(os.urandom(60<<20))", "run.completed"},
	"names":   {"os.chdir('/output')\nfor i in range(500): open(b'n\\xff%d'%i,'wb').write(b'x%d'%i)", "run.completed"},
	"errors":  {"for i in range(1<<16): os.write(2,b'e'*1024)", "run.completed"},
}

// Whatever sandboxes take and leave, three of a kind at once, the server's own
// memory stays where it is, and a run that ends well has left all of it.
func TestServerIsNotWhatSandboxesEat(t *testing.T) {
	need(t, "bwrap", "python3")
	config := strings.Builder{}
	config.WriteString("agents:\n")
	for name, agent := range greedy {
		command, err := json.Marshal([]string{"python3", "-c", "import os\n" + agent.script})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&config, "  %s:\n    runtime: sandbox\n    sandbox: {stdout: text, command: %s}\n", name, command)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	port := freePort(t)
	server := spawn(t, "serve", "--listen", port, "--data-dir", t.TempDir(), "--config", configure(t, config.String()))
	a := client{t, "http://" + port}
	idle := peak(t, server.cmd.Process.Pid)
	for name, agent := range greedy {
		t.Run(name, func(t *testing.T) {
			a := client{t, a.url}
			for i := range 3 {
				if status, fields, _ := a.call("POST", "/api/agent-runs", "application/json", fmt.Sprintf(`{"run_id":"%s_%d","agent_id":"%s"}`, name, i, name)); status != 201 {
					t.Fatalf("%d %v", status, fields)
				}
			}
			for i := range 3 {
				frames, hangUp := a.watch(fmt.Sprintf("%s_%d", name, i), 0)
				end, artifacts := lastOf(t, frames)
				hangUp()
				if end.Event != agent.end || agent.end == "run.failed" && artifacts > 0 {
					t.Errorf("run %d: %d artifacts, %s", i, artifacts, end.Data)
				}
			}
		})
	}
	whole(t, a, "large_0")
	if now := peak(t, server.cmd.Process.Pid); now > idle+100<<20 {
		t.Errorf("the server took %d MB, %d MB when idle", now>>20, idle>>20)
	} else {
		t.Logf("the server took %d MB, %d MB when idle", now>>20, idle>>20)
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "runfacts*")); err != nil || len(left) > 0 {
		t.Errorf("in the temporary folder: %v, %v", left, err)
	}
}

// whole compares what is kept of a run's artifact with what its event says.
func whole(t *testing.T, a client, id string) {
	t.Helper()
	frames, hangUp := a.watch(id, 1)
	f, err := nextEvent(frames)
	hangUp()
	var event struct {
		Payload struct {
			ArtifactID string `json:"artifact_id"`
			Checksum   string
			Size       int64
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(f.Data), &event)
	}
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(a.url + "/api/agent-runs/" + id + "/artifacts/" + event.Payload.ArtifactID)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, response.Body)
	if err != nil || n != 60<<20 || n != event.Payload.Size || fmt.Sprintf("sha256:%x", hash.Sum(nil)) != event.Payload.Checksum {
		t.Errorf("%s: %d bytes are kept, %v", f.Data, n, err)
	}
}

// need skips a test where a program is missing; where all are said to be there it
// fails.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		if os.Getenv("RUNFACTS_TEST_ALL") != "" {
			t.Fatal("RUNFACTS_TEST_ALL is set, but ", program, " is not installed")
		}
		t.Skip(program, " is not installed")
	}
}

// lastOf reads a stream to its run's end.
func lastOf(t *testing.T, frames *sse.Reader) (end sse.Frame, artifacts int) {
	t.Helper()
	for {
		f, err := nextEvent(frames)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case f.Event == "artifact.created":
			artifacts++
		case strings.HasPrefix(f.Event, "run.") && f.Event != "run.started":
			return f, artifacts
		}
	}
}

// peak is the most memory that a process ever had, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("this system does not tell a process's memory: ", err)
	}
	m := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("%s", status)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
