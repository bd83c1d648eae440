// Package sandbox runs an agent as a command under bubblewrap: without network
// unless it is given, on a read-only system, with a /tmp and a /work of its own,
// without capabilities, bounded in memory, processes, disk and output.
//
// What it leaves in /output becomes artifacts when it has ended.
//
// The run's input is the command's standard input. Its standard output is NDJSON
// AgentEvents, or plain text. Its standard error goes to the log, and its end into
// the error when it fails. It is stopped by SIGTERM, then by the death of its
// process namespace, which ends the whole tree; that is the proof.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/agent"
)

// Config is one agent's sandbox. The zero values of the bounds are not usable;
// Defaults fills them in.
type Config struct {
	Command   []string          // as the sandbox sees it
	Mounts    []Mount           // beside the system
	Env       map[string]string // of the command
	Secrets   map[string]string // as Env, and kept out of logs and errors
	Network   bool
	Text      bool  // standard output is text, not AgentEvents
	Memory    int64 // bytes of the whole tree, and of private memory of each process
	Disk      int64 // bytes of each of /tmp, /work and /dev/shm, held in memory, and of /output
	Processes int   // at once
	Output    int64 // bytes of standard output
}

// Mount shows a file or folder of this machine in the sandbox.
type Mount struct {
	Source, Target string
	Writable       bool
}

// Bounds that nobody has asked to set.
const (
	maxLine   = 4 << 20 // of an AgentEvent, in bytes, as in a push
	maxFiles  = 1024    // open at once, in each process
	graceTime = 2 * time.Second
	probeTime = 10 * time.Second
)

// Runner implements agent.Runner. Safe for concurrent use.
type Runner struct {
	config Config
	log    zerolog.Logger
	bwrap  string
}

var _ agent.Runner = (*Runner)(nil)

// New looks for bubblewrap and tries the sandbox with a command that does
// nothing. Errors say what is missing.
func New(ctx context.Context, c Config, log zerolog.Logger) (*Runner, error) {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, errors.New("bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap; Alpine: apk add bubblewrap)")
	}
	if _, err := exec.LookPath("prlimit"); err != nil {
		return nil, errors.New("prlimit is not installed (it is in util-linux)")
	}
	sweep()
	r := &Runner{c, log, bwrap}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	probe := *r
	probe.config.Command, probe.config.Text = []string{"true"}, true
	if _, err := probe.Run(ctx, agent.Task{}, func(agent.Event) error { return nil }); err != nil {
		return nil, fmt.Errorf("the sandbox cannot be set up here: %w", err)
	}
	return r, nil
}

// arguments are bubblewrap's, for a command whose description it writes to the
// file descriptor info, with a folder of its own for its output.
func (r *Runner) arguments(info int, output string) []string {
	c := &r.config
	disk := fmt.Sprint(c.Disk)
	args := []string{
		"--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
		"--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
		"--info-fd", fmt.Sprint(info),
		"--ro-bind", "/usr", "/usr",
	}
	for _, folder := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if target, err := os.Readlink(folder); err == nil {
			args = append(args, "--symlink", target, folder)
		} else {
			args = append(args, "--ro-bind-try", folder, folder)
		}
	}
	public := []string{"/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/localtime"}
	if c.Network {
		args = append(args, "--share-net")
		public = append(public, "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
	}
	for _, path := range public {
		args = append(args, "--ro-bind-try", path, path)
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--size", disk, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
		"--size", disk, "--tmpfs", "/tmp", "--size", disk, "--tmpfs", "/work",
		"--bind", output, "/output", "--chdir", "/work")
	for _, m := range c.Mounts {
		how := "--ro-bind"
		if m.Writable {
			how = "--bind"
		}
		args = append(args, how, m.Source, m.Target)
	}
	args = append(args, "--", "/usr/bin/prlimit", fmt.Sprintf("--nproc=%d", c.Processes), fmt.Sprintf("--data=%d", c.Memory),
		fmt.Sprintf("--fsize=%d", c.Disk), fmt.Sprintf("--nofile=%d", maxFiles), "--core=0", "--")
	return append(args, c.Command...)
}

// Run implements agent.Runner.
func (r *Runner) Run(ctx context.Context, task agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	p, err := r.start(task)
	if err != nil {
		return agent.Stop{Proof: "the process was never started"}, fmt.Errorf("start the sandbox: %w", err)
	}
	defer p.discard()
	reading := newReader(p.stdout, r.config.Output)
	read := make(chan error, 1)
	stop := make(chan struct{}) // closed when nothing more is wanted
	go func() {
		err := reading.events(r.config.Text, emit)
		if reading.end != nil { // it may tidy up
			p.linger()
		}
		if err != nil {
			close(stop)
		}
		read <- err
	}()
	watched := make(chan struct{})
	var excess error
	go func() {
		defer close(watched)
		excess = p.watch(ctx, stop, &r.config)
	}()
	readErr := <-read // what it left open keeps the pipe open; watch ends that
	state := p.wait()
	<-watched
	if errors.Is(readErr, errHeld) {
		readErr = nil
	}
	if readErr == nil && excess == nil && ctx.Err() == nil {
		if readErr = p.artifacts(emit); readErr == nil && reading.end != nil {
			readErr = emit(*reading.end)
		}
	}
	proof := agent.Stop{Proof: "the process and its tree ended: " + state}
	switch {
	case errors.Is(readErr, agent.ErrEnded), ctx.Err() != nil:
		return proof, nil
	case excess != nil:
		return proof, excess
	case readErr != nil:
		return proof, readErr
	case reading.end != nil: // it has said how it ended
		return proof, nil
	case state != "exit status 0":
		return proof, &agent.Failure{Code: "sandbox_failed", Message: strings.TrimSpace(state + "\n" + p.errors.tail())}
	}
	return proof, nil
}
