// Package blobfolder keeps blobs in a folder, which several instances may share:
//
//	ab/abcdef…/content     the bytes
//	ab/abcdef…/run-<id>    for each run that refers to them, empty
//	runs/<id>/abcdef…      the same by run
//	tmp/                   what is being written
//
// Content appears by rename, whole and synced. Changes under a prefix are
// serialized by a lock on its folder, across processes too. What is being written
// is locked by its writer: what nobody holds a crash has left.
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
// Error: *blob.StoreError.
func Open(path string) (*Folder, error) {
	f := &Folder{path}
	if err := os.MkdirAll(f.tmp(), 0o700); err != nil {
		return nil, failed(err)
	}
	return f, f.sweep()
}

func (f *Folder) tmp() string { return filepath.Join(f.path, "tmp") }

// sweep drops what no writer holds. Another instance's writers hold theirs.
func (f *Folder) sweep() error {
	left, err := os.ReadDir(f.tmp())
	if err != nil {
		return failed(err)
	}
	for _, entry := range left {
		file, err := os.Open(filepath.Join(f.tmp(), entry.Name()))
		if err != nil {
			continue // its writer has just finished
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.Remove(file.Name())
		}
		file.Close()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return failed(err)
		}
	}
	return nil
}

// temporary makes a file that sweep leaves alone while it is open.
func (f *Folder) temporary() (*os.File, error) {
	for {
		file, err := os.CreateTemp(f.tmp(), "")
		if err != nil {
			return nil, err
		}
		// A sweep between the two lines above and below may have taken it away.
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
		if _, err := os.Stat(file.Name()); err == nil {
			return file, nil
		}
		file.Close()
	}
}

// failed says why the folder cannot do what it is for.
func failed(err error) error {
	var known *blob.StoreError
	if err == nil || errors.As(err, &known) {
		return err
	}
	cause := blob.Failed
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		cause = blob.Full
	case errors.Is(err, syscall.EROFS):
		cause = blob.ReadOnly
	case errors.Is(err, os.ErrPermission):
		cause = blob.Denied
	case errors.Is(err, os.ErrNotExist):
		cause = blob.Missing
	}
	return &blob.StoreError{Cause: cause, Err: err}
}

// place is a blob's folder; ok is false for what is no checksum.
func (f *Folder) place(checksum string) (folder string, ok bool) {
	sum, ok := strings.CutPrefix(checksum, algorithm)
	if !ok || len(sum) != 2*sha256.Size || strings.Trim(sum, "0123456789abcdef") != "" {
		return "", false
	}
	return filepath.Join(f.path, sum[:2], sum), true
}

// given is what is brought, and knows whether that failed: it is not the folder's
// fault then.
type given struct {
	from io.Reader
	err  error
}

func (g *given) Read(p []byte) (n int, err error) {
	n, err = g.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		g.err = err
	}
	return n, err
}

// Put implements blob.Store.
func (f *Folder) Put(_ context.Context, id run.ID, from io.Reader, limit int64) (checksum string, size int64, err error) {
	tmp, err := f.temporary()
	if err != nil {
		return "", 0, failed(err)
	}
	defer tmp.Close()
	defer os.Remove(tmp.Name()) //nolint:errcheck // it was renamed, where that went well
	hash, content := sha256.New(), &given{from: from}
	size, err = io.Copy(io.MultiWriter(tmp, hash), io.LimitReader(content, limit+1))
	switch {
	case content.err != nil:
		return "", 0, content.err
	case err == nil && size > limit:
		return "", 0, &blob.TooLargeError{Limit: limit}
	case err == nil:
		err = tmp.Sync()
	}
	if err != nil {
		return "", 0, failed(err)
	}
	checksum = algorithm + hex.EncodeToString(hash.Sum(nil))
	return checksum, size, failed(f.refer(checksum, id, tmp.Name()))
}

// refer puts content in its place, under its run's name. It takes the place of
// what is there: that should be the same, and may have been damaged meanwhile.
func (f *Folder) refer(checksum string, id run.ID, tmp string) error {
	folder, _ := f.place(checksum)
	unlock, err := lock(filepath.Dir(folder))
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	own := filepath.Join(f.path, byRun, string(id))
	if err := os.MkdirAll(own, 0o700); err != nil {
		return err
	}
	// First, so that a crash leaves no reference to what is not there.
	if err := os.Rename(tmp, filepath.Join(folder, content)); err != nil {
		return err
	}
	for _, name := range []string{filepath.Join(own, filepath.Base(folder)), filepath.Join(folder, reference+string(id))} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return err
		}
	}
	// The event that names it may be committed next: names must last as bytes do.
	for _, path := range []string{folder, filepath.Dir(folder), own, filepath.Dir(own), f.path} {
		if err := sync(path); err != nil {
			return err
		}
	}
	return nil
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
	if err == nil {
		return file, nil
	}
	if _, gone := os.Stat(f.tmp()); errors.Is(err, os.ErrNotExist) && gone == nil {
		return nil, blob.ErrNotFound
	}
	return nil, failed(err) // a folder that is not there knows nothing of its blobs
}

// Release implements blob.Store.
func (f *Folder) Release(_ context.Context, id run.ID) error {
	own := filepath.Join(f.path, byRun, string(id))
	names, err := os.ReadDir(own)
	if errors.Is(err, os.ErrNotExist) {
		_, err = os.Stat(f.tmp())
		return failed(err)
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
		return fmt.Errorf("release the blobs of run %s: %w", id, failed(err))
	}
	return failed(os.Remove(own))
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
