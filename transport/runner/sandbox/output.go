//go:build linux

package sandbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/runfacts/runfacts/domain/agent"
)

// reader makes AgentEvents of standard output.
type reader struct {
	in   *bufio.Reader
	left int64        // bytes that may still come
	end  *agent.Event // the run's end, held back until the process has ended
}

func newReader(in io.Reader, most int64) *reader {
	return &reader{in: bufio.NewReaderSize(in, 64<<10), left: most}
}

func invalidOutput(format string, args ...any) error {
	return &agent.Failure{Code: "invalid_output", Message: fmt.Sprintf(format, args...)}
}

var errTooMuch = &agent.Failure{Code: "output_too_large", Message: "the command wrote more than it may"}

// errHeld: the run's end was read.
var errHeld = errors.New("the end is held back")

// events reports everything up to the end of the output, or of the run, which it
// holds back. Errors: emit's, *agent.Failure, errHeld.
func (r *reader) events(text bool, emit func(agent.Event) error) error {
	if text {
		return r.text(emit)
	}
	for n := 1; ; n++ {
		line, err := r.line()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		e, err := agent.Decode(line)
		if err != nil {
			return invalidOutput("line %d of standard output: %v", n, err)
		}
		e.ProducerSeq = 0 // an owner's events are not numbered
		if e.Type == agent.Done || e.Type == agent.Error {
			r.end = &e
			return errHeld
		}
		if err := emit(e); err != nil {
			return err
		}
	}
}

// line returns the next line, the last one too if it has no end.
func (r *reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		if r.left -= int64(len(part)); r.left < 0 {
			return nil, errTooMuch
		}
		if len(line)+len(part) > maxLine {
			return nil, invalidOutput("a line of standard output is longer than %d bytes", maxLine)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case len(line) > 0: // the pipe's end, however it came
			return line, nil
		default:
			return nil, io.EOF
		}
	}
}

// text reports what comes, as it comes, in whole characters.
func (r *reader) text(emit func(agent.Event) error) error {
	buffer := make([]byte, 16<<10)
	kept := 0 // the beginning of a character
	for {
		n, err := r.in.Read(buffer[kept:])
		if r.left -= int64(n); r.left < 0 {
			return errTooMuch
		}
		n += kept
		whole := n
		if err == nil {
			whole = characters(buffer[:n])
		}
		if whole > 0 {
			content := strings.ToValidUTF8(string(buffer[:whole]), "\uFFFD")
			if err := emit(agent.Event{Type: agent.Delta, BlockType: agent.Text, Content: agent.Unicode(content)}); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
		kept = copy(buffer, buffer[whole:n])
	}
}

// characters is how many bytes of b are whole characters.
func characters(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}
