// Package eventstore implements the ledger on EventStoreDB, through its own Go
// client; no other package knows that client. It turns seqs (from 1) into
// revisions (from 0), and makes up for what the client leaves to its users:
//
//   - a client whose discovery failed is dead for ever, and callers that meet
//     it just then hang: sessions are replaced as a whole, and every call is
//     left behind when its context ends (conn.go);
//   - reads and subscriptions never reconnect and have no deadline (read.go,
//     follow.go);
//   - subscriptions and undrained reads fill a connection, a hundred calls to
//     each, and would then block appends: appends, reads and subscriptions have
//     connections of their own (store.go, pool.go);
//   - the wish for a leader is never sent (store.go);
//   - its errors are found with errors.As, never with its FromError (errors.go).
package eventstore
