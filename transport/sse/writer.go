package sse

import (
	"bytes"
	"net/http"
)

// Writer writes frames to one response, whose deadlines are its ResponseWriter's
// business. Not safe for concurrent use.
type Writer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool // an event has been written
}

// Open sends the headers at once: a browser's EventSource opens on them.
func Open(w http.ResponseWriter) (*Writer, error) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &Writer{w: w, control: http.NewResponseController(w)}
	return s, s.control.Flush()
}

// Write writes whole frames, or lines, and flushes them. The blank line behind the
// first event is a chunk of its own: up to there a stream has none, also for those
// who look at it chunk by chunk.
func (s *Writer) Write(frames ...[]byte) error {
	for _, frame := range frames {
		if !s.begun && bytes.HasSuffix(frame, []byte("\n\n")) {
			s.begun = true
			if _, err := s.w.Write(frame[:len(frame)-1]); err != nil {
				return err
			}
			if err := s.control.Flush(); err != nil {
				return err
			}
			frame = frame[len(frame)-1:]
		}
		if _, err := s.w.Write(frame); err != nil {
			return err
		}
	}
	return s.control.Flush()
}
