package langgraph

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/runfacts/runfacts/transport/sse"
)

// Bounds of what a server may send, in bytes.
const (
	maxFrame  = 32 << 20 // an update may carry files
	maxAnswer = 32 << 20 // so may a state
	maxText   = 300      // of an error, for the run's
)

// Bounds of one call that is not a stream, and of one that only asks whether a
// run is there.
const (
	callTime  = 10 * time.Second
	probeTime = 2 * time.Second
)

// metadataKey is where our run's id stands in what we make on a server.
const metadataKey = "runfacts_run_id"

// client speaks to one server. Safe for concurrent use.
type client struct {
	base string
	key  string // API key; "": none
	http *http.Client
}

// statusError is an answer that was not asked for.
type statusError struct {
	call   string
	status int
	body   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.call, e.status, strings.TrimSpace(e.body))
}

func (c *client) request(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, reader)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		request.Header.Set("X-Api-Key", c.key)
	}
	return c.http.Do(request)
}

// call makes one call and decodes its answer into out, if that is not nil.
func (c *client) call(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	response, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return &statusError{method + " " + path, response.StatusCode, string(answer[:min(len(answer), maxText)])}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// lgRun is a run of the server's.
type lgRun struct {
	ID       string         `json:"run_id"`
	Status   string         `json:"status"` // pending, running, success, error, interrupted, timeout
	Created  time.Time      `json:"created_at"`
	Metadata map[string]any `json:"metadata"`
}

func (r *lgRun) ended() bool { return r.Status != "pending" && r.Status != "running" }

// thread makes sure that there is a thread.
func (c *client) thread(ctx context.Context, thread string, metadata map[string]string) error {
	return c.call(ctx, http.MethodPost, "/threads", map[string]any{
		"thread_id": thread, "if_exists": "do_nothing", "metadata": metadata,
	}, nil)
}

// runs returns the thread's runs that were made for one of ours, oldest first.
func (c *client) runs(ctx context.Context, thread, ours string) ([]lgRun, error) {
	var all []lgRun
	if err := c.call(ctx, http.MethodGet, "/threads/"+thread+"/runs?limit=1000", nil, &all); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r lgRun) bool { return r.Metadata[metadataKey] != ours })
	slices.SortStableFunc(all, func(a, b lgRun) int { return a.Created.Compare(b.Created) })
	return all, nil
}

func (c *client) run(ctx context.Context, thread, id string) (r lgRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err = c.call(ctx, http.MethodGet, "/threads/"+thread+"/runs/"+id, nil, &r)
	return r, err
}

// state is where a thread stands.
type state struct {
	Values json.RawMessage `json:"values"`
	Tasks  []struct {
		Error json.RawMessage `json:"error"`
	} `json:"tasks"`
}

func (c *client) state(ctx context.Context, thread string) (s state, err error) {
	err = c.call(ctx, http.MethodGet, "/threads/"+thread+"/state", nil, &s)
	return s, err
}

// interrupt asks for a run's end; it does not wait for it.
func (c *client) interrupt(ctx context.Context, thread, id string) error {
	return c.call(ctx, http.MethodPost, "/threads/"+thread+"/runs/"+id+"/cancel?action=interrupt", nil, nil)
}

// stream opens a run's events behind last ("-1": all of them). It names no
// stream_mode: a join then brings all that the run was made with, on every
// server. Python takes a named one for a filter, and of several the last alone.
func (c *client) stream(ctx context.Context, thread, id, last string) (*sse.Reader, io.Closer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/threads/"+thread+"/runs/"+id+"/stream", nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Last-Event-ID", last)
	if c.key != "" {
		request.Header.Set("X-Api-Key", c.key)
	}
	response, err := c.http.Do(request) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxText)) // for the message only
		return nil, nil, &statusError{"stream", response.StatusCode, string(body)}
	}
	return sse.NewReader(response.Body, maxFrame), response.Body, nil
}

func parseFrame(f sse.Frame) frame {
	mode, namespace, _ := strings.Cut(f.Event, "|")
	return frame{mode: mode, namespace: namespace, id: f.ID, data: []byte(f.Data)}
}
