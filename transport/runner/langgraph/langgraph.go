// Package langgraph drives the runs of a LangGraph server, DeepAgents among them,
// over HTTP. It makes a thread and a run there, reads the run's resumable stream
// and reports it as AgentEvents (mapper.go).
//
// The server's run outlives us: its id, the id of the frame and the place within
// that are each event's cursor, so that another instance can go on behind it. It
// reads the stream from its start for that, since what a frame means depends on
// those before it, and reports what is behind the cursor.
//
// A stream has no last frame: what its end means is asked of the run. A question
// to a human (an interrupt) is an external call; its answer goes on as a second
// run on the same thread.
package langgraph

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// modes are the streams that are asked for.
var modes = []string{"messages-tuple", "updates", "custom"}

// How a server is taken for lost. One that nobody listens for is dead; one that
// takes its time may be busy: a graph's own code holds up all its server.
const (
	idleTime = 2 * time.Second // without a byte: is the run still there?
	deadTime = 4 * time.Second // without a connection
	hungTime = time.Minute     // without an answer
	stopTime = 2500 * time.Millisecond
	pollTime = 50 * time.Millisecond

	maxIdle = 64 // connections that are kept: each run asks now and then
)

// Config is where a graph is.
type Config struct {
	URL       string
	Assistant string // an assistant's or a graph's id
	APIKey    string // "": none
}

// Runner implements agent.Rejoiner. Safe for concurrent use.
type Runner struct {
	client    client
	assistant string
	hung      time.Duration
}

var _ agent.Rejoiner = (*Runner)(nil)

// New returns a Runner. It does not connect.
func New(c Config) *Runner {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxIdle
	return &Runner{client{strings.TrimRight(c.URL, "/"), c.APIKey, &http.Client{Transport: transport}}, c.Assistant, hungTime}
}

// Rejoins implements agent.Rejoiner.
func (r *Runner) Rejoins() {}

// lost is the failure of a server that is gone, or has forgotten the run.
func lost(why string) error {
	return &agent.Failure{Code: run.RuntimeLost, Message: "LangGraph: " + why, Retryable: true}
}

// task is one run of ours.
type task struct {
	*Runner
	agent.Task
	emit   func(agent.Event) error
	mapper *mapper
	thread string
	runs   []lgRun // on the server, made for this task, oldest first
	making bool    // a create was not answered
	skip   *cursor // events up to here are recorded; nil: none (any more)
}

// cursor is an event's place: the server's run, the frame, the event in it.
type cursor struct {
	run, frame string
	event      int // from 1
}

func (c cursor) String() string { return fmt.Sprintf("%s/%s/%d", c.run, c.frame, c.event) }

func parseCursor(text string) (*cursor, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 3 {
		if n, err := strconv.Atoi(parts[2]); err == nil {
			return &cursor{parts[0], parts[1], n}, nil
		}
	}
	return nil, fmt.Errorf("cursor %q is not one of ours", text)
}

// Run implements agent.Runner.
func (r *Runner) Run(ctx context.Context, t agent.Task, emit func(agent.Event) error) (agent.Stop, error) {
	one := &task{Runner: r, Task: t, emit: emit, mapper: newMapper(), thread: threadOf(t)}
	err := one.drive(ctx)
	if errors.Is(err, agent.ErrEnded) {
		<-ctx.Done() // which tells what to do with the server's run
	}
	if ctx.Err() == nil {
		return agent.Stop{}, err
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, agent.ErrTakenOver), errors.Is(cause, context.Canceled):
		return agent.Stop{}, nil // somebody else goes on
	case errors.Is(cause, agent.ErrEnded) && !one.mapper.failed:
		return agent.Stop{}, nil // it told its end itself
	}
	return one.stop(ctx), nil
}

// threadOf is the thread of a task: a conversation's, if it has one. Servers want
// UUIDs.
func threadOf(t agent.Task) string {
	if t.ThreadID == "" {
		return uuid.NewSHA1(uuid.NameSpaceURL, []byte("runfacts:run:"+t.RunID)).String()
	}
	if id, err := uuid.Parse(t.ThreadID); err == nil {
		return id.String()
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("runfacts:thread:"+t.ThreadID)).String()
}

// drive goes through the server's runs, one after each question that was
// answered. Errors: *agent.Failure, agent.ErrEnded, ctx's.
func (t *task) drive(ctx context.Context) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	for i := 0; ; i++ {
		status, err := t.follow(ctx, t.runs[i].ID)
		if err != nil {
			return err
		}
		if i+1 < len(t.runs) {
			continue // its question was answered, and the answer sent
		}
		if t.skip != nil {
			return lost("its event log is gone")
		}
		if questions := t.mapper.questions; len(questions) > 0 && (status == "success" || status == "interrupted") {
			resume, err := t.answers(ctx, questions)
			if err != nil {
				return err
			}
			if err := t.create(ctx, map[string]any{"command": map[string]any{"resume": resume}}); err != nil {
				return err
			}
			continue
		}
		return t.conclude(ctx, status)
	}
}

// begin finds or makes the thread and the first run.
func (t *task) begin(ctx context.Context) error {
	metadata := map[string]string{metadataKey: t.RunID}
	if err := t.insist(ctx, func(ctx context.Context) error { return t.client.thread(ctx, t.thread, metadata) }); err != nil {
		return err
	}
	if t.Rejoin != nil {
		if t.Rejoin.Cursor != nil {
			var err error
			if t.skip, err = parseCursor(*t.Rejoin.Cursor); err != nil {
				return lost(err.Error())
			}
		}
		err := t.insist(ctx, func(ctx context.Context) (err error) {
			t.runs, err = t.client.runs(ctx, t.thread, t.RunID)
			return err
		})
		if err != nil || len(t.runs) > 0 {
			return err
		}
		if t.skip != nil {
			return lost("it does not know the run any more")
		}
	}
	return t.create(ctx, map[string]any{"input": input(t.Input)})
}

// input is what a graph gets: an object as it is, text as a user's message.
func input(raw json.RawMessage) any {
	var text string
	if len(raw) > 0 && json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		return map[string]any{"messages": []map[string]string{{"role": "user", "content": text}}}
	}
	if len(raw) == 0 {
		return nil
	}
	return raw
}

// create makes a run on the server. The call is not idempotent: after any doubt
// it first looks whether the run is there.
func (t *task) create(ctx context.Context, body map[string]any) error {
	body["assistant_id"] = t.assistant
	body["stream_mode"] = modes
	body["stream_subgraphs"] = true
	body["stream_resumable"] = true
	body["on_disconnect"] = "continue"
	body["multitask_strategy"] = "reject"
	body["metadata"] = map[string]string{metadataKey: t.RunID}
	doubt := false
	return t.insist(ctx, func(ctx context.Context) error {
		if doubt {
			all, err := t.client.runs(ctx, t.thread, t.RunID)
			if err != nil {
				return err
			}
			if len(all) > len(t.runs) {
				t.runs, t.making = all, false
				return nil
			}
		}
		doubt, t.making = true, true
		var made lgRun
		if err := t.client.call(ctx, http.MethodPost, "/threads/"+t.thread+"/runs", body, &made); err != nil {
			return err
		}
		t.runs, t.making = append(t.runs, made), false
		return nil
	})
}

// insist makes a call until the server answers. Errors: *agent.Failure, ctx's.
func (t *task) insist(ctx context.Context, call func(context.Context) error) error {
	for began := time.Now(); ; {
		err := call(ctx)
		var answer *statusError
		switch {
		case err == nil || ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &answer) && answer.status == http.StatusConflict, errors.As(err, &answer) && answer.status == http.StatusUnprocessableEntity:
			return &agent.Failure{Code: "thread_busy", Message: "LangGraph: " + answer.Error(), Retryable: true}
		case errors.As(err, &answer) && answer.status < 500 && answer.status != http.StatusTooManyRequests:
			return &agent.Failure{Code: "langgraph_refused", Message: "LangGraph: " + answer.Error()}
		case time.Since(began) > t.patience(err):
			return lost("it cannot be reached")
		}
		if !pause(ctx, pollTime) {
			return ctx.Err()
		}
	}
}

// patience is how long a server may go on failing like this.
func (r *Runner) patience(err error) time.Duration {
	var answer *statusError
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &answer) {
		return r.hung
	}
	return min(deadTime, r.hung)
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// report emits what a frame says, but for what is recorded.
func (t *task) report(id string, f frame) error {
	for i, e := range t.mapper.take(f) {
		at := cursor{id, f.id, i + 1}
		if t.skip != nil {
			if *t.skip == at {
				t.skip = nil
			}
			continue
		}
		text := at.String()
		e.Cursor = &text
		if err := t.emit(e); err != nil {
			return agent.ErrEnded
		}
	}
	return nil
}

// answers waits for the answers to all questions, and returns what the graph is
// resumed with: the one answer, or all by the interrupts' ids.
func (t *task) answers(ctx context.Context, questions []string) (any, error) {
	all := make(map[string]json.RawMessage, len(questions))
	for _, id := range questions {
		a, err := t.Answer(ctx, id)
		if err != nil {
			return nil, err
		}
		if all[id] = a.Result; len(questions) == 1 {
			return a.Result, nil
		}
	}
	return all, nil
}

// conclude reports the end of the last run on the server.
func (t *task) conclude(ctx context.Context, status string) error {
	if t.mapper.failed {
		return nil // it was told
	}
	var s state
	if status != "success" || !t.mapper.answered {
		if err := t.insist(ctx, func(ctx context.Context) (err error) {
			s, err = t.client.state(ctx, t.thread)
			return err
		}); err != nil {
			return err
		}
	}
	switch status {
	case "success":
		answer := t.mapper.answer
		if !t.mapper.answered {
			answer = agent.Unicode(lastWords(s.Values))
		}
		if t.emit(agent.Event{Type: agent.Done, Answer: answer}) != nil {
			return agent.ErrEnded
		}
		return nil
	case "interrupted":
		return &agent.Failure{Code: "interrupted", Message: "LangGraph: the run was interrupted there", Retryable: true}
	}
	f := &agent.Failure{Code: status, Message: "LangGraph: the run ended as " + status}
	for _, task := range s.Tasks {
		var text string
		if json.Unmarshal(task.Error, &text) == nil && text != "" {
			f.Message = text
		}
	}
	return f
}

// lastWords is the answer in a graph's final values: its last message's text, or
// the values themselves where it has no messages.
func lastWords(values json.RawMessage) string {
	var with struct {
		Messages []message `json:"messages"`
	}
	if json.Unmarshal(values, &with) == nil && with.Messages != nil {
		if n := len(with.Messages); n > 0 {
			return spoken(with.Messages[n-1].Content)
		}
		return ""
	}
	var b bytes.Buffer
	if json.Compact(&b, values) != nil {
		return ""
	}
	return b.String()
}

// stop interrupts the server's runs of this task and waits until the server says
// that they have ended, as long as there is time.
func (t *task) stop(ctx context.Context) agent.Stop {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	asked := make(map[string]bool)
	for ctx.Err() == nil {
		all, err := t.client.runs(ctx, t.thread, t.RunID)
		// One whose making was not answered may still come.
		ended := err == nil && len(all) > 0 && (!t.making || len(all) > len(t.runs))
		for _, r := range all {
			if r.ended() {
				continue
			}
			ended = false
			if !asked[r.ID] {
				asked[r.ID] = t.client.interrupt(ctx, t.thread, r.ID) == nil
			}
		}
		if ended {
			last := all[len(all)-1]
			return agent.Stop{Proof: fmt.Sprintf("LangGraph tells its run %s as %s", last.ID, last.Status)}
		}
		pause(ctx, pollTime)
	}
	return agent.Stop{}
}
