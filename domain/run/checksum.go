package run

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
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
// the first): SHA-256 of the compact array that protocol section 4 fixes.
func (e *Event) chain(previous string) string {
	b := append(make([]byte, 0, 512), '[')
	b = append(appendString(b, string(e.RunID)), ',')
	b = append(strconv.AppendUint(b, uint64(e.Seq), 10), ',')
	b = append(appendString(b, e.Type), ',')
	b = append(appendString(b, e.OccurredAt.UTC().Format(TimeFormat)), ',')
	b = append(appendString(b, e.PayloadChecksum), ',')
	b = append(strconv.AppendInt(b, int64(e.SchemaVersion), 10), ',')
	var producer, cursor *string
	seq := uint64(0)
	if e.Source != nil {
		producer, cursor, seq = &e.Source.Producer, e.Source.Cursor, e.Source.Seq
	}
	b = append(appendOptional(b, producer), ',')
	if seq != 0 {
		b = append(strconv.AppendUint(b, seq, 10), ',')
	} else {
		b = append(b, "null,"...)
	}
	b = append(appendOptional(b, cursor), ',')
	b = append(appendOptional(b, absent(e.Nonce)), ',')
	b = append(appendOptional(b, absent(previous)), ']')
	return Checksum(b)
}

func absent(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func appendOptional(b []byte, text *string) []byte {
	if text == nil {
		return append(b, "null"...)
	}
	return appendString(b, *text)
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
