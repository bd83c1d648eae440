package lease

import (
	"context"
	"encoding/json"
	"errors"
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

// The streams of an instance have no dash in their names: a store's standard
// projections link every event of a stream that has one a second time, for ever.

// HeartbeatStream is where an instance's heartbeats are.
func HeartbeatStream(instance string) string { return "runfacts_heartbeat_" + instance }

// Mailbox is the stream where an instance is told what to do with its runs.
func Mailbox(instance string) string { return "runfacts_commands_" + instance }

const (
	wholeEvery   = 20   // heartbeats; the ones between tell what changed
	envelope     = 512  // bytes of a heartbeat beside the runs that it names
	registryKept = 1000 // notes
	beatsKept    = 1000 // notes, if they cannot be trimmed; far more than one whole heartbeat has
	rejoinAfter  = 500  // notes behind one's own joining, before it is trimmed
	leaveTime    = time.Second
)

// member is the data of a registry note.
type member struct {
	Instance string `json:"instance"`
}

// heartbeat is what an instance tells about itself. What does not fit one append
// is told in several; each is a heartbeat by itself, but for a whole one, which
// counts with its last part.
type heartbeat struct {
	Instance  string   `json:"instance"`
	Beat      uint64   `json:"beat"` // of later ones that come earlier, the earlier ones are ignored
	LeaseMS   int64    `json:"lease_ms"`
	Whole     bool     `json:"whole,omitempty"` // Owned and Open are all there are
	Part      int      `json:"part,omitempty"`  // of a whole one in parts: from 1
	Parts     int      `json:"parts,omitempty"`
	GoneOwned []run.ID `json:"gone_owned,omitempty"` // no longer answered for
	GoneOpen  []run.ID `json:"gone_open,omitempty"`
	Owned     []run.ID `json:"owned,omitempty"`
	Open      []run.ID `json:"open,omitempty"`
	Heard     []run.ID `json:"heard,omitempty"` // pushed runs heard of without an event
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
func (l *Leases) beat(ctx context.Context, adopter Adopter) {
	for ctx.Err() == nil {
		began := l.config.Now()
		lapsed, err := l.sendBeat(ctx)
		if ctx.Err() != nil {
			return
		}
		l.config.Observer.Beat(err, l.config.Now().Sub(began))
		pause, kick := l.config.Lease/3, l.kick
		if lapsed {
			adopter.Lapsed()
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

// sendBeat sends one heartbeat, in as many appends as it takes, joining first if
// need be. Lapsed: see acknowledged.
func (l *Leases) sendBeat(ctx context.Context) (lapsed bool, err error) {
	if err := l.join(ctx); err != nil {
		return false, err
	}
	parts, gone := l.compose()
	first := uint64(0)
	for i, h := range parts {
		began := l.config.Now()
		last, err := l.note(ctx, HeartbeatStream(l.config.Instance), note(beatType, h))
		if err != nil {
			return false, fmt.Errorf("heartbeat: %w", err)
		}
		if i == 0 {
			first = last
		}
		if l.acknowledged(h, began) {
			return true, nil
		}
	}
	if !parts[0].Whole {
		return false, nil
	}
	l.toldWhole(gone)
	if first > 1 {
		// What is trimmed is told again in them; if it stays, it only takes room.
		_ = l.config.Side.Trim(ctx, HeartbeatStream(l.config.Instance), first)
	}
	return false, nil
}

// note appends to a side stream. An answer that takes longer than a heartbeat may
// is as good as none.
func (l *Leases) note(ctx context.Context, stream string, n ledger.Note) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, max(l.config.Lease/3, time.Second))
	defer cancel()
	return l.config.Side.Note(ctx, stream, n)
}

// join enters the registry, unless this instance stands there.
func (l *Leases) join(ctx context.Context) error {
	l.mu.Lock()
	joined := l.joined
	l.mu.Unlock()
	if joined {
		return nil
	}
	if !l.bounded {
		l.bounded = l.bound(ctx)
	}
	seq, err := l.note(ctx, Registry, note(joinedType, member{l.config.Instance}))
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

// bound tells the streams how much they keep at most. It is false where that is
// to be tried again; where it is refused they are trimmed, or grow.
func (l *Leases) bound(ctx context.Context) bool {
	for stream, most := range map[string]int{Registry: 2 * registryKept, HeartbeatStream(l.config.Instance): beatsKept} {
		err := l.config.Side.Bound(ctx, stream, most)
		var denied *ledger.DeniedError
		if err != nil && !errors.As(err, &denied) {
			return false
		}
	}
	return true
}

// compose makes the next heartbeat, in parts that fit an append each. A whole one
// leaves out what is gone, and returns it.
func (l *Leases) compose() (parts []heartbeat, gone []key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := l.trimmable >= wholeEvery
	parts = make([]heartbeat, 1)
	room := l.config.MaxAppend - envelope
	name := func(list func(*heartbeat) *[]run.ID, id run.ID) {
		cost := len(id) + len(`"",`)
		if room < cost {
			parts, room = append(parts, heartbeat{}), l.config.MaxAppend-envelope
		}
		room -= cost
		ids := list(&parts[len(parts)-1])
		*ids = append(*ids, id)
	}
	for id := range l.mentions {
		name(func(h *heartbeat) *[]run.ID { return &h.Heard }, id)
	}
	for k := range l.gone {
		switch {
		case whole:
			gone = append(gone, k)
		case k.kind == Owned:
			name(func(h *heartbeat) *[]run.ID { return &h.GoneOwned }, k.id)
		default:
			name(func(h *heartbeat) *[]run.ID { return &h.GoneOpen }, k.id)
		}
	}
	hold := func(k key) {
		if k.kind == Owned {
			name(func(h *heartbeat) *[]run.ID { return &h.Owned }, k.id)
		} else {
			name(func(h *heartbeat) *[]run.ID { return &h.Open }, k.id)
		}
	}
	if whole {
		for k := range l.holds {
			hold(k)
		}
	} else {
		for k := range l.fresh {
			hold(k)
		}
	}
	for i := range parts {
		h := &parts[i]
		l.beats++
		h.Instance, h.Beat, h.LeaseMS, h.Whole = l.config.Instance, l.beats, l.config.Lease.Milliseconds(), whole
		if whole && len(parts) > 1 {
			h.Part, h.Parts = i+1, len(parts)
		}
	}
	return parts, gone
}

// acknowledged notes that h is stored, which was sent at sent. It reports
// whether that came so late that others may have taken this instance for dead:
// then it joins again, and the next heartbeat counts.
func (l *Leases) acknowledged(h heartbeat, sent time.Time) (lapsed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.config.Now()
	l.attention.ack(now, l.config.Lease)
	lapsed = !l.sent.IsZero() && now.Sub(l.sent) >= l.config.Lease
	l.sent = sent
	if lapsed {
		l.joined = false
		return true
	}
	l.trimmable++
	for _, id := range h.GoneOwned {
		delete(l.gone, key{id, Owned})
	}
	for _, id := range h.GoneOpen {
		delete(l.gone, key{id, Open})
	}
	for _, id := range h.Heard {
		delete(l.mentions, id)
	}
	named := make(map[key]struct{}, len(h.Owned)+len(h.Open))
	for _, id := range h.Owned {
		named[key{id, Owned}] = struct{}{}
	}
	for _, id := range h.Open {
		named[key{id, Open}] = struct{}{}
	}
	for k := range named {
		delete(l.fresh, k)
	}
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		_, ok := named[w.key]
		if ok {
			close(w.done)
		}
		return ok
	})
	return false
}

// toldWhole notes that a whole heartbeat is stored, all of its parts; it told of
// what was gone by leaving it out.
func (l *Leases) toldWhole(gone []key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trimmable = 0
	for _, k := range gone {
		delete(l.gone, k) // what was held again since is not in it
	}
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
	for _, stream := range []string{HeartbeatStream(instance), Mailbox(instance)} {
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
