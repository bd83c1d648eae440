package agent

import (
	"encoding/json"
	"fmt"
	"regexp"
)

// maxUsage bounds a report of a model's use, in bytes: it goes into the event's
// own line, beside its value.
const maxUsage = 2 << 10

// decimal is how a cost is written: a decimal number, in a string.
var decimal = regexp.MustCompile(`^"[0-9]{1,15}(\.[0-9]{1,15})?"$`)

// usage checks the members of a report that have a meaning: what a model's use
// counts, as an increment. The others are kept.
func (g *gate) usage(raw *json.RawMessage) {
	if *raw == nil {
		return
	}
	g.raw("usage", raw)
	members := g.object("usage", *raw)
	if len(*raw) > maxUsage {
		g.fail("usage", fmt.Sprintf("must not be longer than %d bytes", maxUsage))
	}
	inner := decoder{kind: g.kind, members: members}
	for _, name := range []string{"model", "provider"} {
		inner.str(name, optional)
	}
	for _, name := range []string{"input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"} {
		inner.count(name)
	}
	if inner.has("cost_usd") && !decimal.Match(members["cost_usd"]) {
		inner.fail("cost_usd", `must be a decimal in a string, such as "0.0123"`)
	}
	g.inside("usage", inner.err)
}
