package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// Bounds of what a request may say, in bytes.
const (
	maxBody = 4 << 20 // of a create or a cancel; what is stored is bounded by the append
	maxName = 128     // producer, an artifact's name, a request's id
	maxText = 256     // thread_id, a cancel's reason
)

// cancelTime is how long a cancel waits to be recorded before it is only accepted.
const cancelTime = 5 * time.Second

// PushRuntime is the runtime of runs whose events somebody pushes.
const PushRuntime = "push"

// summary is a run's state as the API shows it.
type summary struct {
	RunID       run.ID       `json:"run_id"`
	AgentID     string       `json:"agent_id"`
	Runtime     string       `json:"runtime"`
	ThreadID    string       `json:"thread_id,omitempty"`
	Labels      labels       `json:"labels,omitempty"`
	ParentRunID string       `json:"parent_run_id,omitempty"`
	RetryOf     string       `json:"retry_of,omitempty"`
	Status      run.Status   `json:"status"`
	LastSeq     run.Seq      `json:"last_seq"`
	StartedAt   string       `json:"started_at"`
	EndedAt     string       `json:"ended_at,omitempty"`
	Error       *run.Failure `json:"error,omitempty"`
	ProducerSeq uint64       `json:"producer_seq"`
}

func show(s record.Summary) summary {
	out := summary{
		RunID: s.RunID, AgentID: s.AgentID, Runtime: s.Runtime, ThreadID: s.ThreadID,
		Labels: s.Labels, ParentRunID: s.ParentRunID, RetryOf: s.RetryOf, Status: s.Status,
		LastSeq: s.LastSeq, StartedAt: stamp(s.StartedAt), Error: s.Failure, ProducerSeq: s.ProducerSeq,
	}
	if !s.EndedAt.IsZero() {
		out.EndedAt = stamp(s.EndedAt)
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format(run.TimeFormat) }

// summary is GET /api/agent-runs/{id}.
func (s *Server) summary(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	producer, err := producerOf(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.patience(c)
	defer cancel()
	state, err := s.config.Runs.Summary(ctx, id, producer)
	if err != nil {
		return err
	}
	return s.fresh(c, http.StatusOK, show(state))
}

// cancel is POST /api/agent-runs/{id}/cancel. A pushed run has no runtime that
// we could stop: its producer learns of the end on its next push. Whatever is
// not done when the answer is due goes on by itself.
func (s *Server) cancel(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	body, err := readBody(c)
	if err != nil {
		return err
	}
	var in struct {
		Reason string `json:"reason"`
	}
	if len(body) > 0 {
		if err := decode(body, &in); err != nil {
			return err
		}
	}
	if len(in.Reason) > maxText {
		return invalid("reason", "reason is too long")
	}
	if in.Reason == "" {
		in.Reason = "requested"
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), min(cancelTime, s.config.Patience))
	defer cancel()
	state, err := s.config.Supervisor.Cancel(ctx, id, in.Reason)
	var away *ledger.UnavailableError
	switch {
	case errors.As(err, &away) && state.RunID != "":
		return s.fresh(c, http.StatusAccepted, show(state))
	case err != nil:
		return err
	}
	return s.fresh(c, http.StatusOK, show(state))
}

// erase is DELETE /api/agent-runs/{id}.
func (s *Server) erase(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.patience(c)
	defer cancel()
	err = s.config.Runs.Erase(ctx, id)
	if err == nil || errors.Is(err, ledger.ErrErased) { // perhaps by one that died before the next line
		err = errors.Join(err, s.config.Blobs.Release(ctx, id))
	}
	if err != nil {
		return err
	}
	return c.NoContent(http.StatusAccepted)
}

// fresh answers with what is true now and must not be kept.
func (s *Server) fresh(c echo.Context, status int, body any) error {
	c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return c.JSON(status, body)
}
