package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// ID is an event's id, chosen by its writer. Ids need not be unique.
type ID [16]byte

// Deleted is the number of the event that tombstones a stream, and the last
// number of a stream that has one.
const Deleted int64 = math.MaxInt64

// System event types.
const (
	MetadataType = "$metadata"
	deletedType  = "$streamDeleted"
)

// Event is one stored event.
type Event struct {
	Stream   string
	Number   int64
	Position uint64 // in $all, from 1; commit and prepare position are the same
	ID       ID
	Type     string
	JSON     bool  // else octet-stream
	Created  int64 // 100 ns ticks since the Unix epoch
	Metadata []byte
	Data     []byte
}

// Proposed is an event on its way in.
type Proposed struct {
	ID       ID
	Type     string
	JSON     bool
	Metadata []byte
	Data     []byte
}

// CorruptError: the stored bytes of an event are not those that were written.
type CorruptError struct {
	Stream string // "" where it is not known
	Number int64
	Key    []byte
}

func (e *CorruptError) Error() string {
	if e.Stream == "" {
		return fmt.Sprintf("stored event under key %x is damaged", e.Key)
	}
	return fmt.Sprintf("stored event %d of stream %q is damaged", e.Number, e.Stream)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const recordVersion = 1

// encode returns an event's record. The CRC covers everything, the stream's
// name and the number included: a record in the wrong place is damage too.
func (e *Event) encode() []byte {
	b := make([]byte, 0, 64+len(e.Stream)+len(e.Type)+len(e.Metadata)+len(e.Data))
	flags := byte(0)
	if e.JSON {
		flags = 1
	}
	b = append(b, recordVersion, flags)
	b = append(b, e.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Created))
	b = binary.BigEndian.AppendUint64(b, e.Position)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Number))
	for _, field := range [][]byte{[]byte(e.Stream), []byte(e.Type), e.Metadata, e.Data} {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeEvent reads a record that stands under key. The event keeps no memory
// of record.
func decodeEvent(key, record []byte) (*Event, error) {
	damaged := &CorruptError{Key: append([]byte(nil), key...)}
	const fixed = 2 + 16 + 3*8
	if len(record) < fixed+4 || record[0] != recordVersion {
		return nil, damaged
	}
	body := append([]byte(nil), record[:len(record)-4]...)
	e := &Event{JSON: body[1]&1 != 0, ID: ID(body[2:18])}
	e.Created = int64(binary.BigEndian.Uint64(body[18:]))
	e.Position = binary.BigEndian.Uint64(body[26:])
	e.Number = int64(binary.BigEndian.Uint64(body[34:]))
	rest := body[fixed:]
	var fields [4][]byte
	for i := range fields {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return nil, damaged
		}
		fields[i], rest = rest[size:size+int(n):size+int(n)], rest[size+int(n):]
	}
	e.Stream, e.Type, e.Metadata, e.Data = string(fields[0]), string(fields[1]), fields[2], fields[3]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(record[len(record)-4:]) || len(rest) > 0 {
		damaged.Stream, damaged.Number = e.Stream, e.Number
		return nil, damaged
	}
	return e, nil
}
