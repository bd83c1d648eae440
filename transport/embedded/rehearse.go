package embedded

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rehearsal is what a node does on purpose that a real one may do, at its
// worst: for testing clients, ours among them. The zero value does nothing.
// What is chosen at random follows from the seed, each behaviour by itself, as
// far as the order of calls does.
type Rehearsal struct {
	text string // as it was given

	seed      uint64
	readLag   span     // an append is acknowledged at once and can be read this much later
	pages     numbers  // events of a page that is read from the store
	caughtUp  bool     // CaughtUp carries what later servers put there
	behind    int      // one event in n of a subscription is preceded by FellBehind, and followed by CaughtUp
	silent    int      // one append in n is never answered, stored or not
	late      span     // an answer comes this much later …
	lateEvery int      // … one append in n
	cut       numbers  // a connection breaks in the middle of a message after so many bytes
	notLeader int      // one call in n that wants the leader is sent away
	leader    string   // to whom; "": every other time nobody, else this node
	election  window   // there is no leader
	noQuorum  window   // appends wait, and are stored when it is over, even if nobody waits for them
	denials   []denial // rights that are refused
	maxAppend int      // bytes of one append: data, metadata and two a character of the type
	version   string   // that the node says it has
	slowAuth  time.Duration
	split     bool // the commit and the prepare position of an event differ, and neither is a count
	sparse    int  // a system event of the node's own follows one append in n
	setBack   uint64
}

// Worst is every behaviour at once, each at a strength that a client with ten
// seconds' patience has to bear.
const Worst = "worst"

const worst = "seed=1,read-lag=0..200ms,page-size=1..64,caughtup-fields,fellbehind=10,no-answer=400,late-answer=0..700ms/20," +
	"cut=20000..4000000,not-leader=150,election=700ms/23s,no-quorum=1500ms/41s,denied=w:agent_run-/1s/31s,max-append=1048576," +
	"version=24.10.0,slow-auth=1ms,commit-not-prepare,sparse=5,set-back=20"

// span is a length of time between two bounds, written 10ms or 0..200ms.
type span struct{ from, to time.Duration }

// numbers is a number between two bounds, written 5 or 1..64.
type numbers struct{ from, to int }

// window is a time that comes once, at the rehearsal's beginning, or at the end
// of every period; written 5s or 700ms/20s.
type window struct{ length, every time.Duration }

// open is for how much longer the window is open, so long after the beginning.
func (w window) open(after time.Duration) time.Duration {
	if w.every == 0 {
		return w.length - after
	}
	if rest := w.every - after%w.every; rest <= w.length {
		return rest
	}
	return 0
}

// denial refuses rights on the streams that begin with a prefix: r to read, w
// to write, d to delete, m to write metadata; a refuses the password itself,
// whatever the stream. Written rwdm:agent_run-, with a window behind it if it
// passes.
type denial struct {
	rights, prefix string
	window         window // zero: for ever
}

// ParseRehearsal reads a list of behaviours, "worst" among them: what follows
// it changes what it says. Errors name every item that is wrong.
func ParseRehearsal(text string) (Rehearsal, error) {
	r := Rehearsal{text: text, seed: 1}
	var faults []error
	list := strings.Split(text, ",")
	if list[0] == Worst {
		list = append(strings.Split(worst, ","), list[1:]...)
	}
	for _, item := range list {
		key, value, valued := strings.Cut(strings.TrimSpace(item), "=")
		if key == "" && !valued {
			continue
		}
		set, known := behaviours[key]
		if !known {
			faults = append(faults, fmt.Errorf("there is no behaviour %q", key))
			continue
		}
		if err := set(&r, value); err != nil {
			faults = append(faults, fmt.Errorf("%s=%s: %w", key, value, err))
		}
	}
	return r, errors.Join(faults...)
}

// behaviours are all that can be rehearsed, by name.
var behaviours = map[string]func(*Rehearsal, string) error{
	"seed":               func(r *Rehearsal, v string) (err error) { r.seed, err = strconv.ParseUint(v, 10, 64); return err },
	"read-lag":           func(r *Rehearsal, v string) (err error) { r.readLag, err = parseSpan(v); return err },
	"page-size":          func(r *Rehearsal, v string) (err error) { r.pages, err = parseNumbers(v); return err },
	"caughtup-fields":    func(r *Rehearsal, v string) error { return parseFlag(v, &r.caughtUp) },
	"fellbehind":         func(r *Rehearsal, v string) error { return parseCount(v, &r.behind) },
	"no-answer":          func(r *Rehearsal, v string) error { return parseCount(v, &r.silent) },
	"late-answer":        func(r *Rehearsal, v string) (err error) { r.late, r.lateEvery, err = parseLate(v); return err },
	"cut":                func(r *Rehearsal, v string) (err error) { r.cut, err = parseNumbers(v); return err },
	"not-leader":         func(r *Rehearsal, v string) error { return parseCount(v, &r.notLeader) },
	"leader":             func(r *Rehearsal, v string) error { r.leader = v; return nil },
	"election":           func(r *Rehearsal, v string) (err error) { r.election, err = parseWindow(v); return err },
	"no-quorum":          func(r *Rehearsal, v string) (err error) { r.noQuorum, err = parseWindow(v); return err },
	"denied":             func(r *Rehearsal, v string) error { return r.deny(v) },
	"max-append":         func(r *Rehearsal, v string) error { return parseCount(v, &r.maxAppend) },
	"version":            func(r *Rehearsal, v string) error { r.version = v; return nil },
	"slow-auth":          func(r *Rehearsal, v string) (err error) { r.slowAuth, err = time.ParseDuration(v); return err },
	"commit-not-prepare": func(r *Rehearsal, v string) error { return parseFlag(v, &r.split) },
	"sparse":             func(r *Rehearsal, v string) error { return parseCount(v, &r.sparse) },
	"set-back":           func(r *Rehearsal, v string) (err error) { r.setBack, err = strconv.ParseUint(v, 10, 32); return err },
}

// String is what the rehearsal was read from.
func (r Rehearsal) String() string { return r.text }

func (r *Rehearsal) deny(text string) (err error) {
	d := denial{}
	what, when, passes := strings.Cut(text, "/")
	if passes {
		if d.window, err = parseWindow(when); err != nil {
			return err
		}
	}
	d.rights, d.prefix, _ = strings.Cut(what, ":")
	if d.rights == "" || strings.Trim(d.rights, "rwdma") != "" {
		return errors.New("the rights are letters of rwdma, then a colon and a prefix of streams")
	}
	r.denials = append(r.denials, d)
	return nil
}

func parseFlag(text string, flag *bool) error {
	*flag = true
	if text != "" {
		return errors.New("it has no value")
	}
	return nil
}

// parseCount reads n of "one in n", or a number of bytes.
func parseCount(text string, n *int) (err error) {
	if *n, err = strconv.Atoi(text); err == nil && *n < 1 {
		err = errors.New("it must be positive")
	}
	return err
}

func parseLate(text string) (s span, every int, err error) {
	length, count, counted := strings.Cut(text, "/")
	if every = 1; counted {
		if err := parseCount(count, &every); err != nil {
			return s, every, err
		}
	}
	s, err = parseSpan(length)
	return s, every, err
}

func parseSpan(text string) (s span, err error) {
	from, to, two := strings.Cut(text, "..")
	if !two {
		to = from
	}
	if s.to, err = time.ParseDuration(to); err != nil {
		return s, err
	}
	if two && from == "0" {
		return s, nil
	}
	if s.from, err = time.ParseDuration(from); err == nil && (s.from < 0 || s.to < s.from) {
		err = errors.New("it must rise")
	}
	return s, err
}

func parseNumbers(text string) (n numbers, err error) {
	from, to, two := strings.Cut(text, "..")
	if !two {
		to = from
	}
	if err := parseCount(from, &n.from); err != nil {
		return n, err
	}
	if err = parseCount(to, &n.to); err == nil && n.to < n.from {
		err = errors.New("it must rise")
	}
	return n, err
}

func parseWindow(text string) (w window, err error) {
	length, every, repeated := strings.Cut(text, "/")
	if w.length, err = time.ParseDuration(length); err != nil || !repeated {
		return w, err
	}
	if w.every, err = time.ParseDuration(every); err == nil && w.every <= w.length {
		err = errors.New("the period must be longer than what it repeats")
	}
	return w, err
}
