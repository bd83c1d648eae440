package api

import (
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/rs/zerolog"
)

// identify gives the request an id, the caller's where it has a usable one; it
// stands in the answer, in problems and in log lines.
func identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(echo.HeaderXRequestID)
		if id == "" || len(id) > maxName || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
			id = rand.Text()
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		return next(c)
	}
}

func requestID(c echo.Context) string { return c.Response().Header().Get(echo.HeaderXRequestID) }

// codeKey is where answer leaves a problem's code for the access log.
const codeKey = "problem code"

// access writes one line for each request, when it has been answered. Queries may
// hold secrets and are left out. What probes ask all the time is not news.
func (s *Server) access(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began, aborted := time.Now(), true
		defer func() {
			level := zerolog.InfoLevel
			switch c.Path() {
			case "/healthz", "/readyz", "/metrics":
				level = zerolog.DebugLevel
			}
			path := c.Request().URL.Path
			line := s.config.Log.WithLevel(level).Str("request_id", requestID(c)).Str("method", c.Request().Method).
				Str("path", path[:min(len(path), maxPath)]).Int("status", c.Response().Status).Int64("bytes", c.Response().Size).
				Dur("took_ms", time.Since(began)).Str("remote", c.RealIP())
			if id := c.Param("run_id"); id != "" {
				line.Str("run_id", id)
			}
			if code, ok := c.Get(codeKey).(string); ok {
				line.Str("code", code)
			}
			if aborted {
				line.Bool("aborted", true)
			}
			line.Msg("request")
		}()
		if err := next(c); err != nil {
			c.Error(err) // now, so that its status is known
		}
		aborted = false
		return nil
	}
}

// maxPath is how much of a path the access log shows, in bytes.
const maxPath = 256

// recovers turns a handler's panic into a 500, and logs it as all else is logged.
func (s *Server) recovers() echo.MiddlewareFunc {
	return middleware.RecoverWithConfig(middleware.RecoverConfig{
		DisableStackAll: true,
		LogErrorFunc: func(c echo.Context, err error, stack []byte) error {
			s.config.Log.Error().Err(err).Str("request_id", requestID(c)).Str("run_id", c.Param("run_id")).
				Str("method", c.Request().Method).Str("route", c.Path()).Bytes("stack", stack).Msg("handler panicked")
			return err
		},
	})
}

// abort cuts the connection, so that the client cannot take what it has for
// whole: net/http's way to say so.
func abort() { panic(http.ErrAbortHandler) }
