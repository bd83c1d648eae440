package langgraph

import (
	"encoding/json"
	"mime"
	"path"
	"sort"
	"strconv"
	"strings"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// newFiles reports each file of a state's update that is new or has changed.
func (m *mapper) newFiles(raw json.RawMessage) (out []agent.Event) {
	for _, f := range members(raw) {
		var file struct {
			Content  json.RawMessage `json:"content"`
			MimeType string          `json:"mimeType"`
		}
		if string(f.value) == "null" || json.Unmarshal(f.value, &file) != nil {
			continue // deleted
		}
		content, ok := fileContent(file.Content)
		checksum := run.Checksum(content)
		if !ok || m.files[f.key] == checksum {
			continue
		}
		m.files[f.key] = checksum
		if file.MimeType == "" {
			file.MimeType, _, _ = strings.Cut(mime.TypeByExtension(path.Ext(f.key)), ";")
		}
		if file.MimeType == "" {
			file.MimeType = "application/octet-stream"
		}
		description, err := json.Marshal(struct {
			Name      string `json:"name"`
			MediaType string `json:"media_type"`
			Size      int    `json:"size"`
			Checksum  string `json:"checksum"`
		}{f.key, file.MimeType, len(content), checksum})
		if err == nil {
			out = append(out, agent.Event{Type: agent.Artifact, Artifact: description, Bytes: content})
		}
	}
	return out
}

// fileContent reads the forms that a file's content has: text, lines, or bytes
// as JavaScript writes them, {"0":137,"1":80,…}.
func fileContent(raw json.RawMessage) ([]byte, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text), true
	}
	var lines []string
	if json.Unmarshal(raw, &lines) == nil {
		return []byte(strings.Join(lines, "\n")), true
	}
	var numbered map[string]byte
	if json.Unmarshal(raw, &numbered) != nil {
		return nil, false
	}
	keys := make([]int, 0, len(numbered))
	for k := range numbered {
		n, err := strconv.Atoi(k)
		if err != nil {
			return nil, false
		}
		keys = append(keys, n)
	}
	sort.Ints(keys)
	content := make([]byte, 0, len(keys))
	for _, n := range keys {
		content = append(content, numbered[strconv.Itoa(n)])
	}
	return content, true
}
