package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
)

// messageRole is the only role that a runtime's own text has.
const messageRole = "assistant"

// Decision is what one AgentEvent adds to a run: facts that belong into one
// append, and at most one note that only the state keeps. The zero value adds
// nothing.
type Decision struct {
	Candidates []Candidate
	claims     string // a synthesized start whose real one this was
}

// EndedError refuses what comes after a run's end.
type EndedError struct {
	Run    ID
	Status Status
}

func (e *EndedError) Error() string { return fmt.Sprintf("run %s is %s already", e.Run, e.Status) }

// TooLargeError refuses an AgentEvent whose facts cannot fit one append.
type TooLargeError struct {
	Run   ID
	Limit int // bytes of one append
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("run %s: the event does not fit the %d bytes of one append", e.Run, e.Limit)
}

// Decide is the Adapter: it returns the facts that an AgentEvent of producer
// adds to the run, without applying them (see Take). It is a pure function of
// its arguments; now stands in where the event has no time of its own, and
// limit bounds the bytes of the append that must hold the facts.
// Errors: *EndedError, *TooLargeError.
func (s *State) Decide(e *agent.Event, producer string, now time.Time, limit int) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	source := &Source{Producer: producer, Seq: e.ProducerSeq, Cursor: e.Cursor}
	d := draft{state: s, message: s.message, at: now, trace: e.TraceID, span: e.SpanID, source: source, limit: limit}
	if !e.OccurredAt.IsZero() {
		d.at = e.OccurredAt
	}
	d.at = d.at.UTC().Truncate(time.Microsecond)
	switch e.Type {
	case agent.Delta:
		d.delta(e)
	case agent.ToolCall:
		d.toolCall(e)
	case agent.ToolResult:
		d.toolResult(e)
	case agent.Artifact:
		d.artifact(e)
	case agent.Done:
		d.done(e)
	case agent.Error:
		d.closeCalls()
		d.add(RunFailed, Payload{Error: &Failure{e.ErrorCode, e.ErrorMessage, e.Retryable}})
	}
	if n := len(d.out.Candidates); n > 0 {
		d.out.Candidates[n-1].Source = source
	}
	if d.tooLarge || d.size() > limit {
		return Decision{}, &TooLargeError{s.RunID, limit}
	}
	return d.out, nil
}

// Cancellation is what is known of a stop when it is recorded.
type Cancellation struct {
	Confirmed bool   // the runtime is known to have stopped
	Proof     string // what shows it; "" where nothing does
	Reason    string
}

// Cancel returns the facts that end the run as cancelled. Error: *EndedError.
func (s *State) Cancel(c Cancellation, now time.Time) (Decision, error) {
	if s.Terminal() {
		return Decision{}, &EndedError{s.RunID, s.Status()}
	}
	d := draft{state: s, message: s.message, at: now.UTC().Truncate(time.Microsecond)}
	d.closeCalls()
	d.add(RunCancelled, Payload{ExternalStopConfirmed: c.Confirmed, Proof: c.Proof, Reason: c.Reason})
	return d.out, nil
}

// Take folds a decision into the state, which must be the one that it was made
// for. It leaves seq and chain alone: they come with Seal.
func (s *State) Take(d Decision) {
	for i := range d.Candidates {
		c := &d.Candidates[i]
		s.fold(c.Type, &c.Payload, c.OccurredAt)
		s.advance(s.LastSeq, s.chain, c.Source)
	}
	if d.claims != "" {
		s.calls.claimed.set(d.claims, struct{}{})
	}
}

// draft collects one decision.
type draft struct {
	state       *State
	message     string // the open message's id, as it will be
	at          time.Time
	trace, span string
	source      *Source
	limit       int
	tooLarge    bool
	out         Decision
}

func (d *draft) add(kind string, p Payload) {
	d.out.Candidates = append(d.out.Candidates, Candidate{
		Type: kind, OccurredAt: d.at, TraceID: d.trace, SpanID: d.span, Payload: p,
	})
}

func (d *draft) size() (n int) {
	for i := range d.out.Candidates {
		n += d.out.Candidates[i].Size(d.state)
	}
	return n
}

func (d *draft) openMessage() {
	if d.message == "" {
		d.message = fmt.Sprintf("message_%d", d.state.messages+1)
		d.add(MessageStarted, Payload{MessageID: d.message, Role: messageRole})
	}
}

func (d *draft) delta(e *agent.Event) {
	d.openMessage()
	p := Payload{MessageID: d.message, Delta: e.Content.String(), Block: e.Block}
	if e.BlockType != agent.Text {
		p.BlockType = e.BlockType
	}
	if last := d.state.block; d.state.message != "" && last.open {
		p.ContentIndex = last.index
		if last.kind != p.BlockType || p.Block != nil || last.left {
			p.ContentIndex++
		}
	}
	d.add(MessageDelta, p)
}

func (d *draft) toolCall(e *agent.Event) {
	c := &d.state.calls
	repeats, claims := c.repeats(e.ToolCallID, e.ToolName, e.ToolArgs, e.ProducerSeq != 0)
	if d.out.claims = claims; repeats {
		return
	}
	p := Payload{
		MessageID: d.message, ToolCallID: c.next(e.ToolCallID), ToolName: e.ToolName,
		Arguments: e.ToolArgs, External: e.External,
	}
	p.Full = d.keep(e.Full, "arguments of "+p.ToolCallID)
	if e.ParentToolCallID != "" {
		p.ParentToolCallID = c.parent(e.ParentToolCallID)
	}
	// Whatever is open must still fit the append that ends the run.
	opened := call{id: p.ToolCallID, name: p.ToolName}
	d.tooLarge = c.cost+opened.cost() > d.limit/2
	d.add(ToolCallStarted, p)
}

func (d *draft) toolResult(e *agent.Event) {
	c := &d.state.calls
	known, open := c.oldestOpen(e.ToolCallID)
	if !open {
		if c.group(e.ToolCallID) != nil {
			return // a second result
		}
		known = call{id: e.ToolCallID}
		d.add(ToolCallStarted, Payload{MessageID: d.message, ToolCallID: known.id, ToolName: e.ToolName, Synthesized: true})
	}
	name := e.ToolName
	if name == "" {
		name = known.name
	}
	d.complete(known.id, name, e.ToolResult, e.IsError, e.Full)
}

// complete adds a call's result.
func (d *draft) complete(id, name string, result json.RawMessage, isError bool, full *agent.Full) {
	p := Payload{MessageID: d.message, ToolCallID: id, ToolName: name, Result: result, IsError: isError}
	p.ResultChecksum = Checksum(p.Result)
	if p.Result[0] == '"' {
		text := agent.Unquote(p.Result).String()
		p.Result, p.ResultChecksum = appendString(nil, text), Checksum([]byte(text))
	}
	if p.Full = d.keep(full, "result of "+id); full != nil {
		p.ResultChecksum = full.Checksum
	}
	d.add(ToolCallCompleted, p)
}

func (d *draft) artifact(e *agent.Event) {
	p := Payload{MessageID: d.message}
	for _, m := range members(e.Artifact) {
		switch m.key {
		case "artifact_id":
			if string(m.value) != "null" {
				p.ArtifactID = agent.Unquote(m.value).String()
			}
		case "message_id": // ours
		default:
			p.Artifact = append(p.Artifact, m)
		}
	}
	if p.ArtifactID == "" {
		p.ArtifactID = d.nextArtifact()
		if e.Stored && !slices.ContainsFunc(p.Artifact, func(m member) bool { return m.key == "url" }) {
			p.Artifact = append(p.Artifact, d.location(p.ArtifactID))
		}
	}
	d.add(ArtifactCreated, p)
}

// nextArtifact is an id that no artifact of the run has.
func (d *draft) nextArtifact() string {
	for n := d.state.products + 1; ; n++ {
		id := fmt.Sprintf("artifact_%d", n)
		if _, taken := d.state.artifacts.get(id); !taken {
			return id
		}
	}
}

// location is where the API serves an artifact whose id needs no escaping.
func (d *draft) location(id string) member {
	return member{"url", appendString(nil, "/api/agent-runs/"+string(d.state.RunID)+"/artifacts/"+id)}
}

// keep adds the artifact that holds a whole value, and returns what the value's
// event says of it; nil where the value is whole itself.
func (d *draft) keep(full *agent.Full, name string) *Full {
	if full == nil {
		return nil
	}
	p := Payload{MessageID: d.message, ArtifactID: d.nextArtifact()}
	p.Artifact = []member{
		{"name", appendString(nil, name)}, {"media_type", appendString(nil, full.MediaType)},
		{"size", strconv.AppendInt(nil, full.Size, 10)}, {"checksum", appendString(nil, full.Checksum)}, d.location(p.ArtifactID),
	}
	d.add(ArtifactCreated, p)
	return &Full{p.ArtifactID, full.Size, full.Checksum}
}

// members returns an object's members in their order; of a key that stands
// twice the last value counts, in the place of the first.
func members(object json.RawMessage) (all []member) {
	// The decoder has seen that this is an object: each token is a key here.
	tokens := json.NewDecoder(bytes.NewReader(object))
	if _, err := tokens.Token(); err != nil {
		return nil
	}
	for tokens.More() {
		key, err := tokens.Token()
		if err != nil {
			return all
		}
		var value json.RawMessage
		if err := tokens.Decode(&value); err != nil {
			return all
		}
		name, _ := key.(string)
		if i := slices.IndexFunc(all, func(m member) bool { return m.key == name }); i >= 0 {
			all[i].value = value
			continue
		}
		all = append(all, member{name, value})
	}
	return all
}

// closeCalls completes what is still open, in the order of the starts.
func (d *draft) closeCalls() {
	for _, id := range d.state.calls.open {
		one, _ := d.state.calls.byID.get(id)
		null := json.RawMessage("null")
		d.add(ToolCallCompleted, Payload{
			MessageID: d.message, ToolCallID: id, ToolName: one.name,
			Result: null, ResultChecksum: Checksum(null), IsError: true, Synthesized: true,
		})
	}
}

func (d *draft) done(e *agent.Event) {
	d.closeCalls()
	d.openMessage()
	p := Payload{MessageID: d.message, Content: e.Answer.String()}
	if e.Full != nil {
		p.Full, p.ContentChecksum = d.keep(e.Full, "answer"), e.Full.Checksum
		d.add(MessageCompleted, p)
		d.add(RunCompleted, Payload{MessageID: d.message})
		return
	}
	text := &d.state.text
	p.ContentChecksum = Checksum([]byte(p.Content))
	if p.Content == "" {
		p.Content, p.ContentChecksum = string(text.kept), text.checksum()
		p.Truncated = text.size > len(text.kept)
	}
	// The deltas hold the whole of their own text, so it may be cut here; an
	// answer that says something else may not.
	if p.ContentChecksum == text.checksum() {
		cut := beginning(p.Content, d.room(p))
		p.Content, p.Truncated = cut, p.Truncated || len(cut) < len(p.Content)
	}
	d.add(MessageCompleted, p)
	d.add(RunCompleted, Payload{MessageID: d.message})
}

// room is what the append has left for the content of a message.completed, in
// bytes of JSON, beside all that goes with it.
func (d *draft) room(p Payload) int {
	p.Content, p.Truncated = "", true
	rest := draft{state: d.state, at: d.at, trace: d.trace, span: d.span, out: Decision{Candidates: slices.Clone(d.out.Candidates)}}
	rest.add(MessageCompleted, p)
	rest.add(RunCompleted, Payload{MessageID: d.message})
	rest.out.Candidates[len(rest.out.Candidates)-1].Source = d.source
	return d.limit - rest.size()
}
