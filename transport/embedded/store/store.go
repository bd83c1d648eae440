package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"

	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
)

// maxGroup bounds what one synced write takes, in bytes of records: what waits
// beyond it makes the next one.
const maxGroup = 8 << 20

// Store is the node's storage. Reads are safe for concurrent use from Open to
// Close; writes need Run to be running.
type Store struct {
	db  *pebble.DB
	log zerolog.Logger

	writes  chan *write
	between chan func()   // runs between two writes
	stopped chan struct{} // closed when Run has ended
	failed  atomic.Pointer[UnwritableError]

	heads heads
	feed  feed

	// The committer's own:
	recent   *recent
	nextID   uint64
	position uint64

	committed atomic.Uint64 // the last position that readers may see
}

// Open opens the store in a folder, and makes it where there is none. A folder
// that another process uses is refused. fs is the file system; nil: the disk.
func Open(folder string, fs vfs.FS, log zerolog.Logger) (*Store, error) {
	return open(folder, fs, log, false)
}

func open(folder string, fs vfs.FS, log zerolog.Logger, readOnly bool) (*Store, error) {
	if fs == nil && readOnly {
		fs = vfs.Default
	}
	if fs == nil {
		fs = vfs.Default
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Store{
		log: log, writes: make(chan *write), between: make(chan func()), stopped: make(chan struct{}),
		heads: heads{known: make(map[string]*head)}, recent: newRecent(),
	}
	options := &pebble.Options{
		FS:           fs,
		Logger:       pebbleLog{s},
		ReadOnly:     readOnly,
		MemTableSize: 32 << 20,
		// Heads are looked up by name, most often of streams that do not exist
		// yet: the filter answers those without touching a table.
		Levels: [7]pebble.LevelOptions{0: {FilterPolicy: bloom.FilterPolicy(10)}},
	}
	options.EnsureDefaults()
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	cache := pebble.NewCache(64 << 20)
	defer cache.Unref()
	options.Cache = cache
	db, err := pebble.Open(folder, options)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s (is another process using it?): %w", folder, err)
	}
	s.db = db
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store in %s: %w", folder, err), db.Close())
	}
	return s, nil
}

// recover finds where the log ended.
func (s *Store) recover() error {
	s.nextID = 1
	value, closer, err := s.db.Get(nextIDKey)
	if err == nil {
		id, _, ok := unpair(value)
		closer.Close()
		if !ok {
			return &CorruptError{Key: nextIDKey}
		}
		s.nextID = id
	} else if !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	s.position, err = s.lastPosition()
	s.committed.Store(s.position)
	return err
}

// Failed tells why the store takes no writes any more; nil: it does.
func (s *Store) Failed() error {
	if failed := s.failed.Load(); failed != nil {
		return failed
	}
	return nil
}

// Close ends the store. Run must have ended, and reads too.
func (s *Store) Close() error { return s.db.Close() }

// Run commits what is written until ctx ends; what waits then gets ErrStopped.
func (s *Store) Run(ctx context.Context) error {
	defer close(s.stopped)
	if s.position == 0 {
		s.commit(s.founding())
	}
	for {
		select {
		case w := <-s.writes:
			s.commit(w)
		case do := <-s.between:
			do()
		case <-ctx.Done():
			return nil
		}
	}
}

// founding is what a fresh node writes by itself (wire 7). It also keeps
// position 0 free, which means the beginning.
func (s *Store) founding() *write {
	document := `{"$maxAge":2592000,"$acl":{"$r":"$ops","$w":[],"$d":[],"$mr":[],"$mw":[]}}`
	return &write{
		ctx: context.Background(), stream: metaStream("$scavenges"), expected: Any, done: make(chan answer, 1),
		events: []Proposed{{ID: s.newID(), Type: MetadataType, JSON: true, Data: []byte(document)}},
	}
}

// commit takes first and everything that waits behind it.
func (s *Store) commit(first *write) {
	if failed := s.failed.Load(); failed != nil {
		first.done <- answer{err: failed}
		return
	}
	g := s.newGroup()
	defer g.batch.Close()
	var taken []*write
	var answers []answer
	// On a busy machine other writes are on their way: one sync for all of them
	// costs what one for each would. On an idle machine this costs nothing.
	runtime.Gosched()
	for w, more := first, true; more; {
		if w.ctx.Err() == nil {
			result, err := g.apply(w)
			taken, answers = append(taken, w), append(answers, answer{result, err})
			if err != nil && !refusal(err) {
				s.fail(taken, answers, err)
				return
			}
		}
		if more = g.size < maxGroup; more {
			select {
			case w = <-s.writes:
			default:
				more = false
			}
		}
	}
	if len(g.events) > 0 {
		if err := s.sync(g); err != nil {
			s.fail(taken, answers, err)
			return
		}
		s.publish(g)
	}
	for i, w := range taken {
		w.done <- answers[i]
	}
}

// refusal reports whether an error is an answer about the write, not about the
// disk.
func refusal(err error) bool {
	var wrong *WrongVersionError
	var deleted *DeletedError
	return errors.As(err, &wrong) || errors.As(err, &deleted)
}

// fail answers a whole group: nothing of it is stored.
func (s *Store) fail(taken []*write, answers []answer, err error) {
	failure := &UnwritableError{err}
	s.recent = newRecent() // it may name what is not stored
	s.log.Error().Err(err).Msg("write failed")
	for i, w := range taken {
		if answers[i].err == nil || !refusal(answers[i].err) {
			answers[i].err = failure
		}
		w.done <- answers[i]
	}
}

// sync makes the group durable.
func (s *Store) sync(g *group) (err error) {
	defer func() {
		// Pebble ends the process on a commit error; pebbleLog makes that a panic.
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			// How much of the batch is on disk is not known now: no write may
			// follow it in this process.
			s.failed.Store(&UnwritableError{err})
		}
	}()
	return g.batch.Commit(pebble.Sync)
}

// publish shows the group to readers and subscribers, in this order: whoever
// is woken can read.
func (s *Store) publish(g *group) {
	s.position, s.nextID = g.position, g.nextID
	s.heads.replace(g.heads)
	s.committed.Store(g.position)
	s.feed.publish(g.events)
}

// now is the store's clock in 100 ns ticks since the Unix epoch.
func (s *Store) now() int64 { return time.Now().UnixNano() / 100 }

// newID is a random UUID (version 4) for events that the store writes itself.
func (s *Store) newID() (id ID) {
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// pebbleLog carries Pebble's own messages.
type pebbleLog struct{ s *Store }

func (l pebbleLog) Infof(format string, args ...any)  { l.s.log.Trace().Msgf(format, args...) }
func (l pebbleLog) Errorf(format string, args ...any) { l.s.log.Error().Msgf(format, args...) }

// Fatalf must not return (pebble.Logger). A process that serves reads is worth
// more than none: writes end, reads go on.
func (l pebbleLog) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.s.failed.Store(&UnwritableError{err})
	panic(err)
}
