package eventstore

import (
	"encoding/json"
	"math"
)

// hidesAll reports whether a metadata document is what a soft delete writes:
// truncation before the highest number there is.
func hidesAll(document []byte) bool {
	var m struct {
		Before json.Number `json:"$tb"`
	}
	if json.Unmarshal(document, &m) != nil {
		return false
	}
	before, err := m.Before.Int64()
	return err == nil && before == math.MaxInt64
}
