package run

import (
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends text as a JSON string, escaped as RFC 8785 says: the
// short escapes, \u00xx for the other controls, everything else as UTF-8.
// Bytes that are not UTF-8 become U+FFFD, one for each.
func appendString(b []byte, text string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, text[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		b = append(b, text[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\t':
			b = append(b, '\\', 't')
		case '\n':
			b = append(b, '\\', 'n')
		case '\f':
			b = append(b, '\\', 'f')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, text[start:]...), '"')
}

// object writes one compact JSON object, member by member, in the order of the
// calls. Keys are ours and need no escaping.
type object struct{ b []byte }

func newObject(size int) *object { return &object{append(make([]byte, 0, size), '{')} }

func (o *object) key(k string) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = append(append(append(o.b, '"'), k...), '"', ':')
}

func (o *object) str(k, v string) *object {
	o.key(k)
	o.b = appendString(o.b, v)
	return o
}

// given writes a member only where there is something to say.
func (o *object) given(k, v string) *object {
	if v != "" {
		o.str(k, v)
	}
	return o
}

// raw writes a value that is compact JSON already; nil is null.
func (o *object) raw(k string, v []byte) *object {
	o.key(k)
	if v == nil {
		v = []byte("null")
	}
	o.b = append(o.b, v...)
	return o
}

func (o *object) num(k string, v uint64) *object {
	o.key(k)
	o.b = strconv.AppendUint(o.b, v, 10)
	return o
}

func (o *object) flag(k string, v bool) *object {
	o.key(k)
	o.b = strconv.AppendBool(o.b, v)
	return o
}

func (o *object) onlyTrue(k string, v bool) *object {
	if v {
		o.flag(k, v)
	}
	return o
}

// foreign writes a member whose key is not ours.
func (o *object) foreign(k string, v []byte) *object {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = append(append(appendString(o.b, k), ':'), v...)
	return o
}

func (o *object) close() []byte { return append(o.b, '}') }
