package eventstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/internal/faultproxy"
	"github.com/runfacts/runfacts/transport/eventstore"
)

// throughProxy is a store whose connections a test can hurt.
func throughProxy(t *testing.T) (*eventstore.Store, *faultproxy.Proxy) {
	t.Helper()
	node, _ := startNode(t, "127.0.0.1:0", t.TempDir())
	proxy := faultproxy.Start(t, node.Addr().String())
	return openStore(t, "esdb://"+proxy.Addr()+"?tls=false"), proxy
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// insist sends an append until the store says stored or refused, as a Recorder
// does.
func insist(t *testing.T, s *eventstore.Store, id run.ID, after run.Seq, events []run.Event) {
	t.Helper()
	ctx := within(t, 40*time.Second)
	for {
		err := s.Append(ctx, id, after, events)
		var unknown *ledger.UnknownError
		if err == nil {
			return
		}
		if !errors.As(err, &unknown) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectionsAreCutAgainAndAgain(t *testing.T) {
	s, proxy := throughProxy(t)
	script, started := ledgertest.NewScript("cut")
	insist(t, s, script.ID, 0, started)
	seqs := make(chan run.Seq, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	followed := make(chan error, 1)
	go func() {
		followed <- s.Follow(ctx, script.ID, 0, func(e run.Event) error {
			seqs <- e.Seq
			return nil
		})
	}()
	for i := range 30 {
		after := script.Last()
		events := script.Deltas("x")
		if i%5 == 2 {
			proxy.Cut()
		}
		insist(t, s, script.ID, after, events)
	}
	for want := run.Seq(1); want <= script.Last(); want++ {
		select {
		case got := <-seqs:
			if got != want {
				t.Fatalf("followed to %d, want %d", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no event %d", want)
		}
	}
	cancel()
	if err := <-followed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A connection over which nothing comes any more must not hold a caller longer
// than its context, whatever the client inside does.
func TestAHalfOpenConnectionHoldsNobody(t *testing.T) {
	s, proxy := throughProxy(t)
	script, started := ledgertest.NewScript("stall")
	insist(t, s, script.ID, 0, started)
	if _, err := s.Last(within(t, 10*time.Second), script.ID); err != nil {
		t.Fatal(err)
	}
	proxy.Stall()
	begun := time.Now()
	var unknown *ledger.UnknownError
	var away *ledger.UnavailableError
	if err := s.Append(within(t, 300*time.Millisecond), script.ID, 1, script.Deltas("x")); !errors.As(err, &unknown) {
		t.Errorf("append: %v", err)
	}
	if _, err := s.Last(within(t, 300*time.Millisecond), script.ID); !errors.As(err, &away) {
		t.Errorf("last: %v", err)
	}
	if err := s.Follow(within(t, 300*time.Millisecond), script.ID, 0, func(run.Event) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("follow: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("callers were held for %s", took)
	}
	proxy.Flow()
	if _, err := s.Last(within(t, 30*time.Second), script.ID); err != nil {
		t.Errorf("after the stall: %v", err)
	}
}

func TestAStoreThatIsNotThereYet(t *testing.T) {
	node, stop := startNode(t, "127.0.0.1:0", t.TempDir())
	addr := node.Addr().String()
	stop()
	s := openStore(t, "esdb://"+addr+"?tls=false")
	if err := s.Ping(within(t, 5*time.Second)); err == nil {
		t.Fatal("a store that is not there answers")
	}
	var unknown *ledger.UnknownError
	script, started := ledgertest.NewScript("early")
	if err := s.Append(within(t, 5*time.Second), script.ID, 0, started); !errors.As(err, &unknown) {
		t.Errorf("append: %v", err)
	}
	startNode(t, addr, t.TempDir())
	insist(t, s, script.ID, 0, started)
	if err := s.Ping(within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
}

func TestAConnectionStringIsReadAtOnceAndNeverQuoted(t *testing.T) {
	_, err := eventstore.Open(eventstore.Config{ConnectionString: "esdb://admin:s3cret@[", Log: zerolog.Nop()})
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

func TestAnAppendThatIsTooLargeIsRefused(t *testing.T) {
	s := openStore(t, storeURL(t))
	script, started := ledgertest.NewScript("large-" + strings.ReplaceAll(time.Now().Format("150405.000000"), ".", ""))
	insist(t, s, script.ID, 0, started)
	err := s.Append(within(t, 20*time.Second), script.ID, 1, script.Deltas(strings.Repeat("x", 2<<20)))
	var refused *ledger.RefusedError
	var unknown *ledger.UnknownError
	// The client may lose the reason of an early refusal; then it says that the
	// server has ended the call.
	said := errors.As(err, &refused) && refused.TooLarge
	lost := errors.As(err, &unknown) && unknown.Answered
	if !said && !lost {
		t.Errorf("%v", err)
	}
}
