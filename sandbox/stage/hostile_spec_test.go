package stage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
)

// wish is what a daemon in an attacker's hands asks for. It is refused, or what is
// started keeps every floor.
type wish struct {
	name    string
	refused bool
	edit    func(*sandbox.Spec)
}

func bind(path, source string, writable bool) func(*sandbox.Spec) {
	return func(s *sandbox.Spec) {
		s.Profile.View = append(s.Profile.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: path, Source: source, Writable: writable})
	}
}

func level(c sandbox.Control, l sandbox.Level) func(*sandbox.Spec) {
	return func(s *sandbox.Spec) {
		for i := range s.Profile.Controls {
			if s.Profile.Controls[i].Control == c {
				s.Profile.Controls[i].Level = l
			}
		}
	}
}

const hostNet = "the network of the host"

func wishes() []wish {
	out := []wish{
		{"uid 0", true, func(s *sandbox.Spec) { s.Site.UID = 0 }},
		{"gid 0", true, func(s *sandbox.Spec) { s.Site.GID = 0 }},
		{"no uid", true, func(s *sandbox.Spec) { s.Site.UID = ^uint32(0) }},
		{"another user", true, func(s *sandbox.Spec) { s.Site.UID, s.Site.GID = 33, 33 }},
		{"another group", true, func(s *sandbox.Spec) { s.Site.GID = 42 }},
		{"PID 1's uid", true, func(s *sandbox.Spec) { s.Site.UID, s.Site.GID = dynFirst, dynFirst }},
		{"a cgroup above ours", true, func(s *sandbox.Spec) { s.Site.Cgroup = "../.." }},
		{"an absolute cgroup", true, func(s *sandbox.Spec) { s.Site.Cgroup = "/" }},
		{"a foreign hierarchy", true, func(s *sandbox.Spec) {
			s.Site.Join = []sandbox.JoinFile{{Controller: "devices", Path: "tasks"}}
		}},
		{"root shown without a user namespace", true, func(s *sandbox.Spec) { s.Profile.RootMap = true }},
		{"no filter", true, func(s *sandbox.Spec) { s.Profile.Seccomp.Base = "" }},
		{"the host's proc", true, bind("/hostproc", "/proc", false)},
		{"init's root by its link", true, bind("/hostroot", "/proc/1/root", true)},
		{"the stage's root by its link", true, bind("/hostroot", "/proc/self/root", true)},
		{"the cgroup tree", true, bind("/cgroups", v2Of(), true)},
		{"the kernel's objects, for writing", true, bind("/sys", "/sys", true)},
		{"a disk as a device", true, func(s *sandbox.Spec) {
			s.Profile.View = append(s.Profile.View, sandbox.Entry{Kind: sandbox.EntryDevice, Path: "/dev/mem", Source: "/dev/mem"})
		}},
		{"a set-id root of a private file system", true, func(s *sandbox.Spec) { s.Profile.Private[0].Mode = 0o4777 }},
		{"an attach without a descriptor", true, func(s *sandbox.Spec) { s.Profile.Attach = []sandbox.Attach{{Path: "/w"}} }},
		{"the host's whole root, for writing", false, bind("/host", "/", true)},
		{hostNet, false, func(s *sandbox.Spec) { s.Profile.Net = sandbox.NetHost }},
		{"no Landlock", false, level(sandbox.ControlLandlock, sandbox.LevelOff)},
		{"no limits", false, func(s *sandbox.Spec) { s.Profile.Rlimits = nil; level(sandbox.ControlRlimits, sandbox.LevelOff)(s) }},
		{"a user namespace with root in it", false, func(s *sandbox.Spec) {
			s.Profile.UserNS, s.Profile.RootMap = true, true
			level(sandbox.ControlUserNS, sandbox.LevelRequired)(s)
		}},
		{"a dynamic uid", false, func(s *sandbox.Spec) { s.Site.UID, s.Site.GID = dynFirst+7, dynFirst+7 }},
	}
	for _, c := range []sandbox.Control{sandbox.ControlMounts, sandbox.ControlSeccomp, sandbox.ControlCaps, sandbox.ControlPidNS, sandbox.ControlIPCNS} {
		out = append(out, wish{"without " + string(c), true, level(c, sandbox.LevelOff)})
	}
	for _, call := range []string{"mount", "bpf", "setns", "init_module", "ptrace", "keyctl", "io_uring_setup", "open_by_handle_at"} {
		out = append(out, wish{"the call " + call, strings.Contains("mount bpf setns init_module", call), func(s *sandbox.Spec) { s.Profile.Seccomp.Allow = []string{call} }})
	}
	return out
}

func v2Of() string {
	if _, err := os.Stat(cgroupV2 + "/cgroup.procs"); err == nil {
		return cgroupV2
	}
	return "/sys/fs/cgroup"
}

// TestAHostileDaemonGetsNothingBelowTheFloors asks for each wish, and for many at once.
func TestAHostileDaemonGetsNothingBelowTheFloors(t *testing.T) {
	b := newBench(t)
	all := wishes()
	for _, w := range all {
		started := b.wish(w.name, w)
		if w.name == hostNet && sandbox.Unscoped(b.Features().LandlockABI) != "" {
			w.refused = true // the profile requires Landlock
		}
		if w.refused && started {
			t.Errorf("%s: started; want it refused", w.name)
		}
		if !w.refused && !started && !strings.HasPrefix(w.name, "the call ") {
			t.Errorf("%s: refused; want it started, with every floor", w.name)
		}
	}
	r := rand.New(rand.NewPCG(7, 11))
	for range 60 {
		var some []wish
		names := ""
		for range 2 + r.IntN(3) {
			w := all[r.IntN(len(all))]
			some, names = append(some, w), names+w.name+"; "
		}
		b.wish(names, some...)
	}
}

// wish asks for a pen, looks at what its target is, and ends it. It reports whether
// there was one.
func (b *bench) wish(name string, ws ...wish) bool {
	b.t.Helper()
	s := b.spec(testProfile(), "/bin/sleep", "60")
	s.Profile.Controls = controls()
	for _, w := range ws {
		w.edit(&s)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
	defer cancel()
	pen, err := b.Launch(ctx, b.conn, s, nil)
	if err != nil {
		return false
	}
	b.floorsOf(name, pen.Pid, s.Profile.Net == sandbox.NetHost)
	if err := pen.Abort(ctx); err != nil {
		b.t.Errorf("%s: Abort() = %v; want nil", name, err)
	}
	return true
}

// floorsOf reads what no Spec lowers from the kernel.
func (b *bench) floorsOf(name string, pid int, hostNet bool) {
	b.t.Helper()
	status := statusOf(b.t, pid)
	for _, ids := range []string{"Uid", "Gid"} {
		for id := range strings.FieldsSeq(status[ids]) {
			if id != fmt.Sprint(testUID) && id != fmt.Sprint(dynFirst+7) {
				b.t.Errorf("%s: %s = %q; want the caller's or a dynamic one", name, ids, status[ids])
			}
		}
	}
	for field, want := range map[string]string{
		"CapInh": noCaps, "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": noCaps, "CapAmb": noCaps, "NoNewPrivs": "1", "Seccomp": "2", "Groups": "",
	} {
		if status[field] != want {
			b.t.Errorf("%s: %s = %q; want %q", name, field, status[field], want)
		}
	}
	for _, ns := range []string{"mnt", "pid", "ipc", "uts", "cgroup", "net"} {
		if same := nsOf(b.t, pid, ns) == nsOf(b.t, os.Getpid(), ns); same != (ns == "net" && hostNet) {
			b.t.Errorf("%s: the host's %s namespace: %v", name, ns, same)
		}
	}
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(group), "/"+filepath.Base(b.base)+"/") {
		b.t.Errorf("%s: cgroup = %q, %v; want one of ours", name, group, err)
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) < 6 || !strings.Contains(f[5], "nosuid") {
			b.t.Errorf("%s: mount %q; want every one nosuid", name, line)
		}
	}
}

const noCaps = "0000000000000000"

func statusOf(tb testing.TB, pid int) map[string]string {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		out[name] = strings.TrimSpace(value)
	}
	return out
}

func nsOf(tb testing.TB, pid int, kind string) uint64 {
	tb.Helper()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), &st); err != nil {
		tb.Fatal(err)
	}
	return st.Ino
}

// TestWhatTheStageDoesForTheStateIsBounded: no home of another user, or outside of its
// place; no cgroup but ours; nothing through a link that somebody has put there.
func TestWhatTheStageDoesForTheStateIsBounded(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	f, id, err := b.Home(ctx, b.conn, "tools", "src/app", testUID, testUID)
	if err != nil {
		t.Fatalf("Home() = %v; want one", err)
	}
	_ = f.Close()
	home := filepath.Join(b.state, "cache", fmt.Sprint(testUID), "tools")
	for _, p := range []string{home, filepath.Join(home, "src"), filepath.Join(home, "src/app")} {
		var st syscall.Stat_t
		if err := syscall.Stat(p, &st); err != nil || st.Uid != testUID || st.Gid != testUID || st.Mode&0o7777 != 0o700 {
			t.Errorf("%s = uid %d, mode %o, %v; want the caller's, 0700", p, st.Uid, st.Mode, err)
		}
	}
	if id != idOf(t, home) {
		t.Errorf("Home() = %+v; want what is at %s", id, home)
	}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(filepath.Dir(home), "link")); err != nil {
		t.Fatal(err)
	}
	root := connOf(t, 0)
	for _, tt := range []struct {
		name, home, place string
		uid, gid          uint32
		conn              *os.File
	}{
		{"of root", "x", "", dynFirst + 7, dynFirst + 7, root},
		{"owned by root", "x", "", 0, testUID, b.conn},
		{"owned by another", "x", "", 33, 33, b.conn},
		{"with another's group", "x", "", testUID, 42, b.conn},
		{"above", "..", "", testUID, testUID, b.conn},
		{"a path", "a/b", "", testUID, testUID, b.conn},
		{"a place above", "x", "../../y", testUID, testUID, b.conn},
		{"an absolute place", "x", "/etc/y", testUID, testUID, b.conn},
		{"through a link", "link", "y", testUID, testUID, b.conn},
	} {
		if f, _, err := b.Home(ctx, tt.conn, tt.home, tt.place, tt.uid, tt.gid); err == nil {
			_ = f.Close()
			t.Errorf("Home(%s) = nil; want a refusal", tt.name)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("beyond the link: %v, %v; want nothing", left, err)
	}
	for _, path := range []string{t.TempDir(), "/sys/fs/cgroup", b.base + "/p1", b.base + "/..", "/tmp", b.base + "/callers/daemon", "/daemon"} {
		if err := b.RemoveBase(ctx, path); err == nil {
			t.Errorf("RemoveBase(%s) = nil; want a refusal", path)
		}
	}
	if err := b.Place(ctx, "none", "y", testUID, testUID); err == nil {
		t.Error("Place() in a scratch that is not there = nil; want a refusal")
	}
	if err := b.EndState(ctx); err != nil {
		t.Errorf("EndState() with nothing mounted = %v; want nil", err)
	}
	if f, _, err := b.Scratch(ctx, "late", 1<<20, 100, testUID, testUID, 0o700); err == nil {
		_ = f.Close()
		t.Error("Scratch() after EndState() = nil; want a refusal: nobody would take it down")
	}
}
