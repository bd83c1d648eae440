package run

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// messageRole is the only role that a runtime's own text has.
const messageRole = "assistant"

// draft collects one decision.
type draft struct {
	state       *State
	message     string // the open message's id, as it will be
	at          time.Time
	trace, span string
	request     string
	source      *Source
	limit       int
	products    int // artifacts in out
	out         Decision
}

func (d *draft) candidate(p Payload) Candidate {
	return Candidate{OccurredAt: d.at, TraceID: d.trace, SpanID: d.span, RequestID: d.request, Payload: p}
}

func (d *draft) add(p Payload) { d.out.Candidates = append(d.out.Candidates, d.candidate(p)) }

func (d *draft) size() (n int) {
	for i := range d.out.Candidates {
		n += d.out.Candidates[i].Size(d.state)
	}
	return n
}

func (d *draft) openMessage() {
	if d.message == "" {
		d.message = fmt.Sprintf("message_%d", d.state.messages+1)
		d.add(&MessageStarted{MessageID: d.message, Role: messageRole})
	}
}

func (d *draft) delta(e *agent.Event) {
	d.openMessage()
	p := MessageDelta{MessageID: d.message, BlockID: e.BlockID, Block: e.Block, Author: e.Author}
	if e.BlockType != agent.Text {
		p.BlockType = e.BlockType
	}
	if e.ParentToolCallID != "" {
		p.ParentToolCallID = d.state.calls.parent(e.ParentToolCallID)
	}
	if d.state.message != "" {
		p.ContentIndex = d.state.blocks.place(blockKey{p.BlockID, p.BlockType}, e.Structured(), d.state.text.floor)
	}
	if e.Full != nil {
		p.Block = json.RawMessage("null")
		p.Full = d.keep(e.Full, "block "+e.BlockType)
	}
	for rest := e.Content.String(); ; {
		piece := p
		piece.Delta = agent.JSONBeginning(rest, maxJoined)
		rest = rest[len(piece.Delta):]
		if rest == "" {
			piece.Usage = e.Usage
		}
		d.add(&piece)
		if rest == "" {
			return
		}
	}
}

func (d *draft) toolCall(e *agent.Event) error {
	c := &d.state.calls
	repeats, claims := c.repeats(e.ToolCallID, e.ToolName, fingerprint(e.ToolArgs, e.Full), e.ProducerSeq != 0)
	if d.out.claims = claims; repeats {
		return nil
	}
	p := &ToolCallStarted{
		MessageID: d.message, ToolCallID: c.next(e.ToolCallID), ToolName: e.ToolName,
		Arguments: e.ToolArgs, External: e.External,
	}
	p.Full = d.keep(e.Full, "arguments of "+p.ToolCallID)
	if e.ParentToolCallID != "" {
		p.ParentToolCallID = c.parent(e.ParentToolCallID)
	}
	d.add(p)
	return d.mayOpen(&call{id: p.ToolCallID, name: p.ToolName})
}

// mayOpen judges one more open call: whatever is open must fit the append that
// ends the run.
func (d *draft) mayOpen(one *call) error {
	c, bare := &d.state.calls, Candidate{}
	texts := (len(c.open) + 1) * (bare.envelope(d.state) - envelopeSize)
	if len(c.open) >= maxOpen || c.cost+one.cost()+texts > d.limit/4*3 {
		return &TooManyCallsError{d.state.RunID, len(c.open)}
	}
	return nil
}

func (d *draft) toolResult(e *agent.Event) {
	c := &d.state.calls
	known, open := c.oldestOpen(e.ToolCallID, e.ToolName)
	if !open {
		if c.group(e.ToolCallID) != nil {
			return // a second result
		}
		known = call{id: e.ToolCallID}
		d.add(&ToolCallStarted{MessageID: d.message, ToolCallID: known.id, ToolName: e.ToolName, Synthesized: true})
	}
	name := e.ToolName
	if name == "" {
		name = known.name
	}
	d.complete(&ToolCallCompleted{ToolCallID: known.id, ToolName: name, Result: e.ToolResult, IsError: e.IsError, Usage: e.Usage}, e.Full)
}

// complete adds a call's result, and returns its checksum.
func (d *draft) complete(p *ToolCallCompleted, full *agent.Full) string {
	if len(p.Result) == 0 {
		p.Result = json.RawMessage("null")
	}
	p.MessageID, p.ResultChecksum = d.message, Checksum(p.Result)
	if p.Result[0] == '"' {
		text := unquote(p.Result)
		p.Result, p.ResultChecksum = appendString(nil, text), Checksum([]byte(text))
	}
	if p.Full = d.keep(full, "result of "+p.ToolCallID); full != nil {
		p.ResultChecksum = full.Checksum
	}
	d.add(p)
	return p.ResultChecksum
}

func (d *draft) artifact(e *agent.Event) {
	p := &ArtifactCreated{MessageID: d.message}
	for _, m := range members(e.Artifact) {
		switch m.Key {
		case "artifact_id":
			if string(m.Value) != "null" {
				p.ArtifactID = unquote(m.Value)
			}
		case "message_id": // ours
		default:
			p.Members = append(p.Members, m)
		}
	}
	if p.ArtifactID == "" {
		p.ArtifactID = d.nextArtifact()
		if e.Stored && !slices.ContainsFunc(p.Members, func(m Member) bool { return m.Key == "url" }) {
			p.Members = append(p.Members, d.location(p.ArtifactID))
		}
	}
	d.products++
	if full := d.keep(e.Full, "members of "+p.ArtifactID); full != nil {
		c := codec{out: newObject(128)}
		full.fields(&c)
		p.Members = append(p.Members, Member{"truncated", []byte("true")}, Member{"full", c.out.close()})
	}
	d.add(p)
}

// nextArtifact is an id that no artifact of the run has.
func (d *draft) nextArtifact() string {
	for n := d.state.products + d.products + 1; ; n++ {
		id := fmt.Sprintf("artifact_%d", n)
		if _, taken := d.state.artifacts.get(id); !taken {
			return id
		}
	}
}

// location is where the API serves an artifact whose id needs no escaping.
func (d *draft) location(id string) Member {
	return Member{"url", appendString(nil, "/api/agent-runs/"+string(d.state.RunID)+"/artifacts/"+id)}
}

// keep adds the artifact that holds a whole value, and returns what the value's
// event says of it; nil where the value is whole itself.
func (d *draft) keep(full *agent.Full, name string) *Full {
	if full == nil {
		return nil
	}
	p := &ArtifactCreated{MessageID: d.message, ArtifactID: d.nextArtifact()}
	p.Members = []Member{
		{"name", appendString(nil, name)}, {"media_type", appendString(nil, full.MediaType)},
		{"size", strconv.AppendInt(nil, full.Size, 10)}, {"checksum", appendString(nil, full.Checksum)}, d.location(p.ArtifactID),
	}
	d.products++
	d.add(p)
	return &Full{p.ArtifactID, full.Size, full.Checksum}
}

// closeCalls completes what is still open, in the order of the starts.
func (d *draft) closeCalls() {
	for _, id := range d.state.calls.open {
		one, _ := d.state.calls.byID.get(id)
		null := json.RawMessage("null")
		d.add(&ToolCallCompleted{
			MessageID: d.message, ToolCallID: id, ToolName: one.name,
			Result: null, ResultChecksum: Checksum(null), IsError: true, Synthesized: true,
		})
	}
}

func (d *draft) done(e *agent.Event) {
	d.closeCalls()
	d.openMessage()
	p := &MessageCompleted{MessageID: d.message, Content: e.Answer.String(), Usage: e.Usage}
	if e.Full != nil {
		p.Full, p.ContentChecksum = d.keep(e.Full, "answer"), e.Full.Checksum
	} else {
		d.content(p)
	}
	d.add(p)
	d.add(&RunCompleted{MessageID: d.message})
}

// content completes the answer from the text so far, where the runtime gave
// none, and cuts it where it does not fit: the deltas hold the whole of their own
// text. An answer that says something else may not be cut.
func (d *draft) content(p *MessageCompleted) {
	kept, whole, checksum := d.state.text.finish()
	p.ContentChecksum = Checksum([]byte(p.Content))
	if p.Content == "" {
		p.Content, p.Truncated, p.ContentChecksum = kept, !whole, checksum
	}
	if p.ContentChecksum == checksum {
		cut := agent.JSONBeginning(p.Content, d.room(*p))
		p.Content, p.Truncated = cut, p.Truncated || len(cut) < len(p.Content)
	}
}

// room is what the event's line and the append have left for the content of a
// message.completed, in bytes as JSON, beside all that goes with it.
func (d *draft) room(p MessageCompleted) int {
	p.Content, p.Truncated = "", true
	bare, end := d.candidate(&p), d.candidate(&RunCompleted{MessageID: d.message})
	end.Source = d.source
	size := bare.Size(d.state)
	return max(0, min(MaxLine-len(dataPrefix)-size, d.limit-d.size()-size-end.Size(d.state)))
}
