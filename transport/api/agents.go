package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/run"
)

// agents is GET /api/agents: what is configured on this instance.
func (s *Server) agents(c echo.Context) error {
	type configured struct {
		AgentID  string `json:"agent_id"`
		Runtime  string `json:"runtime"`
		Snapshot string `json:"agent_snapshot_checksum"`
	}
	out := struct {
		Agents []configured `json:"agents"`
	}{[]configured{}}
	for _, a := range s.config.Supervisor.Agents() {
		out.Agents = append(out.Agents, configured{a.ID, a.Runtime, run.Checksum(a.Config)})
	}
	return s.fresh(c, http.StatusOK, out)
}

// snapshot is GET /api/agent-snapshots/{checksum}: what a run was started with,
// byte for byte, so that the checksum can be verified. It never changes.
func (s *Server) snapshot(c echo.Context) error {
	ctx, cancel := s.patience(c)
	defer cancel()
	data, err := s.config.Supervisor.Snapshot(ctx, param(c, "checksum"))
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderCacheControl, "private, max-age=31536000, immutable")
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, data)
}
