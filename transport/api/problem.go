package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/lease"
	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/domain/supervisor"
)

// problem is an RFC 9457 answer. Code is stable; Detail is for people. Extra
// members stand beside them.
type problem struct {
	Status int
	Code   string
	Detail string
	Extra  map[string]any
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

// with returns p with one more member.
func (p *problem) with(key string, value any) *problem {
	if p.Extra == nil {
		p.Extra = make(map[string]any)
	}
	p.Extra[key] = value
	return p
}

func (p *problem) MarshalJSON() ([]byte, error) {
	members := map[string]any{
		"type": "about:blank", "title": http.StatusText(p.Status), "status": p.Status,
		"code": p.Code, "detail": p.Detail,
	}
	for k, v := range p.Extra {
		members[k] = v
	}
	return json.Marshal(members)
}

// retryAfter is when a client may try again after an outage, in seconds.
const retryAfter = 2

// problemOf is the one table from errors to answers. What it does not know is
// ours, and says nothing to strangers.
func problemOf(err error) *problem {
	var (
		p          *problem
		push       *record.PushError
		ended      *run.EndedError
		gap        *run.GapError
		fenced     *run.ProducerFencedError
		moved      *run.FencedError
		calls      *run.TooManyCallsError
		corrupt    *ledger.CorruptError
		torn       *run.BrokenChainError
		back       *ledger.SetBackError
		large      *run.TooLargeError
		refused    *ledger.RefusedError
		unknown    *ledger.UnknownError
		away       *ledger.UnavailableError
		truncated  *ledger.TruncatedError
		exists     *record.ExistsError
		running    *record.NotEndedError
		owned      *run.OwnedError
		noCall     *run.NoCallError
		noArtifact *record.NoArtifactError
		heavy      *blob.TooLargeError
		damaged    *blob.DamagedError
		noBlobs    *blob.StoreError
		answered   *run.AnsweredError
		unasked    *supervisor.UnknownAgentError
		syntax     *agent.SyntaxError
		field      *agent.FieldError
		denied     *ledger.DeniedError
		http_      *echo.HTTPError
	)
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &push):
		p = problemOf(push.Err)
		if push.Line > 0 {
			p.with("line", push.Line)
		}
		return p
	case errors.As(err, &ended):
		return (&problem{409, "run_terminal", ended.Error(), nil}).with("run_status", ended.Status)
	case errors.As(err, &noArtifact):
		return &problem{404, "artifact_not_found", noArtifact.Error(), nil}
	case errors.Is(err, blob.ErrNotFound):
		return &problem{404, "artifact_not_stored", "the artifact's bytes are not kept here", nil}
	case errors.As(err, &heavy):
		return &problem{413, "artifact_too_large", "the artifact has " + heavy.Error(), nil}
	case errors.As(err, &damaged):
		return &problem{500, "artifact_damaged", "the artifact's bytes were damaged where they are kept; bringing them again mends them", nil}
	case errors.As(err, &noBlobs) && noBlobs.Cause == blob.Full:
		return &problem{507, "artifact_store_full", "there is no room for artifacts' bytes", nil}
	case errors.As(err, &noBlobs):
		return &problem{503, "artifact_store_unavailable", "artifacts' bytes cannot be reached", nil}
	case errors.As(err, &noCall):
		return &problem{404, "tool_call_not_found", noCall.Error(), nil}
	case errors.As(err, &answered):
		return &problem{409, "already_answered", answered.Error(), nil}
	case errors.As(err, &moved):
		return &problem{409, "run_taken_over", moved.Error() + "; ask again", nil}
	case errors.As(err, &owned):
		return &problem{409, "run_not_pushed", owned.Error(), nil}
	case errors.As(err, &unasked):
		return &problem{422, "unknown_agent", unasked.Error() + "; without configuration only runs with runtime \"push\" can be started", nil}
	case errors.Is(err, supervisor.ErrBusy), errors.Is(err, lease.ErrFull):
		return &problem{503, "at_capacity", "this instance has as many runs as it may; try again, or another instance", nil}
	case errors.Is(err, supervisor.ErrNoSnapshot):
		return &problem{404, "snapshot_not_found", "nothing is stored under this checksum", nil}
	case errors.As(err, &gap):
		return (&problem{409, "producer_gap", gap.Error(), nil}).with("next_producer_seq", gap.Next)
	case errors.As(err, &fenced):
		return (&problem{409, "producer_fenced", fenced.Error(), nil}).with("epoch", fenced.Epoch)
	case errors.As(err, &calls):
		return (&problem{409, "too_many_calls", calls.Error(), nil}).with("open_calls", calls.Open)
	case errors.As(err, &corrupt):
		return (&problem{500, "run_corrupt", "an event of the run is damaged where it is stored, or was not written by Runfacts", nil}).
			with("run_id", corrupt.Run).with("seq", corrupt.Seq)
	case errors.As(err, &torn):
		return (&problem{500, "run_corrupt", "an event of the run does not follow the one before it", nil}).
			with("run_id", torn.Run).with("seq", torn.Seq)
	case errors.As(err, &back):
		return (&problem{422, "cursor_diverged", "the store was set back: it ends before what it had shown", nil}).with("last_seq", back.Ends)
	case errors.As(err, &large):
		return &problem{413, "event_too_large", large.Error(), nil}
	case errors.As(err, &refused) && refused.TooLarge:
		return &problem{413, "event_too_large", "the event does not fit one append of the store", nil}
	case errors.As(err, &refused):
		return &problem{502, "store_refused", "the store refused the append", nil}
	case errors.As(err, &denied):
		return (&problem{503, "store_denied", "the store denies us " + denied.Right + "; nothing was lost: send it again", nil}).with("missing", denied.Right)
	case errors.As(err, &unknown):
		return &problem{503, "store_unavailable", "the outcome is unknown: it may still be committed; compare with producer_seq and send again", nil}
	case errors.As(err, &away):
		return &problem{503, "store_unavailable", "the store cannot be reached", nil}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // while it waited for its turn
		return &problem{503, "store_unavailable", "the store did not answer in time", nil}
	case errors.Is(err, record.ErrStopping):
		return &problem{503, "stopping", "this instance is stopping; try another", nil}
	case errors.Is(err, ledger.ErrNotFound):
		return &problem{404, "run_not_found", "no such run", nil}
	case errors.Is(err, ledger.ErrDeleted):
		return &problem{410, "run_deleted", "the run's stream was deleted on the store", nil}
	case errors.Is(err, ledger.ErrErased):
		return &problem{410, "run_erased", "the run was erased", nil}
	case errors.As(err, &truncated):
		return (&problem{410, "run_truncated", truncated.Error(), nil}).with("first_seq", truncated.First)
	case errors.As(err, &exists):
		return &problem{409, "run_exists", exists.Error(), nil}
	case errors.As(err, &running):
		return &problem{409, "run_not_ended", running.Error(), nil}
	case errors.As(err, &syntax):
		return &problem{400, "invalid_json", syntax.Error(), nil}
	case errors.As(err, &field):
		return (&problem{422, "invalid_event", field.Error(), nil}).with("field", field.Field)
	case errors.As(err, &http_):
		return ofStatus(http_.Code)
	}
	return &problem{500, "internal", "something went wrong on our side", nil}
}

// ofStatus names the answers that the router gives.
func ofStatus(status int) *problem {
	switch status {
	case http.StatusNotFound:
		return &problem{status, "not_found", "nothing is here", nil}
	case http.StatusMethodNotAllowed:
		return &problem{status, "method_not_allowed", "this cannot be done here", nil}
	}
	return &problem{status, "request_refused", http.StatusText(status), nil}
}

// answer writes err as problem+json; it is echo's error handler, and the one
// place where errors are logged: a caller's fault at debug, ours at error. The
// access log's line tells the code of each.
func (s *Server) answer(err error, c echo.Context) {
	p := problemOf(err)
	id := requestID(c)
	level := zerolog.DebugLevel
	if p.Status >= 500 && p.Status != http.StatusServiceUnavailable { // what is away is told once, by who watches it
		level = zerolog.ErrorLevel
	}
	s.config.Log.WithLevel(level).Err(err).Str("request_id", id).Str("run_id", c.Param("run_id")).
		Str("method", c.Request().Method).Str("route", c.Path()).Int("status", p.Status).Msg("request refused")
	if c.Response().Committed {
		return
	}
	c.Set(codeKey, p.Code)
	if b, ok := c.Request().Body.(*body); ok {
		b.discard()
	}
	if id != "" {
		p.with("request_id", id)
	}
	h := c.Response().Header()
	if p.Status == http.StatusServiceUnavailable {
		h.Set(echo.HeaderRetryAfter, strconv.Itoa(retryAfter))
	}
	h.Set(echo.HeaderCacheControl, "no-store")
	body, err := json.Marshal(p)
	if err == nil {
		err = c.Blob(p.Status, "application/problem+json", body)
	}
	if err != nil {
		s.config.Log.Debug().Err(err).Str("request_id", id).Msg("answer not delivered")
	}
}
