package sse

import (
	"bufio"
	"bytes"
	"io"
)

// Frame is one dispatched event, or what else a reader may want to see of a
// stream: a comment, or the time to wait.
type Frame struct {
	ID, Event, Data string
	Comment         string
	Retry           string
}

// Reader reads the frames of a stream as the specification says.
type Reader struct{ lines *bufio.Scanner }

// NewReader returns a Reader of frames of at most limit bytes.
func NewReader(r io.Reader, limit int) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, limit)
	return &Reader{lines}
}

// Next returns the next frame, or io.EOF at the end; a frame that the end cut
// off is dropped. A comment or a time to wait that stands before a frame's fields is
// one of its own: no blank line need follow.
func (r *Reader) Next() (Frame, error) {
	var f Frame
	empty := true
	for r.lines.Scan() {
		line := r.lines.Bytes()
		if len(line) == 0 {
			if empty {
				continue
			}
			return f, nil
		}
		empty = false
		field, value, _ := bytes.Cut(line, []byte(":"))
		text := string(bytes.TrimPrefix(value, []byte(" ")))
		switch string(field) {
		case "":
			if f.Comment = text; f == (Frame{Comment: text}) {
				return f, nil
			}
		case "id":
			f.ID = text
		case "event":
			f.Event = text
		case "retry":
			if f.Retry = text; f == (Frame{Retry: text}) {
				return f, nil
			}
		case "data":
			if f.Data != "" {
				f.Data += "\n"
			}
			f.Data += text
		}
	}
	if err := r.lines.Err(); err != nil {
		return Frame{}, err
	}
	return Frame{}, io.EOF
}
