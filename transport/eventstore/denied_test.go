package eventstore_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/transport/embedded"
	"github.com/runfacts/runfacts/transport/eventstore"
)

func play(t *testing.T, node *embedded.Node, text string) {
	t.Helper()
	if !node.Rehearse(rehearsal(t, text)) {
		t.Fatal("the node rehearses nothing")
	}
}

// A right that is refused is a state of the store: what is asked meanwhile is
// unknown or unavailable, with the right in the error, and goes on afterwards.
func TestADeniedRightIsAStateThatPasses(t *testing.T) {
	for denied, want := range map[string]string{
		"denied=w:agent_run-": "to write to", "denied=r:agent_run-": "to read", "denied=a:": "the password",
	} {
		t.Run(denied, func(t *testing.T) {
			t.Parallel()
			node := rehearse(t, "seed=1")
			s := openStore(t, node.ConnectionString())
			script, started := ledgertest.NewScript("denied")
			insist(t, s, script.ID, 0, started)
			play(t, node, denied)
			one := script.Deltas("a")
			between := script.Last()
			two := script.Deltas("b", "c")
			missing := func(err error) bool {
				var right *ledger.DeniedError
				return errors.As(err, &right) && strings.Contains(right.Right, want[:4])
			}
			if strings.Contains(denied, "r:") {
				_, err := s.Last(t.Context(), script.ID)
				var away *ledger.UnavailableError
				if !errors.As(err, &away) || !missing(err) {
					t.Errorf("last: %v", err)
				}
			} else {
				var unknown *ledger.UnknownError
				if err := s.Append(t.Context(), script.ID, 1, one); !errors.As(err, &unknown) || !errors.As(err, new(*ledger.DeniedError)) {
					t.Errorf("append: %v", err)
				}
			}
			play(t, node, "")
			insist(t, s, script.ID, 1, one)
			insist(t, s, script.ID, between, two) // several events, whose early refusal the client loses
			for {
				page, err := s.Read(within(t, 10*time.Second), script.ID, 0, ledger.Page{Events: 10, Bytes: 1 << 20})
				if err == nil {
					if len(page) != int(script.Last()) {
						t.Errorf("%d events", len(page))
					}
					return
				}
			}
		})
	}
}

// A refused append of several events is told as such too.
func TestTheReasonOfAnEarlyRefusalIsFound(t *testing.T) {
	node := rehearse(t, "seed=1")
	s := openStore(t, node.ConnectionString())
	script, started := ledgertest.NewScript("early")
	insist(t, s, script.ID, 0, started)
	play(t, node, "denied=w:agent_run-")
	events := script.Deltas("a", "b", "c", "d")
	for range 5 {
		if err := s.Append(t.Context(), script.ID, 1, events); !errors.As(err, new(*ledger.DeniedError)) {
			t.Fatal(err)
		}
	}
}

// Nobody is asked again and again for what is refused.
func TestARefusedRightIsAskedForEverLessOften(t *testing.T) {
	node := rehearse(t, "denied=a:")
	s := openStore(t, node.ConnectionString())
	calls := 0
	for began := time.Now(); time.Since(began) < time.Second; calls++ {
		if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "password") {
			t.Fatal(err)
		}
	}
	if calls < 1000 { // each of them asking would be slower
		t.Errorf("%d answers in a second: who is refused waits for the store", calls)
	}
	if err := s.Trouble(); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("trouble: %v", err)
	}
	play(t, node, "")
	for s.Ping(within(t, 10*time.Second)) != nil {
		time.Sleep(10 * time.Millisecond)
	}
	if err := s.Trouble(); err != nil {
		t.Errorf("trouble: %v", err)
	}
}

func TestASurveyFindsBoundsAndRights(t *testing.T) {
	node := rehearse(t, "max-append=300000,version=24.10.0,denied=m:agent_run-,denied=d:agent_run-")
	var said bytes.Buffer
	s, err := eventstore.Open(eventstore.Config{ConnectionString: node.ConnectionString(), Log: zerolog.New(&said)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // of a test that is over
	seen, err := s.Survey(t.Context())
	if err != nil {
		t.Fatal(err, errors.Unwrap(err))
	}
	if seen.MaxAppend != 300_000 || s.MaxAppend() != 300_000 || seen.Version != "24.10.0" || seen.TLS || seen.Members != 1 ||
		seen.Node != node.Addr().String() || seen.Leader != node.Addr().String() {
		t.Errorf("%+v", seen)
	}
	if got := strings.Join(seen.Missing, "; "); !strings.Contains(got, "to delete streams agent_run-…") || !strings.Contains(got, "metadata of streams agent_run-…") || len(seen.Missing) != 2 {
		t.Errorf("missing: %s", got)
	}
	s.Log(seen)
	if text := said.String(); strings.Count(text, `"level":"info"`) != 1 || strings.Count(text, "denies us a right") != 2 || !strings.Contains(text, "takes less in one append") {
		t.Error(text)
	}
	for want, text := range map[string]string{"no right to write": "denied=w:agent_run-", "no right to read": "denied=r:agent_run-"} {
		play(t, node, text)
		seen, err := s.Survey(t.Context())
		if err == nil && len(seen.Missing) == 0 {
			t.Errorf("%s is not told", want)
		}
	}
}

// What will not pass by itself is told in words, within seconds.
func TestWhatIsWrongIsToldInWords(t *testing.T) {
	authority, key := certificate(t, "127.0.0.1")
	folder := t.TempDir()
	trusted := filepath.Join(folder, "ca.crt")
	if err := os.WriteFile(trusted, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	stranger, _ := certificate(t, "127.0.0.1")
	strange := filepath.Join(folder, "other.crt")
	if err := os.WriteFile(strange, stranger, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(folder, "empty.crt")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	secure := secured(t, authority, key)
	plain := rehearse(t, "seed=1").Addr().String()
	denied := rehearse(t, "denied=a:").Addr().String()
	odd := rehearse(t, "version=24.10.0-prerelease").Addr().String()
	silent := rehearse(t, "slow-auth=1h").Addr().String()
	follower := rehearse(t, "not-leader=1,leader=127.0.0.1:1").Addr().String()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close() //nolint:errcheck // it only has found a free port
	for name, c := range map[string]struct{ url, want string }{
		"wrong password":     {"esdb://" + denied + "?tls=false", "password"},
		"no such file":       {"esdb://" + secure + "?tlsCaFile=" + filepath.Join(folder, "none.crt"), "none.crt"},
		"an empty file":      {"esdb://" + secure + "?tlsCaFile=" + empty, "empty.crt"},
		"not trusted":        {"esdb://" + secure + "?tlsCaFile=" + strange, "tlsCaFile"},
		"another name":       {"esdb://" + strings.Replace(secure, "127.0.0.1", "localhost", 1) + "?tlsCaFile=" + trusted, "another name"},
		"TLS to plain text":  {"esdb://" + plain, "tls=false"},
		"plain text to TLS":  {"esdb://" + secure + "?tls=false", "take tls=false out"},
		"an unknown version": {"esdb://" + odd + "?tls=false", "24.10"},
		"nobody is there":    {"esdb://" + nobody.Addr().String() + "?tls=false", "nobody listens"},
		"no answer":          {"esdb://" + silent + "?tls=false", "answer"},
		"only a follower":    {"esdb://" + follower + "?tls=false", "follower"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := eventstore.Open(eventstore.Config{ConnectionString: c.url, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() }) // a dialing may hang for a while
			err = s.Ping(within(t, 6*time.Second))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want something of %q\n%v", err, c.want, errors.Unwrap(err))
			}
		})
	}
	if err := openStore(t, "esdb://"+secure+"?tlsCaFile="+trusted).Ping(within(t, 6*time.Second)); err != nil && strings.Contains(err.Error(), "certificate") {
		t.Errorf("trusted: %v", err)
	}
}

// certificate makes a certificate that vouches for itself.
func certificate(t *testing.T, host string) (certificate, key []byte) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, IPAddresses: []net.IP{net.ParseIP(host)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	bits, err := x509.MarshalECPrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bits})
}

// secured is a server behind TLS that answers no call.
func secured(t *testing.T, certificate, key []byte) string {
	t.Helper()
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// by hand is a client of an operator.
func byHand(t *testing.T, node *embedded.Node) *esdb.Client {
	t.Helper()
	config, err := esdb.ParseConnectionString(node.ConnectionString())
	if err != nil {
		t.Fatal(err)
	}
	config.Logger = func(esdb.LogLevel, string, ...any) {}
	client, err := esdb.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// A run's id used again after a soft delete: the store numbers on, and nothing
// of that is a success.
func TestAnAppendThatLandsElsewhereIsUndone(t *testing.T) {
	node := rehearse(t, "read-lag=20ms")
	s, other := openStore(t, node.ConnectionString()), openStore(t, node.ConnectionString())
	script, started := ledgertest.NewScript("again")
	insist(t, s, script.ID, 0, started)
	insist(t, s, script.ID, 1, script.Deltas("x"))
	if _, err := byHand(t, node).DeleteStream(t.Context(), script.ID.Stream(), esdb.DeleteStreamOptions{ExpectedRevision: esdb.Any{}}); err != nil {
		t.Fatal(err)
	}
	for name, store := range map[string]*eventstore.Store{"who knew it": s, "who did not": other} {
		if _, err := store.Last(t.Context(), script.ID); !errors.Is(err, ledger.ErrDeleted) {
			t.Errorf("%s: last: %v", name, err)
		}
		if _, err := store.Read(t.Context(), script.ID, 1, ledger.Page{Events: 5, Bytes: 100}); !errors.Is(err, ledger.ErrDeleted) {
			t.Errorf("%s: read: %v", name, err)
		}
	}
	state, candidates := run.Begin(run.Start{ID: script.ID, AgentID: "another", Runtime: "push", Snapshot: "sha256:0", RequestChecksum: "sha256:2"}, time.Unix(5, 0))
	anew := state.Seal(candidates, "another nonce")
	if err := other.Append(t.Context(), script.ID, 0, anew); !errors.Is(err, ledger.ErrDeleted) {
		t.Errorf("a start: %v", err)
	}
	for name, store := range map[string]*eventstore.Store{"who knew it": s, "who did not": other} {
		if err := store.Append(t.Context(), script.ID, 0, anew); !errors.Is(err, ledger.ErrErased) {
			t.Errorf("%s: then: %v", name, err)
		}
	}
}

// A store that ends before what it acknowledged was set back, and says so twice.
func TestAStoreThatWasSetBackIsTold(t *testing.T) {
	node := rehearse(t, "set-back=2")
	s := openStore(t, node.ConnectionString())
	script, started := ledgertest.NewScript("back")
	insist(t, s, script.ID, 0, started)
	insist(t, s, script.ID, 1, script.Deltas("x"))
	end := script.Last()
	insist(t, s, script.ID, end, script.Deltas("y", "z"))
	if _, err := node.SetBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	var back *ledger.SetBackError
	for {
		_, err := s.Last(within(t, 20*time.Second), script.ID)
		if errors.As(err, &back) {
			break
		}
		if err == nil {
			t.Fatal("it is shown as if nothing had happened")
		}
	}
	if back.Known != end+2 || back.Ends != end {
		t.Errorf("%+v", back)
	}
	last, err := s.Last(t.Context(), script.ID) // what it says from then on holds
	if err != nil || last.Seq != end {
		t.Errorf("then: %d, %v", last.Seq, err)
	}
}

// A follower of a stream that is deleted, or set back, while it follows ends.
func TestAFollowerOfWhatIsGoneEnds(t *testing.T) {
	t.Parallel()
	node := rehearse(t, "set-back=2")
	s := openStore(t, node.ConnectionString())
	deleted, started := ledgertest.NewScript("deleted")
	insist(t, s, deleted.ID, 0, started)
	back, started := ledgertest.NewScript("set_back")
	insist(t, s, back.ID, 0, started)
	insist(t, s, back.ID, 1, back.Deltas("x", "y"))
	end := back.Last()
	ends := make(map[run.ID]chan error)
	for id, last := range map[run.ID]run.Seq{deleted.ID: 1, back.ID: end} {
		ended, seen := make(chan error, 1), make(chan struct{})
		ends[id] = ended
		go func() {
			ended <- s.Follow(within(t, 50*time.Second), id, 0, func(e run.Event) error {
				if e.Seq == last {
					close(seen)
				}
				return nil
			})
		}()
		<-seen
	}
	if _, err := node.SetBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := byHand(t, node).DeleteStream(within(t, 5*time.Second), deleted.ID.Stream(), esdb.DeleteStreamOptions{ExpectedRevision: esdb.Any{}})
		if err == nil {
			break
		}
	}
	if err := <-ends[deleted.ID]; !errors.Is(err, ledger.ErrDeleted) {
		t.Errorf("deleted: %v", err)
	}
	var wrong *ledger.SetBackError
	if err := <-ends[back.ID]; !errors.As(err, &wrong) {
		t.Errorf("set back: %v", err)
	}
}
