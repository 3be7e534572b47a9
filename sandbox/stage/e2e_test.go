package stage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/stage"
	"pinfold/test/testkit"
)

// TestMain makes the test binary a stage too, when it is started like one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"--state", "--entered", "--heir"}, os.Args[1]) {
		os.Exit(stage.Run(context.Background(), os.Args[1:], os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == mortalFlag {
		os.Exit(mortal(context.Background(), os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

const (
	testUID   = 4242
	dynFirst  = 1900000000
	dynCount  = 1000
	cgroupV2  = "/sys/fs/cgroup/unified"
	waitLimit = 60 * time.Second // of an emulated host, too
)

// bench is a stage with cgroups of its own and a caller.
type bench struct {
	*sandbox.Stage
	t      testing.TB
	base   string
	conn   *os.File // of a caller with testUID
	state  string
	next   int
	mu     sync.Mutex
	killed bool // the stage was, by the test
}

func needRoot(tb testing.TB) {
	tb.Helper()
	testkit.NeedRoot(tb)
}

func v2Root(tb testing.TB) string {
	tb.Helper()
	for _, d := range []string{cgroupV2, "/sys/fs/cgroup"} {
		if _, err := os.Stat(d + "/cgroup.procs"); err == nil {
			if _, err := os.Stat(d + "/cgroup.controllers"); err == nil {
				return d
			}
		}
	}
	testkit.LeaveOut(tb, "needs a cgroup v2 hierarchy: neither "+cgroupV2+" nor /sys/fs/cgroup has cgroup.controllers")
	return ""
}

func newBench(tb testing.TB, more ...sandbox.CgroupHier) *bench {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return newBenchOf(tb, self, more...)
}

// newBenchOf starts a stage of another build.
func newBenchOf(tb testing.TB, program string, more ...sandbox.CgroupHier) *bench {
	tb.Helper()
	needRoot(tb)
	state := tb.TempDir()
	base, err := os.MkdirTemp(v2Root(tb), "pinfold-test-stage-") //nolint:usetesting // a cgroup, not a directory of files
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { removeCgroups(tb, base) })
	ctx, cancel := context.WithTimeout(tb.Context(), waitLimit)
	defer cancel()
	s, err := sandbox.StartStage(ctx, sandbox.StageConfig{
		Path: program, State: state, Stderr: os.Stderr, DynamicFirst: dynFirst, DynamicCount: dynCount,
		Cgroups: append([]sandbox.CgroupHier{{Dir: base}}, more...),
	})
	if err != nil {
		tb.Fatal(err)
	}
	b := &bench{Stage: s, t: tb, base: base, state: state, conn: connOf(tb, testUID)}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil && !b.killed {
			tb.Errorf("Close() = %v; want nil", err)
		}
		noTrees(tb, state)
	})
	return b
}

func noTrees(tb testing.TB, state string) {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		tb.Fatal(err)
	}
	if strings.Contains(string(b), state) {
		tb.Errorf("mounts are left below %s:\n%s", state, b)
	}
}

func removeCgroups(tb testing.TB, base string) {
	tb.Helper()
	kill := filepath.Join(base, "cgroup.kill") // v2 alone has it
	if _, err := os.Stat(kill); err == nil {
		if err := os.WriteFile(kill, []byte("1"), 0); err != nil {
			tb.Errorf("cannot kill %s: %v", base, err)
		}
	}
	var dirs []string
	err := filepath.WalkDir(base, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return err
	})
	if err != nil {
		tb.Error(err)
	}
	end := time.Now().Add(waitLimit)
	for _, d := range slices.Backward(dirs) {
		err := os.Remove(d)
		for errors.Is(err, syscall.EBUSY) && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
			err = os.Remove(d)
		}
		if err != nil {
			tb.Errorf("cannot remove %s: %v", d, err)
		}
	}
}

// connOf returns the server's end of a connection that uid made.
func connOf(tb testing.TB, uid int) *os.File {
	tb.Helper()
	dir, err := os.MkdirTemp("", "pinfold-conn") //nolint:usetesting // a socket path must be short, and another uid must reach it
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	path := dir + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := os.Chmod(path, 0o777); err != nil {
		tb.Fatal(err)
	}
	attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}}
	py := "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.recv(1)"
	attr.Env = os.Environ()
	pid, err := syscall.ForkExec("/usr/bin/python3", []string{"python3", "-c", py, path}, attr)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		tb.Fatal(err)
	}
	f, err := c.File()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = c.Close()
		_ = f.Close()
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	})
	return f
}

func controls() []sandbox.Need {
	var out []sandbox.Need
	for _, c := range sandbox.Controls() {
		l := sandbox.LevelRequired
		if c == sandbox.ControlUserNS {
			l = sandbox.LevelOff
		}
		out = append(out, sandbox.Need{Control: c, Level: l})
	}
	return out
}

func testProfile() sandbox.Profile {
	p := sandbox.Profile{
		Name: "test", Hostname: "pen", Proc: sandbox.ProcMasked, Net: sandbox.NetNone, Exec: sandbox.ExecAnything,
		Stdin: sandbox.StdinPipe, Seccomp: sandbox.Filter{Base: "default"}, Controls: controls(),
		Private: []sandbox.Tmpfs{
			{Path: "/tmp", Size: 16 << 20, Inodes: 1000, Mode: 0o1777},
			{Path: "/dev/shm", Size: 1 << 20, Inodes: 100, Mode: 0o1777},
		},
		Rlimits: []sandbox.Rlimit{{Name: "core", Value: 0}, {Name: "nofile", Value: 1024}},
	}
	for _, d := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ssl", "/etc/ld.so.cache", "/etc/alternatives"} {
		p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: d, Source: d, Missing: sandbox.MissingSkip})
	}
	p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryFile, Path: "/etc/passwd", Data: "u:x:4242:4242::/:/bin/sh\n"})
	for _, d := range []string{"null", "zero", "full", "random", "urandom"} {
		p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryDevice, Path: "/dev/" + d, Source: "/dev/" + d})
	}
	p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntrySymlink, Path: "/dev/fd", Source: "/proc/self/fd"})
	p.Landlock.Rules = []sandbox.Rule{
		{Path: "/usr", Access: "rx"},
		{Path: "/etc", Access: "r"},
		{Path: "/dev", Access: "rw"},
		{Path: "/proc", Access: "r"},
		{Path: "/tmp", Access: "rwx"},
		{Path: "/dev/shm", Access: "rw"},
	}
	return p
}

func idOf(tb testing.TB, path string) sandbox.Identity {
	tb.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		tb.Fatal(err)
	}
	return sandbox.Identity{Dev: st.Dev, Ino: st.Ino}
}

// spec is a Spec for argv under p, with a cgroup of its own, and no working directory
// that was looked at.
func (b *bench) spec(p sandbox.Profile, argv ...string) sandbox.Spec {
	b.t.Helper()
	b.mu.Lock()
	b.next++
	name := "p" + strconv.Itoa(b.next)
	b.mu.Unlock()
	for _, d := range []string{"", "/init", "/job"} {
		if err := os.Mkdir(filepath.Join(b.base, name)+d, 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	prog, err := filepath.EvalSymlinks(argv[0])
	if err != nil {
		b.t.Fatal(err)
	}
	return sandbox.Spec{
		Profile: p,
		Site:    sandbox.Site{UID: testUID, GID: testUID, Cgroup: name},
		Command: sandbox.Command{Program: prog, ProgramID: idOf(b.t, prog), Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/tmp"},
	}
}

func (b *bench) run(s sandbox.Spec, in string, attach ...*os.File) (sandbox.Status, string, string, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
	defer cancel()
	pen, err := b.Launch(ctx, b.conn, s, attach)
	if err != nil {
		return sandbox.Status{}, "", "", err
	}
	return b.follow(ctx, pen, in)
}

// follow starts a pen's target and sees it to its end.
func (b *bench) follow(ctx context.Context, pen *sandbox.Pen, in string) (sandbox.Status, string, string, error) {
	b.t.Helper()
	p, err := pen.Start(ctx)
	if err != nil {
		return sandbox.Status{}, "", "", err
	}
	var wg sync.WaitGroup
	var out, errs []byte
	wg.Go(func() { out, _ = io.ReadAll(readUntil(p.Stdout)) })
	wg.Go(func() { errs, _ = io.ReadAll(readUntil(p.Stderr)) })
	if p.Stdin != nil {
		if _, err := p.Stdin.WriteString(in); err != nil && !errors.Is(err, syscall.EPIPE) {
			b.t.Error(err)
		}
		if err := p.CloseStdin(); err != nil {
			b.t.Error(err)
		}
	}
	st, err := p.Wait(ctx)
	if err != nil {
		return st, "", "", err
	}
	wg.Wait()
	return st, string(out), string(errs), p.Release(ctx)
}

func readUntil(f *os.File) io.Reader { return f }

func TestLaunchTrue(t *testing.T) {
	b := newBench(t)
	st, out, errs, err := b.run(b.spec(testProfile(), "/bin/true"), "")
	if err != nil || !st.Exited || st.Code != 0 || out != "" || errs != "" {
		t.Fatalf("run(true) = %+v, %q, %q, %v; want exit 0", st, out, errs, err)
	}
	if st.MaxRSS == 0 {
		t.Errorf("run(true).MaxRSS = 0; want the rusage of the target")
	}
}

func TestLaunchStreams(t *testing.T) {
	b := newBench(t)
	st, out, errs, err := b.run(b.spec(testProfile(), "/bin/sh", "-c", "cat; echo err >&2; exit 3"), "hello\n")
	if err != nil || st.Code != 3 || out != "hello\n" || errs != "err\n" {
		t.Fatalf("run(sh) = %+v, %q, %q, %v; want exit 3, hello, err", st, out, errs, err)
	}
}

func TestLaunchFailingExec(t *testing.T) {
	b := newBench(t)
	s := b.spec(testProfile(), "/bin/true")
	s.Command.Program = "/etc/passwd" // data, and not the file of ProgramID
	_, _, _, err := b.run(s, "")
	var step *sandbox.StepError
	if !errors.As(err, &step) || !strings.Contains(err.Error(), "another file") {
		t.Fatalf("run(wrong identity) = %v; want a StepError that names the identity", err)
	}
	text := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(text, []byte("just text"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := testProfile()
	p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: "/opt/x", Source: text})
	p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/opt/x", Access: "rx"})
	s = b.spec(p, text)
	s.Command.Program = "/opt/x"
	_, _, _, err = b.run(s, "")
	if !errors.As(err, &step) || step.Errno != syscall.ENOEXEC || step.Where != sandbox.WhereTarget || !strings.HasPrefix(step.Text, "execve") {
		t.Fatalf("run(text file) = %v; want ENOEXEC of execveat of the target", err)
	}
}

func TestManyLaunches(t *testing.T) {
	b := newBench(t)
	const workers = 16
	each := 200
	if testing.Short() {
		each = 10
	}
	if _, _, _, err := b.run(b.spec(testProfile(), "/bin/true"), ""); err != nil {
		t.Fatal(err)
	}
	pid := stagePid(t, b.state)
	before := fds(t, pid)
	var wg sync.WaitGroup
	begin := time.Now()
	for range workers {
		wg.Go(func() {
			for i := range each {
				s := b.spec(testProfile(), "/bin/echo", strconv.Itoa(i))
				if i%50 == 7 {
					s.Command.ProgramID.Ino++
				}
				st, out, _, err := b.run(s, "")
				if i%50 == 7 {
					if err == nil {
						t.Errorf("run(another identity) = nil; want a refusal")
					}
				} else if err != nil || out != fmt.Sprintln(i) || !st.Exited || st.Code != 0 {
					t.Errorf("run(echo %d) = %+v, %q, %v", i, st, out, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d launches, %d at once: %v each", workers*each, workers, time.Since(begin)/time.Duration(workers*each))
	if after := fds(t, pid); after > before+8 { // a few belong to answers that are being closed
		t.Errorf("the stage has %d descriptors; before it had %d", after, before)
	}
	if c := children(t, pid); len(c) != 0 {
		t.Errorf("the stage has children left: %v", c)
	}
}

// stagePid finds the stage that was started with that state directory.
func stagePid(t *testing.T, state string) int {
	t.Helper()
	for _, pid := range children(t, os.Getpid()) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(b), "\x00--state\x00"+state+"\x00") {
			return pid
		}
	}
	t.Fatal("the stage is not there")
	return 0
}

func children(t *testing.T, parent int) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for n := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, pid)
		}
	}
	return out
}

func fds(t *testing.T, pid int) int {
	t.Helper()
	d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
