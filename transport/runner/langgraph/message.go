package langgraph

import (
	"encoding/json"
	"strings"

	"github.com/runfacts/runfacts/domain/agent"
)

// message is a LangChain message, as far as it counts here.
type message struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Content   json.RawMessage `json:"content"`
	Chunks    json.RawMessage `json:"tool_call_chunks"` // nil: the message is whole
	ToolCalls []struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"tool_calls"`
	Invalid []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
		Args string `json:"args"`
	} `json:"invalid_tool_calls"`
	ToolCallID string `json:"tool_call_id"`
	Status     string `json:"status"`
	More       struct {
		Reasoning string `json:"reasoning_content"`
	} `json:"additional_kwargs"`
}

func (m *message) fromModel() bool { return m.Type == "ai" || m.Type == "AIMessageChunk" }

// list reads messages, one or many.
func list(raw json.RawMessage) (all []message) {
	var one message
	if json.Unmarshal(raw, &all) != nil && json.Unmarshal(raw, &one) == nil {
		all = []message{one}
	}
	return all
}

// part is one block of a message's content.
type part struct {
	kind, text string
	raw        json.RawMessage
}

// parts reads content, a string or a list of blocks.
func parts(content json.RawMessage) (out []part) {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []part{{kind: agent.Text, text: text}}
	}
	var blocks []json.RawMessage
	if json.Unmarshal(content, &blocks) != nil {
		return nil
	}
	for _, raw := range blocks {
		var b struct {
			Type      string `json:"type"`
			Text      string `json:"text"`
			Reasoning string `json:"reasoning"`
			Thinking  string `json:"thinking"`
		}
		if json.Unmarshal(raw, &text) == nil {
			out = append(out, part{kind: agent.Text, text: text})
			continue
		}
		if json.Unmarshal(raw, &b) != nil {
			continue
		}
		switch b.Type {
		case "text", "output_text", "text_delta":
			out = append(out, part{kind: agent.Text, text: b.Text})
		case "reasoning", "thinking":
			out = append(out, part{kind: agent.Reasoning, text: b.Reasoning + b.Thinking})
		case "", "tool_use", "tool_call", "tool_call_chunk", "input_json_delta": // calls have a place of their own
		default:
			out = append(out, part{kind: b.Type, raw: raw})
		}
	}
	return out
}

// spoken is the text of a content without its other blocks.
func spoken(content json.RawMessage) string {
	var b strings.Builder
	for _, p := range parts(content) {
		if p.kind == agent.Text {
			b.WriteString(p.text)
		}
	}
	return b.String()
}
