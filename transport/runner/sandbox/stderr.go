//go:build linux

package sandbox

import (
	"bytes"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

const (
	tailKept   = 2 << 10  // of standard error for the run's error, in bytes
	maxLogged  = 64 << 10 // of a run's standard error in the log, in bytes
	maxLogLine = 1 << 10
)

// stderr takes a command's standard error: to the log, line by line and without
// secrets, and its end for the run's error. Secrets are looked for in the whole
// stream, however it comes. Safe for concurrent use.
type stderr struct {
	log     zerolog.Logger
	secrets [][]byte

	mu     sync.Mutex
	held   []byte // what may be the beginning of a secret
	line   []byte // the beginning of a line, up to maxLogLine
	kept   []byte
	logged int
}

func newStderr(log zerolog.Logger, run string, secrets map[string]string) *stderr {
	s := &stderr{log: log.With().Str("run_id", run).Logger()}
	for _, value := range secrets {
		if value != "" {
			s.secrets = append(s.secrets, []byte(value))
		}
	}
	return s
}

func (s *stderr) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, b...)
	s.pass(false)
	return len(b), nil
}

// flush takes what is held for the end.
func (s *stderr) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass(true)
	s.end()
}

// pass lets through what is held, up to where a secret may begin whose end has
// not come; all of it at the end.
func (s *stderr) pass(end bool) {
	rest, plain := s.held, 0 // rest[:plain] is no secret's beginning
	for plain < len(rest) {
		secret, open := s.secretAt(rest[plain:])
		switch {
		case open && !end:
			s.take(rest[:plain])
			s.held = append(s.held[:0], rest[plain:]...)
			return
		case secret > 0:
			s.take(rest[:plain])
			s.take([]byte("[secret]"))
			rest, plain = rest[plain+secret:], 0
		default:
			plain++
		}
	}
	s.take(rest)
	s.held = s.held[:0]
}

// secretAt returns the length of the longest secret that b begins with, 0 if
// none does, and whether b ends within one that is longer still.
func (s *stderr) secretAt(b []byte) (longest int, open bool) {
	for _, secret := range s.secrets {
		switch {
		case secret[0] != b[0]:
		case bytes.HasPrefix(b, secret):
			longest = max(longest, len(secret))
		case bytes.HasPrefix(secret, b):
			open = true
		}
	}
	return longest, open
}

// take takes text without secrets.
func (s *stderr) take(b []byte) {
	s.kept = append(s.kept, b[max(0, len(b)-2*tailKept):]...)
	if n := len(s.kept) - 2*tailKept; n > 0 {
		s.kept = append(s.kept[:0], s.kept[n:]...)
	}
	for line := range bytes.Lines(b) {
		if s.logged >= maxLogged {
			return
		}
		s.line = append(s.line, line[:min(len(line), maxLogLine+1-len(s.line))]...)
		if line[len(line)-1] == '\n' {
			s.end()
		}
	}
}

// end logs the line that has come so far.
func (s *stderr) end() {
	if len(s.line) == 0 {
		return
	}
	line := bytes.TrimRight(s.line, "\r\n")
	line = line[:min(len(line), maxLogLine)]
	s.line = s.line[:0]
	s.logged += len(line) + 1
	s.log.Info().Bytes("stderr", line).Msg("agent")
}

// tail is the end of what was written, without secrets.
func (s *stderr) tail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.ToValidUTF8(string(s.kept), "\uFFFD")
	cut := max(0, len(text)-tailKept)
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++
	}
	return text[cut:]
}
