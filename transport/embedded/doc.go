// Package embedded is a single-node server that speaks EventStoreDB's gRPC
// protocol (as of 24.6), so that Runfacts works without a cluster: for
// development, tests and small installations. It is a server, not a mock:
// other languages' official clients work on it.
//
// Offered: the Streams service (Append, BatchAppend, Read in every form,
// subscriptions, Delete, Tombstone), metadata streams and their effects,
// ServerFeatures, Gossip, and over HTTP /health/live, /info, /ping and /gossip.
// Not offered, not advertised, answered with UNIMPLEMENTED: persistent
// subscriptions, projections, users, operations, monitoring. There is no TLS
// and there are no passwords: it listens on loopback unless told otherwise.
//
// An append is acknowledged after a synced write. "wire 2.3" and the like cite
// sections of our account of the server's wire behaviour.
package embedded
