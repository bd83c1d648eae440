package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// Metadata keys and values of a proposed event (wire 2.1).
const (
	typeKey        = "type"
	contentTypeKey = "content-type"
	createdKey     = "created"
	jsonType       = "application/json"
	binaryType     = "application/octet-stream"
)

// unknown is a position that is not known; as a revision it is no stream.
const unknown = math.MaxUint64

var errBadID = errors.New("the event has no id")

// missingError: a proposed event lacks a metadata property.
type missingError string

func (e missingError) Error() string { return missingText(string(e)) }

// proposed is what Append's and BatchAppend's messages have in common.
type proposed interface {
	GetId() *shared.UUID
	GetMetadata() map[string]string
	GetCustomMetadata() []byte
	GetData() []byte
}

// event checks and converts a proposed event (wire 2.1, item 4).
func event(p proposed) (store.Proposed, error) {
	for _, key := range []string{typeKey, contentTypeKey} {
		if _, ok := p.GetMetadata()[key]; !ok {
			return store.Proposed{}, missingError(key)
		}
	}
	id, err := fromUUID(p.GetId())
	if err != nil {
		return store.Proposed{}, err
	}
	if id == (store.ID{}) {
		return store.Proposed{}, errBadID
	}
	kind := p.GetMetadata()[typeKey]
	if kind == "" {
		return store.Proposed{}, errors.New("the event has no type")
	}
	return store.Proposed{
		ID: id, Type: kind, JSON: p.GetMetadata()[contentTypeKey] == jsonType,
		Metadata: p.GetCustomMetadata(), Data: p.GetData(),
	}, nil
}

func fromUUID(u *shared.UUID) (store.ID, error) {
	switch v := u.GetValue().(type) {
	case *shared.UUID_String_:
		id, err := uuid.Parse(v.String_)
		return store.ID(id), err
	case *shared.UUID_Structured_:
		var id store.ID
		binary.BigEndian.PutUint64(id[:], uint64(v.Structured.GetMostSignificantBits()))
		binary.BigEndian.PutUint64(id[8:], uint64(v.Structured.GetLeastSignificantBits()))
		return id, nil
	}
	return store.ID{}, errBadID
}

func toUUID(id store.ID, text bool) *shared.UUID {
	if text {
		return &shared.UUID{Value: &shared.UUID_String_{String_: uuid.UUID(id).String()}}
	}
	return &shared.UUID{Value: &shared.UUID_Structured_{Structured: &shared.UUID_Structured{
		MostSignificantBits:  int64(binary.BigEndian.Uint64(id[:])),
		LeastSignificantBits: int64(binary.BigEndian.Uint64(id[8:])),
	}}}
}

// number converts a revision on the wire. Its highest value is no stream.
func number(revision uint64) (store.Expected, error) {
	if revision == unknown {
		return store.NoStream, nil
	}
	if revision > math.MaxInt64 {
		return 0, fmt.Errorf("revision %d is out of range", revision)
	}
	return store.Expected(revision), nil
}

func recorded(e *store.Event, text bool) *streams.ReadResp_ReadEvent_RecordedEvent {
	content := binaryType
	if e.JSON {
		content = jsonType
	}
	return &streams.ReadResp_ReadEvent_RecordedEvent{
		Id:               toUUID(e.ID, text),
		StreamIdentifier: &shared.StreamIdentifier{StreamName: []byte(e.Stream)},
		StreamRevision:   uint64(e.Number),
		PreparePosition:  e.Position,
		CommitPosition:   e.Position,
		Metadata:         map[string]string{typeKey: e.Type, contentTypeKey: content, createdKey: strconv.FormatInt(e.Created, 10)},
		CustomMetadata:   e.Metadata,
		Data:             e.Data,
	}
}
