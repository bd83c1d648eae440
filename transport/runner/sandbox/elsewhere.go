//go:build !linux

package sandbox

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/agent"
)

var errElsewhere = errors.New("sandboxes need Linux")

// Runner is there on Linux only.
type Runner struct{}

var _ agent.Runner = (*Runner)(nil)

// Setup does nothing here.
func Setup() {}

// New refuses.
func New(context.Context, Config, zerolog.Logger) (*Runner, error) { return nil, errElsewhere }

// Run refuses.
func (*Runner) Run(context.Context, agent.Task, func(agent.Event) error) (agent.Stop, error) {
	return agent.Stop{Proof: "the process was never started"}, errElsewhere
}
