package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"

	"github.com/runfacts/runfacts/domain/blob"
	runs "github.com/runfacts/runfacts/domain/run"
	"github.com/runfacts/runfacts/transport/blobfolder"
	"github.com/runfacts/runfacts/transport/metrics"
)

// blobFlags say where artifacts' bytes are.
type blobFlags struct {
	BlobDir string `env:"RUNFACTS_BLOB_DIR" help:"Folder of artifacts' bytes, shared by all instances; empty: blobs/ in the data folder."`
}

func (b blobFlags) blobs(data dataFlags) string {
	if b.BlobDir != "" {
		return b.BlobDir
	}
	return filepath.Join(data.DataDir, "blobs")
}

// checkBlobs verifies every blob in a folder, and says what it found.
func checkBlobs(s streams, folder string) error {
	report, err := blobfolder.Check(folder)
	if err != nil {
		return err
	}
	for _, fault := range report.Faults {
		fmt.Fprintln(s.out, fault)
	}
	verdict := "everything is in order"
	if len(report.Faults) > 0 {
		verdict = fmt.Sprintf("%d are damaged", len(report.Faults))
		err = fmt.Errorf("%d blobs in %s are damaged", len(report.Faults), folder)
	}
	fmt.Fprintf(s.out, "%d blobs, %d bytes, %d of them unreferenced: %s\n", report.Blobs, report.Bytes, report.Unreferenced, verdict)
	return err
}

// watchedBlobs is a blob store whose failures are counted, and told once per
// change. No artifact is larger than most, whoever brings it.
type watchedBlobs struct {
	blob.Store
	most    int64
	metrics *metrics.Metrics
	log     zerolog.Logger

	reads, writes trouble
}

// trouble is why the last call of its kind failed, in so far as the store did.
// Safe for concurrent use; the zero value is none.
type trouble struct {
	mu    sync.Mutex
	cause blob.Cause
}

// becomes reports whether that has changed.
func (t *trouble) becomes(cause blob.Cause) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed, t.cause = t.cause != cause, cause
	return changed
}

// Put implements blob.Store.
func (w *watchedBlobs) Put(ctx context.Context, id runs.ID, content io.Reader, limit int64) (string, int64, error) {
	checksum, size, err := w.Store.Put(ctx, id, content, min(limit, w.most))
	return checksum, size, w.note(&w.writes, err)
}

// Open implements blob.Store.
func (w *watchedBlobs) Open(ctx context.Context, checksum string) (io.ReadSeekCloser, error) {
	content, err := w.Store.Open(ctx, checksum)
	return content, w.note(&w.reads, err)
}

// Release implements blob.Store.
func (w *watchedBlobs) Release(ctx context.Context, id runs.ID) error {
	return w.note(&w.writes, w.Store.Release(ctx, id))
}

// note returns err.
func (w *watchedBlobs) note(t *trouble, err error) error {
	var failed *blob.StoreError
	switch {
	case errors.As(err, &failed):
		w.metrics.BlobFailed(failed.Cause)
		if t.becomes(failed.Cause) {
			w.log.Error().Err(err).Str("cause", string(failed.Cause)).Msg("blob store")
		}
	case err == nil || errors.Is(err, blob.ErrNotFound):
		if t.becomes("") {
			w.log.Info().Str("cause", "").Msg("blob store")
		}
	} // else it was the content's fault, and says nothing of the store
	return err
}
