package eventstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/gossip"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/serverfeatures"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/runfacts/runfacts/domain/ledger"
)

// Survey is what is known of the store once it was looked at.
type Survey struct {
	Node      string   // the address that answered
	Version   string   // as the node says it
	Leader    string   // as the cluster's gossip has it; "": not told
	Members   int      // of the cluster; 0: not told
	TLS       bool     //
	MaxAppend int      // bytes that one append may have
	Missing   []string // rights that we do not have, in words

	follows bool // the node that answered says that it is no leader
}

// Survey looks at the store: who it is, what we may do, and how much it takes in
// one append, if that is less than is wished for. Nothing is written: every
// append is at a seq where no stream ends, and its refusal tells the reason that
// comes before that. Errors are in words.
func (s *Store) Survey(ctx context.Context) (Survey, error) {
	if err := s.Ping(ctx); err != nil {
		return Survey{}, err
	}
	seen, err := s.identify(ctx)
	if err != nil {
		return Survey{}, s.inWords(err)
	}
	seen.TLS = s.target.secure
	if seen.Missing, err = s.missingRights(ctx); err != nil {
		return Survey{}, s.inWords(err)
	}
	if len(seen.Missing) == 0 || !strings.Contains(seen.Missing[0], string(write)) {
		if err := s.probeBound(ctx); err != nil {
			return Survey{}, s.inWords(err)
		}
	}
	seen.MaxAppend = s.MaxAppend()
	return seen, nil
}

// Log says in a line what was seen; which rights are missing was said when they
// were refused.
func (s *Store) Log(seen Survey) {
	s.log.Info().Str("node", seen.Node).Str("version", seen.Version).Str("leader", seen.Leader).Int("members", seen.Members).
		Bool("tls", seen.TLS).Int("max_append", seen.MaxAppend).Int("rights_missing", len(seen.Missing)).Msg("store found")
	if old(seen.Version) {
		s.log.Warn().Str("version", seen.Version).Msg("the store's version is older than " + oldestVersion + ", the oldest that is supported")
	}
	if seen.MaxAppend < s.config.MaxAppend {
		s.log.Warn().Int("max_append", seen.MaxAppend).Int("wished", s.config.MaxAppend).Msg("the store takes less in one append than --max-append says: its own bound holds")
	}
}

var twoNumbers = regexp.MustCompile(`^(\d+)\.(\d+)`)

// old reports whether a version is older than the oldest supported one; one that
// does not look like a version is not.
func old(version string) bool {
	number := func(text string) int {
		parts := twoNumbers.FindStringSubmatch(text)
		if parts == nil {
			return -1
		}
		major, _ := strconv.Atoi(parts[1])
		minor, _ := strconv.Atoi(parts[2])
		return major*100 + minor
	}
	return number(version) >= 0 && number(version) < number(oldestVersion)
}

// identify asks a node, by a connection of our own, what the client keeps to
// itself.
func (s *Store) identify(ctx context.Context) (seen Survey, err error) {
	config, err := s.target.configuration()
	if err != nil {
		return seen, err
	}
	nodes := []string{config.Address}
	if len(config.GossipSeeds) > 0 {
		nodes = nil
		for _, seed := range config.GossipSeeds {
			nodes = append(nodes, seed.String())
		}
	}
	var faults []error
	for _, node := range nodes {
		if seen, err = identity(ctx, config, node); err == nil {
			return seen, nil
		}
		faults = append(faults, err)
	}
	return seen, errors.Join(faults...)
}

func identity(ctx context.Context, config *esdb.Configuration, node string) (seen Survey, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	secured := insecure.NewCredentials()
	if !config.DisableTLS {
		settings := &tls.Config{InsecureSkipVerify: config.SkipCertificateVerification, RootCAs: config.RootCAs, MinVersion: tls.VersionTLS12} //nolint:gosec // the user's wish
		if config.UserCertFile != "" {
			own, err := tls.LoadX509KeyPair(config.UserCertFile, config.UserKeyFile)
			if err != nil {
				return seen, fmt.Errorf("the user's certificate: %w", err)
			}
			settings.Certificates = []tls.Certificate{own}
		}
		secured = credentials.NewTLS(settings)
	}
	conn, err := grpc.NewClient(node, grpc.WithTransportCredentials(secured))
	if err != nil {
		return seen, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	features, err := serverfeatures.NewServerFeaturesClient(conn).GetSupportedMethods(ctx, &shared.Empty{})
	if err != nil {
		return seen, err
	}
	seen = Survey{Node: node, Version: features.GetEventStoreServerVersion()}
	// A cluster may keep its gossip to itself: then it is not told.
	if cluster, err := gossip.NewGossipClient(conn).Read(ctx, &shared.Empty{}); err == nil {
		seen.Members = len(cluster.GetMembers())
		for _, m := range cluster.GetMembers() {
			at := fmt.Sprintf("%s:%d", m.GetHttpEndPoint().GetAddress(), m.GetHttpEndPoint().GetPort())
			if m.GetState() == gossip.MemberInfo_Leader && m.GetIsAlive() {
				seen.Leader = at
			} else if at == node {
				seen.follows = true
			}
		}
	}
	return seen, nil
}

// missingRights asks for each right on the runs' streams.
func (s *Store) missingRights(ctx context.Context) (missing []string, err error) {
	at := expected(ledger.Impossible)
	for _, ask := range []func() error{
		func() error { _, err := s.end(ctx, nobody.Stream()); return err },
		func() error { return s.Erase(ctx, nobody, ledger.Impossible) },
		func() error { return s.describe(ctx, nobody.Stream(), at, map[string]any{}) },
		func() error { _, err := s.end(ctx, probeStream); return err },
	} {
		err := ask()
		var denied *ledger.DeniedError
		var conflict *ledger.ConflictError
		switch {
		case errors.As(err, &denied):
			missing = append(missing, denied.Right)
		case err != nil && !errors.As(err, &conflict) && faultOf(err) != conflicted:
			return missing, err
		}
	}
	return missing, nil
}

// probeStream stands for the streams that instances keep for themselves.
const probeStream = sidePrefix + "probe"

// smallestBound is what every store takes in one append.
const smallestBound = 4 << 10

var sizeText = regexp.MustCompile(`Maximum Append Size of (\d+)`)

// probeBound lowers our bound to what the store takes: its size is checked
// before its seq. Where the store does not say what it takes, half is tried.
func (s *Store) probeBound(ctx context.Context) error {
	for size := s.config.MaxAppend; size >= smallestBound; {
		event := esdb.EventData{EventID: uuid.New(), EventType: "runfacts.probe", ContentType: esdb.ContentTypeBinary}
		event.Data = make([]byte, size-2*len(event.EventType))
		_, err := s.append(ctx, nobody.Stream(), expected(ledger.Impossible), event)
		switch faultOf(err) {
		case conflicted:
			s.bound.Store(int64(size))
			return nil
		case tooLarge, cut:
			half := size / 2
			if said := sizeText.FindStringSubmatch(err.Error()); said != nil {
				if bound, err := strconv.Atoi(said[1]); err == nil && bound < size {
					half = bound
				}
			}
			size = half
		default:
			return err
		}
	}
	return fmt.Errorf("the store takes less than %d bytes in one append", smallestBound)
}
