package blobfolder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/runfacts/runfacts/domain/blob"
)

// Report is what Check has found.
type Report struct {
	Blobs        int
	Unreferenced int // of them: no run refers to it; a crash left it
	Bytes        int64
	// Faults name what is not as it should be, one a line: the blob, what is
	// wrong with it, and the runs that refer to it.
	Faults []string
}

// Check reads every blob in a folder and compares it with its checksum. A folder
// that is not there has none. The folder may be in use. Error: what kept it from
// looking.
func Check(path string) (r Report, err error) {
	places, err := filepath.Glob(filepath.Join(path, "[0-9a-f][0-9a-f]", "*"))
	if err != nil {
		return r, err
	}
	f := &Folder{path}
	for _, place := range places {
		name := filepath.Base(place)
		if folder, ok := f.place(algorithm + name); !ok || folder != place {
			r.Faults = append(r.Faults, place+": it is no blob's place")
			continue
		}
		size, fault := f.check(place)
		if errors.Is(fault, fs.ErrNotExist) {
			if _, err := os.Stat(place); errors.Is(err, fs.ErrNotExist) {
				continue // it was released meanwhile
			}
			fault = errors.New("its content is missing")
		}
		r.Blobs++
		r.Bytes += size
		runs := referring(place)
		if len(runs) == 0 {
			r.Unreferenced++
		}
		if fault != nil {
			r.Faults = append(r.Faults, fmt.Sprintf("%s%s: %v (of runs: %s)", algorithm, name, fault, strings.Join(runs, ", ")))
		}
	}
	return r, nil
}

func (f *Folder) check(place string) (int64, error) {
	file, err := os.Open(filepath.Join(place, content))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	err = blob.Check(file, algorithm+filepath.Base(place))
	var damaged *blob.DamagedError
	if errors.As(err, &damaged) {
		err = fmt.Errorf("its %d bytes are others", info.Size())
	}
	return info.Size(), err
}

// referring names the runs that refer to a blob.
func referring(place string) (runs []string) {
	entries, err := os.ReadDir(place)
	if err != nil {
		return nil // it was released meanwhile
	}
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), reference); ok {
			runs = append(runs, id)
		}
	}
	return runs
}
