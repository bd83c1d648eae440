// Package run holds what is true of runs: the canonical events and their
// envelope, the fold of a run's events into a State, and the Adapter, which
// decides what facts an AgentEvent adds (Decide). It promises that every call
// is paired, that nothing follows a terminal event, and that folding a log in
// which deltas were merged gives what folding the unmerged one gives.
//
// Everything here is pure: no I/O, no clock, no randomness, no log. Times and
// nonces come in as arguments.
//
//	AgentEvent ── Admit, Decide ──▶ Candidates ── Join, Seal ──▶ Events ── Apply ──▶ State
package run
