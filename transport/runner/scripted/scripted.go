// Package scripted is a runtime that plays AgentEvents from a file: for trying
// things out, and for building a front end before there is an agent.
package scripted

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// Script is what is played. It implements agent.Runner.
type Script struct {
	events []agent.Event
	pause  time.Duration
}

var _ agent.Runner = (*Script)(nil)

// Parse reads a script, one AgentEvent a line, to be played with a pause before
// each. Errors name the line.
func Parse(ndjson []byte, pause time.Duration) (*Script, error) {
	s := &Script{pause: pause}
	lines := bufio.NewScanner(bytes.NewReader(ndjson))
	lines.Buffer(nil, len(ndjson)+1)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		e, err := agent.Decode(bytes.Clone(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		e.ProducerSeq = 0 // an owner's events are not numbered
		s.events = append(s.events, e)
	}
	return s, nil
}

// Run implements agent.Runner.
func (s *Script) Run(ctx context.Context, _ agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	stopped := agent.Stop{Proof: "the script was stopped"}
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	for _, e := range s.events {
		select {
		case <-timer.C:
			timer.Reset(s.pause)
		case <-ctx.Done():
			return stopped, nil
		}
		if emit(e) != nil {
			return stopped, nil
		}
	}
	return agent.Stop{Proof: "the script was played to its end"}, nil
}
