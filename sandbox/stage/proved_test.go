package stage

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/stagewire"
	"pinfold/test/testkit"
)

// small is a Spec of the smallest pen that runs a program of the host.
func small(tb testing.TB, program string) sandbox.Spec {
	tb.Helper()
	s := sandbox.Spec{
		Profile: sandbox.Profile{
			Name: "small", Hostname: "pen", Proc: sandbox.ProcMasked, Net: sandbox.NetNone, Exec: sandbox.ExecAnything,
			Stdin: sandbox.StdinNull, Seccomp: sandbox.Filter{Base: "default"},
			Landlock: sandbox.Rules{Rules: []sandbox.Rule{{Path: "/usr", Access: "rx"}}},
		},
		Site:    sandbox.Site{UID: 1900000005, GID: 1900000005, Cgroup: "p"},
		Command: sandbox.Command{Program: program, Argv: []string{program}, Dir: "/"},
	}
	for _, d := range []string{"/usr", "/lib", "/lib64"} {
		s.Profile.View = append(s.Profile.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: d, Source: d, Missing: sandbox.MissingSkip})
	}
	s.Profile.View = append(s.Profile.View, sandbox.Entry{Kind: sandbox.EntryDevice, Path: "/dev/null", Source: "/dev/null"}) // covers what /proc shows of the host
	for _, c := range sandbox.Controls() {
		n := sandbox.Need{Control: c, Level: sandbox.LevelRequired}
		if c == sandbox.ControlUserNS {
			n.Level = sandbox.LevelOff
		}
		s.Profile.Controls = append(s.Profile.Controls, n)
	}
	var st unix.Stat_t
	if err := unix.Stat(program, &st); err != nil {
		tb.Fatal(err)
	}
	s.Command.ProgramID = idOf(st)
	return s
}

// ownCgroup makes a cgroup v2 directory with those of two processes.
func ownCgroup(tb testing.TB) string {
	tb.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/unified/cgroup.procs"); err == nil {
		root += "/unified"
	}
	base, err := os.MkdirTemp(root, "pinfold-test-proved-") //nolint:usetesting // a cgroup, not a directory of files
	if err != nil {
		tb.Fatal(err)
	}
	dirs := []string{base, base + "/p", base + "/p/init", base + "/p/job", base + "/q", base + "/q/init", base + "/q/job"}
	for _, d := range dirs[1:] {
		if err := os.Mkdir(d, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	tb.Cleanup(func() {
		for i := range dirs {
			if err := os.Remove(dirs[len(dirs)-1-i]); err != nil {
				tb.Error(err)
			}
		}
	})
	return base
}

// TestGateStaysShut: the daemon gets the gate with the answer that what confines the
// target was read back, and not before.
func TestGateStaysShut(t *testing.T) {
	testkit.NeedRoot(t)
	h := newHostileAt(t, ownCgroup(t))
	prog, err := filepath.EvalSymlinks("/usr/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	s := small(t, prog)
	body := func(v any) []byte {
		raw, err := stagewire.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	ask := func(op stagewire.Op, v any) stagewire.Message {
		return h.send(t, body(stagewire.Message{ID: 1, Op: op, Body: body(v)}))
	}
	m := ask(stagewire.OpPrepare, stagewire.Launch{Profile: body(s.Profile), Site: body(s.Site)})
	if m.Error != nil && m.Error.Kind == stagewire.KindLack {
		testkit.NeedDetached(t)
	}
	var l sandbox.Launched
	if m.Error != nil || stagewire.Unmarshal(m.Body, &l) != nil || h.files != len(l.Files) || slices.Contains(l.Files, sandbox.FileGate) {
		t.Fatalf("prepare = %+v with %d descriptors, %q; want a pen, and no gate", m.Error, h.files, l.Files)
	}
	pen := stagewire.Pen{Pen: l.Pen}
	wrong := s.Command
	wrong.ProgramID.Ino++
	var other sandbox.Launched
	s.Site.Cgroup = "q"
	if m := ask(stagewire.OpPrepare, stagewire.Launch{Profile: body(s.Profile), Site: body(s.Site)}); m.Error != nil || stagewire.Unmarshal(m.Body, &other) != nil {
		t.Fatalf("prepare = %+v; want a pen", m.Error)
	}
	if m := ask(stagewire.OpCommand, stagewire.Command{Pen: other.Pen, Command: body(wrong)}); m.Error == nil || h.files != 0 {
		t.Errorf("command with another program = %+v with %d descriptors; want neither a proof nor a gate", m.Error, h.files)
	}
	c := stagewire.Command{Pen: pen.Pen, Command: body(s.Command)}
	if m := ask(stagewire.OpCommand, c); m.Error != nil || !bytes.Contains(m.Body, []byte(`"gate"`)) {
		t.Errorf("command = %+v, %s; want the gate with the answer", m.Error, m.Body)
	}
	if m := ask(stagewire.OpCommand, c); m.Error == nil || m.Error.Kind != stagewire.KindStale {
		t.Errorf("a second command = %+v; want that the pen waits for none", m)
	}
	if m := ask(stagewire.OpAbort, pen); m.Error != nil {
		t.Errorf("abort = %+v; want nil", m.Error)
	}
}
