package tail

import (
	"time"

	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

// Bounds of a ring: a run's recent frames, for viewers that keep up. A viewer
// that is further behind costs the store a read, and nobody else anything.
const (
	maxFrames = 512
	maxBytes  = 256 << 10 // of payload
)

// ring holds the newest events of a run, contiguous, encoded at most once for
// each view. The zero value is empty.
type ring struct {
	frames []frame
	bytes  int
}

type frame struct {
	event   run.Event
	encoded [views][]byte
}

const views = int(view.Full) + 1

func (r *ring) push(e run.Event) {
	r.frames = append(r.frames, frame{event: e})
	r.bytes += len(e.Payload)
	for len(r.frames) > 1 && (len(r.frames) > maxFrames || r.bytes > maxBytes) {
		r.bytes -= len(r.frames[0].event.Payload)
		r.frames[0] = frame{}
		r.frames = r.frames[1:]
	}
}

// after returns the frames behind seq in a view. ok is false where the ring
// does not reach back that far.
func (r *ring) after(seq run.Seq, v view.View, encode Encode) (b Batch, ok bool, err error) {
	if len(r.frames) == 0 || seq+1 < r.frames[0].event.Seq {
		return Batch{}, false, nil
	}
	first := int(seq + 1 - r.frames[0].event.Seq)
	if first >= len(r.frames) {
		return Batch{}, true, nil
	}
	b.Live = true
	for i := first; i < len(r.frames); i++ {
		f := &r.frames[i]
		if f.encoded[v] == nil {
			if f.encoded[v], err = encode(v, &f.event); err != nil {
				return Batch{}, true, err
			}
		}
		b.Frames = append(b.Frames, f.encoded[v])
	}
	last := &r.frames[len(r.frames)-1].event
	b.Last, b.Recorded, b.Terminal = last.Seq, last.RecordedAt, run.Terminal(last.Type)
	return b, true, nil
}

// Batch is what a viewer gets at a time: whole frames, in order.
type Batch struct {
	Frames   [][]byte
	Last     run.Seq   // of the last frame
	Recorded time.Time // when the store committed that
	Live     bool      // from the ring: the viewer keeps up
	Terminal bool      // the last frame ends the run
}

// Encode turns an event into a frame.
type Encode func(v view.View, e *run.Event) ([]byte, error)
