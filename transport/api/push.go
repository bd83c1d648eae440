package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/record"
	"github.com/runfacts/runfacts/domain/run"
)

// Bounds of a push, in bytes. A line holds one AgentEvent, whose text may be
// escaped threefold and still fit one append. An NDJSON body has no limit: it
// is read only as fast as it is committed.
const (
	maxLine  = 4 << 20
	maxArray = 16 << 20 // an array is held whole, since it is checked whole
	maxDrain = 8 << 20  // read after a refusal, so that the client hears of it
)

const ndjson = "application/x-ndjson"

// receipt is what a push answers, also inside the problem of a failed one.
type receipt struct {
	Accepted    int    `json:"accepted"`
	Duplicates  int    `json:"duplicates"`
	LastSeq     uint64 `json:"last_seq"`
	ProducerSeq uint64 `json:"producer_seq"`
}

// push is POST /api/agent-runs/{id}/agent-events.
func (s *Server) push(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	producer, err := producerOf(c)
	if err != nil {
		return err
	}
	epoch, err := epochOf(c)
	if err != nil {
		return err
	}
	if err := wants(c, ndjson, echo.MIMEApplicationJSON); err != nil {
		return err
	}
	recorder, release := s.config.Runs.Use(id)
	defer release()
	p := recorder.Push(run.Origin{Producer: producer, Epoch: epoch, RequestID: requestID(c)})

	var failure error
	if media(c) == echo.MIMEApplicationJSON {
		failure = s.sendArray(c, id, p)
	} else {
		failure = s.sendLines(c, id, p)
	}
	// What was sent is on its way whether the request's context has ended or
	// not (a body that was cut short ends it), and the receipt is due.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), s.config.Patience)
	defer cancel()
	result, err := p.Wait(ctx)
	if err == nil && failure == nil && result.Accepted+result.Duplicates == 0 {
		// Nothing was sent, so nothing was asked: is there such a run?
		state, err := s.config.Runs.Summary(ctx, id, producer)
		if err != nil {
			return err
		}
		result.LastSeq, result.ProducerSeq = state.LastSeq, state.ProducerSeq
	}
	if err == nil {
		err = failure // what came before it is settled now
	}
	out := receipt{result.Accepted, result.Duplicates, uint64(result.LastSeq), result.ProducerSeq}
	if err == nil {
		return s.fresh(c, http.StatusOK, out)
	}
	return problemOf(err).with("accepted", out.Accepted).with("duplicates", out.Duplicates).
		with("last_seq", out.LastSeq).with("producer_seq", out.ProducerSeq)
}

// offload returns what keeps long values of a push's events beside them. Nothing
// is kept for a run that does not exist, or takes no more.
func (s *Server) offload(c echo.Context, id run.ID) func(*agent.Event) error {
	open := false
	return func(e *agent.Event) error {
		if !blob.Long(e, s.config.Inline) {
			return nil
		}
		ctx, cancel := s.patience(c)
		defer cancel()
		if !open {
			state, err := s.config.Runs.Summary(ctx, id, "")
			if err != nil {
				return err
			}
			if open = state.EndedAt.IsZero(); !open {
				return nil // it is a duplicate, or refused
			}
		}
		return blob.Offload(ctx, s.config.Blobs, id, s.config.Inline, e)
	}
}

// sendLines hands over each line as it comes. An error is a line that could
// not be taken; what is behind it is not read.
func (s *Server) sendLines(c echo.Context, id run.ID, p *record.Push) error {
	offload := s.offload(c, id)
	expect(c, pace{idle: s.config.PushIdle})
	from := &source{r: c.Request().Body}
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 2<<10), maxLine)
	lines.Split(from.split)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		e, err := agent.Decode(line)
		if err != nil {
			return &record.PushError{Line: n, Err: err}
		}
		s.config.Metrics.Reported(e.Type)
		if err := offload(&e); err != nil {
			return &record.PushError{Line: n, Err: err}
		}
		if err := p.Send(c.Request().Context(), n, e); err != nil {
			return &record.PushError{Line: n, Err: err} // if Wait does not tell more
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return &record.PushError{Line: n + 1, Err: &problem{http.StatusRequestEntityTooLarge, "event_too_large", "the line is larger than 4 MiB", nil}}
	case err != nil:
		return &record.PushError{Line: n + 1, Err: err}
	}
	return nil
}

// source knows why its reading ended.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (n int, err error) {
	n, err = s.r.Read(b)
	s.err = err
	return n, err
}

// split is bufio.ScanLines, but that what an error leaves behind is no line:
// only the body's whole end makes one of it.
func (s *source) split(data []byte, atEOF bool) (int, []byte, error) {
	if atEOF && !errors.Is(s.err, io.EOF) && !bytes.ContainsRune(data, '\n') {
		return len(data), nil, nil
	}
	return bufio.ScanLines(data, atEOF)
}

// sendArray decodes all of a JSON array before it hands over any of it. Lines
// are counted by element.
func (s *Server) sendArray(c echo.Context, id run.ID, p *record.Push) error {
	offload := s.offload(c, id)
	expect(c, s.paces.upload)
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, maxArray))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return &problem{http.StatusRequestEntityTooLarge, "body_too_large", "the array is larger than 16 MiB: send NDJSON", nil}
	}
	if err != nil {
		return err
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(body, &elements); tooDeep(err) {
		return &problem{http.StatusUnprocessableEntity, "invalid_event", "the array " + agent.ErrTooDeep.Error(), nil}
	} else if err != nil || elements == nil {
		return &problem{http.StatusBadRequest, "invalid_json", "the body is not a JSON array", nil}
	}
	events := make([]agent.Event, len(elements))
	for i, element := range elements {
		if events[i], err = agent.Decode(element); err != nil {
			return &record.PushError{Line: i + 1, Err: err}
		}
	}
	for i, e := range events {
		s.config.Metrics.Reported(e.Type)
		if err := offload(&e); err != nil {
			return &record.PushError{Line: i + 1, Err: err}
		}
		if err := p.Send(c.Request().Context(), i+1, e); err != nil {
			return &record.PushError{Line: i + 1, Err: err} // if Wait does not tell more
		}
	}
	return nil
}
