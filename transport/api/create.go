package api

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// starting is the body of a create.
type starting struct {
	RunID       *string         `json:"run_id"`
	AgentID     string          `json:"agent_id"`
	Runtime     string          `json:"runtime"`
	ThreadID    string          `json:"thread_id"`
	Input       json.RawMessage `json:"input"`
	Labels      labels          `json:"labels"`
	ParentRunID *string         `json:"parent_run_id"`
	RetryOf     *string         `json:"retry_of"`
	StartedAt   *string         `json:"started_at"`
	TraceID     string          `json:"trace_id"`
	SpanID      string          `json:"span_id"`
}

// create is POST /api/agent-runs.
func (s *Server) create(c echo.Context) error {
	body, err := readBody(c)
	if err != nil {
		return err
	}
	var in starting
	if err := decode(body, &in); err != nil {
		return err
	}
	start, err := in.start(c.Request().Header.Get("traceparent"))
	if err != nil {
		return err
	}
	start.RequestChecksum, start.RequestID = run.Checksum(body), requestID(c)
	if in.RunID == nil {
		start.ID = s.config.NewID()
	}
	ctx, cancel := s.patience(c)
	defer cancel()
	begin := s.config.Supervisor.Start
	if in.Runtime == PushRuntime {
		begin = s.config.Supervisor.Push
	}
	state, created, err := begin(ctx, start)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		s.config.Log.Info().Str("request_id", start.RequestID).Str("run_id", string(start.ID)).
			Str("agent_id", state.AgentID).Str("runtime", state.Runtime).Msg("run started")
	}
	c.Response().Header().Set(echo.HeaderLocation, "/api/agent-runs/"+string(start.ID))
	return s.fresh(c, status, show(state))
}

// start is what the body asks for; its trace is the request's where it names none.
func (in *starting) start(traceparent string) (start run.Start, err error) {
	start = run.Start{AgentID: in.AgentID, Runtime: in.Runtime, ThreadID: in.ThreadID, Labels: in.Labels, TraceID: in.TraceID, SpanID: in.SpanID}
	if in.AgentID == "" {
		return start, invalid("agent_id", "agent_id is missing")
	}
	if err := agent.CheckID(in.AgentID); err != nil {
		return start, invalid("agent_id", "agent_id "+err.Error())
	}
	if len(in.ThreadID) > maxText {
		return start, invalid("thread_id", "thread_id is too long")
	}
	if agent.JSONLen(in.TraceID) > maxName || agent.JSONLen(in.SpanID) > maxName {
		return start, invalid("trace_id", "trace_id and span_id must not be longer than 128 bytes")
	}
	if in.TraceID == "" && in.SpanID == "" {
		start.TraceID, start.SpanID = parseTrace(traceparent)
	}
	if err := in.Labels.check(); err != nil {
		return start, err
	}
	var own, parent, earlier run.ID
	for _, ref := range []struct {
		field string
		text  *string
		id    *run.ID
	}{{"run_id", in.RunID, &own}, {"parent_run_id", in.ParentRunID, &parent}, {"retry_of", in.RetryOf, &earlier}} {
		if ref.text == nil {
			continue
		}
		if *ref.id, err = run.ParseID(*ref.text); err != nil {
			return start, invalid(ref.field, ref.field+": "+err.Error())
		}
	}
	start.ID, start.ParentRunID, start.RetryOf = own, string(parent), string(earlier)
	if in.StartedAt != nil {
		if start.StartedAt, err = parseTime("started_at", *in.StartedAt); err != nil {
			return start, err
		}
	}
	if in.Input != nil {
		start.Input, err = value("input", in.Input)
	}
	return start, err
}

// parseTime reads a time that can be written again in UTC.
func parseTime(field, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if year := t.UTC().Year(); err != nil || year < 1 || year > 9999 {
		return t, invalid(field, field+" must be an RFC 3339 time of a year from 1 to 9999, in UTC")
	}
	return t.UTC(), nil
}

// traces is a traceparent of W3C Trace Context, of any version.
var traces = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)

// parseTrace returns the ids in a traceparent, none where it is not valid.
func parseTrace(traceparent string) (trace, span string) {
	m := traces.FindStringSubmatch(strings.TrimSpace(traceparent))
	if m == nil || m[1] == "ff" || m[1] == "00" && m[4] != "" || strings.Trim(m[2], "0") == "" || strings.Trim(m[3], "0") == "" {
		return "", ""
	}
	return m[2], m[3]
}

// labels are what somebody sorts runs by.
type labels map[string]string

// Bounds of labels. Together, as JSON, they leave the event's line room for the
// input.
const (
	maxLabels     = 32
	maxLabel      = 256
	maxLabelsJSON = 11 << 10
)

var labelKey = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

func (l labels) check() error {
	size := 2
	for key, value := range l {
		size += len(key) + agent.JSONLen(value) + len(`"":"",`)
		switch {
		case !labelKey.MatchString(key):
			return invalid("labels", "a label's key has 1 to 64 of a-z 0-9 _ . -")
		case len(value) > maxLabel:
			return invalid("labels", "the label "+key+" is longer than 256 bytes")
		}
	}
	if len(l) > maxLabels || size > maxLabelsJSON {
		return invalid("labels", "there may be 32 labels, of 11 KiB together as JSON")
	}
	return nil
}
