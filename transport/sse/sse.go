// Package sse is the wire format of server-sent events (WHATWG HTML, section
// 9.2), as far as it is used here: LF only, one line of data to a frame.
//
//	id: 4
//	event: message.delta
//	data: {"seq":4,…}
package sse

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// KeepAlive is a line that clients ignore and proxies take for life. No blank line
// follows: some clients take an empty block for a message.
var KeepAlive = []byte(": keep-alive\n")

// Opening is a comment behind the first Retry: clients that gather fields up to a
// blank line or a comment do not take them for the first event's then.
var Opening = []byte(": open\n")

// FrameError: what would be sent is not a frame that clients understand.
type FrameError struct{ Event, Reason string }

func (e *FrameError) Error() string {
	return fmt.Sprintf("event %q cannot be sent: %s", e.Event, e.Reason)
}

// AppendFrame appends one event's frame. A name that EventSource uses for
// itself, or a line break anywhere, is a *FrameError and appends nothing.
func AppendFrame(b []byte, id uint64, event string, data []byte) ([]byte, error) {
	switch {
	case event == "" || event == "error" || event == "open" || event == "message":
		return b, &FrameError{event, "the name has a meaning of its own"}
	case strings.ContainsAny(event, "\r\n\x00"), bytes.ContainsAny(data, "\r\n"):
		return b, &FrameError{event, "it has a line break"}
	}
	b = append(b, "id: "...)
	b = strconv.AppendUint(b, id, 10)
	b = append(append(b, "\nevent: "...), event...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...), nil
}

// Retry returns the line that tells a client how long to wait before it connects
// again. No blank line follows, as with KeepAlive.
func Retry(d time.Duration) []byte {
	return fmt.Appendf(nil, "retry: %d\n", d.Milliseconds())
}
