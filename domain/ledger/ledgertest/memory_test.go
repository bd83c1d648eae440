package ledgertest_test

import (
	"testing"

	"github.com/runfacts/runfacts/domain/ledger/ledgertest"
)

func TestMemory(t *testing.T) {
	ledgertest.Run(t, ledgertest.NewMemory(t), "memory")
}

func TestNotesPassTheSuite(t *testing.T) {
	ledgertest.RunSide(t, ledgertest.NewNotes().For(), "suite")
}
