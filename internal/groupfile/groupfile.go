// Package groupfile is what benchmarks compare with: a file that records are
// appended to with group commit. Whatever waits while one fdatasync is in
// flight is made durable by the next. Nothing that keeps every record can be
// faster on the same disk.
package groupfile

import (
	"context"
	"os"
	"syscall"
)

// waiters bounds what one sync takes: more than any benchmark has writers.
const waiters = 4096

type request struct {
	record []byte
	done   chan error
}

// File is safe for concurrent use while Run runs.
type File struct {
	f        *os.File
	requests chan request
}

// Create makes an empty file.
func Create(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &File{f: f, requests: make(chan request, waiters)}, nil
}

// Append returns when the record is on disk.
func (f *File) Append(record []byte) error {
	done := make(chan error, 1)
	f.requests <- request{record, done}
	return <-done
}

// Run writes until ctx ends, then closes the file.
func (f *File) Run(ctx context.Context) error {
	var batch []request
	var buffer []byte
	for {
		select {
		case first := <-f.requests:
			batch = append(batch[:0], first)
		case <-ctx.Done():
			return f.f.Close()
		}
		for more := true; more && len(batch) < waiters; {
			select {
			case r := <-f.requests:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		buffer = buffer[:0]
		for _, r := range batch {
			buffer = append(buffer, r.record...)
		}
		_, err := f.f.Write(buffer)
		if err == nil {
			err = syscall.Fdatasync(int(f.f.Fd()))
		}
		for _, r := range batch {
			r.done <- err
		}
	}
}
