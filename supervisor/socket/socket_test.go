package socket

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
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

	"pinfold/proto"
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
	if os.Geteuid() != 0 {
		t.Skipf("euid = %d: only root can be another uid", os.Geteuid())
	}
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
	if p.Pidfd == nil {
		t.Error("Peer().Pidfd = nil; want a pidfd (Linux 6.5)")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatalf("ReadFile(/proc/self/cgroup) = %v; want nil", err)
	}
	v2, units := parseCgroup(string(own))
	unit, _ := unitOf(units) // "" outside of any
	if p.Cgroup != v2 || p.Unit != unit || (p.Unit == "") != (p.UnitErr != nil) {
		t.Errorf("Peer() in %q, unit %q, %v; want %q, %q", p.Cgroup, p.Unit, p.UnitErr, v2, unit)
	}
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
			t.Skipf("no cgroup can be made: %v", err)
		}
		t.Cleanup(func() {
			_ = os.Remove(filepath.Join(g.file, "deep"))
			if err := os.Remove(g.file); err != nil {
				t.Errorf("Remove(%s) = %v; want nil", g.file, err)
			}
		})
		return g
	}
	t.Skip("no cgroup2 file system is mounted with its root")
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

func TestListenPlace(t *testing.T) {
	dir := sockDir(t)
	long := filepath.Join(dir, strings.Repeat("x", MaxPath))
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatalf("WriteFile() = %v; want nil", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatalf("Symlink() = %v; want nil", err)
	}
	live := listen(t, nil)
	for name, c := range map[string]struct{ path, want string }{
		"too long":     {long, "at most 107"},
		"relative":     {"sock", "not an absolute path"},
		"abstract":     {"@sock", "not an absolute path"},
		"empty":        {"", "not an absolute path"},
		"file":         {file, "no socket"},
		"directory":    {dir, "no socket"},
		"symlink":      {link, "no socket"},
		"no directory": {filepath.Join(dir, "none", "s"), "no such file"},
		"in use":       {live.Addr(), "another daemon listens there"},
	} {
		l, err := Listen(Config{Path: c.path, Mode: 0o600, GID: -1})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: Listen(%q) = %v, %v; want an error with %q", name, c.path, l, err, c.want)
		}
	}
	if b, err := os.ReadFile(file); string(b) != "precious" || err != nil {
		t.Errorf("file at the path = %q, %v; want it untouched", b, err)
	}
	longest := filepath.Join(dir, strings.Repeat("y", MaxPath-len(dir)-1))
	l, err := Listen(Config{Path: longest, Mode: 0o600, GID: -1})
	if err != nil {
		t.Fatalf("Listen(%d bytes) = %v; want a listener", len(longest), err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	dial(t, live) // not disturbed
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(sockDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd))
	}
	if err != nil {
		t.Fatalf("making a stale socket = %v; want nil", err)
	}
	l := listen(t, func(c *Config) { c.Path = path })
	dial(t, l)
}

func TestModeAndGroup(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o660, 0o666} {
		gid := -1
		if os.Geteuid() == 0 {
			gid = 4322
		}
		l := listen(t, func(c *Config) { c.Mode, c.GID = mode, gid })
		info, err := os.Lstat(l.Addr())
		if err != nil {
			t.Fatalf("Lstat() = %v; want nil", err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode().Perm() != mode || gid >= 0 && int(st.Gid) != gid {
			t.Errorf("socket file = %v, group %d; want %v, %d", info.Mode(), st.Gid, mode, gid)
		}
	}
}

func TestCloseRemovesItsOwnOnly(t *testing.T) {
	l := listen(t, nil)
	if err := l.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	if _, err := os.Lstat(l.Addr()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket file after Close: %v; want it gone", err)
	}
	l = listen(t, nil)
	if err := os.Remove(l.Addr()); err != nil {
		t.Fatalf("Remove() = %v; want nil", err)
	}
	other := listen(t, func(c *Config) { c.Path = l.Addr() })
	if err := l.Close(); err != nil {
		t.Errorf("Close() after another took the path = %v; want nil", err)
	}
	dial(t, other)
}

func TestInherited(t *testing.T) {
	path := filepath.Join(sockDir(t), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatalf("Listen() = %v; want nil", err)
	}
	defer ln.Close()
	f, err := ln.File()
	if err != nil {
		t.Fatalf("File() = %v; want nil", err)
	}
	l := listen(t, func(c *Config) { c.Path, c.Listener = path, f })
	if err := f.Close(); err != nil {
		t.Fatalf("Close() = %v; want nil", err)
	}
	client, c := dial(t, l)
	if _, err := client.Write([]byte("hi\n")); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	if line, err := c.ReadFrame(); string(line) != "hi" || err != nil {
		t.Errorf("ReadFrame() = %q, %v; want \"hi\"", line, err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("inherited socket file after Close: %v; want it in place", err)
	}
	plain, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatalf("Open() = %v; want nil", err)
	}
	defer plain.Close()
	if l, err := Listen(Config{Path: "x", Listener: plain}); err == nil {
		t.Errorf("Listen(/dev/null) = %v; want an error", l)
	}
}

func TestConnectionLimits(t *testing.T) {
	l := listen(t, func(c *Config) {
		c.MaxConns = 2
		c.Refusal = func(*RefusedError) []byte { return []byte("full\n") }
	})
	_, first := dial(t, l)
	open := []*Conn{first}
	// Root has no share of its own to keep to; anybody else has a quarter, at least one.
	if os.Geteuid() == 0 {
		_, second := dial(t, l)
		open = append(open, second)
	}
	client, err := net.Dial("unix", l.Addr())
	if err != nil {
		t.Fatalf("Dial() = %v; want nil", err)
	}
	defer client.Close()
	if c, err := l.Accept(); !errors.Is(err, ErrTooMany) {
		t.Errorf("Accept() above the limit = %v, %v; want %v", c, err, ErrTooMany)
	}
	if got, err := io.ReadAll(client); string(got) != "full\n" || err != nil {
		t.Errorf("a refused client reads %q, %v; want \"full\\n\"", got, err)
	}
	for range 2 {
		if err := open[0].Close(); err != nil {
			t.Fatalf("Close() = %v; want nil", err)
		}
	}
	dial(t, l)
}

func TestCloseUnblocks(t *testing.T) {
	l := listen(t, nil)
	_, c := dial(t, l)
	read, wrote, accepted := make(chan error, 1), make(chan error, 2), make(chan error, 1)
	go func() { _, err := c.ReadFrame(); read <- err }()
	for range 2 {
		go func() { wrote <- c.Write(bytes.Repeat([]byte("x"), 8<<20)) }()
	}
	go func() { _, err := l.Accept(); accepted <- err }()
	time.Sleep(20 * time.Millisecond) // so that most runs have them blocked; right without, too
	if err := errors.Join(c.Close(), l.Close()); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrame() at Close = %v; want %v", err, net.ErrClosed)
	}
	for range 2 {
		if err := <-wrote; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write() at Close = %v; want %v", err, net.ErrClosed)
		}
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() at Close = %v; want %v", err, net.ErrClosed)
	}
}

func TestCutWriteBreaks(t *testing.T) {
	l := listen(t, nil)
	client, c := dial(t, l)
	wrote := make(chan error, 1)
	go func() { wrote <- c.Write(bytes.Repeat([]byte("x"), 8<<20)) }()
	if _, err := client.Read(make([]byte, 1)); err != nil { // a part is sent
		t.Fatalf("Read() = %v; want a byte", err)
	}
	if err := c.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatalf("SetWriteDeadline() = %v; want nil", err)
	}
	if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write() to a client that does not read = %v; want %v", err, os.ErrDeadlineExceeded)
	}
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatalf("SetWriteDeadline() = %v; want nil", err)
	}
	if err := c.Write([]byte("{}\n")); !errors.Is(err, ErrBroken) {
		t.Errorf("Write() after a cut one = %v; want %v", err, ErrBroken)
	}
}

func TestWritesAreWhole(t *testing.T) {
	l := listen(t, nil)
	client, c := dial(t, l)
	const writers, lines = 8, 200
	for i := range writers {
		go func() {
			line := append(bytes.Repeat([]byte{byte('a' + i)}, 5000), '\n')
			for range lines {
				_ = c.Write(line) // what is missing is seen below
			}
		}()
	}
	f := newFrames(client.Read)
	for range writers * lines {
		line, err := f.next()
		if err != nil || len(line) != 5000 || bytes.Count(line, line[:1]) != 5000 {
			t.Fatalf("line = %.20q (%d bytes), %v; want 5000 equal letters", line, len(line), err)
		}
	}
}

func TestTooLongFrameOnASocket(t *testing.T) {
	l := listen(t, nil)
	client, c := dial(t, l)
	go func() {
		_, _ = client.Write(append(bytes.Repeat([]byte("x"), 3*proto.MaxFrame), "\nnext\n"...)) // seen below
	}()
	if _, err := c.ReadFrame(); !errors.Is(err, ErrTooLong) {
		t.Errorf("ReadFrame() = %v; want %v", err, ErrTooLong)
	}
	if line, err := c.ReadFrame(); string(line) != "next" || err != nil {
		t.Errorf("ReadFrame() = %q, %v; want \"next\"", line, err)
	}
}

func TestFileIsTheConnection(t *testing.T) {
	l := listen(t, nil)
	client, c := dial(t, l)
	f, err := c.File()
	if err != nil {
		t.Fatalf("File() = %v; want a file", err)
	}
	cred, err := unix.GetsockoptUcred(int(f.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Pid) != os.Getpid() {
		t.Errorf("SO_PEERCRED of File() = %+v, %v; want this process", cred, err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	// Fd must not have made the connection blocking: a deadline still works.
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatalf("SetReadDeadline() = %v; want nil", err)
	}
	if _, err := c.ReadFrame(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ReadFrame() = %v; want %v", err, os.ErrDeadlineExceeded)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatalf("SetReadDeadline() = %v; want nil", err)
	}
	if _, err := client.Write([]byte("later\n")); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	if line, err := c.ReadFrame(); string(line) != "later" || err != nil {
		t.Errorf("ReadFrame() after a deadline = %q, %v; want \"later\"", line, err)
	}
}

func TestEndsOfConnections(t *testing.T) {
	l := listen(t, nil)
	client, c := dial(t, l)
	if err := c.Write([]byte("unread\n")); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	if err := client.Close(); err != nil { // with unread data: ECONNRESET here
		t.Fatalf("Close() = %v; want nil", err)
	}
	if _, err := c.ReadFrame(); !errors.Is(err, io.EOF) {
		t.Errorf("ReadFrame() from a client that is gone = %v; want %v", err, io.EOF)
	}
	client, c = dial(t, l)
	if err := c.CloseRead(); err != nil {
		t.Errorf("CloseRead() = %v; want nil", err)
	}
	if _, err := c.ReadFrame(); !errors.Is(err, io.EOF) {
		t.Errorf("ReadFrame() after CloseRead = %v; want %v", err, io.EOF)
	}
	if err := c.Write([]byte("still\n")); err != nil {
		t.Errorf("Write() after CloseRead = %v; want nil", err)
	}
	if line, err := newFrames(client.Read).next(); string(line) != "still" || err != nil {
		t.Errorf("client reads %q, %v; want \"still\"", line, err)
	}
}

func TestNoDescriptorStays(t *testing.T) {
	l := listen(t, nil)
	before := countFDs(t)
	for range 100 {
		client, c := dial(t, l)
		if err := errors.Join(client.Close(), c.Close()); err != nil {
			t.Fatalf("Close() = %v; want nil", err)
		}
	}
	if after := countFDs(t); after > before+1 { // the poller's own
		t.Errorf("descriptors after 100 connections = %d; want %d", after, before)
	}
	if l.total != 0 || len(l.open) != 0 {
		t.Errorf("connections counted after all closed = %d, %v; want none", l.total, l.open)
	}
}
