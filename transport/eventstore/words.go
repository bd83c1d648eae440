package eventstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/runfacts/runfacts/domain/ledger"
)

// Versions of EventStoreDB that are supported, oldest and newest.
const (
	oldestVersion = "22.10"
	newestVersion = "24.10"
)

// causes turn what the client and its transport say into what to do. The first
// that matches counts.
var causes = []struct {
	pattern *regexp.Regexp
	words   string
}{
	{regexp.MustCompile(`first record does not look like a TLS handshake`),
		"it speaks plain text, and the connection string asks for TLS: add tls=false"},
	{regexp.MustCompile(`error reading server preface|frame header looked like an HTTP/1.1 header|malformed HTTP response|http2: frame too large`),
		"it does not speak plain text: if it is secured, take tls=false out of the connection string"},
	{regexp.MustCompile(`certificate is not valid for|certificate is valid for|doesn't contain any IP SANs|cannot validate certificate for`),
		"its certificate is for another name than the connection string has"},
	{regexp.MustCompile(`certificate has expired or is not yet valid`), "its certificate has expired, or a clock is wrong"},
	{regexp.MustCompile(`x509|certificate signed by unknown authority|bad certificate|certificate required|tls: `),
		"its certificate is not trusted: name the authority's file as tlsCaFile"},
	{regexp.MustCompile(`invalid EventStoreDB server version format`),
		"it has a version that the client cannot read; supported are " + oldestVersion + " to " + newestVersion},
	{regexp.MustCompile(`no nodes are eligable|no members to determine`), "no node of the cluster is ready to be a leader"},
	{regexp.MustCompile(`No leader info available`), "it knows of no leader at the moment"},
	{regexp.MustCompile(`\[ErrorCodeNotLeader\]`),
		"the node is a follower, and the leader that it names does not take over: name the cluster (esdb+discover://…), or the leader"},
	{regexp.MustCompile(`no such host`), "its name cannot be found"},
	{regexp.MustCompile(`connection refused`), "nobody listens there"},
	{regexp.MustCompile(`code = Unimplemented`), "no EventStoreDB answers there"},
}

// troubleError is what is wrong with the store, in words, with the client's own
// behind it for the log.
type troubleError struct {
	words string
	err   error
}

func (e *troubleError) Error() string { return e.words }
func (e *troubleError) Unwrap() error { return e.err }

// inWords says what is wrong in a line.
func (s *Store) inWords(err error) error {
	var denied *ledger.DeniedError
	var authority *caError
	var unanswered lateError
	where := "the store at " + s.target.hosts
	switch {
	case err == nil:
		return nil
	case errors.As(err, &denied):
		return &troubleError{where + " denies us " + denied.Right, err}
	case errors.As(err, &authority):
		return &troubleError{authority.Error(), err}
	case errors.As(err, &unanswered):
		return &troubleError{where + ": " + unanswered.Error(), err}
	}
	text := err.Error()
	if leads := s.leads.Load(); leads != nil && faultOf(err) == away {
		return &troubleError{where + " is a follower, and the leader that it names, " + *leads + ", cannot be reached: name the cluster (esdb+discover://…), or the leader", err}
	}
	for _, c := range causes {
		if c.pattern.MatchString(text) {
			return &troubleError{where + ": " + c.words + versionIn(text), err}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || faultOf(err) == late {
		return &troubleError{where + " did not answer in time", err}
	}
	return &troubleError{where + " cannot be reached", err}
}

var versionPart = regexp.MustCompile(`parsing "([^"]*)"`)

// versionIn is what the client could not read of a version.
func versionIn(text string) string {
	if part := versionPart.FindStringSubmatch(text); part != nil && strings.Contains(text, "version format") {
		return fmt.Sprintf(" (it says %q)", part[1])
	}
	return ""
}

// Trouble is what stands in the way of the store at the moment, in words; nil:
// nothing that is known of.
func (s *Store) Trouble() error {
	if err := s.gates.trouble(); err != nil {
		return s.inWords(err)
	}
	return s.inWords(errors.Join(s.appends.trouble(), s.reads.trouble()))
}
