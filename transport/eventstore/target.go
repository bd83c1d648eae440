package eventstore

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
)

// target is the store that the connection string names. Nothing of it but text
// keeps the string, which may hold a password.
type target struct {
	text   string
	hosts  string // as they stand in the string, for people
	secure bool   // TLS
	caFile string // "": the system's
	many   bool   // a cluster, or a name to be looked up
	socket string // unix:PATH, in place of hosts; "": none
}

// socketPrefix is how the target of a node in this process begins. The client's
// connection strings cannot say it, but the client hands gRPC an address as it
// is, and gRPC knows these.
const socketPrefix = "unix:"

// parseTarget reads a connection string. Certificates are not read yet: a file
// that is not there today may be tomorrow.
func parseTarget(text string) (target, error) {
	if strings.HasPrefix(text, socketPrefix) {
		return target{text: "esdb://localhost?tls=false", hosts: text, socket: text}, nil
	}
	scheme, rest, _ := strings.Cut(text, "://")
	authority, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		authority = authority[at+1:]
	}
	t := target{text: text, hosts: strings.TrimRight(authority, "/"), secure: true, many: strings.Contains(scheme, "discover") || strings.Contains(authority, ",")}
	settings, err := url.ParseQuery(query)
	if err != nil {
		return target{}, errUnreadable
	}
	for key, values := range settings {
		switch strings.ToLower(key) {
		case "tls":
			t.secure = !strings.EqualFold(values[0], "false")
		case "tlscafile":
			t.caFile = values[0]
			settings.Del(key)
		}
	}
	bare := scheme + "://" + rest
	if i := strings.IndexByte(bare, '?'); i >= 0 {
		bare = bare[:i] + "?" + settings.Encode()
	}
	if _, err := esdb.ParseConnectionString(bare); err != nil {
		return target{}, errUnreadable
	}
	t.text = bare
	return t, nil
}

var errUnreadable = errors.New("the EventStoreDB connection string cannot be read (esdb://host:port?tls=false, for instance)")

// caError: the file of the certificate authority is of no use.
type caError struct {
	file string
	err  error
}

func (e *caError) Error() string {
	return fmt.Sprintf("the file of tlsCaFile, %s, is of no use: %v", e.file, e.err)
}
func (e *caError) Unwrap() error { return e.err }

// configuration is what the client needs, new for each.
func (t target) configuration() (*esdb.Configuration, error) {
	config, err := esdb.ParseConnectionString(t.text)
	if err != nil {
		return nil, errUnreadable
	}
	if t.socket != "" {
		config.Address = t.socket
	}
	if t.caFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(t.caFile)
	if err != nil {
		return nil, &caError{t.caFile, err}
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, &caError{t.caFile, errors.New("it holds no certificate")}
	}
	return config, nil
}
