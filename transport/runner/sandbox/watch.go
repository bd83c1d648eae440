//go:build linux

package sandbox

import (
	"context"
	"time"
)

// watchTime is how often memory is looked at where no cgroup holds it.
const watchTime = 100 * time.Millisecond

// watch ends the process when ctx or stop does, or when the sandbox takes more
// memory than it may (the error); it returns when the process has ended.
func (p *process) watch(ctx context.Context, stop <-chan struct{}, c *Config) (excess error) {
	tick := time.NewTicker(watchTime)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return p.outOfMemory(c)
		case <-tick.C:
			if p.group != nil || p.memory(c) <= c.Memory {
				continue
			}
			p.kill()
			return tooMuch(c)
		case <-ctx.Done():
		case <-stop:
		}
		break
	}
	p.signal()
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

// outOfMemory is the error of a process that the kernel ended for its memory.
func (p *process) outOfMemory(c *Config) error {
	if p.group.exceeded() {
		return tooMuch(c)
	}
	return nil
}
