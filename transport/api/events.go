package api

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/tail"
	"github.com/runfacts/runfacts/projection/view"
	"github.com/runfacts/runfacts/transport/sse"
)

const (
	// A cursor that another instance gave out may be ahead of a store that is
	// failing over; so may a run. After this the answer is final.
	lookAgain = time.Second
	lookPause = 50 * time.Millisecond

	// When a client may come again that is sent away since this instance stops.
	leaveLeast, leaveMost = 4 * time.Second, 8 * time.Second

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
	if !paged {
		err = unviewable(err)
	}
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

// unviewable turns what a viewer cannot get past into an answer that ends an
// EventSource: it would come back for ever on a 500 as a clean end does.
func unviewable(err error) error {
	if p := problemOf(err); err != nil && p.Code == "run_corrupt" {
		p.Status = http.StatusUnprocessableEntity
		return p
	}
	return err
}

// cursor returns the largest of the places where a client may say what it has
// seen: the header that browsers send, the query's member of ours, and that of
// polyfills.
func cursor(c echo.Context) (run.Seq, error) {
	query := c.QueryParams()
	texts := slices.Clone(query["after_seq"])
	for _, text := range append(query["lastEventId"], c.Request().Header.Get("Last-Event-ID")) {
		if text != "" { // nothing seen yet
			texts = append(texts, text)
		}
	}
	var after run.Seq
	for _, text := range texts {
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
		last, err := s.reader.Last(ctx, id)
		if err == nil && after > last.Seq {
			err = (&problem{http.StatusUnprocessableEntity, "cursor_diverged", "the cursor is beyond the run's last event: what it has seen is not in the store", nil}).
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

// comeBack answers an EventSource while the store is away: any error status
// would make it give up for ever.
func (s *Server) comeBack(c echo.Context) error {
	_, err := s.open(c, 5*time.Second, 10*time.Second)
	s.gone(c, err)
	return nil
}

func jitter(least, most time.Duration) time.Duration { return least + rand.N(most-least) }

// gone notes that a client did not take what was written to it.
func (s *Server) gone(c echo.Context, err error) {
	if err != nil {
		s.config.Log.Debug().Err(err).Str("request_id", requestID(c)).Str("run_id", c.Param("run_id")).Msg("viewer gone")
	}
}

// broken notes why a run could not be shown any further.
func (s *Server) broken(c echo.Context, err error) {
	level := zerolog.ErrorLevel // damage, and what nobody foresaw
	var truncated *ledger.TruncatedError
	switch {
	case errors.Is(err, context.Canceled):
		s.gone(c, err)
		return
	case errors.Is(err, ledger.ErrErased), errors.As(err, &truncated): // somebody wanted it so
		level = zerolog.InfoLevel
	}
	p := problemOf(err)
	c.Set(codeKey, p.Code)
	s.config.Log.WithLevel(level).Err(err).Str("request_id", requestID(c)).Str("run_id", c.Param("run_id")).Str("code", p.Code).Msg("stream broken off")
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
		events, err := s.reader.Read(ctx, id, after, ledger.Page{Events: limit, Bytes: maxPage})
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
		return unviewable(err)
	}
	out, err := s.open(c, time.Second, 2*time.Second)
	if err != nil || c.Request().Method == http.MethodHead {
		s.gone(c, err)
		return nil
	}
	s.streams.Add(1)
	defer s.streams.Add(-1)
	defer s.config.Metrics.Viewing(v.Name)()
	alive := time.NewTimer(s.config.KeepAlive)
	defer alive.Stop()
	draining := s.draining.Done()
	var leave <-chan time.Time // once the server drains: when this stream ends
	for {
		if len(batch.Frames) > 0 {
			if err := out.Write(batch.Frames...); err != nil {
				s.gone(c, err)
				return nil
			}
			s.config.Metrics.Sent(len(batch.Frames))
			if batch.Live {
				s.config.Metrics.Lag(time.Since(batch.Recorded))
			}
			if batch.Terminal {
				return nil
			}
			alive.Reset(s.config.KeepAlive)
			more = already // a busy stream looks at its other ends as well
		}
		select {
		case <-more:
		case <-alive.C:
			if err := out.Write(sse.KeepAlive); err != nil {
				s.gone(c, err)
				return nil
			}
			alive.Reset(s.config.KeepAlive)
		case <-draining:
			draining = nil
			leave = time.After(rand.N(time.Duration(s.spread.Load()) + 1))
		case <-leave:
			// Somebody else has to be there by then: what a browser met at once would
			// be a proxy's 502, and it gives up for ever on that.
			s.gone(c, out.Write(sse.Retry(jitter(leaveLeast, leaveMost))))
			return nil
		case <-ctx.Done():
			return nil
		}
		if batch, more, err = viewer.Next(ctx); err != nil {
			s.broken(c, err)
			return nil
		}
	}
}

// open begins a stream, and tells the client when to come again once it ends.
func (s *Server) open(c echo.Context, least, most time.Duration) (*sse.Writer, error) {
	out, err := sse.Open(c.Response())
	if err == nil {
		err = out.Write(sse.Retry(jitter(least, most)), sse.Opening)
	}
	return out, err
}
