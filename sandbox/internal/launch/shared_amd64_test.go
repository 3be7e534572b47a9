package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// needUserNS skips where no user namespace of ids other than our own can be made.
func needUserNS(tb testing.TB) {
	tb.Helper()
	testkit.NeedRoot(tb)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		tb.Fatal(err)
	}
}

// target is a Start of a program outside of any pen.
func target(tb testing.TB, program string, argv ...string) (Start, *os.File) {
	tb.Helper()
	im, err := os.Open(program)
	if err != nil {
		tb.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = errors.Join(im.Close(), r.Close(), w.Close()) })
	return Start{
		Image: im, Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS, Argv: argv,
		Files:      map[int]int{0: int(r.Fd()), 1: int(w.Fd()), 2: int(w.Fd())},
		UIDMaps:    []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1900000000, Size: 1}, {ContainerID: 4242, HostID: 4242, Size: 1}},
		GIDMaps:    []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1900000000, Size: 1}, {ContainerID: 4242, HostID: 4242, Size: 1}},
		Groups:     GroupsAllowed,
		Credential: &syscall.Credential{},
	}, r
}

// output runs s to its end and returns what it wrote.
func output(tb testing.TB, s Start, r *os.File, run func(Start, int) (int, int, error)) string {
	tb.Helper()
	im, err := unix.FcntlInt(s.Image.Fd(), unix.F_DUPFD_CLOEXEC, aboveAll(table(s.Files)))
	if err != nil {
		tb.Fatal(err)
	}
	pid, pidfd, err := run(s, im)
	_ = unix.Close(im)
	if err != nil {
		tb.Fatalf("run(%q) = %v; want nil", s.Argv, err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	if _, err := unix.FcntlInt(uintptr(pidfd), unix.F_GETFD, 0); err != nil || unix.PidfdSendSignal(pidfd, 0, nil, 0) != nil {
		tb.Errorf("run() = pidfd %d, %v; want one of the child", pidfd, err)
	}
	if err := reap(pid); err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		tb.Fatal(err)
	}
	n, err := r.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		tb.Fatal(err)
	}
	return string(buf[:n])
}

// status is what a shell in the new process sees of itself; forkExec's is the model.
const status = `echo "$0 $1 $X"; grep -E '^(Uid|Gid|Groups|Sig[PBIC]|Shd|Cap|NoNew)' /proc/self/status; cat /proc/self/uid_map /proc/self/setgroups; cd /proc/$$/fd; echo *`

func TestSharedIsAsForkExec(t *testing.T) {
	needUserNS(t)
	for _, tt := range []struct {
		name string
		edit func(*Start)
	}{
		{"root inside", func(*Start) {}},
		{"ambient", func(s *Start) {
			s.Credential = &syscall.Credential{Uid: 4242, Gid: 4242}
			s.Ambient = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_BPF}
		}},
		{"no groups", func(s *Start) {
			s.Groups, s.Credential = GroupsDenied, nil
		}},
		{"no user namespace", func(s *Start) {
			s.Flags &^= unix.CLONE_NEWUSER
			s.UIDMaps, s.GIDMaps, s.Groups, s.Credential = nil, nil, GroupsDenied, nil
		}},
		{"crossed descriptors", func(s *Start) {
			a, b := s.Files[0], s.Files[1]
			s.Files = map[int]int{0: a, 1: b, 2: b, a: b, b: a, 40: 0, 41: b, 42: a, 43: 43}
			if err := unix.Dup3(0, 43, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(43) })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, r := target(t, "/bin/sh", "sh", "-c", status, "zero", "one")
			s.Flags &^= unix.CLONE_NEWPID // the host's /proc
			s.Env = []string{"PATH=/usr/bin:/bin", "X=value"}
			tt.edit(&s)
			var got [2]string
			for i, run := range []func(Start, int) (int, int, error){forkExec, runShared} {
				got[i] = output(t, s, r, run)
			}
			if want := got[0]; got[1] != want || !strings.HasPrefix(want, "zero one value\n") {
				t.Errorf("runShared: %s\nwant as forkExec: %s", got[1], want)
			}
		})
	}
}

func TestSharedFailures(t *testing.T) {
	needUserNS(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	script := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(script, []byte("neither ELF nor script"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		edit  func(*Start)
		errno syscall.Errno
		words string
	}{
		{"not executable", func(s *Start) { s.Image = null }, unix.EACCES, "execveat"},
		{"no format", func(s *Start) { s.Image, err = os.Open(script) }, unix.ENOEXEC, "execveat"},
		{"closed descriptor", func(s *Start) { s.Files[5] = 400 }, unix.EBADF, "dup3"},
		{"unmapped uid", func(s *Start) { s.Credential = &syscall.Credential{Uid: 9} }, unix.EINVAL, "setuid"},
		{"map of nothing", func(s *Start) { s.UIDMaps[0].Size = 0 }, unix.EINVAL, "uid_map"},
		{"not a cgroup", func(s *Start) { s.Cgroup = null }, unix.EBADF, "clone3"},
		{"bad flags", func(s *Start) { s.Flags |= unix.CLONE_FS }, unix.EINVAL, "clone3"},
		{"zero byte", func(s *Start) { s.Argv = []string{"a\x00b"} }, unix.EINVAL, "zero byte"},
		{"too long", func(s *Start) { s.Env = []string{strings.Repeat("x", 200<<10)} }, unix.E2BIG, "execveat"},
	} {
		s, _ := target(t, "/bin/true", "true", "", "true")
		tt.edit(&s)
		if pid, _, err := Run(s); !errors.Is(err, tt.errno) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("Run(%s) = %d, %v; want %v of %s", tt.name, pid, err, tt.errno, tt.words)
		}
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("Wait4() = %d, %v; want no child left", pid, err)
	}
}

// TestSharedUnderLoad starts many at once beside collections of garbage, growing
// stacks and children by package os/exec.
func TestSharedUnderLoad(t *testing.T) {
	needUserNS(t)
	stop := make(chan struct{})
	var busy, wg sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
				if out, err := exec.Command("/bin/echo", "x").Output(); err != nil || string(out) != "x\n" {
					t.Errorf("echo = %q, %v; want x", out, err)
				}
				grow(100)
			}
		}
	})
	for i := range 8 {
		wg.Go(func() {
			for j := range 40 {
				want := fmt.Sprintf("%d %d", i, j)
				s, r := target(t, "/bin/echo", "echo", want, strings.Repeat("y", 1000))
				if j%10 == 9 {
					s.Credential = &syscall.Credential{Uid: 9}
					if _, _, err := Run(s); !errors.Is(err, unix.EINVAL) {
						t.Errorf("Run(unmapped uid) = %v; want EINVAL", err)
					}
					continue
				}
				if got := output(t, s, r, runShared); got != want+" "+s.Argv[2]+"\n" {
					t.Errorf("output(%s) = %q", want, got)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	busy.Wait()
	if d, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || d != 0 {
		t.Errorf("PR_GET_DUMPABLE = %d, %v; want 0 as before", d, err)
	}
}

func grow(n int) (b [1000]byte) {
	if n > 0 {
		b = grow(n - 1)
	}
	b[n]++
	return b
}

// TestSharedEndsWithItsParent: a process that is killed while its children wait for
// their id maps leaves none of them.
func TestSharedEndsWithItsParent(t *testing.T) {
	needUserNS(t)
	if os.Getenv("PINFOLD_TEST_HANG") != "" {
		hang(t)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestSharedEndsWithItsParent$")
	cmd.Env = append(os.Environ(), "PINFOLD_TEST_HANG=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids [3]int
	if _, err := fmt.Fscan(out, &pids[0], &pids[1], &pids[2]); err != nil {
		t.Fatal(err)
	}
	var fds []unix.PollFd
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for i := range fds {
		n, err := unix.Poll(fds[i:i+1], 10000)
		for errors.Is(err, unix.EINTR) { // the runtime's own signals
			n, err = unix.Poll(fds[i:i+1], 10000)
		}
		if err != nil || n != 1 {
			t.Errorf("child %d lives on: %d, %v; want it ended with its parent", pids[i], n, err)
			_ = unix.PidfdSendSignal(int(fds[i].Fd), unix.SIGKILL, nil, 0)
		}
	}
}

// hang starts children that wait at their gates, says their pids, and never opens one.
func hang(t *testing.T) {
	t.Helper()
	var pids []any
	for range 3 {
		s, _ := target(t, "/bin/true", "true", "", "true")
		var gate [2]int
		if err := unix.Pipe2(gate[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		b, err := newBlock(s, int(s.Image.Fd()), gate[:])
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, cloneShared(uintptr(b.addr(0))))
	}
	fmt.Println(pids...)
	select {}
}

// BenchmarkUserNS starts /bin/true in a user namespace by both ways, interleaved.
func BenchmarkUserNS(b *testing.B) {
	needUserNS(b)
	ballast := make([]byte, 32<<20) // a stage at work: forkExec copies the page tables
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	s, r := target(b, "/bin/true", "true", "", "true")
	var sums [2]time.Duration
	for b.Loop() {
		for i, run := range []func(Start, int) (int, int, error){forkExec, runShared} {
			at := time.Now()
			im, err := unix.FcntlInt(s.Image.Fd(), unix.F_DUPFD_CLOEXEC, 100)
			if err != nil {
				b.Fatal(err)
			}
			pid, pidfd, err := run(s, im)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = unix.Close(im), unix.Close(pidfd)
			if err := reap(pid); err != nil {
				b.Fatal(err)
			}
			sums[i] += time.Since(at)
		}
	}
	runtime.KeepAlive(ballast)
	_ = r
	b.ReportMetric(float64(sums[0].Microseconds())/float64(b.N), "forkexec-us")
	b.ReportMetric(float64(sums[1].Microseconds())/float64(b.N), "shared-us")
}
