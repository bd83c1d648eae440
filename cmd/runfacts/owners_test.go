package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/domain/ledger"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/internal/faultproxy"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
	"github.com/runfacts/runfacts/transport/sse"
)

// fleet is instances in processes of their own over one store, each with a
// proxy on its way there.
type fleet struct {
	t       testing.TB
	node    *embedded.Node
	proxies []*faultproxy.Proxy
	urls    []string
	flags   [][]string
	members []*process
}

// newFleet starts n instances with agents that talk: for half a second
// (talker), and for ever (chatter).
func newFleet(t testing.TB, n int, flags ...string) *fleet {
	t.Helper()
	return newFleetOf(t, n, talkers(t), flags...)
}

// newFleetOf starts n instances with a configuration file.
func newFleetOf(t testing.TB, n int, config string, flags ...string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	var err error
	if f.node, err = embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	runPart(t, f.node.Run)
	for range n {
		proxy := faultproxy.Start(t, f.node.Addr().String())
		address := freePort(t)
		f.proxies = append(f.proxies, proxy)
		f.urls = append(f.urls, "http://"+address)
		f.flags = append(f.flags, append([]string{"serve", "--listen", address, "--config", config, "--eventstore", "esdb://" + proxy.Addr() + "?tls=false"}, flags...))
		f.members = append(f.members, nil)
	}
	for i := range n {
		f.spawn(i)
	}
	return f
}

// talkers writes the configuration of agents that talk, and returns its path.
func talkers(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	script := func(name string, lines int, end string) {
		text := strings.Repeat(`{"type":"delta","content":"word "}`+"\n", lines) + end
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script("talker.ndjson", 20, `{"type":"tool_call","tool_name":"t","tool_call_id":"c"}`+"\n"+`{"type":"done"}`)
	script("chatter.ndjson", 10_000, "")
	config := filepath.Join(folder, "runfacts.yaml")
	text := "agents:\n  talker: {runtime: scripted, scripted: {file: talker.ndjson, pause: 50ms}}\n" +
		"  chatter: {runtime: scripted, scripted: {file: chatter.ndjson, pause: 25ms}}\n"
	if _, err := exec.LookPath("bwrap"); err == nil {
		text += "  shell: {runtime: sandbox, sandbox: {stdout: text, command: [sh, -c, 'for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done']}}\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

func (f *fleet) spawn(i int) {
	f.t.Helper()
	f.members[i] = spawn(f.t, f.flags[i]...)
}

// agents are those that end by themselves.
func (f *fleet) agent() string {
	if _, err := exec.LookPath("bwrap"); err == nil && rand.IntN(3) == 0 {
		return "shell"
	}
	return "talker"
}

// store opens the fleet's store, past the proxies.
func (f *fleet) store() *eventstore.Store {
	f.t.Helper()
	store, err := eventstore.Open(eventstore.Config{ConnectionString: f.node.ConnectionString(), Log: zerolog.Nop()})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = store.Close() })
	return store
}

// impatient asks somebody else when an instance does not answer.
var impatient = &http.Client{Timeout: 8 * time.Second}

// ask puts a request to one instance after another until done accepts an
// answer. Who cannot be reached, and 503, are tried again.
func (f *fleet) ask(ctx context.Context, method, path, body string, done func(status int, fields map[string]any) bool) error {
	last := "nobody was asked"
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, method, f.urls[rand.IntN(len(f.urls))]+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		if body != "" {
			request.Header.Set("Content-Type", "application/json")
		}
		response, err := impatient.Do(request)
		if err != nil {
			last = err.Error()
			pauseFor(ctx, 20*time.Millisecond)
			continue
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			last = err.Error()
			continue
		}
		var fields map[string]any
		_ = json.Unmarshal(text, &fields) // not every answer is an object
		if done(response.StatusCode, fields) {
			return nil
		}
		last = fmt.Sprintf("%s %s", response.Status, text)
		if response.StatusCode != http.StatusServiceUnavailable && response.StatusCode != http.StatusAccepted {
			return fmt.Errorf("%s %s: %s", method, path, last)
		}
		pauseFor(ctx, 20*time.Millisecond)
	}
	return fmt.Errorf("%s %s was never answered: %s", method, path, last)
}

// pauseFor is a client's pause between two tries.
func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// start starts a run and returns when somebody says so.
func (f *fleet) start(ctx context.Context, id, agent string) error {
	body := fmt.Sprintf(`{"run_id":%q,"agent_id":%q,"input":{"q":"hi"}}`, id, agent)
	return f.ask(ctx, "POST", "/api/agent-runs", body, func(status int, _ map[string]any) bool { return status == 200 || status == 201 })
}

// watch follows a run to its end, from one instance to the next, and returns
// its terminal event.
func (f *fleet) watch(ctx context.Context, id string) (string, error) {
	seq := 0
	for ctx.Err() == nil {
		end, err := f.watchOnce(ctx, id, &seq)
		if err != nil || end != "" {
			return end, err
		}
		pauseFor(ctx, 20*time.Millisecond)
	}
	return "", fmt.Errorf("run %s hangs behind event %d", id, seq)
}

func (f *fleet) watchOnce(ctx context.Context, id string, seq *int) (end string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.urls[rand.IntN(len(f.urls))]+"/api/agent-runs/"+id+"/events", nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Last-Event-ID", fmt.Sprint(*seq))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", nil // nobody there
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("watch %s behind %d: %s", id, *seq, response.Status)
	}
	frames := sse.NewReader(response.Body, 1<<20)
	for {
		frame, err := frames.Next()
		if err != nil {
			return end, nil // cut
		}
		if frame.Data == "" {
			continue
		}
		if end != "" {
			return "", fmt.Errorf("run %s: %s after its end", id, frame.Event)
		}
		*seq++
		if frame.ID != fmt.Sprint(*seq) {
			return "", fmt.Errorf("run %s: event %s follows event %d", id, frame.ID, *seq-1)
		}
		if runs.Terminal(frame.Event) {
			end = frame.Event
		}
	}
}

// verify reads a run from the store: whole, chained, one end at its end, one
// owner in each epoch.
func verify(ctx context.Context, store ledger.Reader, id runs.ID) error {
	events, err := store.Read(ctx, id, 0, ledger.Page{Events: 20_000, Bytes: 64 << 20})
	if err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	chain, owners := "", make(map[uint64]string)
	for i := range events {
		e := &events[i]
		if !runs.Verify(e, chain) {
			return fmt.Errorf("run %s: the chain is broken at event %d", id, e.Seq)
		}
		chain = e.ChainChecksum
		if owner, ok := owners[e.Epoch]; ok && owner != e.Owner {
			return fmt.Errorf("run %s: epoch %d has owners %s and %s", id, e.Epoch, owner, e.Owner)
		}
		owners[e.Epoch] = e.Owner
		if runs.Terminal(e.Type) != (i == len(events)-1) {
			return fmt.Errorf("run %s: event %d of %d is %s", id, e.Seq, len(events), e.Type)
		}
	}
	return nil
}

// Instances are killed, paused and cut off at random while runs are started,
// watched and cancelled through whichever instance answers. Each run ends exactly
// once, each viewer sees that, each cancel is answered.
func TestWhateverDiesEachRunEndsOnce(t *testing.T) {
	rounds := 16
	if text := os.Getenv("RUNFACTS_CHAOS_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet(t, 3, "--lease", "1500ms", "--drain", "300ms")
	store := f.store()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second+time.Duration(rounds)*5*time.Second)
	defer cancel()
	var mu sync.Mutex
	ends := make(map[string]int)
	var next atomic.Int64
	var work errgroup.Group
	for range 6 {
		work.Go(func() error {
			for n := next.Add(1); n <= int64(rounds); n = next.Add(1) {
				id := fmt.Sprint("run_", n)
				end, err := f.round(ctx, id)
				if err == nil {
					err = verify(ctx, store, runs.ID(id))
				}
				if err != nil {
					return err
				}
				mu.Lock()
				ends[end]++
				mu.Unlock()
			}
			return nil
		})
	}
	faults := make(map[string]int)
	peace, declare := context.WithCancel(ctx)
	var hurting sync.WaitGroup
	for i := range f.members { // each is hurt again and again
		hurting.Go(func() {
			for peace.Err() == nil {
				pauseFor(peace, time.Duration(rand.IntN(1000))*time.Millisecond)
				what := f.hurt(peace, i)
				mu.Lock()
				faults[what]++
				mu.Unlock()
			}
		})
	}
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
	declare()
	hurting.Wait()
	impatient.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	t.Logf("%d rounds: %v; faults: %v", rounds, ends, faults)
}

// round is one run's life: started, watched by two, cancelled or not.
func (f *fleet) round(ctx context.Context, id string) (string, error) {
	agent, cancelled := f.agent(), rand.IntN(3) == 0
	if cancelled {
		agent = "chatter"
	}
	if err := f.start(ctx, id, agent); err != nil {
		return "", err
	}
	var seen [2]string
	var viewers errgroup.Group
	for i := range seen {
		viewers.Go(func() (err error) {
			seen[i], err = f.watch(ctx, id)
			return err
		})
	}
	if cancelled {
		pauseFor(ctx, time.Duration(rand.IntN(400))*time.Millisecond)
		err := f.ask(ctx, "POST", "/api/agent-runs/"+id+"/cancel", `{"reason":"test"}`, func(status int, fields map[string]any) bool {
			return status == 200 && fields["status"] == "cancelled" || status == 409 && fields["run_status"] == "failed"
		})
		if err != nil {
			return "", err
		}
	}
	if err := viewers.Wait(); err != nil {
		return "", err
	}
	if seen[0] != seen[1] {
		return "", fmt.Errorf("run %s ended as %v", id, seen)
	}
	return seen[0], nil
}

// hurt does something bad to one instance, makes up for it, and says what it
// was. The others go on.
func (f *fleet) hurt(ctx context.Context, i int) string {
	proxy, member := f.proxies[i], f.members[i]
	long := time.Duration(200+rand.IntN(2500)) * time.Millisecond
	switch rand.IntN(8) {
	case 0:
		member.end(syscall.SIGKILL)
		pauseFor(ctx, long/4)
		f.spawn(i)
		return "kill"
	case 1:
		if code := member.end(syscall.SIGTERM); code != 0 {
			f.t.Errorf("SIGTERM: exit %d", code)
		}
		f.spawn(i)
		return "term"
	case 2:
		_ = member.cmd.Process.Signal(syscall.SIGSTOP)
		pauseFor(ctx, long)
		_ = member.cmd.Process.Signal(syscall.SIGCONT)
		return "pause"
	case 3:
		proxy.Cut()
		return "cut"
	case 4:
		proxy.Refuse(true)
		proxy.Cut()
		pauseFor(ctx, long)
		proxy.Refuse(false)
		return "refuse"
	case 5:
		proxy.Stall()
		pauseFor(ctx, long)
		proxy.Flow()
		return "half-open"
	case 6:
		proxy.Throttle(2_000 + rand.IntN(20_000))
		pauseFor(ctx, long)
		proxy.Throttle(0)
		return "throttle"
	default:
		proxy.Delay(time.Duration(rand.IntN(60)) * time.Millisecond)
		pauseFor(ctx, long)
		proxy.Delay(0)
		return "slow"
	}
}

// The store is away for much longer than the lease, while runs go on: nothing
// is closed, lost or doubled, and everything continues.
func TestAnOutageOfTheStoreClosesNothing(t *testing.T) {
	away := 6 * time.Second
	if text := os.Getenv("RUNFACTS_OUTAGE"); text != "" {
		var err error
		if away, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet(t, 2, "--lease", "1s", "--push-lease", "2s", "--store-patience", "1s")
	ctx, cancel := context.WithTimeout(context.Background(), away+time.Minute)
	defer cancel()
	var viewers errgroup.Group
	ids := []string{"owned_1", "owned_2", "pushed"}
	for _, id := range ids[:2] {
		if err := f.start(ctx, id, "chatter"); err != nil {
			t.Fatal(err)
		}
	}
	a := client{t, f.urls[0]}
	if status, fields, _ := a.call("POST", "/api/agent-runs", "application/json", `{"run_id":"pushed","agent_id":"x","runtime":"push"}`); status != 201 {
		t.Fatalf("%d %v", status, fields)
	}
	for _, id := range ids {
		viewers.Go(func() error {
			end, err := f.watch(ctx, id)
			if err == nil && end != runs.TypeRunCancelled && end != runs.TypeRunCompleted {
				err = fmt.Errorf("run %s: %s", id, end)
			}
			return err
		})
	}
	for _, p := range f.proxies {
		p.Refuse(true)
		p.Cut()
	}
	refused := 0
	for end := time.Now().Add(away); time.Now().Before(end); {
		switch status, _, header := a.call("POST", "/api/agent-runs/pushed/agent-events", "application/x-ndjson", line(1)); {
		case status == http.StatusServiceUnavailable && header.Get("Retry-After") != "":
			refused++
		default:
			t.Errorf("a push during the outage: %d", status)
		}
	}
	if refused == 0 {
		t.Error("no push was refused: the store was not away")
	}
	for _, p := range f.proxies {
		p.Refuse(false)
	}
	for {
		status, fields := a.push("pushed", line(1)+line(2)+`{"type":"done","producer_seq":3}`+"\n")
		if status == http.StatusOK {
			break
		}
		if status != http.StatusServiceUnavailable {
			t.Fatalf("a push after the outage: %d %v", status, fields)
		}
	}
	for _, id := range ids[:2] {
		status, fields, _ := a.call("GET", "/api/agent-runs/"+id, "", "")
		if status != 200 || fields["status"] != "running" {
			t.Errorf("run %s: %d %v", id, status, fields)
		}
		if err := f.ask(ctx, "POST", "/api/agent-runs/"+id+"/cancel", "", func(status int, _ map[string]any) bool { return status == 200 }); err != nil {
			t.Error(err)
		}
	}
	if err := viewers.Wait(); err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	impatient.CloseIdleConnections()
}

// Runs that are over leave no goroutine, process, subscription or name behind.
func TestAThousandRunsLeaveNothing(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "quick.ndjson"), []byte(`{"type":"delta","content":"x"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "agents:\n  quick: {runtime: scripted, scripted: {file: quick.ndjson, pause: 1ms}}\n"
	kinds := []string{"quick"}
	if _, err := exec.LookPath("bwrap"); err == nil {
		text += "  shell: {runtime: sandbox, sandbox: {stdout: text, command: [echo, hi]}}\n"
		kinds = append(kinds, "shell")
	}
	config := filepath.Join(folder, "runfacts.yaml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	url := serveForTest(t, "--config", config)
	f := &fleet{t: t, urls: []string{url}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	lives := func(from, to int) {
		var next atomic.Int64
		next.Store(int64(from))
		var work errgroup.Group
		for range 16 {
			work.Go(func() error {
				for n := next.Add(1); n <= int64(to); n = next.Add(1) {
					id, agent := fmt.Sprint("run_", n), kinds[0]
					if n%20 == 0 {
						agent = kinds[len(kinds)-1]
					}
					if err := f.start(ctx, id, agent); err != nil {
						return err
					}
					if n%10 == 0 {
						if _, err := f.watch(ctx, id); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, gauge := range []string{"runfacts_runs_driven", "runfacts_runs_queued", "runfacts_runs_watched"} {
			for ctx.Err() == nil && metric(t, url, gauge) != 0 {
				pauseFor(ctx, 10*time.Millisecond)
			}
			if n := metric(t, url, gauge); n != 0 {
				t.Errorf("%s is %v", gauge, n)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		impatient.CloseIdleConnections()
	}
	lives(0, 100)
	before := metric(t, url, "go_goroutines")
	lives(100, 1000)
	for ctx.Err() == nil && metric(t, url, "go_goroutines") > before+10 { // those of connections come and go
		pauseFor(ctx, 50*time.Millisecond)
	}
	if after := metric(t, url, "go_goroutines"); after > before+10 {
		t.Errorf("%v goroutines after 100 runs, %v after 1,000", before, after)
	}
	if n := metric(t, url, `runfacts_runs_ended_total{state="completed"}`); n != 1000 {
		t.Errorf("%v runs completed", n)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", os.Getpid(), os.Getpid()))
	if err == nil && len(strings.Fields(string(children))) > 0 {
		t.Errorf("processes left: %s", children)
	}
	http.DefaultClient.CloseIdleConnections()
}

// metric reads one of a server's metrics.
func metric(t testing.TB, url, name string) float64 {
	t.Helper()
	response, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// BenchmarkCancelElsewhere measures a cancel that another instance takes: from
// the request to the owner's stop, which is recorded, and to the answer.
func BenchmarkCancelElsewhere(b *testing.B) {
	f := newFleet(b, 2)
	var stops, answers []time.Duration
	for n := 0; b.Loop(); n++ {
		owner, other := client{b, f.urls[0]}, client{b, f.urls[1]}
		id := fmt.Sprint("cancelled_", n)
		if status, fields, _ := owner.call("POST", "/api/agent-runs", "application/json", fmt.Sprintf(`{"run_id":%q,"agent_id":"chatter"}`, id)); status != 201 {
			b.Fatalf("%d %v", status, fields)
		}
		frames, closeStream := owner.watch(id, 0)
		for range 3 { // it runs
			if _, err := nextEvent(frames); err != nil {
				b.Fatal(err)
			}
		}
		began := time.Now()
		answered := make(chan time.Duration, 1)
		go func() {
			_, _, _ = other.call("POST", "/api/agent-runs/"+id+"/cancel", "application/json", "{}")
			answered <- time.Since(began)
		}()
		for {
			frame, err := nextEvent(frames)
			if err != nil {
				b.Fatal(err)
			}
			if frame.Event == runs.TypeRunCancelled {
				break
			}
		}
		stops = append(stops, time.Since(began))
		answers = append(answers, <-answered)
		closeStream()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(stops), "stop-p50-ms")
	b.ReportMetric(median(answers), "answer-p50-ms")
}

// BenchmarkKillToLost measures from an owner's kill -9 to its run's
// runtime_lost, as a viewer at another instance sees it, in leases.
func BenchmarkKillToLost(b *testing.B) {
	const lease = 2 * time.Second
	f := newFleet(b, 2, "--lease", lease.String())
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		owner, other := client{b, f.urls[0]}, client{b, f.urls[1]}
		id := fmt.Sprint("lost_", n)
		if status, fields, _ := owner.call("POST", "/api/agent-runs", "application/json", fmt.Sprintf(`{"run_id":%q,"agent_id":"chatter"}`, id)); status != 201 {
			b.Fatalf("%d %v", status, fields)
		}
		frames, closeStream := other.watch(id, 0)
		pauseFor(b.Context(), rand.N(lease)) // anywhere between two heartbeats
		began := time.Now()
		f.members[0].end(syscall.SIGKILL)
		for {
			frame, err := nextEvent(frames)
			if err != nil {
				b.Fatal(err)
			}
			if frame.Event == runs.TypeRunFailed {
				break
			}
		}
		took = append(took, time.Since(began))
		closeStream()
		http.DefaultClient.CloseIdleConnections()
		f.spawn(0)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(took)/float64(lease.Milliseconds()), "p50-leases")
	b.ReportMetric(float64(slices.Max(took).Milliseconds())/float64(lease.Milliseconds()), "max-leases")
}

// nextEvent returns the next frame that has data.
func nextEvent(r *sse.Reader) (sse.Frame, error) {
	for {
		f, err := r.Next()
		if err != nil || f.Data != "" {
			return f, err
		}
	}
}

// median is in milliseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
