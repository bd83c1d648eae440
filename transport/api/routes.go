package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// route is one call of the API.
type route struct {
	method, path string
	meaning      string // for people
	handler      echo.HandlerFunc
}

// routes is the one table of what there is. HEAD goes with each GET.
func (s *Server) routes() []route {
	const run = "/api/agent-runs/:run_id"
	return []route{
		{http.MethodPost, "/api/agent-runs", "start a run", s.create},
		{http.MethodGet, run, "where a run stands", s.summary},
		{http.MethodDelete, run, "erase an ended run", s.erase},
		{http.MethodGet, run + "/events", "what is committed, as a stream of events or as pages", s.events},
		{http.MethodPost, run + "/agent-events", "push what a runtime reports", s.push},
		{http.MethodPost, run + "/cancel", "stop a run", s.cancel},
		{http.MethodPost, run + "/tool-results", "answer an external tool call", s.answerCall},
		{http.MethodGet, run + "/artifacts/:artifact_id", "an artifact's bytes", s.artifact},
		{http.MethodPut, run + "/artifacts/:name", "bring an artifact's bytes", s.putArtifact},
		{http.MethodGet, "/api/agents", "the agents that are configured here", s.agents},
		{http.MethodGet, "/api/agent-snapshots/:checksum", "the configuration that a run was started with", s.snapshot},
		{http.MethodGet, "/healthz", "whether the process lives", s.healthy},
		{http.MethodGet, "/readyz", "whether it serves", s.ready},
		{http.MethodGet, "/metrics", "for Prometheus", echo.WrapHandler(s.config.Metrics.Handler())},
		{http.MethodGet, "/api", "this list", s.index},
		{http.MethodGet, "/", "a way to this list", func(c echo.Context) error { return c.Redirect(http.StatusFound, "/api") }},
	}
}

// index is GET /api: what a newcomer's browser shows.
func (s *Server) index(c echo.Context) error {
	type call struct {
		Method  string `json:"method"`
		Path    string `json:"path"`
		Meaning string `json:"meaning"`
	}
	out := struct {
		Name  string `json:"name"`
		About string `json:"about"`
		Start string `json:"start"`
		Calls []call `json:"calls"`
	}{
		Name:  "Runfacts",
		About: "AI-agent runs as facts: committed first, replayed and live. Errors are application/problem+json.",
		Start: `POST /api/agent-runs {"agent_id":"my_agent","runtime":"push"} with Content-Type: application/json, then GET /api/agent-runs/{run_id}/events`,
	}
	for _, r := range s.routes() {
		if strings.HasPrefix(r.path, "/api/") || r.path == "/healthz" || r.path == "/readyz" || r.path == "/metrics" {
			out.Calls = append(out.Calls, call{r.method, readable(r.path), r.meaning})
		}
	}
	return c.JSONPretty(http.StatusOK, out, "  ")
}

// readable writes a route's parameters as documentation does, {run_id}.
func readable(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if name, ok := strings.CutPrefix(part, ":"); ok {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
}

// healthy is GET /healthz.
func (s *Server) healthy(c echo.Context) error {
	return s.fresh(c, http.StatusOK, map[string]string{"status": "ok"})
}
