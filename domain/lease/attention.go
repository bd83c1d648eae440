package lease

import "time"

// attention is since when an instance has been able to hear others: as long as
// its own heartbeats are acknowledged. The zero value hears nobody.
type attention struct {
	since time.Time // the unbroken row of acknowledgements began
	acked time.Time // the last one
}

// deaf is the gap between two acknowledgements, one every third of a lease,
// from which on an instance cannot tell others' silence from its own deafness.
func deaf(lease time.Duration) time.Duration { return lease / 2 }

// ack notes an acknowledgement.
func (a *attention) ack(now time.Time, lease time.Duration) {
	if a.acked.IsZero() || now.Sub(a.acked) > deaf(lease) {
		a.since = now
	}
	a.acked = now
}

// silence is how long, up to now, somebody was silent who was last heard at
// heard.
func (a *attention) silence(heard, now time.Time, lease time.Duration) time.Duration {
	if a.acked.IsZero() || now.Sub(a.acked) > deaf(lease) {
		return 0
	}
	if heard.Before(a.since) {
		heard = a.since
	}
	return now.Sub(heard)
}
