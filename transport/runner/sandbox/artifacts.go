package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// maxLeft bounds the files that one run may leave.
const maxLeft = 1000

// outputs is how output folders are named; the process that made one follows.
const outputs = "runfacts-output-"

// sweep drops the output folders of processes that died.
func sweep() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), outputs+"*")) // the pattern is right
	for _, folder := range folders {
		maker, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), outputs), "-")
		pid, err := strconv.Atoi(maker)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(folder) // somebody else's, perhaps
		}
	}
}

// outputFolder makes the folder that a sandbox sees as /output.
func outputFolder() (string, error) {
	folder, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", outputs, os.Getpid()))
	if err == nil && os.Geteuid() == 0 {
		err = errors.Join(os.Chown(folder, nobody, nobody), os.Chmod(folder, 0o700))
	}
	return folder, err
}

// discard drops the output folder.
func (p *process) discard() {
	_ = os.RemoveAll(p.output) // what is left is in the system's folder for that
}

// linger gives the process a moment to end by itself.
func (p *process) linger() {
	timer := time.NewTimer(graceTime)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
	}
}

// written is how much is in the output folder, in bytes.
func (p *process) written() (total int64) {
	_ = filepath.WalkDir(p.output, func(_ string, d fs.DirEntry, err error) error { // it changes meanwhile
		if err == nil {
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}

// artifacts reports the files in the output folder, in the order of their names.
// The process has ended; links and other things that are no files are passed
// over, so that nothing else of this machine is read. Errors: emit's,
// *agent.Failure.
func (p *process) artifacts(emit func(agent.Event) error) error {
	root, err := os.OpenRoot(p.output) // whatever a name says, it stays inside
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it was read only
	n := 0
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // a folder that it made unreadable, a link
		}
		if n++; n > maxLeft {
			return &agent.Failure{Code: "sandbox_failed", Message: "it left more than 1000 files in /output"}
		}
		content, err := fs.ReadFile(root.FS(), name)
		if err != nil {
			return nil // unreadable
		}
		media := mime.TypeByExtension(path.Ext(name))
		if media == "" {
			media = "application/octet-stream"
		}
		description, err := json.Marshal(struct {
			Name      string `json:"name"`
			MediaType string `json:"media_type"`
			Size      int    `json:"size"`
			Checksum  string `json:"checksum"`
		}{strings.ToValidUTF8(name, "\uFFFD"), media, len(content), run.Checksum(content)})
		if err != nil {
			return err
		}
		return emit(agent.Event{Type: agent.Artifact, Artifact: description, Bytes: content})
	})
}
