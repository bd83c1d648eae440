package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/transport/eventstore"
)

// What a real node may do and a well-behaved user must not notice, each alone.
// Behaviours that leave outcomes unknown are met by insisting (TestLedgerInTrouble).
var unnoticed = []string{
	"read-lag=0..60ms", "read-lag=40ms,page-size=1..7", "caughtup-fields,fellbehind=3", "late-answer=0..30ms/5", "commit-not-prepare,sparse=3",
	"slow-auth=200us,version=24.10.0",
}

func TestLedgerRehearsed(t *testing.T) {
	for _, text := range unnoticed {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			ledgertest.Run(t, openStore(t, rehearse(t, text).ConnectionString()), fmt.Sprintf("suite_%d", time.Now().UnixNano()))
		})
	}
}

func TestSideRehearsed(t *testing.T) {
	for _, text := range unnoticed {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			ledgertest.RunSide(t, openStore(t, rehearse(t, text).ConnectionString()), fmt.Sprintf("side_%d", time.Now().UnixNano()))
		})
	}
}

// What leaves an outcome unknown, or refuses for a while, is met by asking
// again, as a Recorder does. The answers are then those of a quiet store.
var troubled = []string{
	"no-answer=150", "not-leader=5", "election=300ms/3s", "no-quorum=300ms/3s", "cut=20000..300000",
	"denied=w:agent_run-/400ms/3s", "denied=rwa:/400ms/3s", "worst",
}

// insisting asks again until the store has an answer.
type insisting struct{ *eventstore.Store }

func insistently[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for {
		value, err := f()
		var unknown *ledger.UnknownError
		var away *ledger.UnavailableError
		if err == nil || ctx.Err() != nil || !errors.As(err, &unknown) && !errors.As(err, &away) {
			return value, err
		}
	}
}

func (s insisting) Append(ctx context.Context, id run.ID, after run.Seq, events []run.Event) error {
	_, err := insistently(ctx, func() (struct{}, error) { return struct{}{}, s.Store.Append(ctx, id, after, events) })
	return err
}

func (s insisting) Erase(ctx context.Context, id run.ID, last run.Seq) error {
	tries := 0
	_, err := insistently(ctx, func() (struct{}, error) { tries++; return struct{}{}, s.Store.Erase(ctx, id, last) })
	if tries > 1 && errors.Is(err, ledger.ErrErased) {
		return nil // by the try whose answer was lost
	}
	return err
}

func (s insisting) End(ctx context.Context, id run.ID) (run.Seq, error) {
	return insistently(ctx, func() (run.Seq, error) { return s.Store.End(ctx, id) })
}

func (s insisting) Read(ctx context.Context, id run.ID, after run.Seq, limit ledger.Page) ([]run.Event, error) {
	return insistently(ctx, func() ([]run.Event, error) { return s.Store.Read(ctx, id, after, limit) })
}

func (s insisting) Last(ctx context.Context, id run.ID) (run.Event, error) {
	return insistently(ctx, func() (run.Event, error) { return s.Store.Last(ctx, id) })
}

func TestLedgerInTrouble(t *testing.T) {
	for _, text := range troubled {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			ledgertest.Run(t, insisting{openStore(t, rehearse(t, text).ConnectionString())}, fmt.Sprintf("suite_%d", time.Now().UnixNano()))
		})
	}
}

// The address of a follower is as good as the leader's, and what the string
// prefers concerns subscriptions only.
func TestAFollowersAddressLeadsToTheLeader(t *testing.T) {
	leader := rehearse(t, "seed=1")
	follower := rehearse(t, "not-leader=1,leader="+leader.Addr().String())
	for name, url := range map[string]string{
		"a follower": follower.ConnectionString(),
		"preferred":  "esdb+discover://" + follower.Addr().String() + "?tls=false&nodePreference=follower",
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, url)
			if err := s.Ping(within(t, 10*time.Second)); err != nil {
				t.Fatal(err, errors.Unwrap(err))
			}
			script, started := ledgertest.NewScript("led_" + name[:4])
			insist(t, s, script.ID, 0, started)
			if last, err := openStore(t, leader.ConnectionString()).Last(t.Context(), script.ID); err != nil || last.Seq != 1 {
				t.Errorf("at the leader: %d, %v", last.Seq, err)
			}
		})
	}
}
