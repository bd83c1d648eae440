//go:build linux

package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// process is a sandbox that runs.
type process struct {
	cmd    *exec.Cmd
	stdout *os.File
	errors *stderr
	files  *files // what it may write to; nil: it never came so far
	group  *group
	stack  *stack
	first  int           // the first process of its namespace, whose death ends all
	exited chan struct{} // closed once cmd has ended
	err    error         // of cmd.Wait
}

// start starts the command. Where the sandbox cannot be set up its process tells
// so and ends, as a command that fails does.
func (r *Runner) start(task agent.Task) (p *process, err error) {
	pipes := &pipes{}
	defer pipes.closeTheirs()
	handover, theirs, err := newHandover()
	if err != nil {
		return nil, err
	}
	defer handover.close()
	pipes.theirs = append(pipes.theirs, theirs)
	info := pipes.read()
	pipes.hold(r.filter)
	pipes.hold(resolvers(r.config.Network))
	stdout := pipes.read()
	if pipes.err != nil {
		pipes.closeOurs()
		return nil, pipes.err
	}
	defer info.Close()
	stdoutIn := pipes.theirs[len(pipes.theirs)-1]

	attributes, plan := attributes(&r.config)
	text, err := json.Marshal(plan)
	if err != nil {
		pipes.closeOurs()
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", // readable whoever this is, replaced or not
		Args: append([]string{setupName, string(text), r.bwrap}, r.arguments()...),
		Env:  r.environment(), ExtraFiles: pipes.theirs[:len(pipes.theirs)-1],
		Stdin: bytes.NewReader(append(bytes.Clone(input(task)), '\n')), Stdout: stdoutIn,
		WaitDelay: graceTime, SysProcAttr: attributes,
	}
	p = &process{cmd: cmd, stdout: stdout, errors: newStderr(r.log, task.RunID, r.config.Secrets), exited: make(chan struct{})}
	cmd.Stderr = p.errors
	if r.groups != "" {
		if p.group, err = newGroup(r.groups, &r.config); err != nil {
			pipes.closeOurs()
			return nil, err
		}
		p.group.join(attributes)
	}
	if err := cmd.Start(); err != nil {
		p.stdout.Close()
		p.discard()
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
		p.errors.flush()
	}()
	pipes.closeTheirs()
	if p.files, err = handover.take(); err != nil {
		return p, nil // the process says why
	}
	err = p.files.check(&r.config)
	if err == nil && r.config.Network == OwnNetwork {
		p.stack, err = startStack(r.slirp, cmd.Process.Pid, p.group)
	}
	if err != nil {
		handover.close() // ends the process
		p.wait()
		p.discard()
		return nil, err
	}
	if handover.proceed() != nil {
		return p, nil // as above
	}
	var child struct {
		PID int `json:"child-pid"`
	}
	// Without a child bubblewrap has failed, and its exit says so.
	_ = json.NewDecoder(info).Decode(&child)
	p.first = child.PID
	return p, nil
}

// pipes are the two ends of a process's descriptors, while it is started.
type pipes struct {
	ours, theirs []*os.File
	err          error // the first
}

// pair returns a pipe's ends.
func (p *pipes) pair() (reader, writer *os.File) {
	reader, writer, err := os.Pipe()
	if p.err == nil {
		p.err = err
	}
	return reader, writer
}

// read is a pipe that the process writes to.
func (p *pipes) read() (ours *os.File) {
	ours, theirs := p.pair()
	p.ours, p.theirs = append(p.ours, ours), append(p.theirs, theirs)
	return ours
}

// hold is a pipe in which the process finds a short text.
func (p *pipes) hold(text []byte) {
	theirs, ours := p.pair()
	p.theirs = append(p.theirs, theirs)
	if p.err == nil {
		_, p.err = ours.Write(text) // a pipe takes more than that
	}
	ours.Close()
}

func (p *pipes) closeOurs() {
	for _, f := range p.ours {
		f.Close()
	}
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		f.Close() // twice, and of a file that is none, is an error only
	}
}

// discard gives back what is left of it, whose processes have ended.
func (p *process) discard() {
	p.stack.stop()
	p.group.remove()
	if p.files != nil {
		p.files.close()
	}
}

// linger gives the process a moment to end by itself.
func (p *process) linger() {
	timer := time.NewTimer(graceTime)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
	}
}

// environment is the command's, and all that bubblewrap gets. It does not go
// through the command line, which everybody can read.
func (r *Runner) environment() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8"}
	for _, more := range []map[string]string{r.config.Env, r.config.Secrets} {
		for name, value := range more {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func input(task agent.Task) []byte {
	if task.Input == nil {
		return []byte("null")
	}
	return task.Input
}

// wait waits for the end, and says how it ended.
func (p *process) wait() string {
	<-p.exited
	p.stdout.Close()
	var exit *exec.ExitError
	switch {
	case p.err == nil, errors.Is(p.err, exec.ErrWaitDelay):
		return succeeded
	case errors.As(p.err, &exit) && exit.ExitCode() > 128: // as bubblewrap tells a signal
		return "killed by signal " + syscall.Signal(exit.ExitCode()-128).String()
	}
	return p.err.Error()
}

// succeeded is what wait says of a command that did.
const succeeded = "exit status 0"

// memory is what the whole sandbox takes, in bytes, where no cgroup holds it.
func (p *process) memory(c *Config) int64 {
	total := usage([]int{p.first, p.stack.pid()}, c.Processes+setupTasks, c.Network != HostNetwork)
	if p.files != nil {
		total += p.files.used()
	}
	return total
}

// tooMuch is the failure of a sandbox that took more memory than it may.
func tooMuch(c *Config) error {
	return &agent.Failure{Code: "sandbox_failed", Message: fmt.Sprintf("its processes and files together took more than %d bytes of memory", c.Memory)}
}

// signal asks the command, and what it started, to end: they are one process
// group, led by the first process, which itself ignores the signal.
func (p *process) signal() {
	if p.first > 0 {
		_ = syscall.Kill(-p.first, syscall.SIGTERM) // it has ended
	}
}

// kill ends the whole tree and waits for it. Errors: it has ended. Bubblewrap
// itself ends with the first process, which it reaps; only where it does not it
// is killed too.
func (p *process) kill() {
	if p.first > 0 {
		_ = syscall.Kill(p.first, syscall.SIGKILL)
		timer := time.NewTimer(graceTime / 2)
		defer timer.Stop()
		select {
		case <-p.exited:
			return
		case <-timer.C:
		}
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
}
