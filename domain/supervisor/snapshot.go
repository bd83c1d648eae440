package supervisor

import (
	"context"
	"errors"
	"strings"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// snapshotType is the type of an agent's stored configuration.
const snapshotType = "agent.snapshot"

// ErrNoSnapshot: nothing is stored under that checksum.
var ErrNoSnapshot = errors.New("no such agent snapshot")

const algorithm = "sha256:"

func snapshotStream(checksum string) string {
	return "agent_snapshot-" + strings.TrimPrefix(checksum, algorithm)
}

// keep stores an agent's configuration under its checksum, once.
func (s *Supervisor) keep(ctx context.Context, a Agent) error {
	checksum := run.Checksum(a.Config)
	s.mu.Lock()
	kept := s.kept[checksum]
	s.mu.Unlock()
	if kept {
		return nil
	}
	if err := s.config.Side.Keep(ctx, snapshotStream(checksum), ledger.Note{Type: snapshotType, Data: a.Config}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[checksum] = true
	return nil
}

// Snapshot returns the configuration that is stored under a checksum, byte for
// byte. Errors: ErrNoSnapshot, *ledger.UnavailableError.
func (s *Supervisor) Snapshot(ctx context.Context, checksum string) ([]byte, error) {
	hex, ok := strings.CutPrefix(checksum, algorithm)
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return nil, ErrNoSnapshot
	}
	notes, err := s.config.Side.Notes(ctx, snapshotStream(checksum), 0, 1)
	if err != nil {
		return nil, err
	}
	if len(notes) == 0 || notes[0].Type != snapshotType || run.Checksum(notes[0].Data) != checksum {
		return nil, ErrNoSnapshot
	}
	return notes[0].Data, nil
}
