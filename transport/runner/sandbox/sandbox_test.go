//go:build linux

package sandbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/transport/runner/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Setup()
	goleak.VerifyTestMain(m)
}

// defaults is a small sandbox for a shell script.
func defaults(script string) sandbox.Config {
	return sandbox.Config{
		Command: []string{"sh", "-c", script}, Text: true,
		Memory: 256 << 20, Disk: 4 << 20, Processes: 16, Output: 1 << 20, MaxArtifact: 4 << 20,
	}
}

// open returns a sandbox, or skips the test where none can be had.
func open(t *testing.T, c sandbox.Config, log zerolog.Logger) *sandbox.Runner {
	t.Helper()
	need(t, "bwrap")
	r, err := sandbox.New(t.Context(), c, log)
	if err != nil {
		cannot(t, "this machine allows no such sandbox: "+err.Error())
	}
	return r
}

// need skips a test where a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			cannot(t, program+" is not installed")
		}
	}
}

// cannot skips a test that cannot run on this machine. Where everything is said
// to be there it fails.
func cannot(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("RUNFACTS_TEST_ALL") != "" {
		t.Fatal("RUNFACTS_TEST_ALL is set, but ", why)
	}
	t.Skip(why)
}

// outcome is what a run of a sandbox came to.
type outcome struct {
	events []agent.Event
	text   string
	stop   agent.Stop
	err    error
}

func (o *outcome) failure(t *testing.T) *agent.Failure {
	t.Helper()
	var f *agent.Failure
	if !errors.As(o.err, &f) {
		t.Fatalf("%v, %q; want a failure", o.err, o.text)
	}
	return f
}

func play(t *testing.T, c sandbox.Config, input string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return playUntil(ctx, t, c, input, nil)
}

// playUntil plays with a ctx; on is told of each event.
func playUntil(ctx context.Context, t *testing.T, c sandbox.Config, input string, on func(agent.Event)) (o outcome) {
	t.Helper()
	r := open(t, c, zerolog.Nop())
	var text strings.Builder
	o.stop, o.err = r.Run(ctx, agent.Task{RunID: "run_1", Input: json.RawMessage(input)}, func(e agent.Event) error {
		if e.Source != nil {
			content, err := io.ReadAll(e.Source)
			if err != nil {
				return err
			}
			e.Bytes, e.Source = content, nil
		}
		o.events = append(o.events, e)
		text.WriteString(e.Content.String())
		if on != nil {
			on(e)
		}
		return nil
	})
	o.text = text.String()
	return o
}

func TestInputBecomesEvents(t *testing.T) {
	c := defaults(`read -r line; echo "{\"type\":\"delta\",\"content\":$line,\"producer_seq\":7}"; echo; printf '{"type":"done"}'`)
	c.Text = false
	o := play(t, c, `"hello"`)
	if o.err != nil || len(o.events) != 2 || o.events[0].Content.String() != "hello" || o.events[0].ProducerSeq != 0 || o.events[1].Type != agent.Done {
		t.Errorf("%+v", o)
	}
	if want := "the process and its tree ended: exit status 0"; o.stop.Proof != want {
		t.Errorf("proof %q", o.stop.Proof)
	}
}

func TestTextInWholeCharacters(t *testing.T) {
	o := play(t, defaults(`printf 'a\303'; sleep 0.1; printf '\244b\377'`), "null")
	if o.err != nil || o.text != "aäb\uFFFD" {
		t.Errorf("%q, %v", o.text, o.err)
	}
	for _, e := range o.events {
		if strings.Contains(e.Content.String(), "\uFFFD") && e.Content.String() != "b\uFFFD" && e.Content.String() != "äb\uFFFD" {
			t.Errorf("a character was cut: %q", e.Content.String())
		}
	}
}

func TestFailureTellsExitAndErrorsEnd(t *testing.T) {
	c := defaults(`i=0; while [ $i -lt 1000 ]; do echo "line $i" >&2; i=$((i+1)); done; echo "key $KEY leaked" >&2; exit 3`)
	c.Secrets = map[string]string{"KEY": "hunter2hunter2"}
	var log bytes.Buffer
	r := open(t, c, zerolog.New(zerolog.SyncWriter(&log)))
	_, err := r.Run(t.Context(), agent.Task{RunID: "run_1"}, func(agent.Event) error { return nil })
	var f *agent.Failure
	if !errors.As(err, &f) || f.Code != "sandbox_failed" || !strings.HasPrefix(f.Message, "exit status 3\n") || !strings.HasSuffix(f.Message, "key [secret] leaked") {
		t.Errorf("%v", err)
	}
	if len(f.Message) > 3000 || strings.Contains(f.Message+log.String(), "hunter2") || !strings.Contains(log.String(), `"run_id":"run_1","stderr":"line 0"`) {
		t.Errorf("message of %d bytes; log %.200s", len(f.Message), log.String())
	}
}

// Each attempt to get out, or to take more than its share, fails inside.
func TestContained(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("top secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	server := listen(t, "tcp", "127.0.0.1:0")
	for name, try := range map[string]struct{ script, want, not string }{
		"files":        {"cat " + secret + " /etc/shadow /root/.profile; ls /home /root 2>&1; echo tried", "tried", "top secret"},
		"environment":  {"env", "HOME=/work", "GOPATH"},
		"system":       {"exec 2>&1; for f in /usr/x /x /dev/x /etc/x /sys/x; do touch $f && echo written; done; echo x > /usr/bin/sh && echo written; echo tried", "tried", "written"},
		"network":      {"exec 2>&1; python3 -c 'import socket; socket.create_connection((\"127.0.0.1\"," + server + "),2); print(\"connected\")' || echo no network", "", "connected"},
		"processes":    {"kill -9 1; ls /proc | grep -c '^[0-9]'; kill -9 " + strconv.Itoa(os.Getpid()) + " || echo cannot", "cannot", "killed"},
		"capabilities": {"grep CapEff /proc/self/status; mount -t tmpfs none /mnt || echo no mount; unshare -Ur true || echo no namespace", "no namespace", "zzz"},
		"disk":         {"dd if=/dev/zero of=x bs=1M count=64 2>/dev/null || echo full; dd if=/dev/zero of=/dev/shm/x bs=1M count=64 2>/dev/null || echo full; wc -c < x", "full", "67108864"},
		"forks":        {"i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done; echo forked", "", "forked"},
	} {
		t.Run(name, func(t *testing.T) {
			o := play(t, defaults(try.script), "null")
			if !strings.Contains(o.text, try.want) || strings.Contains(o.text, try.not) {
				t.Errorf("%q, %v", o.text, o.err)
			}
		})
	}
}

func TestMemoryOfOneAndOfAll(t *testing.T) {
	need(t, "perl")
	c := defaults(`perl -e '$x = "x" x (600 << 20); print "taken"'`)
	if o := play(t, c, "null"); o.err == nil || strings.Contains(o.text, "taken") {
		t.Errorf("one process took it: %q, %v", o.text, o.err)
	}
	c = defaults(`for i in 1 2 3 4; do perl -e '$x = "x" x (60 << 20); sleep 20' & done; wait; echo waited`)
	c.Memory = 200 << 20
	if o := play(t, c, "null"); !strings.Contains(o.failure(t).Message, "memory") || o.text != "" {
		t.Errorf("all together: %q, %v", o.text, o.err)
	}
}

func TestOutputThatIsTooMuchOrWrong(t *testing.T) {
	flood := defaults(`yes`)
	if f := ptr(play(t, flood, "null")).failure(t); f.Code != "output_too_large" {
		t.Errorf("%v", f)
	}
	for script, want := range map[string]string{
		`echo '{"type":"delta","content":"x"}'; echo 'nonsense'`: "line 2 of standard output",
		`echo '{"type":"delta"}'`:                                "content",
		`head -c 5000000 /dev/zero | tr '\0' x`:                  "longer than",
	} {
		c := defaults(script)
		c.Text, c.Output = false, 64<<20
		if f := ptr(play(t, c, "null")).failure(t); f.Code != "invalid_output" || !strings.Contains(f.Message, want) {
			t.Errorf("%s: %v", script, f)
		}
	}
}

func ptr(o outcome) *outcome { return &o }

// A command that ignores SIGTERM is killed, with all that it started; one that
// does not may say goodbye.
func TestStopIsProven(t *testing.T) {
	marker := "3.1415" + strconv.Itoa(os.Getpid())
	for name, script := range map[string]string{
		"obeys":   `trap 'exit 0' TERM; echo ready; sleep ` + marker + ` & wait`,
		"ignores": `trap '' TERM; (setsid sleep ` + marker + ` &); echo ready; while :; do sleep ` + marker + `; done`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var once sync.Once
			o := playUntil(ctx, t, defaults(script), "null", func(agent.Event) { once.Do(cancel) })
			if o.err != nil || !strings.HasPrefix(o.stop.Proof, "the process and its tree ended: ") {
				t.Errorf("%+v", o)
			}
			if out, err := exec.Command("pgrep", "-f", "sleep "+marker).Output(); err == nil {
				t.Errorf("left running: %s", out)
			}
		})
	}
}

// readable is a folder that sandboxes can read, whoever they are.
func readable(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for d := folder; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func mountOf(source, target string) sandbox.Mount {
	return sandbox.Mount{Source: source, Target: target}
}

func TestMountsAndEnvironment(t *testing.T) {
	folder := readable(t)
	if err := os.WriteFile(filepath.Join(folder, "in"), []byte("shown "), 0o644); err != nil {
		t.Fatal(err)
	}
	c := defaults(`cat /data/in; echo x > /data/new || echo -n "read-only "; echo out > /out/file && echo -n "$NAME $KEY"`)
	c.Env, c.Secrets = map[string]string{"NAME": "name"}, map[string]string{"KEY": "key"}
	c.Mounts = []sandbox.Mount{{Source: folder, Target: "/data"}, {Source: folder, Target: "/out", Writable: true}}
	if o := play(t, c, "null"); o.text != "shown read-only name key" {
		t.Errorf("%q, %v", o.text, o.err)
	}
	if b, err := os.ReadFile(filepath.Join(folder, "file")); err != nil || string(b) != "out\n" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestCannotBeSetUp(t *testing.T) {
	c := defaults("true")
	c.Mounts = []sandbox.Mount{{Source: filepath.Join(t.TempDir(), "nothing"), Target: "/x"}}
	need(t, "bwrap")
	if _, err := sandbox.New(t.Context(), c, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("%v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := sandbox.New(t.Context(), c, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "apt-get install bubblewrap") {
		t.Errorf("%v", err)
	}
}
