package agent

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxID bounds an agent's id, in bytes.
const maxID = 128

// CheckID reports what keeps a text from naming an agent. An id holds what a
// file's name may: it stands in paths, logs and configuration files. The error's
// text goes on behind the field's name.
func CheckID(id string) error {
	switch {
	case len(id) > maxID:
		return errors.New("must not be longer than 128 bytes")
	case strings.TrimSpace(id) == "":
		return errors.New("must not be blank")
	case !utf8.ValidString(id), strings.ContainsFunc(id, func(r rune) bool { return unicode.IsControl(r) || r == '/' }), id == ".", id == "..":
		return errors.New("must be what a file may be called: UTF-8 without control characters and slashes, neither \".\" nor \"..\"")
	}
	return nil
}
