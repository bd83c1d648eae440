package supervisor_test

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
)

// blobs is a blob store in memory.
type blobs struct {
	mu   sync.Mutex
	kept map[string][]byte
}

var _ blob.Store = (*blobs)(nil)

func newBlobs() *blobs { return &blobs{kept: make(map[string][]byte)} }

// lose drops all that is kept.
func (b *blobs) lose() { b.mu.Lock(); defer b.mu.Unlock(); clear(b.kept) }

// Put implements blob.Store.
func (b *blobs) Put(_ context.Context, _ run.ID, content io.Reader, _ int64) (string, int64, error) {
	all, err := io.ReadAll(content)
	if err != nil {
		return "", 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	checksum := run.Checksum(all)
	b.kept[checksum] = all
	return checksum, int64(len(all)), nil
}

// Open implements blob.Store.
func (b *blobs) Open(_ context.Context, checksum string) (io.ReadSeekCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	content, ok := b.kept[checksum]
	if !ok {
		return nil, blob.ErrNotFound
	}
	return opened{bytes.NewReader(content)}, nil
}

// Release implements blob.Store.
func (b *blobs) Release(context.Context, run.ID) error { return nil }

type opened struct{ *bytes.Reader }

func (opened) Close() error { return nil }
