//go:build linux

package sandbox_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/transport/runner/sandbox"
)

// listen accepts connections on an address until the test ends, and returns its
// port.
func listen(t *testing.T, network, address string) (port string) {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	if a, ok := listener.Addr().(*net.TCPAddr); ok {
		return fmt.Sprint(a.Port)
	}
	return ""
}

// outside is an address of this machine that is not loopback.
func outside(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback's, so there is no outside")
	return ""
}

// connect tries addresses from inside, host:port or @abstract.
func connect(t *testing.T, n sandbox.Network, addresses ...string) string {
	t.Helper()
	need(t, "python3", "slirp4netns")
	c := defaults("")
	c.Network = n
	c.Command = []string{"python3", "-c", `import socket,sys
for a in sys.argv[1:]:
  try:
    if a[0] == "@":
      socket.socket(socket.AF_UNIX).connect("\0" + a[1:])
    else:
      socket.create_connection(a.rsplit(":", 1), 3)
    print(a, "yes")
  except OSError as e:
    print(a, "no")
`}
	c.Command = append(c.Command, addresses...)
	o := play(t, c, "null")
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.text
}

// A network of its own reaches the outside, and nothing that listens on this
// machine's loopback or in its network namespace, by whatever name.
func TestOwnNetwork(t *testing.T) {
	address := outside(t)
	far := net.JoinHostPort(address, listen(t, "tcp", address+":0"))
	port := listen(t, "tcp", "127.0.0.1:0")
	abstract := "@" + filepath.Base(t.TempDir()) + t.Name() + fmt.Sprint(os.Getpid())
	listen(t, "unix", abstract)
	near := []string{"127.0.0.1:" + port, "10.0.2.2:" + port, "10.0.2.100:" + port, "0.0.0.0:" + port, "localhost:" + port, abstract}
	all := append([]string{far}, near...)
	want := far + " yes\n" + strings.Join(near, " no\n") + " no\n"
	if got := connect(t, sandbox.OwnNetwork, all...); got != want {
		t.Errorf("its own:\n%s", got)
	}
	if got := connect(t, sandbox.NoNetwork, all...); strings.Contains(got, "yes") {
		t.Errorf("none:\n%s", got)
	}
	if got := connect(t, sandbox.HostNetwork, far, "127.0.0.1:"+port, abstract); strings.Contains(got, "no") {
		t.Errorf("this machine's:\n%s", got)
	}
}

// Nothing of the network stays when the sandbox has gone.
func TestOwnNetworkEnds(t *testing.T) {
	need(t, "slirp4netns")
	c := defaults("cat /etc/resolv.conf")
	c.Network = sandbox.OwnNetwork
	if o := play(t, c, "null"); o.text != "nameserver 10.0.2.3\n" || o.err != nil {
		t.Errorf("%q, %v", o.text, o.err)
	}
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(os.Getpid()), "slirp4netns").Output()
	if err == nil {
		t.Errorf("left running: %s", out)
	}
}

// Without its stack a network is refused; never the machine's own instead.
func TestOwnNetworkNeedsItsStack(t *testing.T) {
	c := defaults("true")
	c.Network = sandbox.OwnNetwork
	open(t, defaults("true"), zerolog.Nop())
	folder := t.TempDir()
	for _, tool := range []string{"bwrap", "prlimit"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(folder, tool)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", folder)
	if _, err := sandbox.New(t.Context(), c, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "apt-get install slirp4netns") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "slirp4netns"), []byte("#!/bin/sh\necho no tun here >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.New(t.Context(), c, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "no tun here") {
		t.Errorf("%v", err)
	}
}
