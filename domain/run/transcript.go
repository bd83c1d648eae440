package run

import (
	"crypto/sha256"
	"hash"
	"slices"
	"unicode/utf8"
)

// Bounds of what a state keeps of the answer's text, for a runtime that ends
// without an answer of its own.
const (
	keptText   = 64 << 10 // bytes of its beginning: more than one event may show
	heldText   = 1 << 20  // bytes that wait behind a block that may still grow
	heldBlocks = 256      // blocks that do
)

// transcript is the text so far, block by block in the order of their indexes. A
// block with a key may grow whatever came behind it, so what follows waits; where
// too much waits, all but the last are closed. The zero value is empty.
type transcript struct {
	kept  []byte    // the beginning of the settled text
	size  int       // of the settled text, in bytes
	sum   hash.Hash // of the settled text; nil: there is none
	open  []textBlock
	held  int    // bytes in open
	floor uint64 // blocks with a key before this index are closed
}

// textBlock is one that may still grow, or stands behind one that may. Of the
// first the text is settled as it comes.
type textBlock struct {
	index uint64
	keyed bool
	text  []byte
}

// write adds to a block. One without a key has grown for the last time once
// another one has begun.
func (t *transcript) write(index uint64, keyed bool, text string) {
	i, found := slices.BinarySearchFunc(t.open, index, func(b textBlock, index uint64) int {
		switch {
		case b.index < index:
			return -1
		case b.index > index:
			return 1
		}
		return 0
	})
	if !found {
		t.open = slices.Insert(t.open, i, textBlock{index: index, keyed: keyed})
	}
	if i == 0 {
		t.settle([]byte(text))
	} else {
		t.open[i].text = append(t.open[i].text, text...)
		t.held += len(text)
	}
	for len(t.open) > 1 && (!t.open[0].keyed || t.held > heldText || len(t.open) > heldBlocks) {
		if t.open[0].keyed {
			t.floor = t.open[1].index
		}
		t.pop()
	}
}

// pop closes the first open block.
func (t *transcript) pop() {
	t.open = t.open[1:]
	t.settle(t.open[0].text)
	t.held -= len(t.open[0].text)
	t.open[0].text = nil
}

func (t *transcript) settle(text []byte) {
	if len(text) == 0 {
		return
	}
	if t.sum == nil {
		t.sum = sha256.New()
	}
	t.sum.Write(text)
	if t.size == len(t.kept) { // nothing was cut so far
		end := min(keptText-len(t.kept), len(text))
		for end < len(text) && end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		t.kept = append(t.kept, text[:end]...)
	}
	t.size += len(text)
}

// fork returns a copy that may grow while t does not.
func (t *transcript) fork() transcript {
	f := *t
	f.open = slices.Clone(t.open)
	if t.sum != nil {
		// hash.Cloner, which crypto/sha256 implements, cannot fail for it.
		sum, err := t.sum.(hash.Cloner).Clone()
		if err != nil {
			panic("run: sha256 state cannot be cloned: " + err.Error())
		}
		f.sum = sum
	}
	return f
}

// finish returns the text's beginning, whether that is all, and the checksum of
// the whole.
func (t *transcript) finish() (kept string, whole bool, checksum string) {
	f := t.fork()
	for len(f.open) > 1 {
		f.pop()
	}
	checksum = Checksum(nil)
	if f.sum != nil {
		checksum = formatSum(f.sum.Sum(nil))
	}
	return string(f.kept), f.size == len(f.kept), checksum
}
