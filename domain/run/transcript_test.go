package run

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
)

// The transcript's checksum and beginning are those of the blocks' texts, by
// index, however they interleave, and what it holds is bounded.
func TestTranscript(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		var one transcript
		texts := map[uint64]string{}
		next, size := uint64(0), 40
		if seed%10 == 0 {
			size = 60_000
		}
		for range random.IntN(200) {
			index, keyed := next, random.IntN(3) > 0
			if next > 0 && random.IntN(3) > 0 { // one that may grow: with a key, or the last
				known := one.open[random.IntN(len(one.open))]
				if index, keyed = known.index, known.keyed; !keyed {
					index, keyed = one.open[len(one.open)-1].index, one.open[len(one.open)-1].keyed
				}
			} else {
				next++
			}
			text := strings.Repeat(fmt.Sprint(index), random.IntN(size))
			one.write(index, keyed, text)
			texts[index] += text
			if one.held > heldText || len(one.open) > heldBlocks {
				t.Fatalf("%d bytes of %d blocks are held", one.held, len(one.open))
			}
		}
		var indexes []int
		for i := range texts {
			indexes = append(indexes, int(i))
		}
		sort.Ints(indexes)
		var want strings.Builder
		for _, i := range indexes {
			want.WriteString(texts[uint64(i)])
		}
		kept, whole, checksum := one.finish()
		if checksum != Checksum([]byte(want.String())) || !strings.HasPrefix(want.String(), kept) || whole != (len(kept) == want.Len()) || len(kept) < min(want.Len(), keptText) {
			t.Fatalf("seed %d: %d of %d bytes kept, whole %v", seed, len(kept), want.Len(), whole)
		}
		if again, _, _ := one.finish(); again != kept {
			t.Fatal("finish changed it")
		}
	}
}
