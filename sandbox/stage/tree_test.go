package stage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/test/testkit"
)

// TestBuildView assembles a view both ways: on a detached tree, and on one that is
// attached as on kernels before 6.15, and looks at copies of it.
func TestBuildView(t *testing.T) {
	testkit.NeedRoot(t)
	host := t.TempDir()
	if err := os.WriteFile(host+"/file", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", host+"/link"); err != nil {
		t.Fatal(err)
	}
	f := &sandbox.Profile{
		View: []sandbox.Entry{
			{Kind: sandbox.EntryBind, Path: "/host", Source: host},
			{Kind: sandbox.EntryBind, Path: "/one/file", Source: host + "/file", NoExec: true},
			{Kind: sandbox.EntryBind, Path: "/link", Source: host + "/link"},
			{Kind: sandbox.EntryBind, Path: "/followed", Source: host + "/link", Follow: true},
			{Kind: sandbox.EntryBind, Path: "/none", Source: host + "/none", Missing: sandbox.MissingSkip},
			{Kind: sandbox.EntryFile, Path: "/etc/passwd", Data: "data"},
			{Kind: sandbox.EntrySymlink, Path: "/dev/fd", Source: "/proc/self/fd"},
			{Kind: sandbox.EntryDir, Path: "/empty/dir"},
			{Kind: sandbox.EntryDevice, Path: "/dev/null", Source: "/dev/null"},
		},
		Private: []sandbox.Tmpfs{{Path: "/tmp"}, {Path: "/home/u"}},
		Attach:  []sandbox.Attach{{Path: "/home/u/work"}, {Path: "/srv/w"}},
	}
	for _, detached := range slices.Compact([]bool{testTrees(t).detached, false}) {
		a := &assembler{dir: t.TempDir(), detached: detached}
		v, err := buildView(a, f)
		if err != nil {
			t.Fatalf("buildView(detached %v) = %v", detached, err)
		}
		for range 2 {
			c, err := v.clone()
			if err != nil {
				t.Fatal(err)
			}
			checkView(t, c)
			linux.CloseAll(c)
		}
		if !v.fresh() {
			t.Error("fresh() = false; nothing has changed")
		}
		if err := os.WriteFile(host+"/none", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if v.fresh() {
			t.Error("fresh() = true; a skipped source has appeared")
		}
		if err := os.Remove(host + "/none"); err != nil {
			t.Fatal(err)
		}
		if err := v.close(); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
		left, err := filepath.Glob(a.dir + "/*")
		if err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// testTrees is the assembler that a stage has on this kernel.
func testTrees(t *testing.T) *assembler {
	t.Helper()
	f, err := sandbox.Probe(t.Context())
	if err != nil {
		t.Fatalf("Probe() = %v; want nil", err)
	}
	return &assembler{dir: t.TempDir(), detached: f.Has(sandbox.FeatureTreeAttach) && f.Has(sandbox.FeatureTreeClone)}
}

// plantTwo plants a tree with a mount in it.
func plantTwo(t *testing.T, a *assembler) *tree {
	t.Helper()
	m, err := linux.NewMount("tmpfs", attrView)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := a.plant(m)
	if err != nil {
		t.Fatalf("plant() = %v; want nil", err)
	}
	below, err := linux.NewMount("tmpfs", attrView)
	if err == nil {
		err = linux.MkdirAt(m, "dir", 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	at, err := linux.OpenAt(m, "dir", unix.O_PATH, linux.OneFS)
	if err == nil {
		err = linux.MoveMount(below, at)
		linux.CloseAll(at, below)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestTreesAreSeenNowhere plants trees below a shared mount, as on every host with
// systemd: the kernel makes what is attached there shared, others see it, and nobody can
// pivot to it.
func TestTreesAreSeenNowhere(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	if err := errors.Join(unix.Mount("shared", dir, "tmpfs", 0, "size=64k"), unix.Mount("none", dir, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := linux.Detach(dir); err != nil {
			t.Error(err)
		}
	}()
	a := &assembler{dir: dir}
	first := plantTwo(t, a)
	// As for a launch: a copy of the whole, planted again.
	c, err := first.clone()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := a.plant(c)
	if err != nil {
		t.Fatalf("plant() of a copy = %v; want nil", err)
	}
	defer func() {
		if err := errors.Join(tr.close(), first.close()); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
	}()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+dir+"/") && strings.Contains(line, "shared:") {
			t.Errorf("a tree has %s; want it private", line)
		}
	}
	if !strings.Contains(string(mounts), " "+tr.at+"/dir ") {
		t.Errorf("the copy is not at %s with what is in it", tr.at)
	}
}

func checkView(t *testing.T, root *os.File) {
	t.Helper()
	for _, p := range []string{"host/file", "one/file", "followed", "etc/passwd", "empty/dir", "tmp", "home/u", "srv/w", "proc", "dev/pts", "dev/null"} {
		f, err := linux.OpenAt(root, p, unix.O_PATH, linux.Beneath)
		if err != nil {
			t.Errorf("open %s: %v", p, err)
			continue
		}
		linux.CloseAll(f)
	}
	for p, want := range map[string]string{"link": "file", "dev/fd": "/proc/self/fd", "dev/ptmx": "pts/ptmx"} {
		if got, err := linux.ReadLinkAt(root, p); err != nil || got != want {
			t.Errorf("readlink %s = %q, %v; want %q", p, got, err, want)
		}
	}
	for _, p := range []string{"none", "home/u/work"} {
		if _, err := linux.LstatAt(root, p); !errors.Is(err, unix.ENOENT) {
			t.Errorf("lstat %s = %v; want ENOENT", p, err)
		}
	}
	for _, p := range []string{"new", "host/new", "etc/new", "tmp/new"} {
		if err := linux.MkdirAt(root, p, 0o755); !errors.Is(err, unix.EROFS) {
			t.Errorf("mkdir %s = %v; want EROFS", p, err)
		}
	}
	if f, err := linux.OpenAt(root, "etc/passwd", unix.O_WRONLY, linux.Beneath); !errors.Is(err, unix.EROFS) {
		linux.CloseAll(f)
		t.Errorf("open etc/passwd for writing = %v; want EROFS", err)
	}
}

func TestViewRefuses(t *testing.T) {
	testkit.NeedRoot(t)
	host := t.TempDir()
	if err := os.Symlink("/etc", host+"/theirs"); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(host+"/theirs", 4242, 4242); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]sandbox.Entry{
		"a missing source":          {{Kind: sandbox.EntryBind, Path: "/x", Source: host + "/none"}},
		"a user's symlink on a way": {{Kind: sandbox.EntryBind, Path: "/x", Source: host + "/theirs/passwd"}},
		"a user's symlink at last":  {{Kind: sandbox.EntryBind, Path: "/x", Source: host + "/theirs", Follow: true}},
		"a file in a host's tree": {
			{Kind: sandbox.EntryBind, Path: "/h", Source: host, Writable: true},
			{Kind: sandbox.EntryFile, Path: "/h/new", Data: "x"},
		},
		"a proc of the host's":    {{Kind: sandbox.EntryBind, Path: "/x", Source: "/proc"}},
		"a process of the host's": {{Kind: sandbox.EntryBind, Path: "/x", Source: "/proc/1"}},
		"terminals of the host's": {{Kind: sandbox.EntryBind, Path: "/x", Source: "/dev/pts"}},
		"a writable sysfs":        {{Kind: sandbox.EntryBind, Path: "/x", Source: "/sys", Writable: true}},
		"another device":          {{Kind: sandbox.EntryDevice, Path: "/dev/null", Source: "/dev/mem"}},
	}
	for name, entries := range tests {
		t.Run(name, func(t *testing.T) {
			v, err := buildView(testTrees(t), &sandbox.Profile{View: entries})
			if err == nil {
				t.Errorf("buildView(%s) = nil; want an error", name)
				_ = v.close()
			}
			if _, err := os.Lstat(host + "/new"); err == nil {
				t.Error("something was made on the host")
			}
		})
	}
}

func TestPlacesSweep(t *testing.T) {
	testkit.NeedRoot(t)
	dir, w := t.TempDir(), t.TempDir()
	s, err := newPlaces(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := linux.OpenAt(nil, w, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(d)
	me := linux.Peer{UID: 0}
	for _, n := range []string{"empty", "used", "swapped", "needed"} {
		if _, err := s.hold(d, n, me); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(w+"/used/f", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w+"/swapped", w+"/away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w+"/swapped", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/.new-1", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := newPlaces(dir) // as after a crash
	if err != nil {
		t.Fatal(err)
	}
	st, err := linux.LstatAt(d, "needed")
	if err != nil {
		t.Fatal(err)
	}
	p := next.again(idOf(st)) // of a pen that lived on
	if p == nil {
		t.Fatal("again() = nil; want the placeholder that is there")
	}
	there := func(when string, all map[string]bool, records int) {
		t.Helper()
		for n, want := range all {
			if _, err := os.Stat(w + "/" + n); (err == nil) != want {
				t.Errorf("%s: Stat(%s) = %v; want there %v", when, n, err, want)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != records {
			t.Errorf("%s: records left: %v, %v; want %d", when, left, err, records)
		}
	}
	there("found", map[string]bool{"empty": true, "used": true, "swapped": true, "needed": true}, 3)
	if err := next.settle(); err != nil {
		t.Error(err)
	}
	there("settled", map[string]bool{"empty": false, "used": true, "swapped": true, "needed": true}, 1)
	if err := next.drop(p); err != nil {
		t.Error(err)
	}
	there("dropped", map[string]bool{"used": true, "swapped": true, "needed": false}, 0)
}

// TestBusyPlace: a placeholder that something is mounted on goes when that does, and may be
// shared until then.
func TestBusyPlace(t *testing.T) {
	testkit.NeedRoot(t)
	dir, w := t.TempDir(), t.TempDir()
	s, err := newPlaces(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := linux.OpenAt(nil, w, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		t.Fatal(err)
	}
	defer linux.CloseAll(d)
	p, err := s.hold(d, "x", linux.Peer{UID: 0})
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir() // where the same directory is mounted, too, as in the tree of a pen
	t.Cleanup(func() { _ = unix.Unmount(other, unix.MNT_DETACH) })
	if err := errors.Join(unix.Mount(w, other, "", unix.MS_BIND, ""), unix.Mount("none", other, "", unix.MS_PRIVATE, ""),
		unix.Mount("none", other+"/x", "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	if err := s.drop(p); err != nil {
		t.Errorf("drop() of a busy placeholder = %v; want nil", err)
	}
	if q := s.again(p.id); q != p {
		t.Errorf("again() of a busy placeholder = %v; want it", q)
	}
	if err := s.drop(p); err != nil {
		t.Errorf("drop() = %v; want nil", err)
	}
	if err := unix.Unmount(other+"/x", 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(busyPause) {
		_, gone := os.Lstat(w + "/x")
		left, err := os.ReadDir(dir)
		if errors.Is(gone, os.ErrNotExist) && err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Lstat(placeholder) = %v, records %v, %v; want neither", gone, left, err)
		}
	}
}
