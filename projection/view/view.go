// Package view holds the shapes in which a reader sees a committed event.
//
// A view is a pure function of one event: it drops members or keeps them, and
// never touches the payload, whose bytes are those that the store keeps and
// that payload_checksum is about. What it returns is one line of compact JSON.
// Events and fields that this version does not know pass through.
package view

import (
	"fmt"

	"github.com/runfacts/runfacts/domain/run"
)

// View names a shape. The zero value is Client.
type View uint8

const (
	// Client is for pages: seq, event_type, occurred_at and payload.
	Client View = iota
	// Full is the whole envelope, for audit.
	Full
)

// Parse returns the view that the query value names; the empty one means Client.
func Parse(value string) (View, error) {
	switch value {
	case "", "client":
		return Client, nil
	case "full":
		return Full, nil
	}
	return Client, fmt.Errorf("a view is client or full, not %q", value)
}

func (v View) String() string {
	if v == Full {
		return "full"
	}
	return "client"
}

// Encode returns the event in this view as one line of JSON, in bytes of its own.
func (v View) Encode(e *run.Event) []byte {
	if v == Full {
		return e.Envelope()
	}
	return e.Client()
}
