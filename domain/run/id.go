package run

import "fmt"

// ID names a run: 1 to 64 of A-Z a-z 0-9 _ and, not first, -. The zero value
// names none. Only ParseID makes one from foreign text.
type ID string

// ParseID returns text as an ID, or an error that says what is wrong with it.
func ParseID(text string) (ID, error) {
	if len(text) == 0 || len(text) > 64 {
		return "", fmt.Errorf("a run_id has 1 to 64 characters, not %d", len(text))
	}
	for i, c := range []byte(text) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
		if !letter && (c != '-' || i == 0) {
			return "", fmt.Errorf("a run_id is made of A-Z a-z 0-9 _ and, not first, -: character %d is not", i+1)
		}
	}
	return ID(text), nil
}

// Stream is the name of the run's stream in EventStoreDB (category agent_run).
func (id ID) Stream() string { return "agent_run-" + string(id) }

// Seq is the place of an event in its run, from 1. The store gives it at
// commit: it is the stream revision + 1. Zero stands before the first event.
type Seq uint64

// SchemaVersion is the version of the vocabulary that this code writes.
const SchemaVersion = 1
