package agent_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/runfacts/runfacts/domain/agent"
)

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	for line, field := range map[string]string{
		`{}`:                              "type",
		`{"type":7}`:                      "type",
		`{"type":null}`:                   "type",
		`{"type":"dance"}`:                "type",
		`{"TYPE":"delta"}`:                "type",
		`{"type":"delta"}`:                "content",
		`{"type":"delta","content":null}`: "content",
		`{"type":"delta","content":7}`:    "content",
		`{"type":"delta","content":"x","block_type":1}`:                                             "block_type",
		`{"type":"delta","content":"x","block":{}}`:                                                 "block",
		`{"type":"delta","block_type":"card"}`:                                                      "block",
		`{"type":"delta","block_type":"card","block":{},"content":"x"}`:                             "content",
		`{"type":"state_change"}`:                                                                   "state",
		`{"type":"tool_call","tool_call_id":"q"}`:                                                   "tool_name",
		`{"type":"tool_call","tool_name":"q"}`:                                                      "tool_call_id",
		`{"type":"tool_call","tool_name":"q","tool_call_id":""}`:                                    "tool_call_id",
		`{"type":"tool_call","tool_name":"q","tool_call_id":"a","external":"yes"}`:                  "external",
		`{"type":"tool_call","tool_name":"q","tool_call_id":"a","external":1}`:                      "external",
		`{"type":"tool_call","tool_name":"q","tool_call_id":"a","parent_tool_call_id":7}`:           "parent_tool_call_id",
		`{"type":"tool_result","tool_name":"q","tool_call_id":"a"}`:                                 "tool_result",
		`{"type":"tool_result","tool_name":"q","tool_call_id":"a","tool_result":1,"is_error":"no"}`: "is_error",
		`{"type":"artifact"}`:                                                                       "artifact",
		`{"type":"artifact","artifact":[]}`:                                                         "artifact",
		`{"type":"artifact","artifact":{"size":-1}}`:                                                "artifact.size",
		`{"type":"artifact","artifact":{"name":1}}`:                                                 "artifact.name",
		`{"type":"artifact","artifact":{"artifact_id":""}}`:                                         "artifact.artifact_id",
		`{"type":"done","answer":1}`:                                                                "answer",
		`{"type":"error","error_code":"x"}`:                                                         "error_message",
		`{"type":"error","error_message":"x"}`:                                                      "error_code",
		`{"type":"error","error_code":"x","error_message":"y","retryable":"t"}`:                     "retryable",
		`{"type":"done","occurred_at":"yesterday"}`:                                                 "occurred_at",
		`{"type":"done","producer_seq":0}`:                                                          "producer_seq",
		`{"type":"done","producer_seq":-1}`:                                                         "producer_seq",
		`{"type":"done","producer_seq":1.5}`:                                                        "producer_seq",
		`{"type":"done","producer_seq":"1"}`:                                                        "producer_seq",
		`{"type":"done","cursor":7}`:                                                                "cursor",
		`{"type":"done","trace_id":7}`:                                                              "trace_id",
		`{"type":"done","trace_id":"` + strings.Repeat("x", 129) + `"}`:                             "trace_id",
		`{"type":"done","cursor":"` + strings.Repeat("x", 4097) + `"}`:                              "cursor",
		`{"type":"tool_call","tool_name":"q","tool_call_id":"` + strings.Repeat("x", 1025) + `"}`:   "tool_call_id",
		`{"type":"error","error_code":"` + strings.Repeat("x", 1025) + `","error_message":"m"}`:     "error_code",
		`{"type":"done","cursor":"` + strings.Repeat(`\u0001`, 700) + `"}`:                          "cursor", // as JSON
		`{"type":"error","error_code":"","error_message":"y"}`:                                      "error_code",
		`{"type":"done","producer_seq":9007199254740992}`:                                           "producer_seq",
		`{"type":"done","occurred_at":"9999-12-31T23:59:59-01:00"}`:                                 "occurred_at",
		`{"type":"done","occurred_at":"0000-01-01T00:00:00Z"}`:                                      "occurred_at",
		`{"type":"done","occurred_at":"0001-01-01T00:00:00+00:01"}`:                                 "occurred_at",
		`{"type":"done","usage":7}`:                                                                 "usage",
		`{"type":"done","usage":{"input_tokens":-1}}`:                                               "usage.input_tokens",
		`{"type":"done","usage":{"output_tokens":1.5}}`:                                             "usage.output_tokens",
		`{"type":"done","usage":{"cost_usd":0.1}}`:                                                  "usage.cost_usd",
		`{"type":"done","usage":{"cost_usd":"1e3"}}`:                                                "usage.cost_usd",
		`{"type":"done","usage":{"model":1}}`:                                                       "usage.model",
		`{"type":"delta","content":"x","block_id":1}`:                                               "block_id",
		`{"type":"delta","content":"x","author":1}`:                                                 "author",
		`{"type":"delta","content":"x","block_type":"nested","block":{}}`:                           "block",
		`{"type":"tool_result","tool_name":"q","tool_call_id":"a","tool_result":` + nest(256) + `}`: "the event",
	} {
		_, err := agent.Decode([]byte(line))
		var fault *agent.FieldError
		if !errors.As(err, &fault) || fault.Field != field || !strings.Contains(err.Error(), field) {
			t.Errorf("%.80s: %v, want a fault of %s", line, err, field)
		}
	}
}

func nest(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// The first and the last moment that RFC 3339 can write, and the deepest value.
func TestDecodeTakesWhatCanBeReadBack(t *testing.T) {
	for _, line := range []string{
		`{"type":"done","occurred_at":"9999-12-31T23:59:59.999999Z"}`,
		`{"type":"done","occurred_at":"0001-01-01T00:00:00Z"}`,
		`{"type":"done","producer_seq":9007199254740991}`,
		`{"type":"tool_result","tool_name":"","tool_call_id":"a","tool_result":` + nest(255) + `}`,
		`{"type":"done","usage":{"model":"m","input_tokens":0,"cost_usd":"0.0123","cached":[1]}}`,
	} {
		e, err := agent.Decode([]byte(line))
		if err != nil {
			t.Errorf("%.80s: %v", line, err)
		}
		if strings.Contains(line, "0001-01-01") && e.OccurredAt.IsZero() {
			t.Error("the first moment of all means none")
		}
	}
}

// Events of a runner in Go pass the same gate as those that are decoded.
func TestCheckBringsEventsIntoForm(t *testing.T) {
	e := agent.Event{Type: agent.ToolResult, ToolName: "a\xff", ToolCallID: "c"}
	if err := e.Check(); err != nil || string(e.ToolResult) != "null" || e.ToolName != "a\uFFFD" {
		t.Errorf("%+v, %v", e, err)
	}
	e = agent.Event{Type: agent.Delta, Content: "x"}
	if err := e.Check(); err != nil || e.BlockType != agent.Text {
		t.Errorf("%+v, %v", e, err)
	}
	e = agent.Event{Type: agent.ToolCall, ToolCallID: "c", ToolArgs: json.RawMessage("{ \"a\": \"\u2028\u0085\" }")}
	if err := e.Check(); err != nil || string(e.ToolArgs) != `{"a":"\u2028\u0085"}` {
		t.Errorf("%s, %v", e.ToolArgs, err)
	}
	for field, bad := range map[string]agent.Event{
		"type":         {},
		"tool_args":    {Type: agent.ToolCall, ToolCallID: "c", ToolArgs: json.RawMessage("{")},
		"tool_call_id": {Type: agent.ToolCall},
		"tool_result":  {Type: agent.ToolResult, ToolCallID: "c", ToolResult: json.RawMessage(nest(256))},
		"artifact":     {Type: agent.Artifact},
		"block":        {Type: agent.Delta, BlockType: "card"},
		"error_code":   {Type: agent.Error},
		"occurred_at":  {Type: agent.Done, OccurredAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		var fault *agent.FieldError
		if err := bad.Check(); !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%+v: %v, want a fault of %s", bad, err, field)
		}
	}
}

func TestDecodeRefusesWhatIsNotAnObject(t *testing.T) {
	for _, line := range []string{"", "{", "[]", "null", `"x"`, "7", "{} {}", "{\"type\":\"delta\",\"content\":\"\xff\"}", `{"type":"done",}`} {
		_, err := agent.Decode([]byte(line))
		var fault *agent.SyntaxError
		if !errors.As(err, &fault) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestDecodeKeepsValuesToTheLetter(t *testing.T) {
	args := `{"z":9007199254740993,"a":1.0,"e":1e400,"half":"\ud83d","html":"<b>","z":2}`
	e, err := agent.Decode([]byte(`{"type":"tool_call","tool_name":"t","tool_call_id":"c","tool_args": ` + strings.ReplaceAll(args, ",", " , ") + `,"new":1}`))
	if err != nil || string(e.ToolArgs) != args {
		t.Errorf("%s, %v", e.ToolArgs, err)
	}
	e, err = agent.Decode([]byte(`{"type":"tool_call","tool_name":"t","tool_call_id":"c","tool_args":null,"external":null,"producer_seq":null,"cursor":null}`))
	if err != nil || string(e.ToolArgs) != "{}" || e.Cursor != nil {
		t.Errorf("null counts as absent: %s, %v", e.ToolArgs, err)
	}
	e, err = agent.Decode([]byte(`{"type":"tool_result","tool_name":"","tool_call_id":"c","tool_result":null}`))
	if err != nil || string(e.ToolResult) != "null" {
		t.Errorf("a result may be null: %s, %v", e.ToolResult, err)
	}
}

func TestUnicode(t *testing.T) {
	for literal, want := range map[string]struct {
		text string
		ends bool
	}{
		`"abc"`:              {"abc", false},
		`"\"\\\/\b\f\n\r\t"`: {"\"\\/\b\f\n\r\t", false},
		`"\u00e9\u20AC"`:     {"é€", false},
		`"\ud83d\ude00"`:     {"\U0001F600", false},
		`"\ud83d"`:           {"\uFFFD", true},
		`"a\uD83D"`:          {"a\uFFFD", true},
		`"\ude00"`:           {"\uFFFD", false},
		`"\ud83d\ud83d"`:     {"\uFFFD\uFFFD", true},
		`"\ud83dx"`:          {"\uFFFDx", false},
		`"\ud83d\n"`:         {"\uFFFD\n", false},
		`"\ude00\ud83d"`:     {"\uFFFD\uFFFD", true},
		`"\ud83d\u0041"`:     {"\uFFFDA", false},
		`""`:                 {"", false},
	} {
		u := agent.Unquote([]byte(literal))
		if u.String() != want.text || u.EndsInHalf() != want.ends {
			t.Errorf("%s: %q, ends in half %v", literal, u.String(), u.EndsInHalf())
		}
	}
	whole, rest := agent.Unquote([]byte(`"a\ud83d"`)).Complete(agent.Unquote([]byte(`"\ude00b"`)))
	if whole != "a\U0001F600" || rest != "b" {
		t.Errorf("%q %q", whole, rest)
	}
	whole, rest = agent.Unquote([]byte(`"a\ud83d"`)).Complete("b")
	if whole.String() != "a\uFFFD" || rest != "b" {
		t.Errorf("%q %q", whole, rest)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"type":"delta","content":"a\ud83d","producer_seq":1}`,
		`{"type":"tool_call","tool_name":"t","tool_call_id":"c","tool_args":{"a":[1,2.50,null]}}`,
		`{"type":"artifact","artifact":{"name":"x","size":3}}`,
		`{"type":"error","error_code":"x","error_message":"y","occurred_at":"2026-01-02T03:04:05Z"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := agent.Decode(line)
		if err != nil {
			return
		}
		for _, text := range []agent.Unicode{e.Content, e.Answer} {
			if !utf8.ValidString(text.String()) {
				t.Errorf("%q is not UTF-8", text.String())
			}
		}
		for _, raw := range []json.RawMessage{e.Block, e.ToolArgs, e.ToolResult, e.Artifact} {
			if raw != nil && !json.Valid(raw) {
				t.Errorf("%q is not JSON", raw)
			}
		}
	})
}

func FuzzUnquote(f *testing.F) {
	f.Add([]byte(`"a\u00e9\ud83d\ude00\n"`))
	f.Fuzz(func(t *testing.T, literal []byte) {
		var want string
		if !utf8.Valid(literal) || json.Unmarshal(literal, &want) != nil || len(literal) < 2 || literal[0] != '"' || literal[len(literal)-1] != '"' {
			return
		}
		if got := agent.Unquote(literal).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// Hangul stands beside the surrogates in UTF-8, and is none.
func TestHangulIsWhole(t *testing.T) {
	e, err := agent.Decode([]byte(`{"type":"delta","content":"\ud7a3"}`))
	if err != nil || e.Content.EndsInHalf() || e.Content.String() != "\uD7A3" {
		t.Errorf("%q, %v", e.Content, err)
	}
	for _, text := range []string{"\uD000", "\uD7A3", "\uD7FF", "\uE000"} {
		if u := agent.Unicode(text); u.EndsInHalf() || u.String() != text {
			t.Errorf("%q became %q", text, u.String())
		}
	}
}
