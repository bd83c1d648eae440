package embedded

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/gossip"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/serverfeatures"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
)

// serverVersion is what the node behaves as: three numbers, which the Go client parses.
const serverVersion = "24.6.0"

// featuresServer advertises what the node implements and nothing else:
// advertising is what switches clients on (wire 1.6).
type featuresServer struct {
	serverfeatures.UnimplementedServerFeaturesServer
}

func (featuresServer) GetSupportedMethods(context.Context, *shared.Empty) (*serverfeatures.SupportedMethods, error) {
	const service = "event_store.client.streams.streams"
	method := func(service, name string, features ...string) *serverfeatures.SupportedMethod {
		return &serverfeatures.SupportedMethod{ServiceName: service, MethodName: name, Features: features}
	}
	return &serverfeatures.SupportedMethods{
		EventStoreServerVersion: serverVersion,
		Methods: []*serverfeatures.SupportedMethod{
			method(service, "read", "position", "events"),
			method(service, "batchappend", "deadline_duration"),
			method(service, "append"),
			method(service, "delete"),
			method(service, "tombstone"),
			method("event_store.client.gossip.gossip", "read"),
			method("event_store.client.server_features.serverfeatures", "getsupportedmethods"),
		},
	}, nil
}

// gossipServer shows the node as the leader of a cluster of one (wire 1.7).
type gossipServer struct {
	gossip.UnimplementedGossipServer
	node *Node
}

func (s gossipServer) Read(context.Context, *shared.Empty) (*gossip.ClusterInfo, error) {
	addr := s.node.advertised()
	cluster := &gossip.ClusterInfo{Members: []*gossip.MemberInfo{{
		InstanceId: &shared.UUID{Value: &shared.UUID_Structured_{Structured: &shared.UUID_Structured{
			MostSignificantBits:  int64(binary.BigEndian.Uint64(s.node.id[:])),
			LeastSignificantBits: int64(binary.BigEndian.Uint64(s.node.id[8:])),
		}}},
		TimeStamp:    time.Now().UnixNano() / 100,
		State:        gossip.MemberInfo_Leader,
		IsAlive:      true,
		HttpEndPoint: &gossip.EndPoint{Address: addr, Port: uint32(s.node.Addr().Port)},
	}}}
	if s.node.stage != nil {
		s.node.stage.cluster(cluster)
	}
	return cluster, nil
}

// advertised is an address that clients on this machine can dial.
func (n *Node) advertised() string {
	if ip := n.Addr().IP; !ip.IsUnspecified() {
		return ip.String()
	}
	return "127.0.0.1"
}

// version is what the node says it is.
func (n *Node) version() string {
	if n.stage != nil {
		if v := n.stage.scene.Load().version; v != "" {
			return v
		}
	}
	return serverVersion
}

// web is the HTTP/1.1 side (wire 1.5).
func (n *Node) web() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/live", func(w http.ResponseWriter, r *http.Request) {
		if n.store.Failed() != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		code := http.StatusNoContent
		if r.URL.Query().Get("liveCode") == "200" {
			code = http.StatusOK
		}
		w.WriteHeader(code)
	})
	mux.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]string{"text": "Ping request successfully handled"})
	})
	mux.HandleFunc("GET /info", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{
			"esVersion": n.version(), "state": "leader",
			"features":       map[string]bool{"projections": false, "userManagement": false, "atomPub": false},
			"authentication": map[string]any{"type": "insecure", "properties": map[string]string{}},
		})
	})
	mux.HandleFunc("GET /gossip", func(w http.ResponseWriter, _ *http.Request) {
		ip, port := n.advertised(), n.Addr().Port
		reply(w, map[string]any{
			"members": []map[string]any{{
				"instanceId": n.id.String(), "timeStamp": time.Now().UTC().Format(time.RFC3339Nano), "state": "Leader", "isAlive": true,
				"httpEndPointIp": ip, "httpEndPointPort": port, "lastCommitPosition": n.store.Position(),
				"writerCheckpoint": n.store.Position(), "chaserCheckpoint": n.store.Position(),
				"epochPosition": 0, "epochNumber": 0, "nodePriority": 0, "isReadOnlyReplica": false, "esVersion": n.version(),
			}},
			"serverIp": ip, "serverPort": port,
		})
	})
	return mux
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	// The client has gone if this fails.
	_ = json.NewEncoder(w).Encode(body)
}
