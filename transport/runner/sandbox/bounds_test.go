//go:build linux

package sandbox_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// Each way to take more than its share ends in an error, or with the sandbox.
func TestBoundsAreBounds(t *testing.T) {
	need(t, "python3")
	const sleep = "\nimport time; time.sleep(20)"
	for name, script := range map[string]string{
		"memory of one":     "k=[bytearray(1<<20) for i in range(300)]" + sleep,
		"memory of many":    "import os\nfor i in range(6): os.fork()==0 and k.append(bytearray(b'x'*(40<<20)))" + sleep,
		"memfd":             "import os\nfor i in range(300):\n  f=os.memfd_create('m'); k.append(f); os.write(f,bytes(1<<20))" + sleep,
		"shared, let go":    "import mmap\nfor i in range(60):\n  m=mmap.mmap(-1,5<<20); k.append(m); m.write(b'x'*(5<<20)); m.madvise(mmap.MADV_DONTNEED)" + sleep,
		"shared zeros":      "import mmap,os\nf=os.open('/dev/zero',os.O_RDWR)\nfor i in range(60):\n  m=mmap.mmap(f,5<<20); k.append(m); m.write(b'x'*(5<<20)); m.madvise(mmap.MADV_DONTNEED)" + sleep,
		"System V":          "import ctypes\nc=ctypes.CDLL(None)\nc.shmat.restype=ctypes.c_void_p\nfor i in range(60):\n  n=c.shmget(0,5<<20,0o1600)\n  assert n>=0, 'refused'\n  a=c.shmat(n,None,0); ctypes.memset(a,1,5<<20); c.shmdt(ctypes.c_void_p(a))" + sleep,
		"sockets":           "import socket\nfor i in range(480):\n  a,b=socket.socketpair(); k+=[a,b]\n  for s in a,b:\n    s.setblocking(False)\n    try:\n      while True: s.send(bytes(1<<16))\n    except BlockingIOError: pass" + sleep,
		"deleted and open":  "import os\nfor d in '/output','/work','/tmp','/dev/shm':\n  for i in range(65):\n    f=open(d+'/x','wb'); k.append(f); os.unlink(d+'/x'); f.write(bytes(1<<20)); f.flush()" + sleep,
		"a path too long":   "import os\nos.chdir('/output')\nfor i in range(25): os.mkdir('d'*200); os.chdir('d'*200)\nfor i in range(65): open('b%d'%i,'wb').write(bytes(1<<20))" + sleep,
		"empty files":       "for d in '/output','/work','/tmp','/dev/shm':\n  for i in range(1<<14): open(d+'/f%d'%i,'w')" + sleep,
		"names of one file": "import os\nopen('/work/x','w')\nfor i in range(1<<14): os.link('/work/x','/work/f%d'%i)" + sleep,
		"the root":          "open('/x','wb').write(bytes(1<<20))",
		"devices":           "open('/dev/x','wb').write(bytes(1<<20))",
		"files of a folder": "import os\nfor d in '/output','/work','/tmp','/dev/shm':\n  for i in range(1<<8):\n    open(d+'/f%d'%i,'wb').write(bytes(1<<20))" + sleep,
		"processes":         "import os\nfor i in range(64): os.fork()==0 and time.sleep(20)" + sleep,
		"page tables":       "import mmap\nm=mmap.mmap(-1,1<<37,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS,mmap.PROT_READ)\nfor b in range(4096,1<<37,1<<21): m[b]" + sleep,
	} {
		t.Run(name, func(t *testing.T) {
			c := defaults("")
			c.Command = []string{"python3", "-c", "import time\nk=[]\nprint('begun',flush=True)\n" + script + "\nprint('taken')"}
			c.Disk, c.Memory = 48<<20, 150<<20
			if o := play(t, c, "null"); o.err == nil || o.text != "begun\n" {
				t.Errorf("%v, %q", o.err, o.text)
			}
		})
	}
}

// An agent that stays within its bounds is left alone, whatever they are held by.
func TestWithinBounds(t *testing.T) {
	c := defaults(`dd if=/dev/zero of=/work/x bs=1M count=40 2>/dev/null && dd if=/dev/zero of=/tmp/x bs=1M count=40 2>/dev/null && cat /work/x /tmp/x | wc -c; sleep 0.5`)
	c.Disk, c.Memory = 48<<20, 150<<20
	if o := play(t, c, "null"); o.err != nil || o.text != "83886080\n" {
		t.Errorf("%q, %v", o.text, o.err)
	}
}

// How each bound is held here is logged at the start.
func TestBoundsAreLogged(t *testing.T) {
	var log bytes.Buffer
	open(t, defaults("true"), zerolog.New(&log))
	t.Log(log.String())
	for _, part := range []string{`"sandbox bounds"`, `"memory":"`, `"disk_files":1024`, `"network":"none"`} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("%s does not say %s", log.String(), part)
		}
	}
}
