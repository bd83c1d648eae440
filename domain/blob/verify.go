package blob

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// DamagedError: what is kept under a checksum are other bytes.
type DamagedError struct{ Checksum string }

func (e *DamagedError) Error() string { return fmt.Sprintf("the bytes of %s are damaged", e.Checksum) }

// block is how much is read at a time, in bytes.
const block = 64 << 10

// Check reads content whole and goes back to its start. Errors: *DamagedError,
// *StoreError.
func Check(content io.ReadSeeker, checksum string) error {
	r := NewReader(content, checksum)
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return &StoreError{Failed, err}
	}
	return nil
}

// Reader reads content and gives its last bytes away only once all of it was
// compared with its checksum: whoever sends what it returns never sends damaged
// content whole. Not safe for concurrent use.
type Reader struct {
	from     io.ReadSeeker
	checksum string
	hash     hash.Hash
	ready    []byte // read from from, and followed by more or found to be right
	next     []byte // read from from, perhaps its end
	err      error  // behind next
}

// NewReader returns a Reader of content, from its start.
func NewReader(content io.ReadSeeker, checksum string) *Reader {
	return &Reader{from: content, checksum: checksum}
}

// Err returns why the last Read failed; nil: it did not, or at the end.
func (r *Reader) Err() error {
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// Seek implements io.Seeker. Only from the start can content be compared; from
// elsewhere reading fails.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	at, err := r.from.Seek(offset, whence)
	if err != nil {
		return at, &StoreError{Failed, err}
	}
	*r = Reader{from: r.from, checksum: r.checksum}
	if at != 0 {
		r.err = errors.New("blob: read from elsewhere than the start")
	}
	return at, nil
}

// Read implements io.Reader. Errors: io.EOF, *DamagedError, *StoreError.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 {
		if r.err != nil && !errors.Is(r.err, io.EOF) || r.err != nil && len(r.next) == 0 {
			return 0, r.err
		}
		r.ready, r.next = r.next, nil
		if r.err == nil {
			r.fill()
		}
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// fill reads the next block, and compares behind the last one.
func (r *Reader) fill() {
	if r.hash == nil {
		r.hash = sha256.New()
	}
	next := make([]byte, block)
	n, err := io.ReadFull(r.from, next)
	r.next = next[:n]
	r.hash.Write(r.next)
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		r.ready, r.next, r.err = nil, nil, &StoreError{Failed, err}
	case "sha256:"+hex.EncodeToString(r.hash.Sum(nil)) != r.checksum:
		r.ready, r.next, r.err = nil, nil, &DamagedError{r.checksum}
	default:
		r.err = io.EOF
	}
}
