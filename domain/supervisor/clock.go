package supervisor

import (
	"sync"
	"time"

	"github.com/runfacts/runfacts/domain/run"
)

// clock bounds one run. While the run waits for somebody outside, only the wait
// counts; while a report is being taken, the runtime is not silent: then it is the
// store that takes its time. Safe for concurrent use: whatever is told counts
// before the call returns.
type clock struct {
	limits  Limits
	changed chan struct{} // holds a hint that next says something else

	mu      sync.Mutex
	left    time.Duration // of the duration, when it last began to count
	since   time.Time     // then
	heard   time.Time     // the runtime's last sign of life; or when the wait began
	waiting bool
	reports int // under way
}

func newClock(l Limits) *clock {
	c := &clock{limits: l, changed: make(chan struct{}, 1)}
	c.start()
	return c
}

// start begins to count.
func (c *clock) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.since, c.heard = c.limits.Duration, time.Now(), time.Now()
}

// reporting tells that the runtime has something to report, and returns the call
// that tells that it was taken.
func (c *clock) reporting() (taken func()) {
	c.report(1)
	return func() { c.report(-1) }
}

func (c *clock) report(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports += n
	if !c.waiting {
		c.heard = time.Now()
	}
	c.hint()
}

// wait tells whether the run waits for somebody outside.
func (c *clock) wait(waiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiting == c.waiting {
		return
	}
	now := time.Now()
	if waiting {
		c.left -= now.Sub(c.since)
	}
	c.waiting, c.since, c.heard = waiting, now, now
	c.hint()
}

func (c *clock) hint() {
	select {
	case c.changed <- struct{}{}:
	default: // one hint is enough
	}
}

// next returns the limit that is reached; or else in how long the next one may be,
// 0 where there is none.
func (c *clock) next() (reached *limit, in time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	pass := func(limit, left time.Duration) bool {
		if limit > 0 && (in == 0 || left < in) {
			in = max(left, 1)
		}
		return limit > 0 && left <= 0
	}
	if c.waiting {
		if pass(c.limits.Wait, c.limits.Wait-now.Sub(c.heard)) {
			reached = &limit{run.WaitTimeout, "nobody answered within " + c.limits.Wait.String(), false}
		}
		return reached, in
	}
	if c.reports == 0 && pass(c.limits.Silence, c.limits.Silence-now.Sub(c.heard)) {
		reached = &limit{run.RunSilent, "the runtime reported nothing for " + c.limits.Silence.String(), true}
	}
	if pass(c.limits.Duration, c.left-now.Sub(c.since)) {
		reached = &limit{run.RunTimeout, "the run took longer than " + c.limits.Duration.String(), false}
	}
	return reached, in
}
