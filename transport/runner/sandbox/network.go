//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// resolvers is a sandbox's resolv.conf, at most a pipe's content.
func resolvers(n Network) []byte {
	switch n {
	case OwnNetwork:
		return []byte("nameserver 10.0.2.3\n") // where slirp4netns asks this machine's resolver
	case HostNetwork:
		text, _ := os.ReadFile("/etc/resolv.conf") // there may be none
		return text[:min(len(text), 32<<10)]
	}
	return nil
}

// stackTime bounds the start of the user-mode stack.
const stackTime = 5 * time.Second

// lookForStack finds slirp4netns.
func lookForStack() (string, error) {
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		return "", errors.New("network: true needs slirp4netns, which is not installed (Debian, Ubuntu: apt-get install slirp4netns; " +
			"Fedora: dnf install slirp4netns; Alpine: apk add slirp4netns); network: host is this machine's own, its loopback included")
	}
	return path, nil
}

// stack is a user-mode network stack that serves one sandbox.
type stack struct {
	cmd *exec.Cmd
	end *os.File // closed, by this process's death too, it ends
}

// startStack connects a process's network namespace, and waits until it is
// connected.
func startStack(path string, pid int, group *group) (*stack, error) {
	ended, end, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ended.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		end.Close()
		return nil, err
	}
	defer ready.Close()
	defer readyIn.Close()
	var says strings.Builder
	args := []string{"--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp", "--exit-fd=3", "--ready-fd=4"}
	if os.Geteuid() != 0 {
		args = append(args, "--userns-path="+fmt.Sprintf("/proc/%d/ns/user", pid))
	}
	cmd := exec.Command(path, append(args, strconv.Itoa(pid), "tap0")...)
	cmd.ExtraFiles = []*os.File{ended, readyIn}
	cmd.Stdout, cmd.Stderr = &says, &says
	cmd.WaitDelay = graceTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	group.join(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		end.Close()
		return nil, err
	}
	s := &stack{cmd, end}
	readyIn.Close()
	err = ready.SetReadDeadline(time.Now().Add(stackTime))
	if err == nil {
		_, err = ready.Read(make([]byte, 1))
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("slirp4netns does not connect it: %w: %s", err, strings.TrimSpace(says.String()))
	}
	return s, nil
}

// pid is its process; 0 where there is none.
func (s *stack) pid() int {
	if s == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// stop ends it and waits for it.
func (s *stack) stop() {
	if s == nil {
		return
	}
	s.end.Close()
	timer := time.AfterFunc(graceTime/2, func() { _ = s.cmd.Process.Kill() }) // it may have ended
	defer timer.Stop()
	_ = s.cmd.Wait() // however it ended
}
