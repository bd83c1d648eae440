//go:build linux

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/agent"
)

// Bounds that nobody has asked to set.
const (
	maxLine   = 4 << 20 // of an AgentEvent, in bytes, as in a push
	maxFiles  = 1024    // open at once, in each process
	rootSize  = 1 << 20 // of /, which holds links and mount points and is read-only
	pageSize  = 4 << 10
	graceTime = 2 * time.Second
	probeTime = 10 * time.Second
)

// inodes is how many files and folders each file system has room for: one for
// each page.
func (c *Config) inodes() int64 { return max(c.Disk/pageSize, 16) }

// Runner implements agent.Runner. Safe for concurrent use.
type Runner struct {
	config Config
	log    zerolog.Logger
	bwrap  string
	slirp  string // slirp4netns; "" where the network is not its own
	groups string // the cgroup for sandboxes' groups; "": this process may make none
	filter []byte // the seccomp program
}

var _ agent.Runner = (*Runner)(nil)

// New looks for what a sandbox needs, tries it with a command that does nothing,
// and logs how its bounds are held on this machine. Errors say what is missing.
// The process's main has to begin with Setup.
func New(ctx context.Context, c Config, log zerolog.Logger) (*Runner, error) {
	if !began {
		return nil, errors.New("the program does not begin with sandbox.Setup")
	}
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, errors.New("bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap; Alpine: apk add bubblewrap)")
	}
	if _, err := exec.LookPath("prlimit"); err != nil {
		return nil, errors.New("prlimit is not installed (it is in util-linux)")
	}
	r := &Runner{config: c, log: log, bwrap: bwrap}
	if c.Network == OwnNetwork {
		if r.slirp, err = lookForStack(); err != nil {
			return nil, err
		}
	}
	held := "cgroup"
	if r.groups, err = groups(); err != nil {
		held = fmt.Sprintf("limits on each process, a filter, and a look every %s: %v", watchTime, err)
	}
	if r.filter, err = filter(r.groups != ""); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	probe := *r
	probe.log = zerolog.Nop()
	probe.config.Command, probe.config.Text = []string{"sh", "-c", "! touch /x 2>/dev/null"}, true // as / is read-only
	if _, err := probe.Run(ctx, agent.Task{}, func(agent.Event) error { return nil }); err != nil {
		return nil, fmt.Errorf("the sandbox cannot be set up here: %w", err)
	}
	log.Info().Str("memory", held).Int64("memory_bytes", c.Memory).Int64("disk_bytes", c.Disk).Int64("disk_files", c.inodes()).
		Str("network", [...]string{"none", "slirp4netns", "this machine's"}[c.Network]).Msg("sandbox bounds")
	return r, nil
}

// arguments are bubblewrap's, which finds its descriptors and folders as Setup's
// process left them.
func (r *Runner) arguments() []string {
	c := &r.config
	args := []string{
		"--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
		"--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
		"--info-fd", fmt.Sprint(infoFD),
		"--size", fmt.Sprint(rootSize), "--tmpfs", "/", "--ro-bind", "/usr", "/usr",
	}
	for _, folder := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if target, err := os.Readlink(folder); err == nil {
			args = append(args, "--symlink", target, folder)
		} else {
			args = append(args, "--ro-bind-try", folder, folder)
		}
	}
	public := []string{"/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/localtime"}
	if c.Network != NoNetwork {
		args = append(args, "--share-net") // with the process that set it up
		public = append(public, "/etc/hosts", "/etc/nsswitch.conf")
	}
	for _, path := range public {
		args = append(args, "--ro-bind-try", path, path)
	}
	args = append(args, "--ro-bind-data", fmt.Sprint(resolverFD), "/etc/resolv.conf", "--seccomp", fmt.Sprint(filterFD),
		"--proc", "/proc", "--dev", "/dev")
	if r.groups == "" {
		// Shared mappings of /dev/zero are memory that nothing counts; /dev/full
		// reads the same, and cannot be mapped.
		args = append(args, "--dev-bind", "/dev/full", "/dev/zero")
	}
	for _, f := range folders {
		args = append(args, "--bind", filepath.Join(base, f.name), f.target)
	}
	for _, m := range c.Mounts {
		how := "--ro-bind"
		if m.Writable {
			how = "--bind"
		}
		args = append(args, how, m.Source, m.Target)
	}
	args = append(args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work", "--", "/usr/bin/prlimit",
		fmt.Sprintf("--nproc=%d", c.Processes), fmt.Sprintf("--data=%d", c.Memory),
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
	failed := strings.TrimSpace(state + "\n" + p.errors.tail())
	if readErr == nil && excess == nil && ctx.Err() == nil && p.files != nil {
		readErr = artifacts(p.files.output(), &r.config, emit)
		var unfit *agent.Failure
		switch {
		case readErr == nil && reading.end != nil:
			readErr = emit(*reading.end)
		case state != succeeded && reading.end == nil && errors.As(readErr, &unfit): // why it failed comes first
			readErr = &agent.Failure{Code: unfit.Code, Message: failed + "\n" + unfit.Message}
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
	case state != succeeded:
		return proof, &agent.Failure{Code: "sandbox_failed", Message: failed}
	}
	return proof, nil
}
