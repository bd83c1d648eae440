package embedded

import (
	"math"
	"strings"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/dlclark/regexp2"

	"github.com/runfacts/runfacts/transport/embedded/store"
)

// matchTime bounds one match of a client's expression, which may backtrack.
const matchTime = time.Second

// defaultWindow is the search window where a client names none.
const defaultWindow = 32

// filter chooses events of $all (wire 4). nil lets everything pass that is not hidden.
type filter struct {
	byType   bool // else by stream
	prefixes []string
	pattern  *regexp2.Regexp // wins over the prefixes
	window   uint64          // events looked at a time
	interval uint64          // events looked at between checkpoints
}

func newFilter(o *streams.ReadReq_Options_FilterOptions, subscription bool) (*filter, error) {
	f := &filter{byType: o.GetEventType() != nil, window: defaultWindow}
	expression := o.GetStreamIdentifier()
	if f.byType {
		expression = o.GetEventType()
	}
	if expression == nil || o.GetWindow() == nil {
		return nil, invalidRead("The combination of options is invalid.")
	}
	if o.GetMax() > 0 {
		f.window = uint64(o.GetMax())
	}
	if subscription && o.GetCheckpointIntervalMultiplier() == 0 {
		return nil, handlerThrew()
	}
	f.interval = f.window
	if m := uint64(o.GetCheckpointIntervalMultiplier()); m > 0 && f.window < math.MaxUint64/m {
		f.interval = f.window * m
	}
	f.prefixes = expression.GetPrefix()
	if expression.GetRegex() != "" {
		// .NET's syntax: clients send look-aheads by default.
		pattern, err := regexp2.Compile(expression.GetRegex(), regexp2.None)
		if err != nil {
			return nil, handlerThrew()
		}
		pattern.MatchTimeout = matchTime
		f.pattern = pattern
	}
	return f, nil
}

// hidden reports whether $all never shows a stream (wire 2.6): what the server
// keeps there for itself.
func hidden(stream string) bool {
	return stream == "$epoch-information" || strings.HasPrefix(stream, "$persistentsubscription-$all::") &&
		(strings.HasSuffix(stream, "-checkpoint") || strings.HasSuffix(stream, "-parked"))
}

func (f *filter) match(e *store.Event) bool {
	if hidden(e.Stream) {
		return false
	}
	if f == nil {
		return true
	}
	text := e.Stream
	if f.byType {
		text = e.Type
	}
	if f.pattern != nil {
		ok, err := f.pattern.MatchString(text)
		return ok && err == nil
	}
	for _, prefix := range f.prefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// of returns those of a page that pass.
func (f *filter) of(events []*store.Event) []*store.Event {
	var passed []*store.Event
	for _, e := range events {
		if f.match(e) {
			passed = append(passed, e)
		}
	}
	return passed
}
