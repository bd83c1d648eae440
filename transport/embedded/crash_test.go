package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/transport/embedded"
)

// crashDir names the folder of a node that a test process is to run, until it
// is killed; crashRounds, how often to kill one (10 unless told otherwise).
const (
	crashDir    = "RUNFACTS_CRASH_DIR"
	crashRounds = "RUNFACTS_CRASH_ROUNDS"
)

// crashingNode is what the child process runs.
func crashingNode(dir string) {
	node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: dir, Log: zerolog.Nop()})
	if err == nil {
		fmt.Println(node.Addr())
		err = node.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A node is killed at random points under load, and started again on the same
// data: every acknowledged append is there, whole, and nothing is half there.
func TestNothingAcknowledgedIsLostInACrash(t *testing.T) {
	rounds := 10
	if text := os.Getenv(crashRounds); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	dir := t.TempDir()
	const writers, batch = 8, 3
	var acked [writers]int // events of each writer's stream
	for round := range rounds {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatalf("round %d: the node did not start", round)
		}
		s := &suite{StreamsClient: rawClient(t, lines.Text())}
		for w := range acked { // what the last round's writers were told is there
			got := stored(t, s, w)
			if got < acked[w] || got%batch != 0 {
				t.Fatalf("round %d, writer %d: %d events acknowledged, %d stored", round, w, acked[w], got)
			}
			acked[w] = got
		}
		var load sync.WaitGroup
		enough := make(chan struct{}, 1)
		var mu sync.Mutex
		left := 1 + rand.N(60) // appends until the kill
		for w := range acked {
			load.Go(func() {
				for i := 0; ; i++ {
					_, _, err := s.append(within(t), fmt.Sprint("crash-", w), acked[w]-1, fresh(batch)...)
					if err != nil {
						return
					}
					acked[w] += batch
					mu.Lock()
					if left--; left == 0 {
						enough <- struct{}{}
					}
					mu.Unlock()
				}
			})
		}
		<-enough
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		load.Wait()
		_ = child.Wait() // it was killed
	}
	report, err := embedded.Check(dir)
	if err != nil || report.Streams < writers {
		t.Errorf("%v, %v", report, err)
	}
	t.Logf("%d rounds: %s", rounds, report)
}

// stored counts a writer's events, which must be contiguous.
func stored(t *testing.T, s *suite, writer int) int {
	t.Helper()
	call, err := s.Read(within(t), read(fmt.Sprint("crash-", writer), "start", false, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		m, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		switch said := say(m); {
		case strings.HasPrefix(said, "not-found"):
		case said != fmt.Sprint(n):
			t.Fatalf("writer %d: event %s follows event %d", writer, said, n-1)
		default:
			n++
		}
	}
}
