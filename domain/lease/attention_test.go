package lease

import (
	"testing"
	"time"
)

func TestAttention(t *testing.T) {
	const term = 6 * time.Second
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for name, c := range map[string]struct {
		acks       []float64
		heard, now float64
		want       time.Duration
	}{
		"nobody is heard before the first acknowledgement":  {nil, 0, 60, 0},
		"silence counts from what was heard":                {[]float64{0, 2, 4, 6, 8}, 1, 9, 8 * time.Second},
		"but not from before one could hear":                {[]float64{4, 6, 8, 10}, 1, 11, 7 * time.Second},
		"after a gap of one's own it starts afresh":         {[]float64{0, 2, 4, 8, 10}, 1, 11, 3 * time.Second},
		"a gap that lasts is deafness":                      {[]float64{0, 2, 4}, 1, 8, 0},
		"a heartbeat that comes a little late is not a gap": {[]float64{0, 2, 4.9, 6.9}, 1, 7, 6 * time.Second},
	} {
		var a attention
		for _, ack := range c.acks {
			a.ack(at(ack), term)
		}
		if got := a.silence(at(c.heard), at(c.now), term); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
