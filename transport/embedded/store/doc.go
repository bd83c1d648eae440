// Package store keeps the embedded node's events in one Pebble database. It
// knows streams, numbers, positions and EventStoreDB's rules for them, and
// nothing of gRPC. Rules are cited by the section of our account of
// EventStoreDB 24.6's wire behaviour ("wire 3.1").
//
// Promises: an append is all or nothing, is decided in the order of arrival,
// and is acknowledged after a synced write; everything that waits while one
// sync is in flight is made durable by the next. Readers see whole appends and
// every acknowledged one. A stored event whose bytes changed is an error that
// names it, never data.
//
// Layout, all integers big-endian:
//
//	h <name>             head: stream id, last number
//	d <stream id> <no.>  one event, with its CRC-32C
//	p <position>         stream id, number: the order of $all
//	n                    the next stream id
//
// Reads of a stream are a scan of its own keys, so they cost the same whatever
// else the store holds.
package store
