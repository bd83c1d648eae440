//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Where the groups of this process's sandboxes are, beside a group for the
// process itself: the kernel lets no group with processes have bounded children.
const (
	ownGroup     = "runfacts"
	sandboxGroup = "sandbox-"
)

// setupTasks is what the process that sets up, bubblewrap and the network stack
// take of a group's tasks.
const setupTasks = 64

// groups is the folder of the unified cgroup hierarchy where this process may
// make groups; "" and why not. It moves the process, once.
var groups = sync.OnceValues(func() (string, error) {
	mine, err := delegated()
	if err != nil {
		return "", err
	}
	own := filepath.Join(mine, ownGroup)
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("its cgroup is not delegated: %w", err)
	}
	if err := enter(own); err != nil {
		return "", fmt.Errorf("its cgroup is not delegated: %w", err)
	}
	if err := set(mine, "cgroup.subtree_control", "+memory +pids"); err != nil {
		// Others are in it, or the controllers are somebody else's.
		return "", errors.Join(fmt.Errorf("its cgroup cannot be divided: %w", err), enter(mine), os.Remove(own))
	}
	left, _ := filepath.Glob(filepath.Join(mine, sandboxGroup+"*")) // the pattern is right
	for _, group := range left {
		_ = os.Remove(group) // of a process that was killed; one with processes stays
	}
	return mine, nil
})

// delegated returns this process's group in the unified hierarchy, where that has
// the controllers.
func delegated() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			before, after, _ := strings.Cut(mount, " - ")
			fields := strings.Fields(before)
			if !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 {
				continue
			}
			// What is mounted may be a part of the hierarchy.
			below, err := filepath.Rel(fields[3], path)
			if err != nil || strings.HasPrefix(below, "..") {
				continue
			}
			group := filepath.Join(fields[4], below)
			controllers, _ := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
			if c := strings.Fields(string(controllers)); slices.Contains(c, "memory") && slices.Contains(c, "pids") {
				return group, nil
			}
		}
	}
	return "", errors.New("there is no unified cgroup hierarchy with the memory controller")
}

// enter moves this process.
func enter(group string) error {
	return set(group, "cgroup.procs", strconv.Itoa(os.Getpid()))
}

// set writes one of a group's files, which must be there.
func set(group, name, value string) error {
	f, err := os.OpenFile(filepath.Join(group, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// group is one sandbox's cgroup; nil is none.
type group struct {
	path string
	fd   *os.File
}

// newGroup makes a bounded group under parent.
func newGroup(parent string, c *Config) (*group, error) {
	path, err := os.MkdirTemp(parent, sandboxGroup)
	if err != nil {
		return nil, err
	}
	g := &group{path: path}
	for _, setting := range []struct {
		name  string
		value int64
		need  bool
	}{
		{"memory.max", c.Memory, true},
		{"memory.swap.max", 0, false}, // absent where the kernel has no swap
		{"memory.oom.group", 1, true}, // a half of an agent is none
		{"pids.max", int64(c.Processes) + setupTasks, true},
	} {
		err := set(path, setting.name, strconv.FormatInt(setting.value, 10))
		if err != nil && (setting.need || !errors.Is(err, os.ErrNotExist)) {
			g.remove()
			return nil, fmt.Errorf("bound a cgroup: %w", err)
		}
	}
	if g.fd, err = os.Open(path); err != nil {
		g.remove()
		return nil, err
	}
	return g, nil
}

// join makes a process start in the group.
func (g *group) join(a *syscall.SysProcAttr) {
	if g != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(g.fd.Fd())
	}
}

// exceeded reports whether the kernel ended it for its memory.
func (g *group) exceeded() bool {
	if g == nil {
		return false
	}
	events, _ := os.ReadFile(filepath.Join(g.path, "memory.events")) // it is there until remove
	for line := range strings.Lines(string(events)) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" {
			return n != "0"
		}
	}
	return false
}

// remove drops the group. Its processes have ended; the kernel may take a moment
// to know.
func (g *group) remove() {
	if g == nil {
		return
	}
	if g.fd != nil {
		g.fd.Close()
	}
	for deadline := time.Now().Add(graceTime); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Rmdir(g.path); !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return // what is left the next process drops
		}
	}
}
