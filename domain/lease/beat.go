package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/runfacts/runfacts/domain/ledger"
	"github.com/runfacts/runfacts/domain/run"
)

// Registry is the stream that tells who joined and who left.
const Registry = "runfacts_instances"

// Types of the notes.
const (
	joinedType = "instance.joined"
	leftType   = "instance.left"
	beatType   = "instance.heartbeat"
)

// HeartbeatStream is where an instance's heartbeats are.
func HeartbeatStream(instance string) string { return "runfacts_heartbeat-" + instance }

// CommandStream is where an instance is told what to do with its runs.
func CommandStream(instance string) string { return "runfacts_commands-" + instance }

const (
	wholeEvery   = 20   // heartbeats; the ones between tell what changed
	beside       = 1000 // runs in a heartbeat's gone, and in its heard
	registryKept = 1000 // notes
	rejoinAfter  = 500  // notes behind one's own joining, before it is trimmed
	leaveTime    = time.Second
)

// member is the data of a registry note.
type member struct {
	Instance string `json:"instance"`
}

// heartbeat is what an instance tells about itself.
type heartbeat struct {
	Instance string   `json:"instance"`
	Beat     uint64   `json:"beat"` // of later ones that come earlier, the earlier ones are ignored
	LeaseMS  int64    `json:"lease_ms"`
	Whole    bool     `json:"whole,omitempty"` // Owned and Open are all there are
	Gone     []run.ID `json:"gone,omitempty"`  // no longer answered for
	Owned    []run.ID `json:"owned,omitempty"`
	Open     []run.ID `json:"open,omitempty"`
	Heard    []run.ID `json:"heard,omitempty"` // pushed runs heard of without an event
}

func note(kind string, data any) ledger.Note {
	b, err := json.Marshal(data)
	if err != nil { // strings and numbers only
		panic("lease: " + err.Error())
	}
	return ledger.Note{Type: kind, Data: b}
}

// beat sends heartbeats until ctx ends: every third of a lease, and at once
// when somebody waits for one.
func (l *Leases) beat(ctx context.Context, heir Heir) {
	for ctx.Err() == nil {
		began := l.config.Now()
		absent, err := l.sendBeat(ctx, began)
		if ctx.Err() != nil {
			return
		}
		l.config.Observer.Beat(err, l.config.Now().Sub(began))
		pause, kick := l.config.Lease/3, l.kick
		if absent {
			heir.Absent()
			pause = 0
		}
		if err != nil {
			pause, kick = min(l.config.Lease/10, time.Second), nil
		}
		timer := time.NewTimer(max(0, pause-l.config.Now().Sub(began)))
		select {
		case <-timer.C:
		case <-kick:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// sendBeat sends one heartbeat, joining first if need be. Absent: see acknowledged.
func (l *Leases) sendBeat(ctx context.Context, now time.Time) (absent bool, err error) {
	// An answer that takes longer than this is as good as none.
	ctx, cancel := context.WithTimeout(ctx, max(l.config.Lease/3, time.Second))
	defer cancel()
	if err := l.join(ctx); err != nil {
		return false, err
	}
	h := l.compose()
	last, err := l.config.Side.Note(ctx, HeartbeatStream(l.config.Instance), note(beatType, h))
	if err != nil {
		return false, fmt.Errorf("heartbeat: %w", err)
	}
	absent = l.acknowledged(h, now)
	if h.Whole && last > 1 {
		// What is trimmed is told again in h; if it stays, it only takes room.
		_ = l.config.Side.Trim(ctx, HeartbeatStream(l.config.Instance), last)
	}
	return absent, nil
}

// join enters the registry, unless this instance stands there.
func (l *Leases) join(ctx context.Context) error {
	l.mu.Lock()
	joined := l.joined
	l.mu.Unlock()
	if joined {
		return nil
	}
	seq, err := l.config.Side.Note(ctx, Registry, note(joinedType, member{l.config.Instance}))
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	l.mu.Lock()
	l.joined, l.joinSeq, l.trimmable = true, seq, wholeEvery
	l.mu.Unlock()
	if seq > registryKept {
		_ = l.config.Side.Trim(ctx, Registry, seq-registryKept) // the next to join does it as well
	}
	return nil
}

// compose makes the next heartbeat.
func (l *Leases) compose() heartbeat {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats++
	h := heartbeat{Instance: l.config.Instance, Beat: l.beats, LeaseMS: l.config.Lease.Milliseconds()}
	h.Whole = l.trimmable >= wholeEvery
	h.Heard, h.Gone = some(l.mentions), some(l.gone)
	name := func(id run.ID) {
		if l.holds[id].kind == Owned {
			h.Owned = append(h.Owned, id)
		} else {
			h.Open = append(h.Open, id)
		}
	}
	if h.Whole {
		for id := range l.holds {
			name(id)
		}
		return h
	}
	for id := range l.fresh {
		name(id)
	}
	return h
}

// some returns as many runs as a heartbeat tells of beside those it names; the
// others wait for the next.
func some(set map[run.ID]struct{}) (ids []run.ID) {
	for id := range set {
		if ids = append(ids, id); len(ids) == beside {
			break
		}
	}
	return ids
}

// acknowledged notes that h is stored, which was sent at sent. It reports
// whether that came so late that others may have taken this instance for dead:
// then it joins again, and the next heartbeat counts.
func (l *Leases) acknowledged(h heartbeat, sent time.Time) (absent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.config.Now()
	l.attention.ack(now, l.config.Lease)
	absent = !l.sent.IsZero() && now.Sub(l.sent) >= l.config.Lease
	l.sent = sent
	if absent {
		l.joined = false
		return true
	}
	l.trimmable++
	if h.Whole {
		l.trimmable = 0
	}
	for _, id := range h.Gone {
		delete(l.gone, id)
	}
	for _, id := range h.Heard {
		delete(l.mentions, id)
	}
	named := make(map[run.ID]struct{}, len(h.Owned)+len(h.Open))
	for _, id := range slices.Concat(h.Owned, h.Open) {
		named[id] = struct{}{}
		delete(l.fresh, id)
	}
	l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool {
		_, ok := named[w.id]
		if ok {
			close(w.done)
		}
		return ok
	})
	return false
}

// leave tells the others, if nothing is left here that they have to care for.
// Otherwise they find out by the lease.
func (l *Leases) leave() {
	l.mu.Lock()
	held := len(l.holds)
	l.mu.Unlock()
	if held > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if last, err := l.config.Side.Note(ctx, Registry, note(leftType, member{l.config.Instance})); err == nil && last > 0 {
		l.clean(ctx, l.config.Instance)
	}
}

// clean deletes an instance's streams.
func (l *Leases) clean(ctx context.Context, instance string) {
	for _, stream := range []string{HeartbeatStream(instance), CommandStream(instance)} {
		for after := uint64(0); ; {
			notes, err := l.config.Side.Notes(ctx, stream, after, 1000)
			if err != nil {
				return // it stays, and takes a little room
			}
			if len(notes) > 0 {
				after = notes[len(notes)-1].Seq
				continue
			}
			if after > 0 {
				_ = l.config.Side.Drop(ctx, stream, after)
			}
			break
		}
	}
}
