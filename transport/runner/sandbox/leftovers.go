//go:build linux

package sandbox

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/runfacts/runfacts/domain/agent"
)

// Bounds of what one run may leave in /output.
const (
	maxLeft    = 1000 // files
	maxEntries = 10_000
	maxDepth   = 32 // folders inside one another, and descriptors held while looking
)

// leftover is a file, or what is none, in /output.
type leftover struct {
	name string // its path below /output, as bytes
	size int64
	kind string // of what is no file and cannot be taken; "": a file
}

// description is a leftover's artifact.
type description struct {
	Name      string `json:"name"`
	NameBytes string `json:"name_base64,omitempty"` // where the name is not UTF-8
	MediaType string `json:"media_type,omitempty"`
	Size      *int64 `json:"size,omitempty"`
	Checksum  string `json:"checksum,omitempty"`
	NotTaken  string `json:"not_taken,omitempty"` // what it is
}

// event describes a leftover, without its content.
func (l *leftover) event(checksum string) (agent.Event, error) {
	d := description{Name: l.name, NotTaken: l.kind}
	if !utf8.ValidString(l.name) {
		d.Name, d.NameBytes = strings.ToValidUTF8(l.name, "\uFFFD"), base64.StdEncoding.EncodeToString([]byte(l.name))
	}
	if l.kind == "" {
		d.MediaType, d.Size, d.Checksum = mime.TypeByExtension(path.Ext(d.Name)), &l.size, checksum
		if d.MediaType == "" {
			d.MediaType = "application/octet-stream"
		}
	}
	text, err := json.Marshal(d)
	return agent.Event{Type: agent.Artifact, Artifact: text}, err
}

// artifacts reports what is in the output folder, in the order of names: files
// with their content, and of links and other things that are none that they were
// there. The processes have ended, so nothing changes any more. What is more, or
// other, than can be taken is found before anything is reported. Errors: emit's,
// *agent.Failure.
func artifacts(root *os.File, c *Config, emit func(agent.Event) error) error {
	s := scan{most: c}
	if err := s.folder(int(root.Fd()), "", 1); err != nil {
		return err
	}
	for i := range s.found {
		if err := take(root, &s.found[i], emit); err != nil {
			return err
		}
	}
	return nil
}

// scan looks through a folder that a stranger filled.
type scan struct {
	most    *Config
	found   []leftover
	entries int
	total   int64
}

func excess(format string, args ...any) error {
	return &agent.Failure{Code: "sandbox_failed", Message: fmt.Sprintf(format, args...)}
}

// folder adds what is in an open folder.
func (s *scan) folder(fd int, name string, depth int) error {
	_ = unix.Fchmod(fd, 0o700) // else what is in it tells so
	names, err := s.names(fd)
	if err != nil {
		return err
	}
	for _, n := range names {
		var stat unix.Stat_t
		if err := unix.Fstatat(fd, n, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return unreadable(path.Join(name, n), err)
		}
		full := n
		if name != "" {
			full = name + "/" + n
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err := s.add(leftover{full, stat.Size, kindOf(stat.Mode)}); err != nil {
				return err
			}
			continue
		}
		if depth == maxDepth {
			return excess("it left folders in /output that are more than %d inside one another", maxDepth)
		}
		inner, err := openat(fd, n, unix.O_DIRECTORY)
		if err != nil {
			return unreadable(full, err)
		}
		err = s.folder(inner, full, depth+1)
		unix.Close(inner) //nolint:errcheck // it was read only
		if err != nil {
			return err
		}
	}
	return nil
}

// names returns the names in an open folder, sorted.
func (s *scan) names(fd int) ([]string, error) {
	again, err := openat(fd, ".", unix.O_DIRECTORY) // with a position of its own
	if err != nil {
		return nil, unreadable(".", err)
	}
	folder := os.NewFile(uintptr(again), "")
	defer folder.Close()
	names, err := folder.Readdirnames(maxEntries - s.entries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, unreadable(".", err)
	}
	if s.entries += len(names); s.entries > maxEntries {
		return nil, excess("it left more than %d files and folders in /output", maxEntries)
	}
	slices.Sort(names)
	return names, nil
}

// add checks that something can be taken.
func (s *scan) add(l leftover) error {
	e, err := l.event("")
	if err == nil {
		err = e.Check()
	}
	var fault *agent.FieldError
	switch {
	case errors.As(err, &fault):
		return excess("it left a file in /output that cannot be taken: %s %s", fault.Field, fault.Reason)
	case err != nil:
		return err
	case len(s.found) == maxLeft:
		return excess("it left more than %d files in /output", maxLeft)
	case l.kind == "" && l.size > s.most.MaxArtifact:
		return excess("it left a file of %d bytes in /output; an artifact has at most %d", l.size, s.most.MaxArtifact)
	}
	if l.kind == "" { // what they seem to have: holes are read, and linked files more than once
		s.total += l.size
	}
	if s.total > s.most.Disk {
		return excess("the files that it left in /output have more than %d bytes", s.most.Disk)
	}
	s.found = append(s.found, l)
	return nil
}

func unreadable(name string, err error) error {
	return excess("it left something in /output that cannot be read: %.256q: %v", name, err)
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return ""
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFIFO:
		return "named pipe"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// openat opens what is below an open folder, by no link, and out of the file
// system by none; where its mode forbids that the mode is changed.
func openat(fd int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	opened, err := unix.Openat2(fd, name, &how)
	if errors.Is(err, unix.EACCES) && unix.Fchmodat(fd, name, 0o700, 0) == nil {
		opened, err = unix.Openat2(fd, name, &how)
	}
	return opened, err
}

// take reports a leftover. The content is read twice, for its checksum and by
// emit, and never held.
func take(root *os.File, l *leftover, emit func(agent.Event) error) error {
	if l.kind != "" {
		e, err := l.event("")
		if err != nil {
			return err
		}
		return emit(e)
	}
	fd, err := openat(int(root.Fd()), l.name, 0)
	if err != nil {
		return unreadable(l.name, err)
	}
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	hash := sha256.New()
	if n, err := io.Copy(hash, io.NewSectionReader(file, 0, l.size)); err != nil || n != l.size {
		return unreadable(l.name, err)
	}
	e, err := l.event("sha256:" + hex.EncodeToString(hash.Sum(nil)))
	if err != nil {
		return err
	}
	e.Source = io.NewSectionReader(file, 0, l.size)
	return emit(e)
}
