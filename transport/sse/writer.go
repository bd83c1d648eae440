package sse

import (
	"net/http"
	"time"
)

// writeTime bounds each write: a reader that takes none of it for so long is
// gone, or as good as.
const writeTime = 30 * time.Second

// Writer writes frames to one response. Not safe for concurrent use.
type Writer struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// Open sends the headers at once: a browser's EventSource opens on them.
func Open(w http.ResponseWriter) (*Writer, error) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &Writer{w: w, control: http.NewResponseController(w)}
	return s, s.Write(nil)
}

// Write writes whole frames and flushes them.
func (s *Writer) Write(frames ...[]byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	for _, frame := range frames {
		if _, err := s.w.Write(frame); err != nil {
			return err
		}
	}
	return s.control.Flush()
}
