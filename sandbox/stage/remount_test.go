package stage_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
)

// TestAViewFollowsARemount: what the host has made read-only since the view was built is
// read-only in the next pen.
func TestAViewFollowsARemount(t *testing.T) {
	b, dir := newBench(t), t.TempDir()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	p := testProfile()
	p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: "/opt/host", Source: dir, Writable: true})
	p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/opt/host", Access: "rw"})
	run := func(name string) (int, string) {
		t.Helper()
		st, _, errs, err := b.run(b.spec(p, "/bin/sh", "-c", "echo x >/opt/host/"+name), "")
		if err != nil {
			t.Fatal(err)
		}
		return st.Code, errs
	}
	if code, errs := run("one"); code != 0 {
		t.Fatalf("write = %d, %s; want it made", code, errs)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if code, errs := run("two"); code == 0 || !strings.Contains(errs, "Read-only") {
		t.Errorf("write after a remount = %d, %s; want EROFS", code, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "two")); err == nil {
		t.Error("what the host made read-only was written")
	}
}
