// Package sandbox runs an agent as a command under bubblewrap: without network
// unless it is given, on a read-only system, with folders of its own that are file
// systems in memory with a size and a number of files, without capabilities,
// bounded in memory, processes and output.
//
// Memory is held by a cgroup where this process may make one, else by limits on
// each process, a filter on calls that take memory which nothing counts, and a
// look at the rest ten times a second.
//
// What it leaves in /output becomes artifacts when it has ended. Nothing of it is
// on this machine's disk, and nothing is left of it when this process dies.
//
// The run's input is the command's standard input. Its standard output is NDJSON
// AgentEvents, or plain text. Its standard error goes to the log, and its end into
// the error when it fails. It is stopped by SIGTERM, then by the death of its
// process namespace, which ends the whole tree; that is the proof.
package sandbox

// Config is one agent's sandbox. The zero values of the bounds are not usable:
// the configuration's reader fills them in.
type Config struct {
	Command   []string          // as the sandbox sees it
	Mounts    []Mount           // beside the system
	Env       map[string]string // of the command
	Secrets   map[string]string // as Env, and kept out of logs and errors
	Network   Network
	Text      bool  // standard output is text, not AgentEvents
	Memory    int64 // bytes of all its processes and of its files together
	Disk      int64 // bytes of each of /output, /work, /tmp and /dev/shm, which are held in memory
	Processes int   // at once
	Output    int64 // bytes of standard output

	MaxArtifact int64 // bytes of one file in /output
}

// Mount shows a file or folder of this machine in the sandbox.
type Mount struct {
	Source, Target string
	Writable       bool
}

// Network is what a sandbox sees of the network.
type Network int

// The networks that there are.
const (
	NoNetwork   Network = iota // nothing, loopback is its own
	OwnNetwork                 // the outside, by a user-mode stack; no port of this machine's loopback
	HostNetwork                // all that this machine sees, its loopback too
)
