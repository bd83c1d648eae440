package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/runfacts/runfacts/transport/embedded"
)

// rehearseFlags make the embedded node do what a real one may do. No variable of
// the environment does: one that was left behind would lose somebody's facts.
type rehearseFlags struct {
	Rehearse string `placeholder:"worst" help:"For testing clients: behave as a real EventStoreDB may at its worst (docs/eventstoredb.md has the list)."`
}

// rehearsal is what was asked for; nil: nothing.
func (f rehearseFlags) rehearsal() (*embedded.Rehearsal, error) {
	if f.Rehearse == "" {
		return nil, nil
	}
	r, err := embedded.ParseRehearsal(f.Rehearse)
	if err != nil {
		return nil, fmt.Errorf("--rehearse: %w", err)
	}
	return &r, nil
}

// setBackOnSignal sets the node's store back when SIGUSR1 comes, until ctx ends.
func setBackOnSignal(ctx context.Context, node *embedded.Node) error {
	signals := make(chan os.Signal, 1) // a second one while the first is handled says nothing new
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			if _, err := node.SetBack(ctx); err != nil {
				return fmt.Errorf("set the store back: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}
