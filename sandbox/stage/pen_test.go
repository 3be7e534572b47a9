package stage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/test/testkit"
)

// workspace makes a directory of testUID's that others can reach.
func workspace(tb testing.TB) string {
	tb.Helper()
	d, err := os.MkdirTemp("/var/tmp", "pinfold-test-") //nolint:usetesting // another uid must reach it
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(d); err != nil {
			tb.Error(err)
		}
	})
	give(tb, d)
	if err := os.Chmod(d, 0o755); err != nil {
		tb.Fatal(err)
	}
	return d
}

func give(tb testing.TB, paths ...string) {
	tb.Helper()
	for _, p := range paths {
		if err := os.Lchown(p, testUID, testUID); err != nil {
			tb.Fatal(err)
		}
	}
}

func write(tb testing.TB, path, data string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		tb.Fatal(err)
	}
	give(tb, filepath.Dir(path), path)
}

func openDir(tb testing.TB, path string) *os.File {
	tb.Helper()
	n, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(n), path)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

// inWork is a Spec that runs a shell script in the workspace w, attached as /proj.
func (b *bench) inWork(p sandbox.Profile, w, script string) (sandbox.Spec, *os.File) {
	p.Attach = append(p.Attach, sandbox.Attach{Path: "/proj", Writable: true})
	p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/proj", Access: "rwx"})
	s := b.spec(p, "/bin/sh", "-c", script)
	s.Command.Dir, s.Command.DirID = "/proj", idOf(b.t, w)
	s.Site.Attach = []sandbox.Identity{idOf(b.t, w)}
	return s, openDir(b.t, w)
}

func TestAttach(t *testing.T) {
	b, w := newBench(t), workspace(t)
	write(t, w+"/f", "in\n")
	s, d := b.inWork(testProfile(), w, "pwd; cat f; echo out > g")
	st, out, errs, err := b.run(s, "", d)
	if err != nil || st.Code != 0 || out != "/proj\nin\n" {
		t.Fatalf("run() = %+v, %q, %q, %v", st, out, errs, err)
	}
	var g unix.Stat_t
	if err := unix.Stat(w+"/g", &g); err != nil || g.Uid != testUID {
		t.Errorf("g belongs to %d, %v; want %d", g.Uid, err, testUID)
	}
	s, _ = b.inWork(testProfile(), w, "true")
	if _, _, _, err := b.run(s, "", openDir(t, "/usr")); err == nil || !strings.Contains(err.Error(), "not the file that was looked at") {
		t.Errorf("run(another descriptor) = %v; want a refusal", err)
	}
}

func TestIDMap(t *testing.T) {
	b, w := newBench(t), workspace(t)
	write(t, w+"/f", "in\n")
	s, d := b.inWork(testProfile(), w, "cat f; echo out > g; id -u; stat -c %u f")
	s.Profile.Attach[0].IDMap = true
	s.Site.UID, s.Site.GID = dynFirst+5, dynFirst+5
	s.Site.DiskUID, s.Site.DiskGID = testUID, testUID
	st, out, errs, err := b.run(s, "", d)
	if err != nil || st.Code != 0 || out != "in\n1900000005\n1900000005\n" {
		t.Fatalf("run(idmap) = %+v, %q, %q, %v", st, out, errs, err)
	}
	var g unix.Stat_t
	if err := unix.Stat(w+"/g", &g); err != nil || g.Uid != testUID || g.Gid != testUID {
		t.Errorf("g belongs to %d:%d, %v; want %d", g.Uid, g.Gid, err, testUID)
	}
}

func TestUserNS(t *testing.T) {
	b := newBench(t)
	for _, root := range []bool{false, true} {
		p := testProfile()
		p.UserNS, p.RootMap = true, root
		st, out, errs, err := b.run(b.spec(p, "/bin/sh", "-c", "id -u; cat /proc/self/status | grep -c 'CapEff:.0000000000000000'"), "")
		want := "4242\n1\n"
		if root {
			want = "0\n1\n"
		}
		if err != nil || st.Code != 0 || out != want {
			t.Errorf("run(userns, rootmap %v) = %+v, %q, %q, %v; want %q", root, st, out, errs, err, want)
		}
	}
}

func TestDeny(t *testing.T) {
	b, w := newBench(t), workspace(t)
	write(t, w+"/.git/hooks/pre-commit", "secret\n")
	write(t, w+"/.git/config", "conf\n")
	write(t, w+"/real/inner", "secret\n")
	if err := os.Symlink("../real", w+"/.git/link"); err != nil {
		t.Fatal(err)
	}
	give(t, w+"/.git/link")
	p := testProfile()
	p.Deny = []sandbox.Deny{
		{Path: "/proj/.git/hooks", Absent: sandbox.AbsentPlaceholder},
		{Path: "/proj/.git/config", Absent: sandbox.AbsentPlaceholder, Readable: true},
		{Path: "/proj/.git/link/inner", Absent: sandbox.AbsentPlaceholder},
		{Path: "/proj/none/deep/er", Absent: sandbox.AbsentPlaceholder},
		{Path: "/proj/skipped", Absent: sandbox.AbsentSkip},
		{Path: "/tmp/x", Absent: sandbox.AbsentRefuse},
		{Path: "/usr/share/no such", Absent: sandbox.AbsentSkip},
	}
	script := `ls .git/hooks; cat .git/config; cat real/inner; cat .git/link/inner
		for c in "echo x > .git/hooks/new" "echo x > .git/config" "mv .git .tig" "mv .git/config c" "rm -f .git/link" "mv real laer" \
			"rm -f real/inner" "rm -rf none" "mkdir none/deep" "rmdir none" "mv none enon" "ln -sfn /tmp .git/hooks"; do
			sh -c "$c" 2>/dev/null && echo "DONE $c"
		done; ls -d none`
	s, d := b.inWork(p, w, script)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	pen, err := b.Launch(ctx, b.conn, s, []*os.File{d})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w + "/none"); err != nil {
		t.Errorf("the placeholder is not there while the pen is: %v", err)
	}
	for _, st := range pen.Enforcement.Denies {
		t.Logf("%+v", st)
	}
	if err := pen.Abort(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(placeholder) after Abort = %v; want ENOENT", err)
	}
	s, d = b.inWork(p, w, script)
	_, out, errs, err := b.run(s, "", d)
	if err != nil || out != "conf\nnone\n" {
		t.Errorf("run() = %q, %q, %v; want conf and none alone", out, errs, err)
	}
	if _, err := os.Stat(w + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(placeholder) after the end = %v; want ENOENT", err)
	}
}

func TestDenyRefuse(t *testing.T) {
	b, w := newBench(t), workspace(t)
	p := testProfile()
	p.Deny = []sandbox.Deny{{Path: "/proj/no", Absent: sandbox.AbsentRefuse}}
	s, d := b.inWork(p, w, "true")
	if _, _, _, err := b.run(s, "", d); err == nil || !strings.Contains(err.Error(), "absent: refuse") {
		t.Errorf("run(absent: refuse) = %v; want a refusal", err)
	}
}

func TestPlaceholderShared(t *testing.T) {
	b, w := newBench(t), workspace(t)
	p := testProfile()
	p.Deny = []sandbox.Deny{{Path: "/proj/none", Absent: sandbox.AbsentPlaceholder}}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	var pens []*sandbox.Pen
	for range 3 {
		s, d := b.inWork(p, w, "true")
		pen, err := b.Launch(ctx, b.conn, s, []*os.File{d})
		if err != nil {
			t.Fatal(err)
		}
		pens = append(pens, pen)
	}
	for i, pen := range pens {
		if st, err := os.Stat(w + "/none"); err != nil || st.Mode().Perm() != 0o555 {
			t.Errorf("with %d pens left: Stat(placeholder) = %v, %v; want mode 0555", len(pens)-i, st, err)
		}
		if err := pen.Abort(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(w + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(placeholder) at the end = %v; want ENOENT", err)
	}
}

func TestStdinNullAndPTY(t *testing.T) {
	b := newBench(t)
	p := testProfile()
	p.Stdin = sandbox.StdinNull
	if st, out, errs, err := b.run(b.spec(p, "/bin/sh", "-c", "cat; echo $?; tty"), ""); err != nil || out != "0\nnot a tty\n" {
		t.Errorf("run(null) = %+v, %q, %q, %v", st, out, errs, err)
	}
	p = testProfile()
	p.PTY = true
	s := b.spec(p, "/bin/sh", "-c", "tty; stty size; read x; echo got $x")
	s.Site.Rows, s.Site.Cols = 33, 77
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	pen, err := b.Launch(ctx, b.conn, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	q, err := pen.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Resize(40, 100); err != nil {
		t.Errorf("Resize() = %v; want nil", err)
	}
	if _, err := q.PTY.WriteString("line\n"); err != nil {
		t.Error(err)
	}
	var out strings.Builder
	buf := make([]byte, 1000)
	for {
		n, err := q.PTY.Read(buf)
		out.Write(buf[:n])
		if err != nil || strings.Contains(out.String(), "got line") {
			break
		}
	}
	if st, err := q.Wait(ctx); err != nil || st.Code != 0 {
		t.Errorf("Wait() = %+v, %v", st, err)
	}
	if !strings.Contains(out.String(), "/dev/pts/0") || !strings.Contains(out.String(), "got line") {
		t.Errorf("terminal showed %q; want /dev/pts/0 and the line", out.String())
	}
	if err := q.Release(ctx); err != nil {
		t.Error(err)
	}
}

func TestSignalAndKill(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	start := func(script string) *sandbox.Process {
		pen, err := b.Launch(ctx, b.conn, b.spec(testProfile(), "/bin/sh", "-c", script), nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := pen.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start("sleep 100 & wait")
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(ctx)
	if err != nil || st.Exited || st.Signal != int(syscall.SIGTERM) {
		t.Errorf("Wait() after SIGTERM = %+v, %v; want signal 15", st, err)
	}
	short, end := context.WithTimeout(ctx, time.Millisecond)
	defer end()
	q := start("sleep 100")
	if _, err := q.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait(short) = %v; want a deadline", err)
	}
	if err := q.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Wait(ctx); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("Wait() after Kill = %v; want ErrLost", err)
	}
	for _, p := range []*sandbox.Process{p, q} {
		if err := p.Release(ctx); err != nil {
			t.Errorf("Release() = %v; want nil", err)
		}
	}
}

func TestStageClosedMidStart(t *testing.T) {
	b, w := newBench(t), workspace(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	p := testProfile()
	p.Deny = []sandbox.Deny{{Path: "/proj/none", Absent: sandbox.AbsentPlaceholder}}
	s, d := b.inWork(p, w, "echo ran > /proj/ran")
	pen, err := b.Launch(ctx, b.conn, s, []*os.File{d})
	if err != nil {
		t.Fatal(err)
	}
	live, err := b.Launch(ctx, b.conn, b.spec(testProfile(), "/bin/sh", "-c", "read x; exit 7"), nil)
	if err != nil {
		t.Fatal(err)
	}
	q, err := live.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"/none", "/ran"} {
		if _, err := os.Stat(w + f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Stat(%s) = %v; want ENOENT", f, err)
		}
	}
	if err := syscall.Kill(pen.InitPid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("PID 1 of a pen that was not started: %v; want it gone", err)
	}
	if _, err := pen.Start(ctx); !errors.Is(err, sandbox.ErrStageGone) {
		t.Errorf("Start() without a stage = %v; want ErrStageGone", err)
	}
	if err := q.CloseStdin(); err != nil {
		t.Error(err)
	}
	if st, err := q.Wait(ctx); err != nil || st.Code != 7 {
		t.Errorf("Wait() without a stage = %+v, %v; want exit 7", st, err)
	}
	if err := q.Release(ctx); err != nil {
		t.Errorf("Release() without a stage = %v; want nil", err)
	}
}

func TestLookAsCaller(t *testing.T) {
	b, w := newBench(t), workspace(t)
	secret := t.TempDir() + "/s"
	write(t, secret+"/x", "")
	if err := os.Chmod(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, w+"/bin/tool", "#!/bin/sh -e\n")
	write(t, w+"/bin/data", "x")
	if err := os.Chmod(w+"/bin/tool", 0o755); err != nil {
		t.Fatal(err)
	}
	for to, at := range map[string]string{"bin": "/link", "loop": "/loop"} {
		if err := os.Symlink(to, w+at); err != nil {
			t.Fatal(err)
		}
	}
	r := sandbox.LookRequest{
		Programs: []string{"tool", "data", "no", w + "/link/../bin/tool", w + "/loop", secret + "/x", "/bin/sh", "a/b", "/dev/null", ""},
		Path:     []string{"relative", secret, w + "/link", "/usr/bin"}, Dir: w + "/link", Under: []string{w, "/no", secret},
	}
	l, dir, err := b.Look(t.Context(), b.conn, r)
	if err != nil || dir == nil {
		t.Fatalf("Look() = %v, %v; want a directory", dir, err)
	}
	defer func() { _ = dir.Close() }()
	want := []struct {
		path string
		kind sandbox.Kind
		err  string
	}{
		{w + "/bin/tool", sandbox.KindScript, ""},
		{"", "", "EACCES"},
		{"", "", "EACCES"}, // the secret directory comes first in Path
		{w + "/bin/tool", sandbox.KindScript, ""},
		{"", "", "ELOOP"},
		{"", "", "EACCES"},
		{"", sandbox.KindELF, ""},
		{"", "", "EINVAL"},
		{"/dev/null", sandbox.KindOther, ""},
		{"", "", "EINVAL"},
	}
	for i, x := range want {
		g := l.Programs[i]
		if g.Kind != x.kind || g.Err != x.err || x.path != "" && g.Path != x.path || g.Name != r.Programs[i] {
			t.Errorf("Look(%q) = %+v; want %+v", r.Programs[i], g, x)
		}
	}
	if g := l.Programs[0]; g.Interp != "/bin/sh" || !g.Executable || g.ID != idOf(t, w+"/bin/tool") || g.UID != testUID {
		t.Errorf("Look(tool) = %+v; want the facts of the file", g)
	}
	if g := l.Programs[6]; !strings.Contains(g.Interp, "ld-linux") {
		t.Errorf("Look(/bin/sh).Interp = %q; want its loader", g.Interp)
	}
	if l.Dir.Path != w+"/bin" || l.Under[0].Path != w || l.Under[1].Err != "ENOENT" || l.Under[2].Err != "EACCES" {
		t.Errorf("Look() = %+v, %+v", l.Dir, l.Under)
	}
}

func TestLookBounds(t *testing.T) {
	b := newBench(t)
	if _, _, err := b.Look(t.Context(), b.conn, sandbox.LookRequest{Programs: make([]string, 300)}); err == nil {
		t.Error("Look(300 programs) = nil; want a refusal")
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if _, _, err := b.Look(t.Context(), null, sandbox.LookRequest{}); err == nil {
		t.Error("Look(no socket) = nil; want an error")
	}
}

func TestScratch(t *testing.T) {
	b := newBench(t)
	f, id, err := b.Scratch(t.Context(), "s1", 1<<20, 100, testUID, testUID, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	g, again, err := b.Scratch(t.Context(), "s1", 9<<20, 100, testUID, testUID, 0o700)
	if err != nil || again != id {
		t.Errorf("Scratch(again) = %v, %v; want %v", again, err, id)
	}
	p := testProfile()
	p.Attach = []sandbox.Attach{{Path: "/proj", Writable: true}}
	p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/proj", Access: "rw"})
	s := b.spec(p, "/bin/sh", "-c", "echo hi > /proj/f; head -c 2000000 /dev/zero > /proj/big || echo full")
	s.Site.Attach = []sandbox.Identity{id}
	if _, out, errs, err := b.run(s, "", f); err != nil || out != "full\n" {
		t.Errorf("run() = %q, %q, %v; want full", out, errs, err)
	}
	if got, err := os.ReadFile(b.state + "/run/scratch/s1/f"); err != nil || string(got) != "hi\n" {
		t.Errorf("the scratch file holds %q, %v", got, err)
	}
	_, _ = f.Close(), g.Close()
	for range 2 {
		if err := b.DropScratch(t.Context(), "s1"); err != nil {
			t.Errorf("DropScratch() = %v; want nil", err)
		}
	}
	for _, bad := range []string{"", "../x", "a/b", ".", "a b", strings.Repeat("a", 200)} {
		if _, _, err := b.Scratch(t.Context(), bad, 1<<20, 100, testUID, testUID, 0o700); err == nil {
			t.Errorf("Scratch(%q) = nil; want a refusal", bad)
		}
	}
	if _, _, err := b.Scratch(t.Context(), "r", 1<<20, 100, 0, 0, 0o700); err == nil {
		t.Error("Scratch(of root) = nil; want a refusal")
	}
}

func TestFloorsOverTheWire(t *testing.T) {
	b := newBench(t)
	tests := map[string]func(*sandbox.Spec){
		"another uid":   func(s *sandbox.Spec) { s.Site.UID = 33 },
		"root":          func(s *sandbox.Spec) { s.Site.UID = 0 },
		"group shadow":  func(s *sandbox.Spec) { s.Site.GID = 42 },
		"cgroup above":  func(s *sandbox.Spec) { s.Site.Cgroup = ".." },
		"hierarchy":     func(s *sandbox.Spec) { s.Site.Join = []sandbox.JoinFile{{Controller: "memory", Path: "x/tasks"}} },
		"seccomp off":   func(s *sandbox.Spec) { s.Profile.Controls[2].Level = sandbox.LevelOff },
		"more attaches": func(s *sandbox.Spec) { s.Profile.Attach = []sandbox.Attach{{Path: "/w"}} },
		"ptrace":        func(s *sandbox.Spec) { s.Profile.Seccomp.Allow = []string{"mount"} },
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			s := b.spec(testProfile(), "/bin/true")
			s.Profile.Controls = controls()
			edit(&s)
			if _, _, _, err := b.run(s, ""); err == nil {
				t.Errorf("run(%s) = nil; want a refusal", name)
			}
		})
	}
}

func TestEnforcementRecord(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	pen, err := b.Launch(ctx, b.conn, b.spec(testProfile(), "/bin/true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pen.Abort(ctx); err != nil {
			t.Error(err)
		}
	}()
	e := pen.Enforcement
	if e.UID != testUID || e.GID != testUID || e.Caps != (sandbox.CapSets{}) || !e.NoNewPrivs || e.Seccomp.Mode != 2 ||
		len(e.Seccomp.FilterHash) != 64 || e.Landlock.ABI == 0 || len(e.MountsHash) != 64 || len(e.Rlimits) != 2 || len(e.Degraded) != 0 {
		t.Errorf("Enforcement = %+v", e)
	}
	for _, c := range e.Controls {
		want := sandbox.StateEnforced
		if c.Control == sandbox.ControlUserNS {
			want = sandbox.StateOff
		}
		if c.State != want || want == sandbox.StateEnforced && c.ProvedBy == "" {
			t.Errorf("control %+v; want %s and a proof", c, want)
		}
	}
	if len(e.Controls) != 9 {
		t.Errorf("%d controls; want the nine that are not the cgroup's", len(e.Controls))
	}
}

func TestViewFollowsTheHost(t *testing.T) {
	b, w := newBench(t), workspace(t)
	write(t, w+"/conf", "one\n")
	p := testProfile()
	p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: "/etc/conf", Source: w + "/conf"})
	for _, want := range []string{"one\n", "two\n"} {
		if _, out, errs, err := b.run(b.spec(p, "/bin/cat", "/etc/conf"), ""); err != nil || out != want {
			t.Errorf("run(cat) = %q, %q, %v; want %q", out, errs, err, want)
		}
		write(t, w+"/next", "two\n")
		if err := os.Rename(w+"/next", w+"/conf"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(w + "/conf"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/shadow", w+"/conf"); err != nil {
		t.Fatal(err)
	}
	give(t, w+"/conf")
	p.View[len(p.View)-1].Follow = true
	if _, _, _, err := b.run(b.spec(p, "/bin/cat", "/etc/conf"), ""); err == nil || !errors.Is(err, syscall.ELOOP) {
		t.Errorf("run(a user's symlink) = %v; want ELOOP", err)
	}
}

func TestManyFailures(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			s := b.spec(testProfile(), "/bin/true")
			if i%2 == 0 {
				s.Command.ProgramID.Ino++
			}
			_, _, _, err := b.run(s, "")
			if (err == nil) != (i%2 == 1) {
				t.Errorf("run(%d) = %v", i, err)
			}
		})
	}
	wg.Wait()
}

// TestJoinV1 enters cgroups of v1 hierarchies beside the one of v2.
func TestJoinV1(t *testing.T) {
	needRoot(t)
	var hiers []sandbox.CgroupHier
	for _, c := range []string{"memory", "pids"} {
		root := "/sys/fs/cgroup/" + c
		if _, err := os.Stat(root + "/tasks"); err != nil {
			testkit.LeaveOut(t, fmt.Sprintf("the host has no cgroup v1 hierarchy %s: %v", c, err))
		}
		base, err := os.MkdirTemp(root, "pinfold-test-stage-") //nolint:usetesting // a cgroup, not a directory of files
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeCgroups(t, base) })
		if err := os.MkdirAll(base+"/s/p", 0o755); err != nil {
			t.Fatal(err)
		}
		hiers = append(hiers, sandbox.CgroupHier{Controller: c, Dir: base})
	}
	b := newBench(t, hiers...)
	for _, userns := range []bool{false, true} {
		p := testProfile()
		p.UserNS = userns
		s := b.spec(p, "/bin/cat", "/proc/self/cgroup")
		for _, h := range hiers {
			s.Site.Join = append(s.Site.Join, sandbox.JoinFile{Controller: h.Controller, Path: "s/p/tasks"})
		}
		_, out, errs, err := b.run(s, "")
		if err != nil || strings.Contains(out, "pinfold-test") || !strings.Contains(out, ":memory:/\n") || !strings.Contains(out, ":pids:/\n") {
			t.Errorf("run(userns %v) = %q, %q, %v; want the joined cgroups shown as roots", userns, out, errs, err)
		}
		s = b.spec(p, "/bin/true")
		s.Site.Join = []sandbox.JoinFile{{Controller: "memory", Path: "s/no/tasks"}}
		if _, _, _, err := b.run(s, ""); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("run(no such cgroup) = %v; want ENOENT", err)
		}
	}
}
