package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// nobody is who a sandbox is for the kernel when this process is root: limits
// on processes do not hold for root.
const nobody = 65534

// process is a sandbox that runs.
type process struct {
	cmd    *exec.Cmd
	stdout *os.File
	errors *stderr
	output string        // the folder that is /output inside
	first  int           // the first process of its namespace, whose death ends all
	exited chan struct{} // closed once cmd has ended
	err    error         // of cmd.Wait
}

// start starts the command.
func (r *Runner) start(task agent.Task) (p *process, err error) {
	infoOut, infoIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer infoOut.Close()
	defer infoIn.Close()
	stdout, stdoutIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdoutIn.Close()
	output, err := outputFolder()
	if err != nil {
		stdout.Close()
		return nil, err
	}
	cmd := exec.Command(r.bwrap, r.arguments(3, output)...)
	cmd.Env = r.environment()
	cmd.ExtraFiles = []*os.File{infoIn}
	cmd.Stdin = bytes.NewReader(append(bytes.Clone(input(task)), '\n'))
	cmd.Stdout = stdoutIn
	p = &process{cmd: cmd, stdout: stdout, output: output, errors: newStderr(r.log, task.RunID, r.config.Secrets), exited: make(chan struct{})}
	cmd.Stderr = p.errors
	cmd.WaitDelay = graceTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if err := cmd.Start(); err != nil {
		stdout.Close()
		p.discard()
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	infoIn.Close()
	stdoutIn.Close()
	var info struct {
		ChildPID int `json:"child-pid"`
	}
	// Without a child bubblewrap has failed, and its exit says so.
	_ = json.NewDecoder(infoOut).Decode(&info)
	p.first = info.ChildPID
	return p, nil
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
		return "exit status 0"
	case errors.As(p.err, &exit) && exit.ExitCode() > 128: // as bubblewrap tells a signal
		return "killed by signal " + syscall.Signal(exit.ExitCode()-128).String()
	}
	return p.err.Error()
}

// watch ends the process when ctx or stop does, or when the tree takes more
// memory, or its output more room, than it may (the error); it returns when the
// process has ended.
func (p *process) watch(ctx context.Context, stop <-chan struct{}, c *Config) (excess error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return nil
		case <-tick.C:
			what := ""
			switch {
			case p.resident() > c.Memory:
				what = fmt.Sprintf("its processes together took more than %d bytes of memory", c.Memory)
			case p.written() > c.Disk:
				what = fmt.Sprintf("it left more than %d bytes in /output", c.Disk)
			default:
				continue
			}
			p.kill()
			return &agent.Failure{Code: "sandbox_failed", Message: what}
		case <-ctx.Done():
		case <-stop:
		}
		break
	}
	// The command and what it started are one process group, led by the first
	// process, which itself ignores the signal. Errors: it has ended.
	if p.first > 0 {
		_ = syscall.Kill(-p.first, syscall.SIGTERM)
	}
	timer := time.NewTimer(graceTime)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
	}
	p.kill()
	return nil
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

// resident is the memory of the tree in bytes; 0 where it has ended.
func (p *process) resident() (total int64) {
	page := int64(os.Getpagesize())
	for queue := []int{p.first}; len(queue) > 0 && queue[0] > 0; queue = queue[1:] {
		dir := fmt.Sprintf("/proc/%d", queue[0])
		if statm, err := os.ReadFile(dir + "/statm"); err == nil {
			if fields := strings.Fields(string(statm)); len(fields) > 1 {
				n, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel's own
				total += n * page
			}
		}
		tasks, _ := os.ReadDir(dir + "/task") // it may have ended
		for _, t := range tasks {
			children, _ := os.ReadFile(dir + "/task/" + t.Name() + "/children")
			for _, child := range strings.Fields(string(children)) {
				if pid, err := strconv.Atoi(child); err == nil {
					queue = append(queue, pid)
				}
			}
		}
	}
	return total
}
