package langgraph

import (
	"strings"

	"github.com/runfacts/runfacts/transport/sse"
)

// maxFrame bounds a frame in bytes: an update may carry files.
const maxFrame = 32 << 20

func parseFrame(f sse.Frame) frame {
	mode, namespace, _ := strings.Cut(f.Event, "|")
	return frame{mode: mode, namespace: namespace, id: f.ID, data: []byte(f.Data)}
}
