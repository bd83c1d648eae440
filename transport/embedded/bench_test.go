package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"

	"github.com/runfacts/runfacts/internal/groupfile"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/embedded/store"
)

// fill writes count streams of each events through the store itself, which is
// quicker than over the wire, and closes it.
func fill(b *testing.B, dir, prefix string, count, each int) {
	b.Helper()
	s, err := store.Open(dir, nil, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var writers sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		writers.Go(func() {
			for i := next.Add(1); i <= int64(count); i = next.Add(1) {
				for left := each; left > 0; left -= 100 {
					var events []store.Proposed
					for range min(left, 100) {
						id := store.ID(uuid.New()) // one that repeats would be taken for a resend
						events = append(events, store.Proposed{ID: id, Type: "bench", JSON: true, Data: make([]byte, 200)})
					}
					if _, err := s.Append(ctx, fmt.Sprint(prefix, i), store.Any, events); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	cancel()
	if err := errors.Join(<-done, s.Close()); err != nil {
		b.Fatal(err)
	}
}

func drain(b *testing.B, s *suite, r *streams.ReadReq) (n int) {
	b.Helper()
	call, err := s.Read(context.Background(), r)
	for err == nil {
		if _, err = call.Recv(); err == nil {
			n++
		}
	}
	if !errors.Is(err, io.EOF) {
		b.Fatal(err)
	}
	return n
}

// BenchmarkAppend compares appends over gRPC with a file with group commit, for
// the same bytes in the same run.
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			node, _ := startNode(b, b.TempDir())
			s := &suite{StreamsClient: rawClient(b, node.Addr().String())}
			data := string(make([]byte, 250))
			f, err := groupfile.Create(filepath.Join(b.TempDir(), "log"))
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- f.Run(ctx) }()
			defer func() { cancel(); <-done }()
			file, wire := 0.0, 0.0
			for b.Loop() {
				file += perSecond(writers, func(int) error { return f.Append([]byte(data)) })
				wire += perSecond(writers, func(i int) error {
					e := fresh(1)
					e[0].Data = []byte(data)
					_, _, err := s.append(ctx, fmt.Sprint("bench-", i), "any", e...)
					return err
				})
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(file/float64(b.N), "file/s")
			b.ReportMetric(wire/float64(b.N), "appends/s")
			b.ReportMetric(wire/file, "of-file")
		})
	}
}

func perSecond(writers int, write func(int) error) float64 {
	var count atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(time.Second)
	for i := range writers {
		all.Go(func() {
			for time.Now().Before(end) && write(i) == nil {
				count.Add(1)
			}
		})
	}
	all.Wait()
	return float64(count.Load())
}

// BenchmarkRead reads a stream of 10,000 events and 100,000 events of $all.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	fill(b, dir, "long-", 1, 10_000)
	fill(b, dir, "other-", 90, 1000)
	node, _ := startNode(b, dir)
	s := &suite{StreamsClient: rawClient(b, node.Addr().String())}
	for name, c := range map[string]struct {
		request *streams.ReadReq
		count   int
	}{
		"stream": {read("long-1", "start", false, 10_000), 10_000},
		"all":    {all("start", false, 100_000), 100_000},
	} {
		b.Run(name, func(b *testing.B) {
			total := 0
			for b.Loop() {
				total += drain(b, s, c.request)
			}
			if total != c.count*b.N {
				b.Fatalf("%d events", total)
			}
			b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkReadBesideOthers reads one stream of 20 events, while the store holds
// few or many others: the cost must not depend on them.
func BenchmarkReadBesideOthers(b *testing.B) {
	for _, others := range []int{50, 50_000} {
		b.Run(fmt.Sprintf("events=%d", others*20), func(b *testing.B) {
			dir := b.TempDir()
			fill(b, dir, "one-", 1, 20)
			fill(b, dir, "other-", others, 20)
			node, _ := startNode(b, dir)
			s := &suite{StreamsClient: rawClient(b, node.Addr().String())}
			for b.Loop() {
				if n := drain(b, s, read("one-1", "start", false, 100)); n != 20 {
					b.Fatalf("%d events", n)
				}
			}
		})
	}
}

// BenchmarkLive is the time from just before an append to its arrival at a
// subscriber.
func BenchmarkLive(b *testing.B) {
	node, _ := startNode(b, b.TempDir())
	s := &suite{StreamsClient: rawClient(b, node.Addr().String())}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	call, err := s.Read(ctx, subscription(read("live", "start", false, 0)))
	if err != nil {
		b.Fatal(err)
	}
	for range 2 { // confirmed, caught up
		if _, err := call.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	var took []time.Duration
	for b.Loop() {
		begun := time.Now()
		if _, _, err := s.append(ctx, "live", "any", fresh(1)...); err != nil {
			b.Fatal(err)
		}
		if _, err := call.Recv(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkOpen opens a store of 100,000 streams of 20 events, and tells what
// it takes in memory then.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	fill(b, dir, "run-", 100_000, 20)
	for b.Loop() {
		before := heap()
		node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: dir, Log: zerolog.Nop()})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		b.ReportMetric(float64(heap()-before)/1e6, "heap-MB")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := node.Run(ctx); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
