//go:build linux

package sandbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// uncounted are the calls that take memory which nothing counts where there is
// no cgroup: no process need map it, and no file system holds it. Shared
// anonymous mappings are of the same kind (they stay when pages are given up).
var uncounted = []uint32{
	unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_IO_URING_SETUP,
}

// What the kernel tells a filter of a call (struct seccomp_data).
const (
	dataNumber = 0
	dataArch   = 4
	dataFlags  = 16 + 3*8 // the fourth argument's lower half, on little-endian machines
)

// filter is a seccomp program that allows everything, or refuses uncounted memory
// with ENOSYS, as a kernel does that does not know these calls.
func filter(everything bool) ([]byte, error) {
	answer := func(with uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with} }
	refuse, allow := answer(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)), answer(unix.SECCOMP_RET_ALLOW)
	if everything {
		return encode([]unix.SockFilter{allow})
	}
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("memory cannot be bounded on %s without a cgroup", runtime.GOARCH)
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// jump skips the next instruction unless the test holds.
	jump := func(test uint16, k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jf: 1, K: k}
	}
	program := []unix.SockFilter{
		load(dataArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: arch},
		refuse, // another architecture's calls have other numbers
		load(dataNumber),
		jump(unix.BPF_JGE, 0x40000000), // as x32's have
		refuse,
	}
	for _, number := range uncounted {
		program = append(program, jump(unix.BPF_JEQ, number), refuse)
	}
	const shared = unix.MAP_SHARED | unix.MAP_ANONYMOUS
	program = append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.SYS_MMAP},
		allow,
		load(dataFlags),
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: shared},
		jump(unix.BPF_JEQ, shared),
		refuse,
		allow,
	)
	return encode(program)
}

func encode(program []unix.SockFilter) ([]byte, error) {
	var out bytes.Buffer
	err := binary.Write(&out, binary.NativeEndian, program)
	return out.Bytes(), err
}
