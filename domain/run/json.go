package run

import (
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends text as a JSON string, escaped as protocol section 2
// says: as RFC 8785 has it, and besides the three characters at which readers
// break lines. Bytes that are not UTF-8 become U+FFFD, one for each.
func appendString(b []byte, text string) []byte { return appendQuoted(b, text, true) }

// appendCanonical appends text as RFC 8785 has it.
func appendCanonical(b []byte, text string) []byte { return appendQuoted(b, text, false) }

func appendQuoted(b []byte, text string, lines bool) []byte {
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
			switch {
			case r == utf8.RuneError && size == 1:
				b = append(append(b, text[start:i]...), "\uFFFD"...)
				start = i + 1
			case lines && (r == '\u0085' || r == '\u2028' || r == '\u2029'):
				b = append(append(b, text[start:i]...), '\\', 'u', hexDigits[r>>12], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
				start = i + size
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

// Member is one member of a JSON object, its value as it stands there.
type Member struct {
	Key   string
	Value json.RawMessage
}

// members returns a valid object's members in their order; of a key that stands
// twice the last value counts, in the place of the first.
func members(object []byte) (all []Member) {
	s := scanner{b: object}
	s.space()
	s.i++ // {
	var places map[string]int
	for {
		s.space()
		if s.i >= len(s.b) || s.b[s.i] == '}' {
			return all
		}
		if s.b[s.i] == ',' {
			s.i++
			continue
		}
		key := s.value()
		s.space()
		s.i++ // :
		s.space()
		m := Member{unquote(key), s.value()}
		if len(all) > 8 && places == nil { // few are found faster without
			places = make(map[string]int)
			for i := range all {
				places[all[i].Key] = i
			}
		}
		at, twice := places[m.Key]
		if places == nil {
			at = slices.IndexFunc(all, func(o Member) bool { return o.Key == m.Key })
			twice = at >= 0
		}
		if twice {
			all[at].Value = m.Value
			continue
		}
		if places != nil {
			places[m.Key] = len(all)
		}
		all = append(all, m)
	}
}

// scanner goes through valid JSON.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

// value passes over one value and returns it.
func (s *scanner) value() []byte {
	start, depth := s.i, 0
	for ; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case '"':
			for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
				if s.b[s.i] == '\\' {
					s.i++
				}
			}
			if depth == 0 {
				s.i++
				return s.b[start:min(s.i, len(s.b))]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of what holds a bare literal
				return s.b[start:s.i]
			}
			if depth--; depth == 0 {
				s.i++
				return s.b[start:s.i]
			}
		case ',', ' ', '\t', '\n', '\r', ':':
			if depth == 0 {
				return s.b[start:s.i]
			}
		}
	}
	return s.b[start:]
}

// object writes one compact JSON object, member by member.
type object struct{ b []byte }

func newObject(size int) *object { return &object{append(make([]byte, 0, size), '{')} }

// key begins a member of ours, whose name needs no escaping.
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

func (o *object) raw(k string, v []byte) *object {
	o.key(k)
	o.b = append(o.b, v...)
	return o
}

func (o *object) num(k string, v uint64) *object {
	o.key(k)
	o.b = strconv.AppendUint(o.b, v, 10)
	return o
}

// foreign writes a member whose key is not ours.
func (o *object) foreign(m Member) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = append(append(appendString(o.b, m.Key), ':'), m.Value...)
}

func (o *object) close() []byte { return append(o.b, '}') }
