package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runfacts/runfacts/internal/faultproxy"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/sse"
)

// openNode is a node that rehearses what text says: the tests' own choice, or
// RUNFACTS_REHEARSE where it leaves that open.
func openNode(t testing.TB, text string) *embedded.Node {
	t.Helper()
	if text == "" {
		text = os.Getenv("RUNFACTS_REHEARSE")
	}
	r, err := embedded.ParseRehearsal(text)
	if err != nil {
		t.Fatal(err)
	}
	node, err := embedded.Open(embedded.Config{Addr: "127.0.0.1:0", DataDir: t.TempDir(), Log: zerolog.Nop(), Rehearse: &r})
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, node.Run)
	return node
}

func play(t testing.TB, node *embedded.Node, text string) {
	t.Helper()
	r, err := embedded.ParseRehearsal(text)
	if err != nil {
		t.Fatal(err)
	}
	node.Rehearse(r)
}

// Whatever a store does: producers are answered 200 or 503, what is acknowledged
// is there, viewers see each event once and in order, and no run ends for it.
func TestWhateverTheStoreDoesNothingIsLost(t *testing.T) {
	const events = 30
	for name, fault := range map[string]func(t *testing.T, node *embedded.Node, proxies []*faultproxy.Proxy){
		"readers trail":        rehearsed("read-lag=0..200ms,page-size=1..9"),
		"hints at any time":    rehearsed("fellbehind=2,caughtup-fields"),
		"never answered":       rehearsed("no-answer=25"),
		"answered late":        rehearsed("late-answer=0..400ms/3"),
		"connections break":    rehearsed("cut=3000..60000"),
		"leaders change":       rehearsed("not-leader=6"),
		"no leader":            rehearsed("election=1500ms"),
		"no quorum":            rehearsed("no-quorum=1500ms"),
		"no right to write":    rehearsed("denied=w:agent_run-/1500ms"),
		"no right to read":     rehearsed("denied=r:agent_run-/1500ms"),
		"no right to anything": rehearsed("denied=a:/1500ms"),
		"no heartbeats":        rehearsed("denied=w:runfacts_/1500ms"),
		"no trims, no drops":   rehearsed("denied=dm:runfacts_"),
		"less in one append":   rehearsed("max-append=70000"),
		"slow passwords":       rehearsed("slow-auth=20ms"),
		"positions":            rehearsed("commit-not-prepare,sparse=2"),
		"frozen": func(t *testing.T, _ *embedded.Node, proxies []*faultproxy.Proxy) {
			for _, p := range proxies {
				p.Stall()
				time.AfterFunc(3*time.Second, p.Flow) // the paths are dead for a while
			}
		},
		"all at once": rehearsed(embedded.Worst),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := openNode(t, "seed=1")
			var proxies []*faultproxy.Proxy
			var urls []string
			config := talkers(t)
			for range 2 {
				proxy := faultproxy.Start(t, node.Addr().String())
				url, stop := startServer(t, t.TempDir(), "--eventstore", "esdb://"+proxy.Addr()+"?tls=false", "--config", config, "--lease", "3s", "--push-lease", "1m")
				t.Cleanup(stop)
				proxies, urls = append(proxies, proxy), append(urls, url)
			}
			id := createRun(t, urls[0])
			owned := client{t, urls[1]}
			if status, fields, _ := owned.call("POST", "/api/agent-runs", "application/json", `{"run_id":"owned","agent_id":"talker"}`); status != 201 {
				t.Fatalf("%d %v", status, fields)
			}
			var work errgroup.Group
			for _, url := range urls {
				work.Go(func() error { return watchWhole(url, id, events) })
			}
			fault(t, node, proxies)
			work.Go(func() error { return insist(urls, id, events) })
			work.Go(func() error { return completes(urls, "owned") })
			if err := work.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func rehearsed(text string) func(*testing.T, *embedded.Node, []*faultproxy.Proxy) {
	return func(t *testing.T, node *embedded.Node, _ []*faultproxy.Proxy) { play(t, node, text) }
}

// completes waits until a run has ended as completed, at whichever instance.
func completes(urls []string, id string) error {
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); {
		response, err := http.Get(urls[rand.IntN(len(urls))] + "/api/agent-runs/" + id)
		if err != nil {
			return err
		}
		var summary struct {
			Status string          `json:"status"`
			Error  json.RawMessage `json:"error"`
		}
		err = json.NewDecoder(response.Body).Decode(&summary)
		response.Body.Close()
		switch {
		case err != nil:
			return err
		case response.StatusCode == 200 && summary.Status == "completed":
			return nil
		case response.StatusCode == 200 && summary.Status != "running", response.StatusCode != 200 && response.StatusCode != 503:
			return fmt.Errorf("run %s: %s %s %s", id, response.Status, summary.Status, summary.Error)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("run %s does not end", id)
}

// What is wrong with the store is named in readiness and in the answer, and
// is a state that passes.
func TestReadinessNamesWhatIsWrong(t *testing.T) {
	for fault, want := range map[string]struct{ cause, code string }{
		"denied=w:agent_run-": {"to write to streams agent_run-", "store_denied"},
		"denied=r:agent_run-": {"to read streams agent_run-", ""},
		"denied=a:":           {"password", "store_denied"},
		"election=1h":         {"", "store_unavailable"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			node := openNode(t, "seed=1")
			a := client{t, serveForTest(t, "--eventstore", node.ConnectionString(), "--store-patience", "1s")}
			id := createRun(t, a.url)
			play(t, node, fault)
			status, fields, header := a.call("POST", "/api/agent-runs/"+id+"/agent-events", "application/x-ndjson", line(1))
			if want.code != "" && (status != 503 || fields["code"] != want.code || header.Get("Retry-After") == "") {
				t.Errorf("%d %v", status, fields)
			}
			if want.code == "store_denied" && !strings.Contains(fmt.Sprint(fields["missing"]), strings.Split(want.cause, " streams")[0]) {
				t.Errorf("missing: %v", fields["missing"])
			}
			for deadline := time.Now().Add(20 * time.Second); ; {
				status, fields, _ := a.call("GET", "/readyz", "", "")
				if status != 200 {
					t.Fatalf("an outage takes the instance out: %d", status)
				}
				if fields["store_up"] == false && strings.Contains(fmt.Sprint(fields["store_cause"]), want.cause) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%v", fields)
				}
				time.Sleep(50 * time.Millisecond)
			}
			play(t, node, "")
			for deadline := time.Now().Add(20 * time.Second); ; {
				if status, fields := a.push(id, line(1)); status == 200 {
					break
				} else if status != 503 || time.Now().After(deadline) {
					t.Fatalf("%d %v", status, fields)
				}
			}
		})
	}
}

// operator is somebody with a client of EventStoreDB.
func operator(t *testing.T, node *embedded.Node) *esdb.Client {
	t.Helper()
	config, err := esdb.ParseConnectionString(node.ConnectionString())
	if err != nil {
		t.Fatal(err)
	}
	config.Logger = func(esdb.LogLevel, string, ...any) {}
	c, err := esdb.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// What anybody may do to a run's stream, and what each side gets of it.
func TestWhatAnybodyMayDoToARun(t *testing.T) {
	ctx := context.Background()
	anything := esdb.ExpectedRevision(esdb.Any{})
	foreign := func(kind string, data string) func(*esdb.Client, string) error {
		return func(c *esdb.Client, stream string) error {
			_, err := c.AppendToStream(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: anything},
				esdb.EventData{EventID: uuid.New(), EventType: kind, ContentType: esdb.ContentTypeJson, Data: []byte(data)})
			return err
		}
	}
	for name, c := range map[string]struct {
		act    func(*esdb.Client, string) error
		closed bool   // the viewer's stream ends
		code   string // of calls at both instances; "": all is as before
		again  int    // of a viewer that comes back
		cancel int
		erase  int
	}{
		"a tombstone": {func(c *esdb.Client, stream string) error {
			_, err := c.TombstoneStream(ctx, stream, esdb.TombstoneStreamOptions{ExpectedRevision: anything})
			return err
		}, true, "run_erased", 410, 410, 410},
		"a soft delete": {func(c *esdb.Client, stream string) error {
			_, err := c.DeleteStream(ctx, stream, esdb.DeleteStreamOptions{ExpectedRevision: anything})
			return err
		}, true, "run_deleted", 410, 410, 410},
		"a truncation": {func(c *esdb.Client, stream string) error {
			var m esdb.StreamMetadata
			m.SetTruncateBefore(2)
			_, err := c.SetStreamMetadata(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: anything}, m)
			return err
		}, false, "run_truncated", 410, 200, 202},
		"a foreign event": {foreign("somebody.elses", `{}`), true, "run_corrupt", 422, 200, 202},
		"a link":          {foreign("$>", `0@elsewhere`), true, "run_corrupt", 422, 200, 202},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := openNode(t, "read-lag=0..20ms")
			a, b := client{t, serveForTest(t, "--eventstore", node.ConnectionString())}, client{t, serveForTest(t, "--eventstore", node.ConnectionString())}
			id := createRun(t, a.url)
			if status, fields := a.push(id, line(1)+line(2)); status != 200 {
				t.Fatalf("%d %v", status, fields)
			}
			viewer, leave := a.watch(id, 0)
			defer leave()
			for range 3 {
				if _, err := nextEvent(viewer); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.act(operator(t, node), "agent_run-"+id); err != nil {
				t.Fatal(err)
			}
			if c.closed { // which also says that a read finds what was done
				for { // to the event before, and not further
					f, err := nextEvent(viewer)
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil || f.ID > "3" {
						t.Fatalf("%+v, %v", f, err)
					}
				}
			}
			for _, side := range []client{a, b} {
				if _, fields, _ := side.call("GET", "/api/agent-runs/"+id, "", ""); fields["code"] != c.code {
					t.Errorf("%v", fields)
				}
				if status, fields := side.push(id, line(3)); fields["code"] != c.code {
					t.Errorf("push: %d %v", status, fields)
				}
				if status, fields, _ := side.call("GET", "/api/agent-runs/"+id+"/events", "", "", "Accept", "text/event-stream"); c.again != 422 && status != c.again {
					t.Errorf("events: %d %v", status, fields)
				}
			}
			if c.again == 422 {
				status, fields, _ := a.call("GET", "/api/agent-runs/"+id+"/events?after_seq=3", "", "", "Accept", "text/event-stream")
				if status != 422 || fields["code"] != "run_corrupt" || fields["run_id"] != id || fields["seq"] != 4.0 {
					t.Errorf("who comes back: %d %v", status, fields)
				}
			}
			if status, fields, _ := b.call("POST", "/api/agent-runs/"+id+"/cancel", "application/json", ""); status != c.cancel {
				t.Errorf("cancel: %d %v", status, fields)
			}
			if status, fields, _ := a.call("DELETE", "/api/agent-runs/"+id, "", ""); status != c.erase {
				t.Errorf("delete: %d %v", status, fields)
			}
			status, fields, _ := b.call("POST", "/api/agent-runs", "application/json", `{"run_id":"`+id+`","agent_id":"again","runtime":"push"}`)
			if status != 410 {
				t.Errorf("a start of the same id: %d %v", status, fields)
			}
		})
	}
}

// An event behind the end changes nothing for viewers.
func TestAnEventBehindTheEnd(t *testing.T) {
	node := openNode(t, "seed=1")
	a := client{t, serveForTest(t, "--eventstore", node.ConnectionString())}
	id := createRun(t, a.url)
	if status, fields := a.push(id, line(1)+`{"type":"done","producer_seq":2}`+"\n"); status != 200 {
		t.Fatalf("%d %v", status, fields)
	}
	_, err := operator(t, node).AppendToStream(t.Context(), "agent_run-"+id, esdb.AppendToStreamOptions{ExpectedRevision: esdb.Any{}},
		esdb.EventData{EventID: uuid.New(), EventType: "late", ContentType: esdb.ContentTypeJson, Data: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	viewer, leave := a.watch(id, 0)
	defer leave()
	var last sse.Frame
	for {
		f, err := nextEvent(viewer)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = f
	}
	if last.Event != "run.completed" {
		t.Errorf("the last frame is %+v", last)
	}
	if status, _, _ := a.call("GET", "/api/agent-runs/"+id+"/events?after_seq="+last.ID, "", "", "Accept", "text/event-stream"); status != 204 {
		t.Errorf("behind the end: %d", status)
	}
	if status, fields, _ := a.call("GET", "/api/agent-runs/"+id, "", ""); status != 200 || fields["status"] != "completed" || fmt.Sprint(fields["last_seq"]) != last.ID {
		t.Errorf("%d %v", status, fields)
	}
	if status, fields, _ := a.call("DELETE", "/api/agent-runs/"+id, "", ""); status != 202 {
		t.Errorf("delete: %d %v", status, fields)
	}
}
