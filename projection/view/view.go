// Package view holds the shapes in which readers see a run.
//
// A view turns a run's events, in their order, into frames: pure functions of the
// events so far, so that whoever computes a frame, and whenever, gets the same
// bytes. Client and Full are stateless: a frame is one event, whose payload has the
// bytes that the store keeps and that payload_checksum is about. Events and fields
// that this version does not know pass through.
package view

import (
	"fmt"

	"github.com/runfacts/runfacts/domain/run"
)

// View is one shape. Views are compared by identity and never changed.
type View struct {
	Name string

	// Encode returns an event as one line of compact JSON, in bytes of its own. It
	// makes the view stateless; nil: Project is set.
	Encode func(*run.Event) []byte

	// Project returns a projector that stands before a run's first event.
	Project func() Projector

	// Aborts says how a stream ends that is not at the run's end: cut off, since
	// its clients take a clean end for success; otherwise cleanly, since its
	// clients come back.
	Aborts bool
}

var (
	// Client is for pages: seq, event_type, occurred_at and payload.
	Client = &View{Name: "client", Encode: (*run.Event).Client}
	// Full is the whole envelope, for audit.
	Full = &View{Name: "full", Encode: (*run.Event).Envelope}
)

// Parse returns the view that the query value names; the empty one means Client.
func Parse(value string) (*View, error) {
	switch value {
	case "", Client.Name:
		return Client, nil
	case Full.Name:
		return Full, nil
	}
	return nil, fmt.Errorf("a view is client or full, not %q", value)
}

// Frame is what a client gets at once.
type Frame struct {
	ID    run.Seq // the cursor behind it
	Event string  // its name
	Data  []byte  // one line of JSON
}

// Projector turns one run's events into frames of a view. It is a pure state
// machine: no clock, no I/O. Not safe for concurrent use.
type Projector interface {
	// Step takes the next event, and returns the frames that it adds.
	Step(e *run.Event) []Frame

	// Prelude returns what a client needs that joins here and has seen nothing
	// of the run: with what Step returns from here on it comes to the state that
	// those have who saw all of it.
	Prelude() []Frame
}

// Stateless reports whether a frame depends on no event but its own.
func (v *View) Stateless() bool { return v.Encode != nil }

// New returns a projector that stands before a run's first event; a stateless
// one stands anywhere.
func (v *View) New() Projector {
	if v.Stateless() {
		return lines{v.Encode}
	}
	return v.Project()
}

// lines is the projector of a stateless view.
type lines struct{ encode func(*run.Event) []byte }

func (l lines) Step(e *run.Event) []Frame { return []Frame{{e.Seq, e.Type, l.encode(e)}} }

// Prelude is empty: a client joins by its cursor, and asks for what it wants.
func (l lines) Prelude() []Frame { return nil }
