package embedded_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"

	"github.com/runfacts/runfacts/transport/embedded"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashingNode(dir)
		return
	}
	// regexp2 keeps one clock for its timeouts; it ends by itself a second later.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2.runClock"))
}

// startNode runs a node until the test ends, or the returned call.
func startNode(t testing.TB, dir string) (node *embedded.Node, stop func()) {
	t.Helper()
	return runNode(t, embedded.Config{Addr: "127.0.0.1:0", DataDir: dir, Log: zerolog.Nop()})
}

// runNode is startNode with another configuration.
func runNode(t testing.TB, c embedded.Config) (node *embedded.Node, stop func()) {
	t.Helper()
	node, err := embedded.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("node: %v", err)
		}
	}
	t.Cleanup(stop)
	return node, stop
}

// rawClient speaks the protocol without a client in between.
func rawClient(t testing.TB, target string) streams.StreamsClient {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return streams.NewStreamsClient(conn)
}

// within bounds one test.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
