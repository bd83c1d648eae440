package run

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Checksum is the form of every checksum that we publish: sha256: and hex.
func Checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return formatSum(sum[:])
}

func formatSum(sum []byte) string {
	return "sha256:" + hex.EncodeToString(sum)
}

// chain returns the event's chain checksum, given its predecessor's ("" before
// the first): SHA-256 of the canonical form (RFC 8785) of the whole envelope
// without recorded_at, payload and chain_checksum, with
// previous_chain_checksum (protocol section 4).
func (e *Event) chain(previous string) string {
	c := codec{out: newObject(768)}
	e.place(&c)
	c.str("event_type", &e.Type)
	c.time("occurred_at", &e.OccurredAt)
	e.head(&c)
	e.tail(&c)
	c.orNull("previous_chain_checksum", &previous)
	return Checksum(canonical(c.out.close()))
}

// Verify recomputes an event's checksums from what is stored, given its
// predecessor's chain checksum ("" before the first), and reports whether the
// event is what was sealed, and follows that predecessor.
func Verify(e *Event, previous string) bool {
	return e.PayloadChecksum == Checksum(e.Payload) && e.ChainChecksum == e.chain(previous)
}

// DamagedError: an event's payload is not what was sealed.
type DamagedError struct {
	Run ID
	Seq Seq
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("run %s, seq %d: the payload is not what its checksum says", e.Run, e.Seq)
}

// BrokenChainError: an event does not follow the one that was folded before it.
// Either it was altered, or the stream is not the one that it was.
type BrokenChainError struct {
	Run ID
	Seq Seq
}

func (e *BrokenChainError) Error() string {
	return fmt.Sprintf("run %s, seq %d: the event does not follow the one before it", e.Run, e.Seq)
}

// EventID is the id under which the store keeps a sealed event: the first 128
// bits of its chain checksum as a UUIDv8 (RFC 9562). With the append's nonce in
// the chain, the store's idempotency can only confirm the very append that was
// sent. The zero value stands for an event without a chain.
func (e *Event) EventID() (id [16]byte) {
	const prefix = len("sha256:")
	if len(e.ChainChecksum) < prefix+32 {
		return id
	}
	if _, err := hex.Decode(id[:], []byte(e.ChainChecksum[prefix:prefix+32])); err != nil {
		return [16]byte{}
	}
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// canonical returns valid JSON in the form of RFC 8785.
func canonical(value json.RawMessage) []byte {
	s := scanner{b: value}
	return s.canonical(make([]byte, 0, len(value)))
}
