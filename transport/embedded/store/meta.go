package store

import (
	"encoding/json"
	"math"
	"strings"
	"time"
)

// meta is what a stream's metadata means for its reads (wire 2.8). The zero
// value hides nothing.
type meta struct {
	maxCount int64
	maxAge   time.Duration
	before   int64           // $tb
	document json.RawMessage // the last document as it was written; nil: none
}

// softDeleted is the $tb that hides everything until the stream is written to.
const softDeleted = math.MaxInt64

func (m *meta) deleted() bool { return m.before == softDeleted }

// parseMeta reads the newest event of a metadata stream. A type error discards
// the whole document, a value out of range only itself.
func parseMeta(e *Event) meta {
	if !e.JSON || len(e.Data) == 0 {
		return meta{}
	}
	m := meta{document: e.Data}
	var doc struct {
		MaxCount     *int64          `json:"$maxCount"`
		MaxAge       *int64          `json:"$maxAge"`
		Before       *int64          `json:"$tb"`
		CacheControl *int64          `json:"$cacheControl"`
		Temp         *bool           `json:"$tmp"`
		ACL          json.RawMessage `json:"$acl"`
	}
	if json.Unmarshal(e.Data, &doc) != nil || !validACL(doc.ACL) {
		return m
	}
	if doc.MaxCount != nil && *doc.MaxCount > 0 {
		m.maxCount = *doc.MaxCount
	}
	if doc.MaxAge != nil && *doc.MaxAge > 0 {
		m.maxAge = time.Duration(min(*doc.MaxAge, math.MaxInt64/int64(time.Second))) * time.Second
	}
	if doc.Before != nil && *doc.Before > 0 {
		m.before = *doc.Before
	}
	return m
}

// validACL reports whether an $acl is an object whose role sets are strings or
// arrays of strings.
func validACL(raw json.RawMessage) bool {
	if raw == nil || string(raw) == "null" {
		return true
	}
	var sets map[string]json.RawMessage
	if json.Unmarshal(raw, &sets) != nil {
		return false
	}
	for _, name := range []string{"$r", "$w", "$d", "$mr", "$mw"} {
		var one string
		var many []string
		if set, ok := sets[name]; ok && json.Unmarshal(set, &one) != nil && json.Unmarshal(set, &many) != nil {
			return false
		}
	}
	return true
}

// withBefore returns the document with another $tb.
func (m *meta) withBefore(number int64) json.RawMessage {
	members := make(map[string]json.RawMessage)
	if json.Unmarshal(m.document, &members) != nil || members == nil {
		members = make(map[string]json.RawMessage)
	}
	b, err := json.Marshal(number)
	if err == nil {
		members["$tb"] = b
		b, err = json.Marshal(members)
	}
	if err != nil {
		panic("store: a map of raw JSON cannot be encoded: " + err.Error())
	}
	return b
}

// metaStream is the name of a stream's metadata stream.
func metaStream(stream string) string { return "$$" + stream }

// described returns the stream that a metadata stream is about.
func described(stream string) (string, bool) { return strings.CutPrefix(stream, "$$") }
