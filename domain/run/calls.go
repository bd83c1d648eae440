package run

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/runfacts/runfacts/domain/agent"
)

// call is one tool call, known by its canonical id.
type call struct {
	id          string
	name        string
	arguments   [sha256.Size]byte
	open        bool
	external    bool
	synthesized bool
	result      string // checksum of an external call's answer
	isError     bool   // of an external call's answer
}

// calls pairs starts and results. Models reuse ids, so one id of a runtime
// names a group: the first call goes by the id itself, the next ones by id~2,
// id~3, … in the order of their starts.
type calls struct {
	byID     layered[string, call]
	groups   layered[string, []string] // of ids that name more than one call
	claimed  layered[string, struct{}] // synthesized starts whose real one came
	open     []string                  // canonical ids, oldest first
	cost     int                       // bytes that closing the open ones may take
	external int                       // open calls that somebody outside answers
}

func (c *calls) fork() calls {
	f := *c
	f.byID, f.groups, f.claimed = c.byID.fork(), c.groups.fork(), c.claimed.fork()
	f.open = slices.Clip(c.open) // so that appending copies
	return f
}

func (c *calls) merge(fork calls) {
	c.byID.merge(fork.byID)
	c.groups.merge(fork.groups)
	c.claimed.merge(fork.claimed)
	c.open, c.cost, c.external = fork.open, fork.cost, fork.external
}

// group returns the canonical ids that a runtime's id names, oldest first.
func (c *calls) group(id string) []string {
	if g, ok := c.groups.get(id); ok {
		return g
	}
	if _, ok := c.byID.get(id); ok {
		return []string{id}
	}
	return nil
}

// each returns the calls of a group.
func (c *calls) each(id string) []call {
	var all []call
	for _, canonical := range c.group(id) {
		one, _ := c.byID.get(canonical)
		all = append(all, one)
	}
	return all
}

// next returns the canonical id of another call that a runtime names id.
func (c *calls) next(id string) string {
	n := len(c.group(id)) + 1
	if n == 1 {
		return id
	}
	for {
		canonical := fmt.Sprintf("%s~%d", id, n)
		if _, taken := c.byID.get(canonical); !taken {
			return canonical
		}
		n++
	}
}

// base is next's inverse: the id under which a runtime names the call.
func (c *calls) base(canonical string) string {
	i := strings.LastIndexByte(canonical, '~')
	if i < 0 {
		return canonical
	}
	number := canonical[i+1:]
	if n, err := strconv.ParseUint(number, 10, 32); err != nil || n < 2 || number[0] == '0' || number[0] == '+' {
		return canonical
	}
	if c.group(canonical[:i]) == nil {
		return canonical
	}
	return canonical[:i]
}

// maxOpen is how many calls of a run may be open at once.
const maxOpen = 512

// start folds a tool.call.started.
func (c *calls) start(p *ToolCallStarted) {
	if _, again := c.byID.get(p.ToolCallID); again {
		return
	}
	if base := c.base(p.ToolCallID); base != p.ToolCallID {
		c.groups.set(base, append(slices.Clip(c.group(base)), p.ToolCallID))
	}
	one := call{
		id: p.ToolCallID, name: p.ToolName, arguments: fingerprint(p.Arguments, p.Full.given()),
		open: true, external: p.External, synthesized: p.Synthesized,
	}
	c.byID.set(one.id, one)
	c.open = append(c.open, one.id)
	c.cost += one.cost()
	if one.external {
		c.external++
	}
}

// complete folds a tool.call.completed.
func (c *calls) complete(p *ToolCallCompleted) {
	id := p.ToolCallID
	one, ok := c.byID.get(id)
	if !ok || !one.open {
		return
	}
	one.open = false
	if one.external {
		one.result, one.isError = p.ResultChecksum, p.IsError
	}
	c.byID.set(id, one)
	c.open = slices.DeleteFunc(slices.Clone(c.open), func(o string) bool { return o == id })
	c.cost -= one.cost()
	if one.external {
		c.external--
	}
}

// cost is an upper bound of what the call's synthesized completion takes in an
// append, in bytes: its names and an envelope.
func (c *call) cost() int { return agent.JSONLen(c.id) + agent.JSONLen(c.name) + completionSize }

// completionSize bounds the rest of a synthesized completion.
const completionSize = 256 + envelopeSize

// fingerprint tells arguments apart: by the whole of them, where the event holds
// only their beginning.
func fingerprint(arguments []byte, full *agent.Full) [sha256.Size]byte {
	switch {
	case full != nil:
		return sha256.Sum256([]byte(full.Checksum))
	case arguments == nil: // of a synthesized start; read back they are null
		return sha256.Sum256([]byte("null"))
	}
	return sha256.Sum256(arguments)
}

// repeats reports whether a start only repeats a call that the group holds, and
// which synthesized start it claims, if it does ("" otherwise).
func (c *calls) repeats(id, name string, arguments [sha256.Size]byte, numbered bool) (repeats bool, claims string) {
	for _, one := range c.each(id) {
		same := one.name == name && one.arguments == arguments
		if _, claimed := c.claimed.get(one.id); one.synthesized && !claimed {
			return true, one.id
		}
		if numbered && one.open && same || !numbered && (one.open && one.name == name || same) {
			return true, ""
		}
	}
	return false, ""
}

// oldestOpen returns the call that a result of id and tool name belongs to: the
// oldest open one of both, else the oldest open one of the id.
func (c *calls) oldestOpen(id, name string) (oldest call, open bool) {
	for _, one := range c.each(id) {
		switch {
		case !one.open:
		case one.name == name:
			return one, true
		case !open:
			oldest, open = one, true
		}
	}
	return oldest, open
}

// parent translates a runtime's id of an enclosing call: the newest open call
// of that id, else its newest, else the id as given.
func (c *calls) parent(id string) string {
	all := c.each(id)
	for _, one := range slices.Backward(all) {
		if one.open {
			return one.id
		}
	}
	if len(all) > 0 {
		return all[len(all)-1].id
	}
	return id
}
