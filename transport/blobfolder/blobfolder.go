// Package blobfolder keeps blobs in a folder, which several instances may share:
//
//	ab/abcdef…/content     the bytes
//	ab/abcdef…/run-<id>    for each run that refers to them, empty
//	runs/<id>/abcdef…      the same by run
//	tmp/                   what is being written
//
// Content appears by rename, whole and synced. Changes under a prefix are
// serialized by a lock on its folder, across processes too.
package blobfolder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/runfacts/runfacts/domain/blob"
	"github.com/runfacts/runfacts/domain/run"
)

const (
	algorithm = "sha256:"
	content   = "content"
	reference = "run-"
	byRun     = "runs"
)

// Folder implements blob.Store.
type Folder struct{ path string }

var _ blob.Store = (*Folder)(nil)

// Open makes the folder if need be, and drops what a crash left half written.
func Open(path string) (*Folder, error) {
	tmp := filepath.Join(path, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return nil, err
	}
	return &Folder{path}, nil
}

// place is a blob's folder; ok is false for what is no checksum.
func (f *Folder) place(checksum string) (folder string, ok bool) {
	sum, ok := strings.CutPrefix(checksum, algorithm)
	if !ok || len(sum) != 2*sha256.Size || strings.Trim(sum, "0123456789abcdef") != "" {
		return "", false
	}
	return filepath.Join(f.path, sum[:2], sum), true
}

// Put implements blob.Store.
func (f *Folder) Put(_ context.Context, id run.ID, from io.Reader, limit int64) (checksum string, size int64, err error) {
	tmp, err := os.CreateTemp(filepath.Join(f.path, "tmp"), "")
	if err != nil {
		return "", 0, err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // it was renamed, where that went well
	hash := sha256.New()
	size, err = io.Copy(io.MultiWriter(tmp, hash), io.LimitReader(from, limit+1))
	if err == nil && size > limit {
		err = &blob.TooLargeError{Limit: limit}
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", 0, err
	}
	checksum = algorithm + hex.EncodeToString(hash.Sum(nil))
	folder, _ := f.place(checksum)
	unlock, err := lock(filepath.Dir(folder))
	if err != nil {
		return "", 0, err
	}
	defer unlock()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", 0, err
	}
	own := filepath.Join(f.path, byRun, string(id))
	if err := os.MkdirAll(own, 0o700); err != nil {
		return "", 0, err
	}
	for _, name := range []string{filepath.Join(own, filepath.Base(folder)), filepath.Join(folder, reference+string(id))} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return "", 0, err
		}
	}
	if _, err := os.Stat(filepath.Join(folder, content)); err != nil {
		if err := os.Rename(tmp.Name(), filepath.Join(folder, content)); err != nil {
			return "", 0, err
		}
	}
	// The event that names it may be committed next: names must last as bytes do.
	for _, path := range []string{folder, filepath.Dir(folder), own, filepath.Dir(own), f.path} {
		if err := sync(path); err != nil {
			return "", 0, err
		}
	}
	return checksum, size, nil
}

func sync(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lock makes a prefix's folder and locks it, for all processes.
func lock(folder string) (unlock func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	d, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", folder, err), d.Close())
	}
	return func() { d.Close() }, nil
}

// Open implements blob.Store.
func (f *Folder) Open(_ context.Context, checksum string) (io.ReadSeekCloser, error) {
	folder, ok := f.place(checksum)
	if !ok {
		return nil, blob.ErrNotFound
	}
	file, err := os.Open(filepath.Join(folder, content))
	if errors.Is(err, os.ErrNotExist) {
		return nil, blob.ErrNotFound
	}
	return file, err
}

// Release implements blob.Store.
func (f *Folder) Release(_ context.Context, id run.ID) error {
	own := filepath.Join(f.path, byRun, string(id))
	names, err := os.ReadDir(own)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	faults := []error{err}
	for _, name := range names {
		folder, ok := f.place(algorithm + name.Name())
		if !ok {
			continue
		}
		if err := f.release(folder, id); err != nil {
			faults = append(faults, err)
			continue
		}
		faults = append(faults, os.Remove(filepath.Join(own, name.Name())))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("release the blobs of run %s: %w", id, err)
	}
	return os.Remove(own)
}

func (f *Folder) release(folder string, id run.ID) error {
	unlock, err := lock(filepath.Dir(folder))
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Remove(filepath.Join(folder, reference+string(id))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 1 || len(left) == 1 && left[0].Name() != content {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return err
	}
	return os.RemoveAll(folder)
}
