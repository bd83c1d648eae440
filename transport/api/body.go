package api

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/record"
)

// pace is how slowly a body may come: what is not there in time is cut, since it
// holds a connection.
type pace struct {
	whole time.Duration // for all of it; 0: no bound
	idle  time.Duration // between two reads; 0: no bound
	rate  int64         // bytes a second on the average, once idle has passed; 0: no bound
}

// paces are those of a body that is one small document, and of one that is larger
// or of any size.
type paces struct{ small, upload pace }

var usual = paces{small: pace{whole: 30 * time.Second}, upload: pace{idle: 30 * time.Second, rate: 1 << 10}}

// until returns when the next read has to have brought something.
func (p pace) until(began, now time.Time, read int64) time.Time {
	var bound time.Time
	earlier := func(t time.Time) {
		if bound.IsZero() || t.Before(bound) {
			bound = t
		}
	}
	if p.whole > 0 {
		earlier(began.Add(p.whole))
	}
	if p.idle > 0 {
		earlier(now.Add(p.idle))
	}
	if p.rate > 0 {
		earlier(began.Add(p.idle + time.Duration(read/p.rate)*time.Second))
	}
	return bound
}

// body is a request's body: cut where it does not come, or once the server
// drains, and unpacked where it is gzip. Its errors are *problem (408
// body_timeout, 400 body_unreadable), record.ErrStopping, and io.EOF only where
// all of it came. Read belongs to one goroutine.
type body struct {
	raw     io.ReadCloser
	from    io.Reader // what is in raw; nil: raw itself
	control *http.ResponseController
	asks    bool // the client sends none of it before somebody reads (Expect: 100-continue)
	began   time.Time
	read    int64
	err     error // of raw; sticky

	mu    sync.Mutex // the deadline changes under it
	pace  pace
	until time.Time // the deadline that is set; zero: none
	cut   bool      // nothing more is read: the server drains
}

// bodies is the middleware: each request that has a body gets a *body.
func (s *Server) bodies(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
			return next(c)
		}
		b := &body{raw: r.Body, control: http.NewResponseController(c.Response()), asks: r.Header.Get("Expect") != "", began: time.Now(), pace: s.paces.small}
		// In a copy: net/http looks at its own request to know what it may leave unread.
		r = r.WithContext(r.Context())
		r.Body = b
		c.SetRequest(r)
		// Also for handlers that do not read: net/http reads on before it answers.
		if err := b.arm(); err != nil {
			return err
		}
		switch strings.ToLower(strings.TrimSpace(strings.Join(r.Header.Values(echo.HeaderContentEncoding), ","))) {
		case "", "identity":
		case "gzip", "x-gzip":
			b.from = &unpacker{body: b}
		default:
			c.Response().Header().Set(echo.HeaderAcceptEncoding, "gzip")
			return &problem{http.StatusUnsupportedMediaType, "unsupported_encoding", "the Content-Encoding of a body is gzip, or none", nil}
		}
		defer context.AfterFunc(s.draining, b.stop)()
		return next(c)
	}
}

// expect sets how slowly the request's body may come.
func expect(c echo.Context, p pace) {
	if b, ok := c.Request().Body.(*body); ok {
		b.mu.Lock()
		b.pace = p
		b.mu.Unlock()
	}
}

// arm sets the deadline of the next read.
func (b *body) arm() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut {
		return record.ErrStopping
	}
	until := b.pace.until(b.began, time.Now(), b.read)
	// A push of many small reads need not set it each time.
	if !b.until.IsZero() && !until.Before(b.until) && until.Sub(b.until) < time.Second {
		return nil
	}
	b.until = until
	return b.deadline(until)
}

func (b *body) deadline(t time.Time) error {
	if err := b.control.SetReadDeadline(t); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return unreadable()
	}
	return nil
}

// stop ends the reading: the server drains.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = true
	// An error means that the connection is gone, which ends the reading too.
	_ = b.deadline(time.Now())
}

func unreadable() *problem {
	return &problem{http.StatusBadRequest, "body_unreadable", "the body ended early", nil}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.from != nil {
		return b.from.Read(p)
	}
	return b.arrive(p)
}

// arrive reads what comes.
func (b *body) arrive(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.err = b.arm(); b.err != nil {
		return 0, b.err
	}
	n, err := b.raw.Read(p)
	b.read += int64(n)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		b.err = io.EOF
		// What comes next on this connection has bounds of its own.
		b.mu.Lock()
		_ = b.deadline(time.Time{})
		b.mu.Unlock()
	default:
		b.err = b.fault(err)
	}
	return n, b.err
}

// fault says why a read failed: by our drain, by the clock or by the client.
func (b *body) fault(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.cut:
		return record.ErrStopping
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &problem{http.StatusRequestTimeout, "body_timeout", "the body did not come in time", nil}
	}
	return unreadable()
}

// Close implements io.Closer.
func (b *body) Close() error { return b.raw.Close() }

// discard reads on for a moment after a refusal. A client that is still sending
// would otherwise find its connection reset and never see why. Where the rest
// does not come the deadline stays as it is, passed: the connection is closed
// behind the answer.
func (b *body) discard() {
	if b.err != nil || b.asks && b.read == 0 {
		return
	}
	b.mu.Lock()
	err := b.deadline(time.Now().Add(time.Second))
	b.mu.Unlock()
	if err == nil {
		// Whatever ends the reading, the answer is next.
		_, _ = io.CopyN(io.Discard, b.raw, maxDrain)
	}
}

// unpacker reads gzip as it comes.
type unpacker struct {
	body *body
	z    *gzip.Reader
}

// arriving is a body's bytes as they come.
type arriving struct{ *body }

func (a arriving) Read(p []byte) (int, error) { return a.arrive(p) }

func (u *unpacker) Read(p []byte) (n int, err error) {
	if u.z == nil {
		u.z, err = gzip.NewReader(arriving{u.body})
	}
	if err == nil {
		n, err = u.z.Read(p)
	}
	switch {
	case err == nil, err == io.EOF && u.z != nil: //nolint:errorlint // gzip's own end
		return n, err
	case u.body.err != nil && !errors.Is(u.body.err, io.EOF):
		return n, u.body.err
	}
	u.z = nil
	return n, &problem{http.StatusBadRequest, "body_unreadable", "the body is not whole gzip", nil}
}

// media returns the request's media type without its parameters; "": none.
func media(c echo.Context) string {
	base, params, err := mime.ParseMediaType(c.Request().Header.Get(echo.HeaderContentType))
	if charset := params["charset"]; err != nil || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return ""
	}
	return base
}

// wants refuses a body of another media type: a page of somebody else could send
// it without being asked by its browser.
func wants(c echo.Context, kinds ...string) error {
	got := media(c)
	for _, kind := range kinds {
		if got == kind {
			return nil
		}
	}
	return &problem{http.StatusUnsupportedMediaType, "unsupported_media_type", "send Content-Type: " + strings.Join(kinds, ", or "), nil}
}
