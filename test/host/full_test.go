package host

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/sandbox"
)

// TestAFullMemoryIsNoOtherCallersTrouble: one caller fills the memory file system of the
// state as far as it can, and reads nothing. Another opens sessions, starts processes and
// gets its output all the same.
func TestAFullMemoryIsNoOtherCallersTrouble(t *testing.T) {
	d := prepare(t, `version: 1
callers:
  - { name: root, match: { uid: 0 }, profiles: [default], run_as: dynamic, quota: { output: off, processes: 64 } }
  - { name: other, match: { uid: 54321 }, profiles: [default], run_as: dynamic }
profiles:
  default:
    commands: [sh, cat, head, tr, "true"]
    workspace: { else: scratch }
    fs: { read: [ /usr, /bin, /sbin, /lib, /lib64 ], tmp: { size: 16MiB } }
    output: { keep: 64MiB }
    timeout: { start: 30s }
`)
	run := filepath.Join(d.state, "run")
	if err := errors.Join(os.MkdirAll(run, 0o700), syscall.Mount(sandbox.RunSource, run, "tmpfs", 0, "size=48m,mode=0700")); err != nil {
		t.Fatal(err)
	}
	if err := d.launch(); err != nil {
		_ = syscall.Unmount(run, 0) // else the daemon does it
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			t.Logf("log of pinfoldd:\n%s", d.log)
		}
	})
	greedy := d.connect()
	greedy.hello("")
	for _, id := range []string{"a", "b", "c", "d"} {
		greedy.ask("proc/spawn/req", id, `,"cmd":["cat","/dev/zero"]`)
	}
	var last, fs syscall.Statfs_t
	for same := 0; same < 10; last = fs {
		time.Sleep(100 * time.Millisecond)
		if err := syscall.Statfs(run, &fs); err != nil {
			t.Fatal(err)
		}
		if same++; fs.Bfree != last.Bfree || fs.Bfree > fs.Blocks/3 {
			same = 0
		}
	}
	t.Logf("free are %d of %d KiB", fs.Bfree*uint64(fs.Bsize)>>10, fs.Blocks*uint64(fs.Bsize)>>10)
	for range 4 {
		c := d.caller()
		for range 3 {
			if got := runOK(t, c, shell("head -c 300000 /dev/zero | tr '\\0' x")); len(got) != 300000 {
				t.Errorf("the other caller got %d bytes; want 300000", len(got))
			}
		}
		runOK(t, c, proto.Spawn{Cmd: []string{"true"}, OpID: "op"})
	}
}
