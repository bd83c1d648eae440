package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/domain/agent"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
	"github.com/runfacts/runfacts/internal/faultproxy"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
)

// asker is a runtime that talks and asks, long and short, and tells the test what it
// asks.
type asker struct{ asks chan<- [2]string }

// answerTo is what a question is answered: its own name, again and again.
func answerTo(call string) string {
	return strings.Repeat(call+" ", 1+len(call)*int(call[len(call)-1]-'0')*50)
}

// Run implements agent.Runner.
func (a asker) Run(ctx context.Context, task agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	stopped := agent.Stop{Proof: "it returned"}
	for n := range 3 {
		for range rand.IntN(20) {
			if emit(agent.Event{Type: agent.Delta, Content: "some text "}) != nil {
				return stopped, nil
			}
		}
		call := fmt.Sprintf("%s_q%d", task.RunID, n)
		question, _ := json.Marshal(strings.Repeat("?", rand.IntN(80_000)))
		if emit(agent.Event{Type: agent.ToolCall, ToolName: "ask", ToolCallID: call, ToolArgs: question, External: true}) != nil {
			return stopped, nil
		}
		a.asks <- [2]string{task.RunID, call}
		got, err := task.Answer(ctx, call)
		if err != nil {
			return stopped, err
		}
		if want, _ := json.Marshal(answerTo(call)); string(got.Result) != string(want) {
			return stopped, &agent.Failure{Code: "wrong_answer", Message: fmt.Sprintf("%d bytes in place of %d", len(got.Result), len(want))}
		}
	}
	return stopped, nil
}

// Two instances lose their connections to the store again and again, and are
// restarted, while runs talk and ask, people answer and cancel through either of
// them, and creates of the same ids are refused. Each run ends once, and no answer
// arrives as another. RUNFACTS_CHAOS=500 is the long form.
func TestQuestionsInChaos(t *testing.T) {
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("RUNFACTS_CHAOS")); err == nil {
		rounds = n
	}
	node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, node.Run)
	f := &fleet{t: t, node: node}
	asks := make(chan [2]string, 10_000)
	blobs := t.TempDir()
	var proxies []*faultproxy.Proxy
	var restart []func()
	for i := range 2 {
		proxy := faultproxy.Start(t, node.Addr().String())
		proxies = append(proxies, proxy)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := listener.Addr().String()
		f.urls = append(f.urls, "http://"+addr)
		serve := func(listener net.Listener) (stop func()) {
			store, err := eventstore.Open(eventstore.Config{ConnectionString: "esdb://" + proxy.Addr() + "?tls=false", Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			c := serveCmd{
				Lease: 2 * time.Second, PushLease: 10 * time.Second, MaxAppend: 1_000_000, InlineLimit: 48 << 10, MaxArtifact: 1 << 20,
				MaxRuns: 8, MaxQueue: 8, QueueTime: 5 * time.Second, StorePatience: 5 * time.Second, KeepAlive: time.Second, Drain: time.Duration(i) * time.Second,
			}
			c.DataDir, c.BlobDir = t.TempDir(), blobs
			agents := []supervisor.Agent{{ID: "asker", Runtime: "asker", Runner: asker{asks}, Config: []byte(`{"agent_id":"asker"}`),
				Limits: supervisor.Limits{Duration: 20 * time.Second, Silence: 10 * time.Second, Wait: 10 * time.Second}}}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				defer store.Close()
				done <- c.serve(ctx, listener, store, agents, zerolog.Nop())
			}()
			return sync.OnceFunc(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
		stop := serve(listener)
		restart = append(restart, func() {
			stop()
			again, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			stop = serve(again)
		})
		t.Cleanup(func() { stop() })
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rounds)*time.Minute+time.Minute)
	defer cancel()
	var people errgroup.Group
	people.SetLimit(50)
	answering := make(chan struct{})
	go func() { // ends with the test's asks
		defer close(answering)
		for ask := range asks {
			people.Go(func() error {
				body, _ := json.Marshal(map[string]any{"tool_call_id": ask[1], "result": answerTo(ask[1])})
				for answered := 404; answered == 404; pauseFor(ctx, 20*time.Millisecond) { // until the question is recorded
					err := f.ask(ctx, "POST", "/api/agent-runs/"+ask[0]+"/tool-results", string(body), func(status int, _ map[string]any) bool {
						answered = status
						return status == 200 || status == 404 || status == 409
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
	}()
	ends := make(map[string]int)
	for round := range rounds {
		var work errgroup.Group
		for n := range 8 {
			id := fmt.Sprintf("run_%d_%d", round, n)
			work.Go(func() error {
				if err := f.start(ctx, id, "asker"); err != nil {
					return err
				}
				refused := fmt.Sprintf(`{"run_id":%q,"agent_id":"other","runtime":"push"}`, id)
				if err := f.ask(ctx, "POST", "/api/agent-runs", refused, func(status int, _ map[string]any) bool { return status == 409 }); err != nil {
					return err
				}
				if n%4 == 0 {
					if err := f.ask(ctx, "POST", "/api/agent-runs/"+id+"/cancel", "{}", func(status int, _ map[string]any) bool { return status == 200 || status == 409 }); err != nil {
						return err
					}
				}
				_, err := f.watch(ctx, id)
				return err
			})
		}
		finished := make(chan error, 1)
		go func() { finished <- work.Wait() }()
		tick := time.NewTicker(50 * time.Millisecond)
		for faults, over := 0, false; !over; faults++ {
			select {
			case err := <-finished:
				if err != nil {
					t.Error(err)
				}
				over = true
			case <-tick.C:
				switch {
				case faults == 20 && round%2 == 1:
					restart[rand.IntN(2)]()
				case faults < 60 && rand.IntN(3) == 0: // then there is peace
					proxies[rand.IntN(2)].Cut()
				}
			}
		}
		tick.Stop()
		store := f.store()
		for n := range 8 {
			id := runs.ID(fmt.Sprintf("run_%d_%d", round, n))
			if err := verify(ctx, store, id); err != nil {
				t.Error(err)
				continue
			}
			last, err := store.Last(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			end := last.Type
			if p, err := runs.DecodePayload(last.Type, last.Payload); err != nil {
				t.Error(err)
			} else if failed, ok := p.(*runs.RunFailed); ok {
				end = failed.Failure.Code
			}
			if ends[end]++; end == "wrong_answer" {
				t.Errorf("%s: %s", id, last.Payload)
			}
		}
		if t.Failed() {
			break
		}
	}
	for _, url := range f.urls {
		for metric(t, url, "runfacts_runs_driven") > 0 { // a moment longer than its end is told
			if pauseFor(ctx, 20*time.Millisecond); ctx.Err() != nil {
				t.Fatalf("%s drives runs that have ended", url)
			}
		}
	}
	t.Log(ends)
	if ends["run.completed"] == 0 {
		t.Error("nothing came to its own end")
	}
	t.Cleanup(func() { // when nobody asks any more
		close(asks)
		<-answering
		if err := people.Wait(); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
}
