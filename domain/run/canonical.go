package run

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// canonical appends the value at s in the form of RFC 8785, and passes over it.
func (s *scanner) canonical(b []byte) []byte {
	s.space()
	switch s.b[s.i] {
	case '{':
		return s.canonicalObject(b)
	case '[':
		return s.canonicalArray(b)
	case '"':
		return appendCanonical(b, unquote(s.value()))
	}
	literal := s.value()
	if literal[0] != '-' && (literal[0] < '0' || literal[0] > '9') {
		return append(b, literal...) // true, false, null
	}
	return appendNumber(b, string(literal))
}

func (s *scanner) canonicalArray(b []byte) []byte {
	b = append(b, '[')
	for s.i++; ; {
		switch s.space(); s.b[s.i] {
		case ']':
			s.i++
			return append(b, ']')
		case ',':
			s.i++
			b = append(b, ',')
		default:
			b = s.canonical(b)
		}
	}
}

func (s *scanner) canonicalObject(b []byte) []byte {
	all := members(s.value())
	slices.SortFunc(all, func(x, y Member) int { return compareKeys(x.Key, y.Key) })
	b = append(b, '{')
	for i, m := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendCanonical(b, m.Key), ':')
		inner := scanner{b: m.Value}
		b = inner.canonical(b)
	}
	return append(b, '}')
}

// compareKeys orders by UTF-16 code units, which is another order than that of
// UTF-8 where characters beyond the basic plane meet some within it.
func compareKeys(x, y string) int {
	ascii := func(r rune) bool { return r >= 0x80 }
	if !strings.ContainsFunc(x, ascii) && !strings.ContainsFunc(y, ascii) {
		return strings.Compare(x, y)
	}
	return slices.Compare(utf16.Encode([]rune(x)), utf16.Encode([]rune(y)))
}

// appendNumber writes a number as ECMAScript does: the shortest digits that read
// back as the same double.
func appendNumber(b []byte, literal string) []byte {
	if len(literal) < 16 && !strings.ContainsAny(literal, ".eE-") {
		return append(b, literal...) // a small whole number is its own form
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		// Beyond a double RFC 8785 has no form. As it is written it is at least
		// the same for everybody who has the bytes.
		return append(b, literal...)
	}
	if f == 0 {
		return append(b, '0')
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	text := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	sign, digits := exponent[:1], strings.TrimLeft(exponent[1:], "0")
	return append(append(append(append(b, mantissa...), 'e'), sign...), digits...)
}
