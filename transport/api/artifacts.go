package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
)

// octets is the media type of what nobody has named one for.
const octets = "application/octet-stream"

// shown are the media types that a browser may show; whatever else is here could
// act on a page's behalf, and is only offered to be saved.
var shown = map[string]bool{
	"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true, "text/plain": true, "application/json": true,
	"text/markdown": true, "text/csv": true, "application/pdf": true, "audio/mpeg": true, "video/mp4": true,
}

// checked is up to how many bytes an artifact is compared with its checksum before
// any of it is sent, and any of another size than its run says; a larger one is
// compared while it is sent, and cut before its end where it is damaged.
const checked = 1 << 20

// artifact is GET /api/agent-runs/{id}/artifacts/{artifact_id}: an artifact's
// bytes, whole or in ranges. They never change.
func (s *Server) artifact(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.patience(c)
	defer cancel()
	a, err := s.config.Runs.Artifact(ctx, id, param(c, "artifact_id"))
	if err != nil {
		return err
	}
	kept, err := s.config.Blobs.Open(ctx, a.Checksum)
	if err != nil {
		return err
	}
	defer kept.Close() //nolint:errcheck // it was read only
	size, err := kept.Seek(0, io.SeekEnd)
	if err != nil {
		return &blob.StoreError{Cause: blob.Failed, Err: err}
	}
	content := blob.NewReader(kept, a.Checksum)
	var from io.ReadSeeker = content
	if size <= checked || a.Size >= 0 && size != a.Size || c.Request().Header.Get("Range") != "" {
		if _, err := kept.Seek(0, io.SeekStart); err != nil {
			return &blob.StoreError{Cause: blob.Failed, Err: err}
		}
		if err := blob.Check(kept, a.Checksum); err != nil {
			return s.damaged(err)
		}
		from = kept
	}
	media, how := a.MediaType, "inline"
	base, _, err := mime.ParseMediaType(media)
	if err != nil {
		base, media = octets, octets
	}
	if !shown[base] {
		how = "attachment"
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, media)
	h.Set(echo.HeaderXContentTypeOptions, "nosniff")
	h.Set(echo.HeaderContentSecurityPolicy, "default-src 'none'; sandbox")
	if text := mime.FormatMediaType(how, map[string]string{"filename": path.Base(a.Name)}); text != "" {
		how = text
	}
	h.Set(echo.HeaderContentDisposition, how)
	h.Set(echo.HeaderCacheControl, "private, max-age=31536000, immutable")
	h.Set("ETag", `"`+a.Checksum+`"`)
	http.ServeContent(c.Response(), c.Request(), "", time.Time{}, from)
	if err := content.Err(); err != nil {
		s.config.Log.Error().Err(s.damaged(err)).Str("request_id", requestID(c)).Str("run_id", string(id)).Msg("artifact broken off")
		abort()
	}
	return nil
}

// damaged counts what is damaged, and returns err.
func (s *Server) damaged(err error) error {
	var other *blob.DamagedError
	if errors.As(err, &other) {
		s.config.Metrics.BlobDamaged()
	}
	return err
}

// putArtifact is PUT /api/agent-runs/{id}/artifacts/{name}: a producer of a
// pushed run brings an artifact's bytes. The event is committed when they are
// kept.
func (s *Server) putArtifact(c echo.Context) error {
	id, err := runID(c)
	if err != nil {
		return err
	}
	name := param(c, "name")
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return invalid("name", "an artifact's name has 1 to 128 bytes of UTF-8, without control characters")
	}
	expect(c, s.paces.upload)
	media := c.Request().Header.Get(echo.HeaderContentType)
	if media == "" {
		media = octets
	} else if _, _, err := mime.ParseMediaType(media); err != nil {
		return &problem{http.StatusUnsupportedMediaType, "unsupported_media_type", "the Content-Type cannot be read", nil}
	}
	ctx, cancel := s.patience(c)
	defer cancel()
	state, err := s.config.Runs.Summary(ctx, id, "")
	switch {
	case err != nil:
		return err
	case !state.EndedAt.IsZero():
		return &run.EndedError{Run: id, Status: state.Status}
	case state.Owner != "":
		return &run.OwnedError{Run: id}
	}
	checksum, size, err := s.config.Blobs.Put(c.Request().Context(), id, c.Request().Body, s.config.MaxArtifact)
	if err != nil {
		return err
	}
	description, err := json.Marshal(struct {
		Name      string `json:"name"`
		MediaType string `json:"media_type"`
		Size      int64  `json:"size"`
		Checksum  string `json:"checksum"`
	}{name, media, size, checksum})
	if err != nil {
		return err
	}
	recorder, release := s.config.Runs.Use(id)
	defer release()
	p := recorder.Push(run.Origin{RequestID: requestID(c)})
	bound, stop := context.WithTimeout(context.WithoutCancel(c.Request().Context()), s.config.Patience)
	defer stop()
	if err := p.Send(bound, 0, agent.Event{Type: agent.Artifact, Artifact: description, Stored: true}); err != nil {
		return err // the bytes go when the run is erased
	}
	receipt, err := p.Wait(bound)
	if err != nil {
		return err
	}
	return s.fresh(c, http.StatusCreated, map[string]any{
		"name": name, "media_type": media, "size": size, "checksum": checksum, "last_seq": receipt.LastSeq,
	})
}
