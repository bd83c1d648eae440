package tail

import (
	"github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/projection/view"
)

// lane is one view of a run, projected once for all its viewers: each event is
// stepped as it comes, while anybody looks. Its tail's lock guards it.
type lane struct {
	projector view.Projector // stands behind the tail's head
	viewers   int
}

// enter makes a viewer one of a view's. projector stands at the tail's head; it
// carries on where nobody has the view yet.
func (t *tail) enter(v *view.View, projector view.Projector) {
	if t.lanes[v] == nil {
		t.lanes[v] = &lane{projector: projector}
	}
	t.lanes[v].viewers++
}

func (t *tail) exit(v *view.View) {
	if one := t.lanes[v]; one != nil {
		if one.viewers--; one.viewers == 0 {
			delete(t.lanes, v)
		}
	}
}

// project makes the frames of the next event in each view in use.
func (t *tail) project(e *run.Event) (framed, error) {
	f := framed{event: *e, follows: t.chain, bytes: len(e.Payload) + beside}
	for v, one := range t.lanes {
		encoded, err := t.tails.encode.all(one.projector.Step(e))
		if err != nil {
			return framed{}, err
		}
		if f.inView == nil {
			f.inView = make(map[*view.View][]byte, len(t.lanes))
		}
		f.inView[v] = encoded
		f.bytes += len(encoded)
	}
	return f, nil
}

// beside is about what an event takes beside its payload and frames, in bytes.
const beside = 512
