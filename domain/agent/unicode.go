package agent

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Unicode is text as a runtime sent it: UTF-8, in which half of a surrogate
// pair (a JSON escape such as \ud83d that stands alone) is kept as its three
// WTF-8 bytes, so that the next increment can still bring the other half.
type Unicode string

// half returns the lone surrogate in the three bytes at i, if there is one.
func (u Unicode) half(i int) (rune, bool) {
	if i < 0 || i+3 > len(u) || u[i] != 0xED || u[i+1] < 0xA0 {
		return 0, false
	}
	return rune(u[i]&0x0F)<<12 | rune(u[i+1]&0x3F)<<6 | rune(u[i+2]&0x3F), true
}

// EndsInHalf reports whether the text ends in the first half of a pair, which
// the next increment may complete.
func (u Unicode) EndsInHalf() bool {
	r, ok := u.half(len(u) - 3)
	return ok && r < 0xDC00
}

// Complete moves the half that next begins with to the end of u, where it
// completes the half that u ends in. Both come back unchanged where they do
// not fit together.
func (u Unicode) Complete(next Unicode) (whole, rest Unicode) {
	low, ok := next.half(0)
	if !u.EndsInHalf() || !ok || low < 0xDC00 {
		return u, next
	}
	high, _ := u.half(len(u) - 3)
	return u[:len(u)-3] + Unicode(utf16.DecodeRune(high, low)), next[3:]
}

// String returns the text as UTF-8: every half that is left is U+FFFD.
func (u Unicode) String() string {
	if utf8.ValidString(string(u)) {
		return string(u)
	}
	var b strings.Builder
	start := 0
	for i := 0; i < len(u); {
		if _, ok := u.half(i); ok {
			b.WriteString(string(u[start:i]))
			b.WriteRune(utf8.RuneError)
			i += 3
			start = i
			continue
		}
		i++
	}
	b.WriteString(string(u[start:]))
	return strings.ToValidUTF8(b.String(), "\uFFFD") // a Go program's own bytes
}

// Unquote decodes a valid JSON string literal. encoding/json would turn each
// half of a pair into U+FFFD before the other half can arrive.
func Unquote(literal []byte) Unicode {
	s := literal[1 : len(literal)-1]
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		i++
		switch s[i] {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r := escaped(s[i+1:])
			i += 4
			if utf16.IsSurrogate(r) && len(s) > i+6 && s[i+1] == '\\' && s[i+2] == 'u' {
				if pair := utf16.DecodeRune(r, escaped(s[i+3:])); pair != utf8.RuneError {
					r, i = pair, i+6
				}
			}
			if utf16.IsSurrogate(r) {
				b = append(b, 0xED, byte(0x80|r>>6&0x3F), byte(0x80|r&0x3F))
			} else {
				b = utf8.AppendRune(b, r)
			}
		default: // one of " \ /
			b = append(b, s[i])
		}
	}
	return Unicode(b)
}

func escaped(hex []byte) rune {
	n, err := strconv.ParseUint(string(hex[:4]), 16, 16)
	if err != nil {
		return utf8.RuneError // the JSON scanner has let no such literal through
	}
	return rune(n)
}
