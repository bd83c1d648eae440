package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/internal/faultproxy"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/sse"
)

// runPart runs a long-running part until the test ends.
func runPart(t testing.TB, part func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Two instances lose their connections to the store again and again, while
// producers push every event to either of them and send again what is in doubt.
// Each viewer sees each run whole, once, in order, with one end.
func TestChaos(t *testing.T) {
	const runs, events = 6, 150
	node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, node.Run)
	var proxies []*faultproxy.Proxy
	var urls []string
	for range 2 {
		proxy := faultproxy.Start(t, node.Addr().String())
		proxies = append(proxies, proxy)
		url, stop := startServer(t, t.TempDir(), "--eventstore", "esdb://"+proxy.Addr()+"?tls=false", "--log-level", "info")
		t.Cleanup(stop)
		urls = append(urls, url)
	}

	var work errgroup.Group
	for range runs {
		id := createRun(t, urls[0])
		for _, url := range urls {
			work.Go(func() error { return watchWhole(url, id, events) })
		}
		work.Go(func() error { return insist(urls, id, events) })
	}
	finished := make(chan error, 1)
	go func() { finished <- work.Wait() }()
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for cuts := 0; ; cuts++ {
		select {
		case err := <-finished:
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d cuts", cuts)
			http.DefaultClient.CloseIdleConnections()
			return
		case <-tick.C:
			if cuts < 100 { // then there is peace, so that the test ends
				proxies[rand.IntN(2)].Cut()
			}
		}
	}
}

// insist pushes numbered deltas and the end, each to either instance, until
// each is taken.
func insist(urls []string, id string, events int) error {
	for n := 1; n <= events+1; {
		body := line(n)
		if n == events+1 {
			body = fmt.Sprintf("{\"type\":\"done\",\"producer_seq\":%d}\n", n)
		}
		response, err := http.Post(urls[rand.IntN(2)]+"/api/agent-runs/"+id+"/agent-events", "application/x-ndjson", strings.NewReader(body))
		if err != nil {
			return err
		}
		var receipt struct {
			ProducerSeq uint64 `json:"producer_seq"`
			Code        string `json:"code"`
		}
		err = json.NewDecoder(response.Body).Decode(&receipt)
		response.Body.Close()
		switch {
		case err != nil:
			return err
		case response.StatusCode == http.StatusOK:
			n++
		case response.StatusCode != http.StatusServiceUnavailable:
			return fmt.Errorf("run %s, event %d: %s %+v", id, n, response.Status, receipt)
		}
	}
	return nil
}

// watchWhole follows a run to its end, across broken streams, and checks it.
func watchWhole(url, id string, events int) error {
	var text strings.Builder
	for seq := 0; ; {
		request, err := http.NewRequest(http.MethodGet, url+"/api/agent-runs/"+id+"/events", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Last-Event-ID", fmt.Sprint(seq))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			response.Body.Close()
			return fmt.Errorf("run %s behind %d: %s", id, seq, response.Status)
		}
		frames := sse.NewReader(response.Body, 1<<20)
		for {
			f, err := frames.Next()
			if errors.Is(err, io.EOF) {
				break // come back
			}
			if err != nil {
				return err
			}
			if f.Data == "" {
				continue
			}
			if seq++; f.ID != fmt.Sprint(seq) {
				return fmt.Errorf("run %s: event %s follows event %d", id, f.ID, seq-1)
			}
			var d struct{ Payload struct{ Delta string } }
			if err := json.Unmarshal([]byte(f.Data), &d); err != nil {
				return err
			}
			text.WriteString(d.Payload.Delta)
			if f.Event != "run.completed" {
				continue
			}
			response.Body.Close()
			var want strings.Builder
			for n := 1; n <= events; n++ {
				fmt.Fprintf(&want, "%d ", n)
			}
			if text.String() != want.String() {
				return fmt.Errorf("run %s says %q", id, text.String())
			}
			return nil
		}
		response.Body.Close()
	}
}
