package socket

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/proto"
)

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
