package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/internal/groupfile"
)

// eventText is what each pushed event says: 200 bytes, as a model's chunk with
// its envelope would be.
var eventText = strings.Repeat("fact ", 40)

// BenchmarkDurablePush compares three things in one run, each for the same
// time and the same bytes: a file with group commit, a bare HTTP server over
// such a file, and Runfacts on its embedded node.
func BenchmarkDurablePush(b *testing.B) {
	for _, producers := range []int{1, 32} {
		b.Run(fmt.Sprintf("producers=%d", producers), func(b *testing.B) {
			event := pushLine(eventText)
			file, http, facts := 0.0, 0.0, 0.0
			for b.Loop() {
				file += rate(b, producers, fileTarget(b, event))
				http += rate(b, producers, httpTarget(b, event))
				facts += rate(b, producers, runfactsTarget(b, event))
			}
			n := float64(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(file/n, "file/s")
			b.ReportMetric(http/n, "bare-http/s")
			b.ReportMetric(facts/n, "runfacts/s")
			b.ReportMetric(facts/file, "of-file")
			b.ReportMetric(facts/http, "of-bare-http")
		})
	}
}

// BenchmarkPushToViewer measures from just before a push to the read that
// brought its frame to the viewer: 50 runs, each with a viewer, at 20 events a
// second.
func BenchmarkPushToViewer(b *testing.B) {
	const runs, perSecond, events = 50, 20, 60
	url := serveForTest(b)
	for b.Loop() {
		var mu sync.Mutex
		var took []time.Duration
		var g errgroup.Group
		for i := range runs {
			id := createRun(b, url)
			g.Go(func() error {
				// Spread the producers over the tick.
				start := time.Now().Add(time.Duration(i) * time.Second / perSecond / runs)
				mine, err := pushAndWatch(url, id, start, events, time.Second/perSecond)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, mine...)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}

func pushLine(text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return fmt.Appendf(nil, "{\"type\":\"delta\",\"content\":%s}\n", quoted)
}

// rate runs one closed loop per producer for a second and returns events/s.
func rate(b *testing.B, producers int, publish func(producer int) func() error) float64 {
	const length = time.Second
	var g errgroup.Group
	counts := make([]int, producers)
	sends := make([]func() error, producers)
	for i := range sends {
		sends[i] = publish(i)
	}
	end := time.Now().Add(length)
	for i, send := range sends {
		g.Go(func() error {
			for time.Now().Before(end) {
				if err := send(); err != nil {
					return err
				}
				counts[i]++
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / length.Seconds()
}

func fileTarget(b *testing.B, event []byte) func(int) func() error {
	f := groupFile(b)
	return func(int) func() error { return func() error { return f.Append(event) } }
}

func groupFile(b *testing.B) *groupfile.File {
	f, err := groupfile.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	return f
}

func httpTarget(b *testing.B, event []byte) func(int) func() error {
	f := groupFile(b)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record, err := io.ReadAll(r.Body)
		if err == nil {
			err = f.Append(record)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	b.Cleanup(server.Close)
	return func(int) func() error { return poster(b, server.URL, event) }
}

func runfactsTarget(b *testing.B, event []byte) func(int) func() error {
	url := serveForTest(b)
	return func(int) func() error {
		return poster(b, url+"/api/agent-runs/"+createRun(b, url)+"/agent-events", event)
	}
}

// poster posts the same body again and again on a connection of its own. It
// writes the request by hand, so that the load costs less than what it loads.
func poster(b *testing.B, url string, body []byte) func() error {
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	var raw bytes.Buffer
	if err := request.Write(&raw); err != nil {
		b.Fatal(err)
	}
	conn, err := net.Dial("tcp", request.URL.Host)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	reader := bufio.NewReader(conn)
	return func() error {
		if _, err := conn.Write(raw.Bytes()); err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("push: %s", response.Status)
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
}

// pushAndWatch pushes events at a pace and returns how long each took to the
// run's viewer.
func pushAndWatch(url, id string, start time.Time, events int, pace time.Duration) ([]time.Duration, error) {
	response, err := http.Get(url + "/api/agent-runs/" + id + "/events")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	arrived := make(chan time.Time, events)
	var g errgroup.Group
	g.Go(func() error {
		defer close(arrived)
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			if lines.Text() == "event: message.delta" {
				arrived <- time.Now()
			}
		}
		return lines.Err()
	})
	target := url + "/api/agent-runs/" + id + "/agent-events"
	push := func(body []byte) error {
		answer, err := http.Post(target, "application/x-ndjson", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	var took []time.Duration
	<-time.After(time.Until(start))
	tick := time.NewTicker(pace) // the load's pace
	defer tick.Stop()
	for range events {
		<-tick.C
		sent := time.Now()
		if err := push(pushLine("x")); err != nil {
			return nil, err
		}
		at, open := <-arrived
		if !open {
			return nil, fmt.Errorf("run %s: the stream ended", id)
		}
		took = append(took, at.Sub(sent))
	}
	if err := push([]byte(`{"type":"done"}` + "\n")); err != nil {
		return nil, err
	}
	return took, g.Wait()
}
