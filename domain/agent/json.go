package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// MaxDepth is how deep JSON may be nested, everywhere (protocol section 2):
// what is deeper some reader could not read back.
const MaxDepth = 256

// ErrTooDeep refuses JSON that is nested deeper than MaxDepth.
var ErrTooDeep = errors.New("is nested deeper than 256 levels")

// Compact returns JSON to the letter, white space aside, and with the three
// characters escaped at which many readers break lines (protocol section 2). The
// result shares no memory with raw. Errors: ErrTooDeep, a syntax error.
func Compact(raw []byte) (json.RawMessage, error) {
	if tooDeep(raw, MaxDepth-1) { // inside the object that it is a member of
		return nil, ErrTooDeep
	}
	var b bytes.Buffer
	b.Grow(len(raw))
	if err := json.Compact(&b, raw); err != nil {
		return nil, err
	}
	return escapeLines(b.Bytes()), nil
}

// tooDeep reports whether more than most arrays and objects are open at once.
func tooDeep(raw []byte, most int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > most {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// lineBreaks are what JSON may hold unescaped, and readers take for line ends.
var lineBreaks = [][2]string{{"\u0085", `\u0085`}, {"\u2028", `\u2028`}, {"\u2029", `\u2029`}}

// escapeLines escapes them in valid JSON, where they can only stand in strings.
func escapeLines(raw []byte) []byte {
	for _, pair := range lineBreaks {
		if bytes.Contains(raw, []byte(pair[0])) {
			raw = bytes.ReplaceAll(raw, []byte(pair[0]), []byte(pair[1]))
		}
	}
	return raw
}

// JSONLen is how many bytes text takes as a JSON string, its quotes aside.
func JSONLen(text string) (n int) {
	for _, r := range text {
		n += jsonLen(r)
	}
	return n
}

// JSONBeginning returns the longest beginning of text that takes at most room
// bytes as a JSON string, its quotes aside.
func JSONBeginning(text string, room int) string {
	for i, r := range text {
		if room -= jsonLen(r); room < 0 {
			return text[:i]
		}
	}
	return text
}

func jsonLen(r rune) int {
	switch {
	case r == '"' || r == '\\' || r == '\b' || r == '\t' || r == '\n' || r == '\f' || r == '\r':
		return 2
	case r < ' ' || r == '\u0085' || r == '\u2028' || r == '\u2029':
		return 6
	}
	return utf8.RuneLen(r)
}
