//go:build linux

package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// What is charged, in bytes, for what the kernel keeps outside of any process.
const (
	inodeSize      = 1 << 10
	descriptorSize = 4 << 10   // half of a pipe's buffer, beyond the first 64 MB of a user's pipes
	socketSize     = 208 << 10 // a socket's buffer
)

// usage is the memory of the tree under some processes, in bytes: their own and
// shared pages (shared ones for each of them), swap, page tables, open files and
// sockets. What has ended counts nothing. At most most processes are looked at.
func usage(roots []int, most int, sockets bool) (total int64) {
	queue := make([]int, 0, len(roots))
	for _, pid := range roots {
		if pid > 0 {
			queue = append(queue, pid)
		}
	}
	if sockets && len(queue) > 0 {
		total += socketsOf(queue[0]) * socketSize
	}
	for i := 0; i < len(queue) && i < most; i++ {
		dir := fmt.Sprintf("/proc/%d", queue[i])
		total += memoryOf(dir)
		tasks, _ := os.ReadDir(dir + "/task") // it may have ended
		for _, t := range tasks {
			children, _ := os.ReadFile(dir + "/task/" + t.Name() + "/children")
			for _, child := range strings.Fields(string(children)) {
				if pid, err := strconv.Atoi(child); err == nil {
					queue = append(queue, pid)
				}
			}
		}
	}
	return total
}

// memoryOf reads a process's counters. They are kept by the kernel as pages come
// and go: reading them waits for nothing that the process does.
func memoryOf(dir string) (total int64) {
	status, _ := os.ReadFile(dir + "/status") // it may have ended
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		n, _ := strconv.ParseInt(fields[0], 10, 64) // the kernel's own
		switch name {
		case "RssAnon", "RssShmem", "VmSwap", "VmPTE":
			total += n << 10
		case "FDSize":
			total += n * descriptorSize
		}
	}
	return total
}

// socketsOf is how many sockets there are in a process's network namespace.
func socketsOf(pid int) (n int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/sockstat", pid)) // it may have ended
	_, _ = fmt.Sscanf(string(text), "sockets: used %d", &n)
	return n
}
