package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/agent"
)

// answerCall is POST /api/agent-runs/{id}/tool-results: somebody outside the
// runtime answers an external call.
func (s *Server) answerCall(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	body, err := readBody(c)
	if err != nil {
		return err
	}
	var in struct {
		ToolCallID string          `json:"tool_call_id"`
		Result     json.RawMessage `json:"result"`
		IsError    bool            `json:"is_error"`
	}
	if err := decode(body, &in); err != nil {
		return err
	}
	if in.ToolCallID == "" {
		return invalid("tool_call_id", "tool_call_id is missing")
	}
	if in.Result == nil {
		return invalid("result", "result is missing; it may be null")
	}
	result, err := value("result", in.Result)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), min(cancelTime, s.config.Patience))
	defer cancel()
	state, err := s.config.Supervisor.Answer(ctx, id, agent.Answer{ToolCallID: in.ToolCallID, Result: result, IsError: in.IsError})
	if err != nil {
		return err
	}
	return s.fresh(c, http.StatusOK, show(state))
}
