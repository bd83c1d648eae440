package api

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/projection/view"
	"github.com/runfacts/runfacts/transport/sse"
)

const (
	keepAlive = 15 * time.Second // without an event (protocol section 5)

	// A cursor that another instance gave out may be ahead of a store that is
	// failing over; so may a run. After this the answer is final.
	lookAgain = time.Second
	lookPause = 50 * time.Millisecond

	defaultLimit = 200
	maxLimit     = 1000
	maxPage      = 8 << 20 // bytes of payload in a JSON page
)

// AppendFrame appends a frame as it is sent: what the viewers' rings hold.
func AppendFrame(b []byte, f view.Frame) ([]byte, error) {
	return sse.AppendFrame(b, uint64(f.ID), f.Event, f.Data)
}

// events is GET /api/agent-runs/{id}/events, as SSE or as pages.
func (s *Server) events(c echo.Context) error {
	h := c.Response().Header()
	h.Set(echo.HeaderCacheControl, "no-store")
	h.Add(echo.HeaderVary, echo.HeaderAccept)
	id, err := runID(c)
	if err != nil {
		return err
	}
	v, err := view.Parse(c.QueryParam("view"))
	if err != nil {
		return invalid("view", err.Error())
	}
	after, err := cursor(c)
	if err != nil {
		return err
	}
	paged := wantsPage(c.Request().Header.Values(echo.HeaderAccept))
	ctx, cancel := s.patience(c)
	defer cancel()
	last, err := s.judge(ctx, id, after)
	var away *ledger.UnavailableError
	switch {
	case errors.As(err, &away) && !paged:
		return s.comeBack(c)
	case err != nil:
		return err
	case paged:
		return s.page(c, id, after, v, &last)
	case run.Terminal(last.Type) && after == last.Seq:
		return c.NoContent(http.StatusNoContent)
	}
	return s.stream(c, after, v, &last)
}

// cursor returns the larger of the two places where a client may say what it
// has seen.
func cursor(c echo.Context) (run.Seq, error) {
	texts := []string{c.Request().Header.Get("Last-Event-ID")}
	if c.QueryParams().Has("after_seq") {
		texts = append(texts, c.QueryParam("after_seq"))
	}
	var after run.Seq
	for i, text := range texts {
		if i == 0 && text == "" {
			continue
		}
		seq, err := parseCursor(text)
		if err != nil {
			return 0, err
		}
		after = max(after, seq)
	}
	return after, nil
}

// parseCursor reads a plain decimal number that a seq can be.
func parseCursor(text string) (run.Seq, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || strings.HasPrefix(text, "+") {
		return 0, &problem{http.StatusUnprocessableEntity, "invalid_cursor", "a cursor is a plain decimal number, at least 0", nil}
	}
	return run.Seq(n), nil
}

// judge reads the run's end at the leader, and returns it if the cursor is not
// beyond. What is unknown or beyond is looked at again for a moment.
func (s *Server) judge(ctx context.Context, id run.ID, after run.Seq) (run.Event, error) {
	for end := time.Now().Add(lookAgain); ; {
		last, err := s.config.Reader.Last(ctx, id)
		if err == nil && after > last.Seq {
			err = (&problem{http.StatusUnprocessableEntity, "invalid_cursor", "the cursor is beyond the run's last event", nil}).
				with("last_seq", last.Seq)
		} else if err == nil || !errors.Is(err, ledger.ErrNotFound) {
			return last, err
		}
		if time.Now().Add(lookPause).After(end) {
			return run.Event{}, err
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return run.Event{}, err
		}
	}
}

// wantsPage reports whether the client prefers JSON; */* means SSE.
func wantsPage(accept []string) bool {
	for _, one := range strings.Split(strings.Join(accept, ","), ",") {
		media, _, _ := strings.Cut(one, ";")
		switch strings.ToLower(strings.TrimSpace(media)) {
		case echo.MIMEApplicationJSON:
			return true
		case "text/event-stream", "*/*", "text/*":
			return false
		}
	}
	return false
}

// comeBack answers an EventSource while the store is away: any error status
// would make it give up for ever.
func (s *Server) comeBack(c echo.Context) error {
	out, err := sse.Open(c.Response())
	if err == nil {
		err = out.Write(sse.Retry(jitter(5*time.Second, 10*time.Second)))
	}
	s.gone(c, err)
	return nil
}

func jitter(least, most time.Duration) time.Duration { return least + rand.N(most-least) }

// gone notes that a client did not take what was written to it.
func (s *Server) gone(c echo.Context, err error) {
	if err != nil {
		s.config.Log.Debug().Err(err).Str("run_id", c.Param("run_id")).Msg("viewer gone")
	}
}

// page answers with events as JSON.
func (s *Server) page(c echo.Context, id run.ID, after run.Seq, v *view.View, last *run.Event) error {
	limit := defaultLimit
	if text := c.QueryParam("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			return invalid("limit", "limit is a number from 1 to 1000")
		}
		limit = n
	}
	out := struct {
		Events   []json.RawMessage `json:"events"`
		LastSeq  run.Seq           `json:"last_seq"`
		Terminal bool              `json:"terminal"`
	}{[]json.RawMessage{}, last.Seq, run.Terminal(last.Type)}
	if after < last.Seq {
		ctx, cancel := s.patience(c)
		defer cancel()
		events, err := s.config.Reader.Read(ctx, id, after, ledger.Page{Events: limit, Bytes: maxPage})
		if err != nil {
			return err
		}
		for i := range events {
			if events[i].Seq <= last.Seq { // last_seq and terminal are of one moment
				out.Events = append(out.Events, v.Encode(&events[i]))
			}
		}
	}
	// Payloads go out as they are stored: no HTML escaping.
	c.Response().Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	c.Response().WriteHeader(http.StatusOK)
	encoder := json.NewEncoder(c.Response())
	encoder.SetEscapeHTML(false)
	s.gone(c, encoder.Encode(out))
	return nil
}

// already is news that has come.
var already = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// stream sends frames until the run has ended, the client is gone or the
// server stops.
func (s *Server) stream(c echo.Context, after run.Seq, v *view.View, last *run.Event) error {
	viewer, err := s.config.Tails.Open(after, v, last)
	if errors.Is(err, tail.ErrStopped) {
		return s.comeBack(c)
	}
	if err != nil {
		return err
	}
	defer viewer.Close()
	ctx := c.Request().Context()
	// What shows at the start can still be an error status.
	batch, more, err := viewer.Next(ctx)
	if err != nil {
		return err
	}
	s.streams.Add(1)
	defer s.streams.Add(-1)
	defer s.config.Metrics.Viewing(v.Name)()
	out, err := sse.Open(c.Response())
	if err == nil {
		err = out.Write(sse.Retry(jitter(time.Second, 2*time.Second)))
	}
	alive := time.NewTimer(keepAlive)
	defer alive.Stop()
	draining := s.draining.Done()
	var leave <-chan time.Time // once the server drains: when this stream ends
	for err == nil {
		if len(batch.Frames) > 0 {
			if err = out.Write(batch.Frames...); err != nil {
				break
			}
			s.config.Metrics.Sent(len(batch.Frames))
			if batch.Live {
				s.config.Metrics.Lag(time.Since(batch.Recorded))
			}
			if batch.Terminal {
				return nil
			}
			alive.Reset(keepAlive)
			more = already // a busy stream looks at its other ends as well
		}
		select {
		case <-more:
		case <-alive.C:
			err = out.Write(sse.KeepAlive)
			alive.Reset(keepAlive)
		case <-draining:
			draining = nil
			leave = time.After(rand.N(time.Duration(s.spread.Load()) + 1))
		case <-leave:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err == nil {
			batch, more, err = viewer.Next(ctx)
		}
	}
	s.gone(c, err)
	return nil
}
