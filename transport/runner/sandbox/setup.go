//go:build linux

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// setupName is what a process is called that makes a sandbox's file systems and
// then becomes bubblewrap.
const setupName = "runfacts-sandbox-setup"

// base is where that process keeps them, in a mount namespace of its own. It has
// to exist, to be visible by name (bubblewrap binds from it), and to be what no
// sandbox shows.
const base = "/sys/fs/cgroup"

// nobody is who a sandbox is for the kernel when this process is root: limits
// on processes do not hold for root.
const nobody = 65534

// folders are the file systems that a sandbox may write to.
var folders = []struct{ name, target string }{
	{"output", "/output"}, {"work", "/work"}, {"tmp", "/tmp"}, {"shm", "/dev/shm"},
}

// The descriptors that the process gets.
const (
	setupFD = 3 + iota
	infoFD
	filterFD
	resolverFD
)

// plan is what the process is to do.
type plan struct {
	Size   int64 // of each file system, in bytes
	Inodes int64 // of each
	User   int   // who is to own them
	Become bool  // that user, before bubblewrap starts
}

// Setup has to be the first call of a main whose process makes sandboxes. Where
// the process was started by a Runner to set one up it does that, and never
// returns; else it does nothing. Bubblewrap by itself makes no file system with
// a bounded number of files, nor one that outlives its processes.
func Setup() {
	began = true
	if os.Args[0] != setupName {
		return
	}
	err := setup(os.Args[1], os.Args[2:])
	fmt.Fprintln(os.Stderr, "set up the sandbox's file systems:", err)
	os.Exit(1)
}

// began: Setup was called. Without it a process that is to set up would be
// another server.
var began bool

// setup makes the file systems, hands them to the server, waits for its word,
// and becomes bubblewrap. It returns only errors.
func setup(text string, command []string) error {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make its mounts private: %w", err)
	}
	if err := mount(base, 64<<10, 64, p.User); err != nil {
		return err
	}
	var opened []int
	for _, f := range folders {
		path := filepath.Join(base, f.name)
		if err := unix.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := mount(path, p.Size, p.Inodes, p.User); err != nil {
			return err
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		opened = append(opened, fd)
	}
	unix.CloseOnExec(setupFD)
	if err := unix.Sendmsg(setupFD, []byte{0}, unix.UnixRights(opened...), nil, 0); err != nil {
		return fmt.Errorf("hand them over: %w", err)
	}
	if n, err := unix.Read(setupFD, make([]byte, 1)); n != 1 {
		return errors.Join(errors.New("the server has given up"), err)
	}
	if p.Become {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(p.User), syscall.Setuid(p.User)); err != nil {
			return fmt.Errorf("become user %d: %w", p.User, err)
		}
	}
	return fmt.Errorf("start %s: %w", command[0], syscall.Exec(command[0], command, os.Environ()))
}

func mount(path string, size, inodes int64, user int) error {
	options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0700,uid=%d,gid=%d", size, inodes, user, user)
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount a file system of %d bytes on %s: %w", size, path, err)
	}
	return nil
}

// attributes are of the process that sets up: in a mount namespace, and where
// that needs one in a user namespace too, in which it is root.
func attributes(c *Config) (*syscall.SysProcAttr, plan) {
	p := plan{Size: c.Disk, Inodes: c.inodes(), User: nobody, Become: true}
	attributes := &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNS}
	if c.Network == OwnNetwork {
		attributes.Cloneflags |= syscall.CLONE_NEWNET
	}
	if os.Geteuid() != 0 {
		p.User, p.Become = 0, false
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attributes, p
}

// handover is the server's end of the socket to the process that sets up.
type handover struct{ conn *net.UnixConn }

// newHandover returns both ends.
func newHandover() (*handover, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "setup"), os.NewFile(uintptr(pair[1]), "setup")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return &handover{conn.(*net.UnixConn)}, theirs, nil //nolint:errcheck // a socket of that family
}

// take waits for the file systems. Error: the process has ended; it says why on
// its standard error.
func (h *handover) take() (*files, error) {
	rights := make([]byte, unix.CmsgSpace(4*len(folders)))
	_, n, _, _, err := h.conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("no file systems came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != len(folders) {
		return nil, errors.Join(errors.New("other file systems came"), err)
	}
	var fs files
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		fs.roots = append(fs.roots, os.NewFile(uintptr(fd), folders[i].name))
	}
	return &fs, nil
}

// proceed lets the process become bubblewrap.
func (h *handover) proceed() error {
	_, err := h.conn.Write([]byte{0})
	return err
}

// close gives the process up, where it waits still.
func (h *handover) close() { _ = h.conn.Close() } // twice is an error only

// files is what a sandbox may write to, held from outside: it is all there
// until close, and gone then, whatever becomes of this process.
type files struct{ roots []*os.File }

// output is the folder that the sandbox saw as /output.
func (f *files) output() *os.File { return f.roots[0] }

// used is what they hold, in bytes: files without a name and beyond any depth
// too.
func (f *files) used() (total int64) {
	for _, root := range f.roots {
		var s unix.Statfs_t
		if unix.Fstatfs(int(root.Fd()), &s) == nil { // it is open
			total += int64(s.Blocks-s.Bfree)*int64(s.Bsize) + int64(s.Files-s.Ffree)*inodeSize
		}
	}
	return total
}

// check compares them with what was asked for.
func (f *files) check(c *Config) error {
	for i, root := range f.roots {
		var s unix.Statfs_t
		if err := unix.Fstatfs(int(root.Fd()), &s); err != nil {
			return err
		}
		page := int64(s.Bsize) // sizes are in whole ones
		if size := int64(s.Blocks) * page; size < c.Disk || size >= c.Disk+page || int64(s.Files) != c.inodes() {
			return errors.New(folders[i].target + " has " + strconv.FormatInt(size, 10) + " bytes and room for " + strconv.FormatUint(s.Files, 10) + " files")
		}
	}
	return nil
}

func (f *files) close() {
	for _, root := range f.roots {
		root.Close()
	}
}
