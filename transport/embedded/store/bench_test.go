package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/internal/groupfile"
)

// BenchmarkAppend compares durable appends with a file with group commit, for
// the same bytes in the same run.
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			data := make([]byte, 250)
			file, kept := 0.0, 0.0
			for b.Loop() {
				file += fileRate(b, writers, data)
				kept += storeRate(b, writers, data)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(file/float64(b.N), "file/s")
			b.ReportMetric(kept/float64(b.N), "store/s")
			b.ReportMetric(kept/file, "of-file")
		})
	}
}

func fileRate(b *testing.B, writers int, data []byte) float64 {
	f, err := groupfile.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	return rate(writers, func(int) error { return f.Append(data) })
}

func storeRate(b *testing.B, writers int, data []byte) float64 {
	s, err := Open(b.TempDir(), nil, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done; s.Close() }()
	return rate(writers, func(i int) error {
		_, err := s.Append(ctx, fmt.Sprintf("stream-%d", i), Any, []Proposed{{ID: s.newID(), Type: "t", JSON: true, Data: data}})
		return err
	})
}

// rate runs one closed loop per writer for a second.
func rate(writers int, write func(writer int) error) float64 {
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
