package supervisor

import "time"

// clock bounds one run. While it waits for somebody outside, only the wait
// counts. It belongs to one goroutine.
type clock struct {
	limits                  Limits
	duration, silence, wait *time.Timer
	left                    time.Duration // of duration, when it last began to count
	since                   time.Time     // then
	waiting                 bool
}

func newClock(l Limits) *clock {
	c := &clock{limits: l, left: l.Duration, since: time.Now(),
		duration: timer(l.Duration), silence: timer(l.Silence), wait: timer(0)}
	return c
}

// timer returns one that never fires where d is 0.
func timer(d time.Duration) *time.Timer {
	t := time.NewTimer(d)
	if d <= 0 {
		t.Stop()
	}
	return t
}

func reset(t *time.Timer, d, limit time.Duration) {
	if limit > 0 {
		t.Reset(max(d, 0))
	}
}

// again puts the silence off: the runtime has reported.
func (c *clock) again() {
	if !c.waiting {
		reset(c.silence, c.limits.Silence, c.limits.Silence)
	}
}

// set tells whether the run waits.
func (c *clock) set(waiting bool) {
	if waiting == c.waiting {
		return
	}
	c.waiting = waiting
	if waiting {
		c.left -= time.Since(c.since)
		c.duration.Stop()
		c.silence.Stop()
		reset(c.wait, c.limits.Wait, c.limits.Wait)
		return
	}
	c.since = time.Now()
	c.wait.Stop()
	reset(c.duration, c.left, c.limits.Duration)
	reset(c.silence, c.limits.Silence, c.limits.Silence)
}

func (c *clock) stop() {
	c.duration.Stop()
	c.silence.Stop()
	c.wait.Stop()
}
