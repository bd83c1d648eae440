package embedded

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// socketPrefix is how the address of a node begins that listens on no port; a
// folder follows.
const socketPrefix = "unix:"

// listen binds host:port, or a socket in a folder that nobody but this user
// reaches.
func listen(address string) (net.Listener, error) {
	folder, ok := strings.CutPrefix(address, socketPrefix)
	if !ok {
		return net.Listen("tcp", address)
	}
	if err := errors.Join(os.MkdirAll(folder, 0o700), os.Chmod(folder, 0o700)); err != nil {
		return nil, err
	}
	opened, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	// Socket addresses are short, and a client's target is a URL: a folder's name
	// may be too long for the one and strange in the other. Where the system tells
	// open files by number there is another name.
	near := fmt.Sprintf("/proc/self/fd/%d", opened.Fd())
	if _, err := os.Stat(near); err != nil {
		near = folder
	}
	// The name is new each time: a folder that another process uses is only found
	// out later, and its socket has to be left alone.
	listener, err := net.Listen("unix", filepath.Join(near, uuid.NewString()))
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return &socket{listener, opened}, nil
}

// socket listens in a folder, and keeps it open.
type socket struct {
	net.Listener
	folder *os.File
}

func (s *socket) Close() error { return errors.Join(s.Listener.Close(), s.folder.Close()) }

// sweep drops the sockets of processes that were killed. The data is this
// process's: no other one serves it.
func sweep(l net.Listener) {
	s, ok := l.(*socket)
	if !ok {
		return
	}
	names, _ := s.folder.Readdirnames(-1) // what is left does no harm
	for _, name := range names {
		if name != filepath.Base(s.Addr().String()) {
			_ = os.Remove(filepath.Join(filepath.Dir(s.Addr().String()), name))
		}
	}
}
