package langgraph

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// requestInput is the tool that an interrupt is a call of.
const requestInput = "request_input"

// frame is one event of a LangGraph stream: its name is split at the first |
// into the mode and the namespace of the sub-graph it comes from ("": the root).
type frame struct {
	mode, namespace, id string
	data                []byte
}

// place is a message or call within the graph that it belongs to: ids repeat
// between sub-graphs.
type place struct{ namespace, id string }

// mapper turns the frames of one thread's runs into AgentEvents. The same
// message comes up to three times (chunks, whole, updates), a call and its
// result twice, and a resumed run repeats some: each is reported once. It is a
// pure function of the frames so far.
type mapper struct {
	said    map[place]bool   // messages whose text was reported
	whole   map[place]bool   // messages that came in updates
	calls   map[place]string // canonical ids of calls
	holder  map[string]place // by canonical id
	results map[place]bool
	tasks   map[string][]place // open calls of sub-agents, by namespace
	parents map[string]string  // canonical call ids that sub-graphs belong to; "": not known
	files   map[string]string  // checksums, by path
	asked   map[string]bool    // interrupts

	answer    agent.Unicode // the last root message without calls
	answered  bool
	failed    bool
	questions []string // interrupts of the run whose stream is being read
}

func newMapper() *mapper {
	return &mapper{
		said: make(map[place]bool), whole: make(map[place]bool), calls: make(map[place]string), holder: make(map[string]place),
		results: make(map[place]bool), tasks: make(map[string][]place), parents: make(map[string]string),
		files: make(map[string]string), asked: make(map[string]bool),
	}
}

// take returns what a frame reports. Frames of unknown modes, and what cannot
// be read in known ones, report nothing: servers differ, and grow.
func (m *mapper) take(f frame) []agent.Event {
	switch f.mode {
	case "metadata":
		m.questions = nil
		return []agent.Event{{Type: agent.StateChange, State: "running"}}
	case "messages":
		return m.messages(f)
	case "updates":
		return m.updates(f)
	case "custom":
		return m.custom(f)
	case "error":
		return m.fail(f)
	}
	return nil
}

func (m *mapper) messages(f frame) []agent.Event {
	var pair []json.RawMessage
	var msg message
	if json.Unmarshal(f.data, &pair) != nil || len(pair) == 0 || json.Unmarshal(pair[0], &msg) != nil {
		return nil
	}
	at := place{f.namespace, msg.ID}
	switch {
	case msg.Type == "tool":
		return m.result(f.namespace, &msg)
	case !msg.fromModel() || f.namespace != "": // a sub-agent's text is not the answer
		return nil
	case msg.Chunks == nil && m.said[at]:
		return nil
	}
	out := m.text(&msg)
	if len(out) > 0 || msg.Chunks == nil {
		m.said[at] = true
	}
	return out
}

// text reports a message's text and reasoning.
func (m *mapper) text(msg *message) (out []agent.Event) {
	say := func(kind, text string) {
		if text != "" {
			out = append(out, agent.Event{Type: agent.Delta, BlockType: kind, Content: agent.Unicode(text)})
		}
	}
	say(agent.Reasoning, msg.More.Reasoning)
	for _, p := range parts(msg.Content) {
		if p.kind == agent.Text || p.kind == agent.Reasoning {
			say(p.kind, p.text)
		}
	}
	return out
}

func (m *mapper) result(namespace string, msg *message) []agent.Event {
	at := place{namespace, msg.ToolCallID}
	if msg.ToolCallID == "" || m.results[at] {
		return nil
	}
	m.results[at] = true
	m.tasks[namespace] = slices.DeleteFunc(m.tasks[namespace], func(p place) bool { return p == at })
	return []agent.Event{{
		Type: agent.ToolResult, ToolName: msg.Name, ToolCallID: m.canonical(at),
		ToolResult: compact(msg.Content), IsError: msg.Status == "error",
	}}
}

// canonical is the id under which a call is reported: its own, unless another
// sub-graph's call has it.
func (m *mapper) canonical(at place) string {
	if id, ok := m.calls[at]; ok {
		return id
	}
	id := at.id
	if other, taken := m.holder[id]; taken && other != at {
		id = at.id + "@" + path.Base(strings.ReplaceAll(at.namespace, "|", "/"))
	}
	m.calls[at], m.holder[id] = id, at
	return id
}

// member is one member of a JSON object, in its order.
type member struct {
	key   string
	value json.RawMessage
}

func members(object json.RawMessage) (out []member) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return out
		}
		name, _ := key.(string)
		out = append(out, member{name, value})
	}
	return out
}

func (m *mapper) updates(f frame) (out []agent.Event) {
	for _, node := range members(f.data) {
		if node.key == "__interrupt__" {
			out = append(out, m.interrupts(node.value)...)
			continue
		}
		var update struct {
			Messages json.RawMessage `json:"messages"`
			Files    json.RawMessage `json:"files"`
			Todos    json.RawMessage `json:"todos"`
		}
		if json.Unmarshal(node.value, &update) != nil {
			continue // an update may be anything
		}
		for _, msg := range list(update.Messages) {
			if msg.Type == "tool" {
				out = append(out, m.result(f.namespace, &msg)...)
			} else if msg.fromModel() {
				out = append(out, m.model(f.namespace, &msg)...)
			}
		}
		if f.namespace == "" {
			out = append(out, m.newFiles(update.Files)...)
		}
		if update.Todos != nil && string(update.Todos) != "null" {
			out = append(out, agent.Event{Type: agent.StateChange, State: "todos"})
		}
	}
	return out
}

// model reports a whole message of a model: its calls, the blocks that are not
// text, and its text if nobody has.
func (m *mapper) model(namespace string, msg *message) (out []agent.Event) {
	at := place{namespace, msg.ID}
	if msg.ID == "" {
		at.id = run.Checksum(msg.Content)
	}
	if namespace == "" && !m.whole[at] {
		if !m.said[at] {
			out = m.text(msg)
		}
		for _, p := range parts(msg.Content) {
			if p.raw != nil {
				out = append(out, agent.Event{Type: agent.Delta, BlockType: p.kind, Block: compact(p.raw)})
			}
		}
	}
	m.whole[at], m.said[at] = true, true
	if namespace == "" && len(msg.ToolCalls) == 0 && len(msg.Invalid) == 0 {
		m.answer, m.answered = agent.Unicode(spoken(msg.Content)), true
	}
	for i, c := range msg.ToolCalls {
		out = append(out, m.call(namespace, msg.ID, i, c.ID, c.Name, compact(c.Args))...)
	}
	for i, c := range msg.Invalid { // what the model said, to the letter
		args, err := json.Marshal(c.Args)
		if err == nil {
			out = append(out, m.call(namespace, msg.ID, len(msg.ToolCalls)+i, c.ID, c.Name, args)...)
		}
	}
	return out
}

func (m *mapper) call(namespace, message string, index int, id, name string, args json.RawMessage) []agent.Event {
	if id == "" {
		id = fmt.Sprintf("%s:%d", message, index)
	}
	at := place{namespace, id}
	if _, known := m.calls[at]; known {
		return nil
	}
	if name == "task" {
		m.tasks[namespace] = append(m.tasks[namespace], at)
	}
	if args == nil {
		args = json.RawMessage("{}")
	}
	return []agent.Event{{
		Type: agent.ToolCall, ToolName: name, ToolCallID: m.canonical(at), ToolArgs: args, ParentToolCallID: m.parent(namespace),
	}}
}

// parent is the call that a sub-graph works for, if that is certain: the only
// one of its parent's that is open when it is first seen.
func (m *mapper) parent(namespace string) string {
	if namespace == "" {
		return ""
	}
	if id, known := m.parents[namespace]; known {
		return id
	}
	outer := ""
	if i := strings.LastIndexByte(namespace, '|'); i >= 0 {
		outer = namespace[:i]
	}
	id := ""
	if open := m.tasks[outer]; len(open) == 1 {
		id = m.calls[open[0]]
	}
	m.parents[namespace] = id
	return id
}

func (m *mapper) interrupts(raw json.RawMessage) (out []agent.Event) {
	var all []struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(raw, &all) != nil {
		return nil
	}
	for _, i := range all {
		if i.ID == "" {
			i.ID = "interrupt_" + strings.TrimPrefix(run.Checksum(i.Value), "sha256:")[:16]
		}
		m.questions = append(m.questions, i.ID)
		if m.asked[i.ID] {
			continue
		}
		m.asked[i.ID] = true
		args := compact(i.Value)
		if len(args) == 0 || args[0] != '{' {
			args = fmt.Appendf(nil, `{"value":%s}`, orNull(args))
		}
		out = append(out, agent.Event{Type: agent.ToolCall, ToolName: requestInput, ToolCallID: i.ID, ToolArgs: args, External: true})
	}
	return out
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// custom passes on a graph's own artifacts; everything else shows life.
func (m *mapper) custom(f frame) []agent.Event {
	if e, err := agent.Decode(f.data); err == nil && e.Type == agent.Artifact {
		e.ProducerSeq = 0
		return []agent.Event{e}
	}
	return []agent.Event{{Type: agent.StateChange, State: "custom"}}
}

// fail reads an error, an object or a bare string.
func (m *mapper) fail(f frame) []agent.Event {
	m.failed = true
	var e struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	if json.Unmarshal(f.data, &e.Message) != nil && json.Unmarshal(f.data, &e) != nil {
		e.Message = string(f.data)
	}
	if e.Error == "" {
		e.Error = "Error"
	}
	return []agent.Event{{Type: agent.Error, ErrorCode: e.Error, ErrorMessage: e.Message}}
}

// compact is JSON without its white space; what is no JSON becomes null.
func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if len(raw) == 0 || json.Compact(&b, raw) != nil {
		return json.RawMessage("null")
	}
	return b.Bytes()
}
