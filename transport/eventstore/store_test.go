package eventstore_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
)

func TestMain(m *testing.M) {
	// The store's client may leave an idle connection behind when one breaks
	// (BUG in conn.go).
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("google.golang.org/grpc/internal/grpcsync.(*CallbackSerializer).run"))
}

// startNode runs an embedded node until the test ends, or stop is called.
func startNode(t testing.TB, addr, data string) (node *embedded.Node, stop func()) {
	t.Helper()
	return runNode(t, embedded.Config{Addr: addr, DataDir: data, Log: zerolog.Nop()})
}

// rehearse runs a node that behaves as text says.
func rehearse(t testing.TB, text string) *embedded.Node {
	t.Helper()
	r := rehearsal(t, text)
	node, _ := runNode(t, embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop(), Rehearse: &r})
	return node
}

func rehearsal(t testing.TB, text string) embedded.Rehearsal {
	t.Helper()
	r, err := embedded.ParseRehearsal(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

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

func openStore(t testing.TB, url string) *eventstore.Store {
	t.Helper()
	store, err := eventstore.Open(eventstore.Config{ConnectionString: url, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// storeURL is the store of the tests: a real EventStoreDB where one is given,
// else an embedded node.
func storeURL(t testing.TB) string {
	if url := os.Getenv("RUNFACTS_TEST_EVENTSTORE"); url != "" {
		return url
	}
	node, _ := startNode(t, "127.0.0.1:0", t.TempDir())
	return node.ConnectionString()
}

func TestLedger(t *testing.T) {
	url := storeURL(t)
	ledgertest.Run(t, openStore(t, url), fmt.Sprintf("suite_%d", time.Now().UnixNano()))
}

func TestSide(t *testing.T) {
	url := storeURL(t)
	ledgertest.RunSide(t, openStore(t, url), fmt.Sprintf("side_%d", time.Now().UnixNano()))
}

// A node of this process is reached without a port.
func TestOverASocket(t *testing.T) {
	node, _ := startNode(t, "unix:"+t.TempDir(), t.TempDir())
	if err := openStore(t, node.ConnectionString()).Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
