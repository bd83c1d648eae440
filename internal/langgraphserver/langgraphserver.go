// Package langgraphserver runs the real LangGraph server for tests, with the
// graphs and fake models of its server folder.
package langgraphserver

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Server is one server in a process of its own.
type Server struct {
	URL string

	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}
	once sync.Once
}

// folder is where the server's sources are.
func folder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "server")
}

// install runs npm ci, once for all test processes of this machine.
func install(t testing.TB) {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the real LangGraph server runs where Node is installed: %v", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(folder(), "package-lock.json"), os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder(), "node_modules", ".package-lock.json")); err == nil {
		return
	}
	cmd := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = folder()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}

// Start starts a server with nothing in it; it is stopped with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	install(t)
	s := &Server{t: t, done: make(chan struct{})}
	s.cmd = exec.Command("node", filepath.Join(folder(), "serve.mjs"))
	s.cmd.Dir = t.TempDir()
	s.cmd.Env = append(os.Environ(), "LANGSMITH_TRACING=false", "LANGCHAIN_TRACING_V2=false", "LOG_JSON=true", "LOG_LEVEL=error")
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	var said strings.Builder
	go func() {
		defer close(s.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if host, ok := strings.CutPrefix(lines.Text(), "READY "); ok {
				ready <- host
				continue
			}
			if said.Len() < 8<<10 {
				said.WriteString(lines.Text() + "\n")
			}
		}
		_ = s.cmd.Wait() // it is killed in the end
	}()
	t.Cleanup(s.Kill)
	select {
	case host := <-ready:
		s.URL = "http://" + host
	case <-s.done:
		t.Fatalf("the LangGraph server ended: %s", said.String())
	}
	return s
}

// Kill ends the server at once.
func (s *Server) Kill() {
	s.once.Do(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		<-s.done
	})
}

// Pause stops the server's process; Resume lets it go on.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Modules returns the folder of the installed packages.
func Modules(t testing.TB) string {
	t.Helper()
	install(t)
	return filepath.Join(folder(), "node_modules")
}
