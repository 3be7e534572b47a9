package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/test/testkit"
)

func leanView(t *testing.T, f *sandbox.Profile) *view {
	t.Helper()
	testkit.NeedRoot(t)
	v, err := buildView(testTrees(t), f)
	if err != nil {
		t.Fatalf("buildView(%+v) = %v; want nil", f.View, err)
	}
	t.Cleanup(func() { _ = v.close() })
	return v
}

func mountRoot(t *testing.T, v *view, name string) bool {
	t.Helper()
	f, err := linux.OpenAt(v.root, name, unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(f)
	is, err := linux.IsMountRoot(f)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

func TestSmallFilesAreCopiedAndFresh(t *testing.T) {
	src := filepath.Join(t.TempDir(), "file")
	write := func(data string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(src, []byte(data), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(src, mode); err != nil {
			t.Fatal(err)
		}
	}
	written := time.Now()
	write("one", 0o644)
	e := sandbox.Entry{Kind: sandbox.EntryBind, Path: "/etc/file", Source: src, NoExec: true, Copy: true, Follow: true}
	f := &sandbox.Profile{View: []sandbox.Entry{e}}
	v := leanView(t, f)
	if mountRoot(t, v, "etc/file") {
		t.Error("a small file is a mount; want a copy")
	}
	if v.fresh() && time.Since(written) < settled {
		t.Error("fresh() = true right after a change of the file; want false")
	}
	time.Sleep(settled + 100*time.Millisecond)
	v = leanView(t, f)
	if !v.fresh() {
		t.Error("fresh() = false of a file left alone; want true")
	}
	st, err := os.Stat(src)
	if err != nil {
		t.Fatal(err)
	}
	write("two", 0o644) // of the same size
	if err := os.Chtimes(src, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	if v.fresh() {
		t.Error("fresh() = true after a change of content with the old mtime; want false")
	}
	for _, tt := range []struct {
		name string
		data string
		mode os.FileMode
	}{{"not for all to read", "secret", 0o640}, {"large", string(make([]byte, maxCopy+1)), 0o644}} {
		write(tt.data, tt.mode)
		if !mountRoot(t, leanView(t, f), "etc/file") {
			t.Errorf("a file that is %s is a copy; want a mount", tt.name)
		}
	}
}

func TestDevicesAreOneMount(t *testing.T) {
	var es []sandbox.Entry
	for name := range deviceNumbers() {
		es = append(es, sandbox.Entry{Kind: sandbox.EntryDevice, Path: name, Source: name, Writable: true, NoExec: true})
	}
	v := leanView(t, &sandbox.Profile{View: es})
	if !mountRoot(t, v, "dev") {
		if err := unix.Mknod(t.TempDir()+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
			testkit.LeaveOut(t, fmt.Sprintf("needs device nodes: mknod: %v", err))
		}
		t.Fatal("/dev is no mount of its own, though device nodes can be made")
	}
	for name := range deviceNumbers() {
		if mountRoot(t, v, name[1:]) {
			t.Errorf("%s is a mount of its own", name)
		}
		st, err := linux.LstatAt(v.root, name[1:])
		if err == nil {
			err = isDevice(name, st)
		}
		if err != nil || st.Mode&0o777 != 0o666 || st.Uid != 0 {
			t.Errorf("%s: mode %o of %d, %v; want that device, 0666 of root", name, st.Mode, st.Uid, err)
		}
	}
	d, err := linux.OpenAt(v.root, "dev", unix.O_PATH|unix.O_DIRECTORY, linux.Beneath)
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(d)
	if err := linux.MkdevAt(d, "mem", unix.Mkdev(1, 1)); err == nil || linux.Errno(err) != unix.EROFS {
		t.Errorf("MkdevAt in a finished view = %v; want EROFS", err)
	}
	host := []sandbox.Entry{{Kind: sandbox.EntryBind, Path: "/dev/name", Source: "/etc/hostname"}, {Kind: sandbox.EntryDevice, Path: "/dev/null", Source: "/dev/null"}}
	v = leanView(t, &sandbox.Profile{View: host})
	if !mountRoot(t, v, "dev/null") {
		t.Error("/dev/null beside something of the host's in /dev is no mount; want one")
	}
}
