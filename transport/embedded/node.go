package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/gossip"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/serverfeatures"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// What the server's defaults are (wire 0, 2.1).
const (
	maxRequest   = 16<<20 - 10_000 // bytes of one message
	maxAppend    = 1 << 20         // bytes of data in one append
	maxStreams   = 100             // calls on one connection
	serverPing   = 10 * time.Second
	clientPing   = time.Second // clients may ping as often as this; they do every 10 s
	stopDeadline = 2 * time.Second
)

// Config is what a node needs.
type Config struct {
	Addr    string // host:port to listen on; port 0 picks a free one; or unix:FOLDER, no port but a socket there
	DataDir string // made where there is none
	Log     zerolog.Logger
	FS      vfs.FS // nil: the disk; tests put faults in

	Rehearse *Rehearsal // nil: the node only does what it is asked to
}

// Node is one server.
type Node struct {
	log      zerolog.Logger
	store    *store.Store
	index    index  // the store as readers see it
	stage    *stage // nil: nothing is rehearsed
	listener net.Listener
	id       uuid.UUID
	stopping chan struct{} // closed when Run begins to end: subscriptions go
}

// Open opens the data folder and binds the address. A folder that another
// process uses is refused. The node serves once Run runs.
func Open(c Config) (*Node, error) {
	listener, err := listen(c.Addr)
	if err != nil {
		return nil, err
	}
	s, err := store.Open(c.DataDir, c.FS, c.Log)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	sweep(listener)
	n := &Node{log: c.Log, store: s, index: whole{s}, listener: listener, id: uuid.New(), stopping: make(chan struct{})}
	if c.Rehearse != nil {
		n.stage = newStage(n, *c.Rehearse)
		n.index, n.listener = n.stage.index, n.stage.listen(listener)
	}
	return n, nil
}

// Addr is where the node listens; of no meaning where that is a socket.
func (n *Node) Addr() *net.TCPAddr {
	addr, ok := n.listener.Addr().(*net.TCPAddr)
	if !ok {
		return &net.TCPAddr{}
	}
	return addr
}

// ConnectionString is for a client on this machine, or where the node listens on
// a socket, for transport/eventstore in this process.
func (n *Node) ConnectionString() string {
	if path, ok := n.listener.Addr().(*net.UnixAddr); ok {
		return socketPrefix + path.String()
	}
	host := n.Addr().IP
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	return fmt.Sprintf("esdb://%s?tls=false", net.JoinHostPort(host.String(), fmt.Sprint(n.Addr().Port)))
}

// Run serves until ctx ends. Open calls have stopDeadline to finish; then
// connections are cut, writes end, and the store is closed.
func (n *Node) Run(ctx context.Context) error {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: serverPing}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(64),
	}
	if n.stage != nil {
		options = append(options, grpc.UnaryInterceptor(n.stage.unary), grpc.StreamInterceptor(n.stage.stream))
	}
	rpc := grpc.NewServer(options...)
	streams.RegisterStreamsServer(rpc, &streamsServer{node: n})
	serverfeatures.RegisterServerFeaturesServer(rpc, featuresServer{})
	gossip.RegisterGossipServer(rpc, gossipServer{node: n})
	web := &http.Server{Handler: n.web(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	split := newSplitter(n.listener)

	inner, cancel := context.WithCancel(context.Background())
	defer cancel()
	var writer errgroup.Group
	writer.Go(func() error { return n.store.Run(inner) })
	if n.stage != nil {
		writer.Go(func() error { return n.stage.index.Run(inner) })
	}
	var servers errgroup.Group
	servers.Go(func() error { return ended(rpc.Serve(split.http2)) })
	servers.Go(func() error { return ended(web.Serve(split.http1)) })
	servers.Go(func() error { return ended(split.Run()) })
	failed := make(chan error, 1)
	go func() { failed <- servers.Wait() }() // ends when the servers do, below

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		failed <- nil
	}
	close(n.stopping)
	graceful := time.AfterFunc(stopDeadline, rpc.Stop)
	rpc.GracefulStop()
	graceful.Stop()
	err = errors.Join(err, ended(web.Close()), ended(split.Close()), <-failed)
	cancel()
	return errors.Join(err, writer.Wait(), n.store.Close())
}

// ended takes the errors away that only say that a server was stopped.
func ended(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
