package embedded_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The official NodeJS client, in all that it does.
func TestNodeJSClient(t *testing.T) {
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the official NodeJS client is exercised where Node is installed: %v", err)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "exercise.mjs"} {
		text, err := os.ReadFile(filepath.Join("testdata", "node", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	command := func(name string, args ...string) string {
		cmd := exec.CommandContext(within(t), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	node, _ := startNode(t, t.TempDir())
	if out := command("node", "exercise.mjs", node.ConnectionString()); !strings.HasSuffix(strings.TrimSpace(out), "ok") {
		t.Error(out)
	}
}
