//go:build linux

package sandbox_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runfacts/runfacts/domain/agent"
	"github.com/runfacts/runfacts/domain/run"
)

// left is an artifact's description.
type left struct {
	Name, Checksum string
	NameBytes      string `json:"name_base64"`
	NotTaken       string `json:"not_taken"`
	Size           *int64
}

func leftBy(t *testing.T, o *outcome) (out []left) {
	t.Helper()
	for _, e := range o.events {
		if e.Type != agent.Artifact {
			continue
		}
		var l left
		if err := json.Unmarshal(e.Artifact, &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

// What a command leaves in /output becomes artifacts, before the run's end, and
// nothing else of this machine does; what cannot be taken is told. Nothing is in
// the temporary folder, ever.
func TestOutputBecomesArtifacts(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := defaults(`echo '{"type":"done","answer":"left"}'; mkdir -p /output/sub; printf one > /output/a.txt; printf two > /output/sub/b.bin
		ln -s /etc/passwd /output/link; mkfifo /output/pipe; ln -s / /output/sub/root; printf x > /output/sub/$(printf 'caf\351')`)
	c.Text = false
	o := play(t, c, "null")
	var got []string
	for _, e := range o.events {
		got = append(got, string(e.Type)+" "+string(e.Bytes))
	}
	if want := "artifact one|artifact |artifact |artifact two|artifact x|artifact |done "; o.err != nil || strings.Join(got, "|") != want {
		t.Fatalf("%q, %v; want %q", got, o.err, want)
	}
	all := leftBy(t, &o)
	for i, want := range []left{
		{Name: "a.txt", Checksum: run.Checksum([]byte("one"))},
		{Name: "link", NotTaken: "symbolic link"},
		{Name: "pipe", NotTaken: "named pipe"},
		{Name: "sub/b.bin", Checksum: run.Checksum([]byte("two"))},
		{Name: "sub/caf\uFFFD", NameBytes: base64.StdEncoding.EncodeToString([]byte("sub/caf\xe9")), Checksum: run.Checksum([]byte("x"))},
		{Name: "sub/root", NotTaken: "symbolic link"},
	} {
		size := all[i].Size
		if all[i].Size = nil; all[i] != want || (size == nil) != (want.NotTaken != "") {
			t.Errorf("%+v; want %+v", all[i], want)
		}
	}
	if names, err := os.ReadDir(os.TempDir()); err != nil || len(names) > 0 {
		t.Errorf("in the temporary folder: %v, %v", names, err)
	}
}

// What its modes forbid is opened all the same.
func TestModesHideNothing(t *testing.T) {
	o := play(t, defaults(`cd /output; mkdir a b c; for d in a b c; do echo $d > $d/file; done; chmod 000 c/file; chmod 0300 a; chmod 0400 b; chmod 0 c; chmod 0 /output`), "null")
	var got []string
	for _, e := range o.events {
		got = append(got, strings.TrimSpace(string(e.Bytes)))
	}
	if strings.Join(got, ",") != "a,b,c" || o.err != nil {
		t.Errorf("%q, %v", got, o.err)
	}
}

// More, or other, than can be taken fails the run before any of it is reported,
// and costs this process little.
func TestTooMuchIsLeft(t *testing.T) {
	need(t, "python3")
	for name, try := range map[string]struct{ script, want string }{
		"files":      {"for i in range(1001): open('f%d'%i,'w')", "more than 1000 files"},
		"folders":    {"for i in range(10001): os.mkdir('d%d'%i)", "more than 10000 files and folders"},
		"links":      {"open('x','wb').write(b'x'*(1<<20))\nfor i in range(100): os.link('x','l%d'%i)", "more than 67108864 bytes"},
		"holes":      {"for i in range(100): open('f%d'%i,'wb').truncate(1<<20)", "more than 67108864 bytes"},
		"one":        {"open('x','wb').truncate((4<<20)+1)", "at most 4194304"},
		"depth":      {"for i in range(33): os.mkdir('d'); os.chdir('d')", "more than 32 inside one another"},
		"far down":   {"for i in range(3000): os.mkdir('de'[i%2]*200); os.chdir('de'[i%2]*200)\nopen('leaf','w').write('x')", "inside one another"},
		"names":      {"for i in range(6): os.mkdir('d'*200); os.chdir('d'*200)\nopen('leaf','w')", "longer than 1024"},
		"name quote": {"os.mkdir('\\x01'*200); open('\\x01'*200+'/a','w')", "longer than 1024"},
	} {
		t.Run(name, func(t *testing.T) {
			c := defaults("")
			c.Command = []string{"python3", "-c", "import os\nos.chdir('/output')\n" + try.script + "\nprint('left')"}
			c.Disk = 64 << 20
			o := play(t, c, "null")
			if f := o.failure(t); f.Code != "sandbox_failed" || !strings.Contains(f.Message, try.want) || !strings.Contains(o.text, "left") {
				t.Errorf("%v, %q; want %q", f, o.text, try.want)
			}
			if n := len(leftBy(t, &o)); n > 0 {
				t.Errorf("%d artifacts", n)
			}
		})
	}
}

// A file that its maker has deleted, and a folder that is a mount of ours, are
// none of what is left.
func TestMountsInOutputAreNotLeft(t *testing.T) {
	folder := readable(t)
	if err := os.WriteFile(filepath.Join(folder, "ours"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := defaults(`ls /output/data; echo x > /output/x; exec 3> /output/gone; rm /output/gone; echo y >&3`)
	c.Mounts = append(c.Mounts, mountOf(folder, "/output/data"))
	o := play(t, c, "null")
	if all := leftBy(t, &o); o.err != nil || o.text != "ours\n" || len(all) != 1 || all[0].Name != "x" {
		t.Errorf("%+v, %q, %v", all, o.text, o.err)
	}
}
