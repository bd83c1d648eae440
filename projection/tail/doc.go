// Package tail shows the committed events of runs to viewers, replayed and
// live.
//
// One catch-up subscription per followed run feeds all its viewers. A viewer
// pulls: it reads at its own position, from the run's ring of recent frames, or
// from the store when it is behind that, a page at a time. Hints wake it; hints
// may merge, positions may not. So every viewer sees each event behind its
// position once, in order, and a gap is an error; a slow one holds up nobody
// and holds no more memory than a page.
//
// The hand-over has no hole: a tail begins behind an event h that was read at
// the leader, subscribes after h, and its ring holds (h, now]; whoever is below
// reads the store up to there and goes on in the ring, all by number.
package tail
