package embedded_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/transport/embedded"
)

// A node on a socket listens on no port, its folder is closed to others, and it
// may have any name. A second node on the same data leaves the first one's alone;
// what a killed one left goes.
func TestSocketInAFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), strings.Repeat("long ", 40), "a?b#c%d")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := embedded.Config{Addr: "unix:" + folder, DataDir: t.TempDir(), Log: zerolog.Nop()}
	node, stop := runNode(t, config)
	if _, err := embedded.Open(config); err == nil {
		t.Error("a second node serves the same data")
	}
	path, ok := strings.CutPrefix(node.ConnectionString(), "unix:")
	if !ok {
		t.Fatal(node.ConnectionString())
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	info, err := os.Stat(folder)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if names, err := os.ReadDir(folder); err != nil || len(names) != 1 {
		t.Errorf("beside the socket: %v, %v", names, err)
	}
	stop()
	if names, err := os.ReadDir(folder); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}
