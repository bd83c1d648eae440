package api

import (
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
)

const eventStream = "text/event-stream"

// wantsPage reports whether the client prefers JSON to a stream, by the weights
// in its Accept (RFC 9110, section 12.5.1). The stream wins a tie.
func wantsPage(accept []string) bool {
	text := strings.Join(accept, ",")
	return weight(text, echo.MIMEApplicationJSON) > weight(text, eventStream)
}

// weight is how much a media type is wanted, from 0 to 1: what its most specific
// range says.
func weight(accept, media string) float64 {
	kind, _, _ := strings.Cut(media, "/")
	best, found := 0.0, 0 // how specific the range is: */*, type/*, the type itself
	for one := range strings.SplitSeq(accept, ",") {
		parts := strings.Split(one, ";")
		specific := 0
		switch strings.ToLower(strings.TrimSpace(parts[0])) {
		case "*/*":
			specific = 1
		case kind + "/*":
			specific = 2
		case media:
			specific = 3
		}
		q := 1.0
		for _, parameter := range parts[1:] {
			name, value, _ := strings.Cut(parameter, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "q") {
				continue
			}
			var err error
			if q, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil || !(q >= 0 && q <= 1) {
				specific = 0 // nobody knows what it means
			}
		}
		if specific > found || specific == found && found > 0 && q > best {
			best, found = q, specific
		}
	}
	return best
}
