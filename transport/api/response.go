package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// A reader that takes nothing for writeTime is gone, or as good as; one that
// takes a little is slow, and is waited for: the time counts per writeStep bytes.
const (
	writeTime = 30 * time.Second
	writeStep = 16 << 10
)

// steady is a ResponseWriter whose every step has its own deadline.
type steady struct {
	http.ResponseWriter
	control *http.ResponseController
}

// steadily is the middleware.
func steadily(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		w := c.Response().Writer
		c.Response().Writer = &steady{w, http.NewResponseController(w)}
		return next(c)
	}
}

// Unwrap is for http.ResponseController.
func (s *steady) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *steady) step() error {
	err := s.control.SetWriteDeadline(time.Now().Add(writeTime))
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// Write implements io.Writer.
func (s *steady) Write(b []byte) (n int, err error) {
	for more := true; more; more = len(b) > 0 {
		part := b[:min(writeStep, len(b))]
		if err := s.step(); err != nil {
			return n, err
		}
		m, err := s.ResponseWriter.Write(part)
		n += m
		if err != nil {
			return n, err
		}
		b = b[len(part):]
	}
	return n, nil
}

// FlushError is for http.ResponseController.
func (s *steady) FlushError() error {
	if err := s.step(); err != nil {
		return err
	}
	return s.control.Flush()
}
