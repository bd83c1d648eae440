package agent_test

import (
	"context"
	"fmt"

	"github.com/runfacts/runfacts/domain/agent"
)

// Counter is a runtime that counts to three.
type Counter struct{}

// Run implements agent.Runner.
func (Counter) Run(ctx context.Context, task agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	for n := range 3 {
		select {
		case <-ctx.Done(): // cancelled, drained, or over a limit: stop what you started, then say what proves it
			return agent.Stop{Proof: "the loop was left"}, nil
		default:
		}
		text := agent.Unicode(fmt.Sprint(n+1, " "))
		if err := emit(agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: text}); err != nil {
			return agent.Stop{Proof: "the loop was left"}, nil // nothing more is recorded: stop, too
		}
	}
	return agent.Stop{Proof: "the loop ended"}, nil // done; what was said is the answer
}

func ExampleRunner() {
	var runner agent.Runner = Counter{}
	stop, err := runner.Run(context.Background(), agent.Task{RunID: "run_1"}, func(e agent.Event) error {
		fmt.Printf("%s %q\n", e.Type, e.Content.String())
		return nil
	})
	fmt.Println(stop.Proof, err)
	// Output:
	// delta "1 "
	// delta "2 "
	// delta "3 "
	// the loop ended <nil>
}
