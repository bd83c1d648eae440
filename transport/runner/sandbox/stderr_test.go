//go:build linux

package sandbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// logged is what was said in the log, a line each.
func logged(t *testing.T, log []byte) (text string) {
	t.Helper()
	for line := range bytes.Lines(log) {
		var entry struct{ Stderr string }
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		text += entry.Stderr + "\n"
	}
	return text
}

// However it comes, a secret is in neither the log nor the run's error.
func TestSecretsHoweverTheyCome(t *testing.T) {
	secrets := map[string]string{"A": "hunter2", "B": "hunter2-and-more", "C": "two\nlines", "D": "aab", "E": ""}
	const text = "x hunter2\nhunter2-and-mor two\nlines two\nline hunter2-and-more aaab\nthe end hunter"
	const want = "x [secret]\n[secret]-and-mor [secret] two\nline [secret] a[secret]\nthe end hunter\n"
	for first := range len(text) {
		for second := first; second < len(text); second++ {
			var log bytes.Buffer
			s := newStderr(zerolog.New(&log), "run_1", secrets)
			for _, part := range []string{text[:first], text[first:second], text[second:]} {
				if n, err := s.Write([]byte(part)); n != len(part) || err != nil {
					t.Fatal(n, err)
				}
			}
			s.flush()
			if got := logged(t, log.Bytes()); got != want {
				t.Fatalf("%q, %q, %q: log %q, want %q", text[:first], text[first:second], text[second:], got, want)
			}
			if got := s.tail() + "\n"; got != want {
				t.Fatalf("%q, %q, %q: tail %q, want %q", text[:first], text[first:second], text[second:], got, want)
			}
		}
	}
}

// A line, a log and a tail are bounded, and a cut line leaves no half secret.
func TestStandardErrorIsBounded(t *testing.T) {
	var log bytes.Buffer
	s := newStderr(zerolog.New(&log), "run_1", map[string]string{"A": "hunter2"})
	long := strings.Repeat("x", maxLogLine-3) + "hunter2" + strings.Repeat("y", 3*maxLogLine)
	for range 200 {
		if _, err := s.Write([]byte(long + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	s.flush()
	text := logged(t, log.Bytes())
	first, _, _ := strings.Cut(text, "\n")
	if len(first) != maxLogLine || !strings.HasSuffix(first, "x[se") || len(text) > maxLogged+maxLogLine || len(s.tail()) > tailKept {
		t.Errorf("a line of %d bytes, ends %q; %d bytes in all; a tail of %d", len(first), first[len(first)-9:], len(text), len(s.tail()))
	}
	if cap(s.held)+cap(s.line)+cap(s.kept) > 64<<10 {
		t.Errorf("holds %d, %d and %d bytes", cap(s.held), cap(s.line), cap(s.kept))
	}
}
