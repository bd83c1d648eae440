package embedded

import (
	"math"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
)

func newUUID() [16]byte { return uuid.New() }

// laterFields are what CaughtUp carries on servers of 25.0 and later: a
// timestamp and a revision, which clients of today do not know.
func laterFields() []byte {
	seconds := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(time.Now().Unix()))
	b := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), seconds)
	return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 0)
}

// A spread position is a byte offset, as on a real node, and the commit stands
// behind the prepare: nobody may count with either.
const (
	recordBytes = 128
	commitBytes = 64
)

func prepareOf(position uint64) uint64 {
	if position == 0 || position == math.MaxUint64 {
		return position
	}
	return position * recordBytes
}

func commitOf(position uint64) uint64 {
	if position == 0 || position == math.MaxUint64 {
		return position
	}
	return position*recordBytes + commitBytes
}

// narrow is the position that was spread to commit; false: none was.
func narrow(commit uint64) (position uint64, ok bool) {
	if commit == 0 || commit == math.MaxUint64 {
		return commit, true
	}
	return commit / recordBytes, commit%recordBytes == commitBytes
}

// spread changes the positions in an answer.
func (c *scene) spread(answer any) {
	if !c.split {
		return
	}
	pair := func(commit, prepare *uint64) { *commit, *prepare = commitOf(*commit), prepareOf(*prepare) }
	switch m := answer.(type) {
	case *streams.ReadResp:
		spreadRead(m, pair)
	case *streams.AppendResp:
		if p := m.GetSuccess().GetPosition(); p != nil {
			pair(&p.CommitPosition, &p.PreparePosition)
		}
	case *streams.BatchAppendResp:
		if p := m.GetSuccess().GetPosition(); p != nil {
			pair(&p.CommitPosition, &p.PreparePosition)
		}
	case *streams.DeleteResp:
		if p := m.GetPosition(); p != nil {
			pair(&p.CommitPosition, &p.PreparePosition)
		}
	case *streams.TombstoneResp:
		if p := m.GetPosition(); p != nil {
			pair(&p.CommitPosition, &p.PreparePosition)
		}
	}
}

func spreadRead(m *streams.ReadResp, pair func(commit, prepare *uint64)) {
	if p := m.GetCheckpoint(); p != nil {
		pair(&p.CommitPosition, &p.PreparePosition)
	}
	for _, e := range []*streams.ReadResp_ReadEvent_RecordedEvent{m.GetEvent().GetEvent(), m.GetEvent().GetLink()} {
		if e != nil {
			pair(&e.CommitPosition, &e.PreparePosition)
		}
	}
	if at, ok := m.GetEvent().GetPosition().(*streams.ReadResp_ReadEvent_CommitPosition); ok {
		at.CommitPosition = commitOf(at.CommitPosition)
	}
}
