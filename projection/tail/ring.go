package tail

import (
	"sync/atomic"
	"time"

	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

// Bounds of a ring: a run's recent frames, for viewers that keep up. A viewer
// that is further behind costs the store a read, and nobody else anything.
const (
	maxFrames = 512
	maxBytes  = 512 << 10 // of payloads and frames
)

// maxRings bounds the rings of all runs together, in bytes. Beyond it the runs
// that were quiet longest keep only their newest event.
const maxRings = 64 << 20

// ring holds the newest events of a run, contiguous, with their frames in each
// view in use. Its tail's lock guards it. The zero value is empty.
type ring struct {
	frames []framed
	bytes  int
	total  *atomic.Int64 // of all rings
}

// framed is an event with what each view makes of it: nil where nobody has asked.
type framed struct {
	event   run.Event
	follows string // the chain checksum of the event before it
	inView  map[*view.View][]byte
	bytes   int
}

func (r *ring) push(f framed) {
	r.frames = append(r.frames, f)
	r.count(f.bytes)
	for len(r.frames) > 1 && (len(r.frames) > maxFrames || r.bytes > maxBytes) {
		r.drop()
	}
}

func (r *ring) count(bytes int) {
	r.bytes += bytes
	r.total.Add(int64(bytes))
}

func (r *ring) drop() {
	r.count(-r.frames[0].bytes)
	r.frames[0] = framed{}
	r.frames = r.frames[1:]
}

// shrink drops all but the newest event.
func (r *ring) shrink() {
	for len(r.frames) > 1 {
		r.drop()
	}
}

// clear drops everything.
func (r *ring) clear() {
	r.count(-r.bytes)
	r.frames = nil
}

// behind returns the events behind seq; ok is false where the ring does not have
// them all.
func (r *ring) behind(seq run.Seq) (events []framed, ok bool) {
	if len(r.frames) == 0 || seq+1 < r.frames[0].event.Seq {
		return nil, false
	}
	return r.frames[min(int(seq+1-r.frames[0].event.Seq), len(r.frames)):], true
}

// in returns the frame of an event in a view, made by project if nobody has asked
// before.
func (r *ring) in(v *view.View, f *framed, project func(*run.Event) ([]byte, error)) ([]byte, error) {
	if encoded, made := f.inView[v]; made {
		return encoded, nil
	}
	encoded, err := project(&f.event)
	if err != nil {
		return nil, err
	}
	if f.inView == nil {
		f.inView = make(map[*view.View][]byte)
	}
	f.inView[v] = encoded
	f.bytes += len(encoded)
	r.count(len(encoded))
	return encoded, nil
}

// Batch is what a viewer gets at a time: whole frames, in order. An event that is
// nothing in a view has an empty one.
type Batch struct {
	Frames   [][]byte
	Last     run.Seq   // of the last event
	Recorded time.Time // when the store committed that
	Live     bool      // from the ring: the viewer keeps up
	Terminal bool      // the last event ends the run
}

// Encode appends a frame as it is sent.
type Encode func(b []byte, f view.Frame) ([]byte, error)

// all appends frames one after the other.
func (encode Encode) all(frames []view.Frame) (b []byte, err error) {
	for _, f := range frames {
		if b, err = encode(b, f); err != nil {
			return nil, err
		}
	}
	return b, nil
}
