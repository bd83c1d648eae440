package eventstore

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/ledger"
)

// act is what a right allows.
type act string

// Acts.
const (
	write    act = "to write to"
	read     act = "to read"
	remove   act = "to delete"
	describe act = "to write the metadata of"
)

// right is a right on a stream.
type right struct {
	act    act
	stream string
}

// group names the streams that are commonly given the same rights.
func (r right) group() string {
	name, _, found := strings.Cut(strings.TrimPrefix(r.stream, "$$"), "-")
	if found {
		return name + "-…"
	}
	if strings.HasPrefix(name, sidePrefix) {
		return sidePrefix + "…"
	}
	return name
}

// password is what is missing where the store does not know us at all.
const password = "everything: the user name or the password is not right, or the user is disabled"

// A right that was refused is asked for again after a time that doubles, since
// each call costs the store a look at the password, a fifth of a second.
const (
	askFirst = 250 * time.Millisecond
	askMost  = 4 * time.Second
)

// manyDenied is from how many streams on, all refused one after the other, that
// the whole group counts as refused.
const manyDenied = 3

// gates keep us from asking again and again for what is refused. Safe for
// concurrent use.
type gates struct {
	log  zerolog.Logger
	busy atomic.Bool // something is shut, or was refused

	mu   sync.Mutex
	shut map[string]*gate
	row  map[string]int // refusals on streams of a group since it was last allowed anything
}

// gate is one right that was refused.
type gate struct {
	name  string // the right, in words
	whole bool   // not only a single stream's
	tries int
	next  time.Time // when it is asked for again
	err   error
}

// gated runs f unless its right was refused a moment ago, and notes what comes
// of it. A refusal becomes a *ledger.DeniedError.
func gated[T any](g *gates, r right, f func() (T, error)) (T, error) {
	if err := g.closed(r); err != nil {
		var none T
		return none, err
	}
	value, err := f()
	return value, g.note(r, err)
}

func keys(r right) (stream, group string) {
	return string(r.act) + " " + r.stream, string(r.act) + " streams " + r.group()
}

// closed is the refusal that stands; nil: ask.
func (g *gates) closed(r right) error {
	if !g.busy.Load() {
		return nil
	}
	stream, group := keys(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range []string{"", group, stream} {
		shut := g.shut[key]
		if shut == nil {
			continue
		}
		if time.Now().Before(shut.next) {
			return &ledger.DeniedError{Right: shut.name, Err: shut.err}
		}
		shut.delay() // whoever comes next waits for this one's answer
	}
	return nil
}

func (s *gate) delay() {
	most := min(askFirst<<min(s.tries, 10), askMost)
	s.tries++
	s.next = time.Now().Add(most/2 + rand.N(most/2))
}

// note keeps what the store said.
func (g *gates) note(r right, err error) error {
	stream, group := keys(r)
	switch faultOf(err) {
	case unauthenticated:
		return g.refuse("", password, true, err)
	case forbidden:
		g.mu.Lock()
		if g.row == nil {
			g.row = make(map[string]int)
		}
		g.row[group]++
		whole := g.row[group] >= manyDenied || r.stream == nobody.Stream()
		g.mu.Unlock()
		if whole {
			return g.refuse(group, "the right "+group, true, err)
		}
		return g.refuse(stream, "the right "+string(r.act)+" stream "+r.stream, false, err)
	case away, late, elsewhere, cut, other:
		return err // says nothing of rights, if it is one
	}
	if g.busy.Load() {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, key := range []string{"", group, stream} {
			if shut := g.shut[key]; shut != nil {
				g.log.Info().Str("right", shut.name).Msg("the store grants it again")
				delete(g.shut, key)
			}
		}
		delete(g.row, group)
		g.busy.Store(len(g.shut)+len(g.row) > 0)
	}
	return err
}

// maxShut bounds what is kept of single streams; past it they are asked for
// each time.
const maxShut = 10_000

func (g *gates) refuse(key, name string, whole bool, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy.Store(true)
	shut := g.shut[key]
	if shut == nil && len(g.shut) < maxShut {
		shut = &gate{name: name, whole: whole}
		g.shut[key] = shut
		shut.delay()
		g.log.Warn().Err(err).Str("right", name).Msg("the store denies us a right; it is asked for again, ever less often")
	}
	if shut != nil {
		shut.err = err
	}
	return &ledger.DeniedError{Right: name, Err: err}
}

// trouble is what the store refuses us on whole; nil: nothing.
func (g *gates) trouble() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []error
	for _, shut := range g.shut {
		if shut.whole {
			all = append(all, &ledger.DeniedError{Right: shut.name, Err: shut.err})
		}
	}
	return errors.Join(all...)
}
