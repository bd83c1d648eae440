package embedded

import "github.com/runfacts/runfacts/transport/embedded/store"

// Check walks a stopped node's data folder and verifies every event; the error
// names everything that is wrong.
func Check(folder string) (store.Report, error) { return store.Check(folder, nil) }
