package socket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

const patience = 30 * time.Second

// TestMain lets the test program play the other end: see play.
func TestMain(m *testing.M) {
	if role := os.Getenv("PINFOLD_TEST_ROLE"); role != "" {
		os.Exit(play(role, os.Getenv("PINFOLD_TEST_PATH")))
	}
	os.Exit(m.Run())
}

// play is a client in a process of its own. "say" connects and sends a line; "pass"
// sends one over the connection that it got as descriptor 3.
func play(role, path string) int {
	switch role {
	case "say":
		c, err := net.Dial("unix", path)
		if err != nil {
			return 1
		}
		if _, err := c.Write([]byte("said\n")); err != nil {
			return 2
		}
		_, _ = io.Copy(io.Discard, c) // until the other end closes
		return 0
	case "pass":
		if _, err := unix.Write(3, []byte("passed\n")); err != nil {
			return 3
		}
		return 0
	}
	return 9
}

// actor returns the test program in a role, as uid and gid with groups.
func actor(t *testing.T, role, path string, cred *syscall.Credential) *exec.Cmd {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatalf("Open(/proc/self/exe) = %v; want nil", err)
	}
	t.Cleanup(func() { _ = self.Close() })
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	if cred != nil { // the program itself may lie where another uid cannot go
		dir, err := os.MkdirTemp("/tmp", "pinfold-test-") //nolint:usetesting // TempDir's parents are closed to other users
		if err != nil {
			t.Fatalf("MkdirTemp() = %v; want a directory", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		b, err := io.ReadAll(self)
		if err == nil {
			err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "actor"), b, 0o755))
		}
		if err != nil {
			t.Fatalf("copying the test program = %v; want nil", err)
		}
		cmd = exec.CommandContext(t.Context(), filepath.Join(dir, "actor"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	}
	cmd.Env = []string{"PINFOLD_TEST_ROLE=" + role, "PINFOLD_TEST_PATH=" + path}
	return cmd
}

func needRoot(t *testing.T) {
	t.Helper()
	testkit.NeedRoot(t)
}

// sockDir is a directory that any uid can enter.
func sockDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pinfold-test-") //nolint:usetesting // as in actor
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatalf("MkdirTemp() = %v; want a directory", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, change func(*Config)) *Listener {
	t.Helper()
	c := Config{Path: filepath.Join(sockDir(t), "s"), Mode: 0o666, GID: -1}
	if change != nil {
		change(&c)
	}
	l, err := Listen(c)
	if err != nil {
		t.Fatalf("Listen(%+v) = %v; want a listener", c, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial connects a client of this process and accepts it.
func dial(t *testing.T, l *Listener) (*net.UnixConn, *Conn) {
	t.Helper()
	client, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.Addr(), Net: "unix"})
	if err != nil {
		t.Fatalf("Dial(%s) = %v; want a connection", l.Addr(), err)
	}
	t.Cleanup(func() { _ = client.Close() })
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("Accept() = %v; want a connection", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return client, c
}

func TestPeerIsUs(t *testing.T) {
	l := listen(t, nil)
	_, c := dial(t, l)
	p := c.Peer()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatalf("Getgroups() = %v; want nil", err)
	}
	if int(p.UID) != os.Geteuid() || int(p.GID) != os.Getegid() || p.PID != os.Getpid() || len(p.GIDs) != len(groups) {
		t.Errorf("Peer() = %+v; want this process", p)
	}
	has := givesPidfds(t)
	if (p.Pidfd != nil) != has {
		t.Errorf("Peer().Pidfd = %v on a kernel with SO_PEERPIDFD %v; want one where it has", p.Pidfd, has)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatalf("ReadFile(/proc/self/cgroup) = %v; want nil", err)
	}
	v2, units := parseCgroup(string(own))
	unit, _ := unitOf(units) // "" outside of any
	if !has {
		unit = "" // nobody can tell
	}
	if p.Cgroup != v2 || p.Unit != unit || (p.Unit == "") != (p.UnitErr != nil) {
		t.Errorf("Peer() in %q, unit %q, %v; want %q, %q", p.Cgroup, p.Unit, p.UnitErr, v2, unit)
	}
}

// givesPidfds asks the kernel itself for a peer's pidfd: SO_PEERPIDFD, Linux 6.5.
func givesPidfds(t *testing.T) bool {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		_ = unix.Close(pidfd)
	} else if !errors.Is(err, unix.ENOPROTOOPT) {
		t.Errorf("getsockopt(SO_PEERPIDFD) = %v; want a pidfd or ENOPROTOOPT", err)
	}
	_, _ = unix.Close(pair[0]), unix.Close(pair[1])
	return err == nil
}

func TestPeerIsAnother(t *testing.T) {
	needRoot(t)
	l := listen(t, nil)
	groups := make([]uint32, 100) // more than the first try has room for
	for i := range groups {
		groups[i] = uint32(50_000 + i)
	}
	cmd := actor(t, "say", l.Addr(), &syscall.Credential{Uid: 4321, Gid: 4322, Groups: groups})
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start() = %v; want nil", err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("Accept() = %v; want a connection", err)
	}
	p := c.Peer()
	if p.UID != 4321 || p.GID != 4322 || p.PID != cmd.Process.Pid || !slices.Equal(p.GIDs, groups) {
		t.Errorf("Peer() = %+v; want uid 4321, gid 4322, 100 groups, pid %d", p, cmd.Process.Pid)
	}
	if line, err := c.ReadFrame(); string(line) != "said" || err != nil {
		t.Errorf("ReadFrame() = %q, %v; want \"said\"", line, err)
	}
	if err := errors.Join(c.Close(), cmd.Wait()); err != nil {
		t.Errorf("Close(), Wait() = %v; want nil", err)
	}
}

// TestAnotherUsesTheConnection passes our connection to another uid, which writes.
func TestAnotherUsesTheConnection(t *testing.T) {
	needRoot(t)
	l := listen(t, nil)
	client, c := dial(t, l)
	if _, err := client.Write([]byte("mine\npart")); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	f, err := client.File()
	if err != nil {
		t.Fatalf("File() = %v; want the connection", err)
	}
	cmd := actor(t, "pass", "", &syscall.Credential{Uid: 4321, Gid: 4322})
	cmd.ExtraFiles = []*os.File{f}
	if err := errors.Join(cmd.Run(), f.Close()); err != nil {
		t.Fatalf("Run() = %v; want nil", err)
	}
	if line, err := c.ReadFrame(); string(line) != "mine" || err != nil {
		t.Errorf("ReadFrame() = %q, %v; want \"mine\"", line, err)
	}
	for range 2 {
		if line, err := c.ReadFrame(); !errors.Is(err, ErrOtherUID) || line != nil {
			t.Errorf("ReadFrame() of another's bytes = %q, %v; want %v", line, err, ErrOtherUID)
		}
	}
}

func TestPassedDescriptorsAreDropped(t *testing.T) {
	l := listen(t, nil)
	client, c := dial(t, l)
	before := countFDs(t)
	for range 20 {
		fds := make([]int, 100)
		for i := range fds {
			fds[i] = 0
		}
		if _, _, err := client.WriteMsgUnix([]byte("with\n"), unix.UnixRights(fds...), nil); err != nil {
			t.Fatalf("WriteMsgUnix() = %v; want nil", err)
		}
		if line, err := c.ReadFrame(); string(line) != "with" || err != nil {
			t.Errorf("ReadFrame() = %q, %v; want \"with\"", line, err)
		}
	}
	if after := countFDs(t); after > before {
		t.Errorf("descriptors after 2000 were passed = %d; want %d", after, before)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("ReadDir(/proc/self/fd) = %v; want names", err)
	}
	return len(names)
}

// TestFirstBytesHaveASender: what is sent before the connection is accepted has
// credentials too.
func TestFirstBytesHaveASender(t *testing.T) {
	l := listen(t, nil)
	for range 200 {
		client, err := net.Dial("unix", l.Addr())
		if err != nil {
			t.Fatalf("Dial() = %v; want nil", err)
		}
		if _, err := client.Write([]byte("early\n")); err != nil {
			t.Fatalf("Write() = %v; want nil", err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("Accept() = %v; want nil", err)
		}
		if line, err := c.ReadFrame(); string(line) != "early" || err != nil {
			t.Fatalf("ReadFrame() = %q, %v; want \"early\"", line, err)
		}
		if err := errors.Join(client.Close(), c.Close()); err != nil {
			t.Fatalf("Close() = %v; want nil", err)
		}
	}
}

func TestPenIsRefused(t *testing.T) {
	needRoot(t)
	dir := v2Cgroup(t)
	l := listen(t, func(c *Config) {
		c.RefuseBelow = dir.path
		c.Refusal = func(r *RefusedError) []byte { return []byte("no: " + r.Err.Error() + "\n") }
	})
	dial(t, l) // this process lives elsewhere
	for _, sub := range []string{"", "deep"} {
		group := filepath.Join(dir.file, sub)
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Fatalf("MkdirAll(%s) = %v; want nil", group, err)
		}
		g, err := os.Open(group)
		if err != nil {
			t.Fatalf("Open(%s) = %v; want nil", group, err)
		}
		cmd := actor(t, "say", l.Addr(), nil)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Fd())}
		if err := errors.Join(cmd.Start(), g.Close()); err != nil {
			t.Fatalf("Start() = %v; want nil", err)
		}
		c, err := l.Accept()
		var refused *RefusedError
		if !errors.As(err, &refused) || !errors.Is(err, ErrOwnPen) || refused.Peer.PID != cmd.Process.Pid {
			t.Errorf("Accept() of a pen = %v, %v; want it refused with %v", c, err, ErrOwnPen)
		}
		_ = cmd.Wait() // ends however its connection did
	}
	dial(t, l) // and goes on
}

type group struct{ path, file string }

// v2Cgroup makes a cgroup of its own in the v2 hierarchy and removes it at the end.
func v2Cgroup(t *testing.T) group {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatalf("ReadFile(mountinfo) = %v; want nil", err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if i := slices.Index(f, "-"); i < 0 || f[i+1] != "cgroup2" || f[3] != "/" {
			continue
		}
		name := "pinfold-test-" + strconv.Itoa(os.Getpid())
		g := group{"/" + name, filepath.Join(f[4], name)}
		if err := os.Mkdir(g.file, 0o755); err != nil {
			testkit.LeaveOut(t, fmt.Sprintf("no cgroup can be made: %v", err))
		}
		t.Cleanup(func() {
			_ = os.Remove(filepath.Join(g.file, "deep"))
			if err := os.Remove(g.file); err != nil {
				t.Errorf("Remove(%s) = %v; want nil", g.file, err)
			}
		})
		return g
	}
	testkit.LeaveOut(t, "no cgroup2 file system is mounted with its root")
	return group{}
}

// TestDeadPeerIsRefused: a peer that was reaped before Accept has no known cgroup.
func TestDeadPeerIsRefused(t *testing.T) {
	l := listen(t, func(c *Config) { c.RefuseBelow = "/pinfold-test-none" })
	a := actor(t, "say", l.Addr(), nil)
	if err := a.Start(); err != nil {
		t.Fatalf("Start() = %v; want nil", err)
	}
	waitBacklog(t, l)
	if err := a.Process.Kill(); err != nil {
		t.Fatalf("Kill() = %v; want nil", err)
	}
	_ = a.Wait() // killed
	if c, err := l.Accept(); !errors.Is(err, ErrUnplaced) {
		t.Errorf("Accept() of the dead = %v, %v; want %v", c, err, ErrUnplaced)
	}
}

// waitBacklog returns once a connection waits to be accepted.
func waitBacklog(t *testing.T, l *Listener) {
	t.Helper()
	err := onFD(l.ln, func(fd int) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		if err == nil && n == 0 {
			err = errors.New("nobody came")
		}
		return err
	})
	if err != nil {
		t.Fatalf("poll(listener) = %v; want a connection", err)
	}
}
