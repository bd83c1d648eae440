package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runfacts/runfacts/internal/langgraphserver"
)

// example is the code of a language in the page on runtimes.
func example(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```"+language+"\n")
	code, _, end := strings.Cut(rest, "```")
	if !ok || !end {
		t.Fatalf("docs/runtimes.md has no example in %s", language)
	}
	return code
}

// The examples in the documentation do what they say.
func TestExamples(t *testing.T) {
	url := serveForTest(t)
	check := func(t *testing.T, out []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		id := strings.TrimSpace(string(out))
		if _, fields, _ := (client{t, url}).call("GET", "/api/agent-runs/"+id, "", ""); fields["status"] != "completed" || fields["producer_seq"] != 5.0 {
			t.Errorf("%v", fields)
		}
		if got := tale(t, url, id); !strings.Contains(got, `result c1 {"celsius":21} false`) || !strings.HasSuffix(got, "message.completed It is sunny in Paris.\nrun.completed ") {
			t.Errorf("%s", got)
		}
	}
	t.Run("python", func(t *testing.T) {
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Skip("python3 is not installed")
		}
		cmd := exec.Command(python, "-c", example(t, "python"))
		cmd.Env = append(os.Environ(), "RUNFACTS_URL="+url)
		out, err := cmd.CombinedOutput()
		check(t, out, err)
	})
	t.Run("typescript", func(t *testing.T) {
		modules := langgraphserver.Modules(t) // it brings the compiler
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "example.mts"), []byte(example(t, "typescript")), 0o600); err != nil {
			t.Fatal(err)
		}
		compile := exec.Command("node", filepath.Join(modules, "typescript", "bin", "tsc"), "--strict", "--target", "es2022",
			"--module", "nodenext", "--lib", "es2022,dom", "example.mts")
		compile.Dir = folder
		if out, err := compile.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		cmd := exec.Command("node", "example.mjs")
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "RUNFACTS_URL="+url)
		out, err := cmd.CombinedOutput()
		check(t, out, err)
	})
	t.Run("go", func(t *testing.T) {
		code, err := os.ReadFile("../../domain/agent/example_test.go")
		if err != nil || !strings.Contains(string(code), example(t, "go")) {
			t.Errorf("the page's Go is not domain/agent/example_test.go's: %v", err)
		}
	})
}

// Nobody waits for an example whose server is not there.
func TestExamplesSayThatTheServerIsDown(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	cmd := exec.Command(python, "-c", example(t, "python"))
	cmd.Env = append(os.Environ(), "RUNFACTS_URL=http://"+freePort(t))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "the run was not started (503)") || !strings.Contains(string(out), "does not answer") {
		t.Errorf("%v: %s", err, out)
	}
}
