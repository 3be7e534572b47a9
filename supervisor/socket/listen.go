// Package socket owns the daemon's listening Unix socket and its connections: who is
// at the other end (by the kernel's word only), whole frames in, whole lines out. It
// never decides whether a peer is welcome, except that a process of our own pens
// never is, and never looks into a frame.
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of the socket.
const (
	// sendBuffer is what the kernel may hold of what was written and not read, as far
	// as net.core.wmem_max allows: with less, relay and client wait for each other at
	// every turn (155–169 against 211–233 MB/s of 80-byte lines; batches gain nothing).
	sendBuffer = 1 << 20
	// DefaultMaxConns is how many connections are open at once where Config does not say.
	DefaultMaxConns = 1024
	// UserShare is the part of MaxConns that one uid may have: a quarter.
	UserShare = 4
	// MaxPath is the longest path of a socket in bytes: sun_path of unix(7) less its NUL.
	MaxPath = 107

	backlog      = 512                    // connections that wait to be accepted
	acceptPause  = 100 * time.Millisecond // wait when the host lacks descriptors or memory
	refusalWrite = 200 * time.Millisecond // wait for a refused peer to take the line that says why
)

// Config is what a Listener is made of.
type Config struct {
	Path string      // absolute; with Listener only its name in errors
	Mode fs.FileMode // permission bits of the socket file
	GID  int         // group of the socket file; -1 leaves the creator's
	// Listener is a listening Unix stream socket that was inherited, or nil. Its file
	// is not ours: neither changed nor removed.
	Listener *os.File
	// OwnFile says that Listener's file is ours after all, if there is a socket at Path: a
	// daemon before this one has made it.
	OwnFile bool
	// RefuseBelow is the cgroup (v2, "/…") whose members are refused, itself included:
	// a pen is never a caller. "" refuses nobody.
	RefuseBelow string
	MaxConns    int // connections open at once; 0: DefaultMaxConns
	// Refusal makes the line that a refused peer gets before its connection is closed.
	// nil: none.
	Refusal func(*RefusedError) []byte
}

// RefusedError is the error of Accept for a peer that was turned away. The listener goes on.
type RefusedError struct {
	Peer Peer // Pidfd is closed
	Err  error
}

// Error says who was refused and why.
func (r *RefusedError) Error() string {
	return fmt.Sprintf("cannot accept pid %d of uid %d: %v", r.Peer.PID, r.Peer.UID, r.Err)
}

// Unwrap returns why.
func (r *RefusedError) Unwrap() error { return r.Err }

// Reasons of a RefusedError.
var (
	// ErrOwnPen says that the peer lives in one of our own pens.
	ErrOwnPen = errors.New("a process inside a pen cannot be a caller")
	// ErrUnplaced says that nobody can tell where the peer lives, because it has ended.
	ErrUnplaced = errors.New("the connecting process has ended, its cgroup is unknown")
	// ErrTooMany says that MaxConns, or one uid's share of it, is open.
	ErrTooMany = errors.New("too many connections")
)

// Listener is the daemon's socket. Accept belongs to one goroutine; Close may be
// called from any.
type Listener struct {
	c     Config
	ln    *net.UnixListener
	made  unix.Stat_t // of the socket file that we made
	owned bool        // made is set: Close removes the file

	mu     sync.Mutex
	open   map[uint32]int // connections by uid
	total  int
	closed chan struct{}
	once   sync.Once
}

// Listen makes the socket c.Path, or takes c.Listener. A socket at the path that
// refuses connections was left by a daemon that is gone and is replaced; one that
// accepts, and a file of any other kind, is an error and stays as it is. Nobody can
// connect before mode and group are as asked.
func Listen(c Config) (*Listener, error) {
	if c.MaxConns == 0 {
		c.MaxConns = DefaultMaxConns
	}
	l := &Listener{c: c, open: map[uint32]int{}, closed: make(chan struct{})}
	if c.Listener != nil {
		if err := l.inherit(c.Listener); err != nil {
			return nil, fmt.Errorf("cannot use inherited socket %q: %w", c.Path, err)
		}
		if c.OwnFile {
			err := unix.Lstat(c.Path, &l.made)
			l.owned = err == nil && l.made.Mode&unix.S_IFMT == unix.S_IFSOCK
		}
		return l, nil
	}
	switch {
	case !filepath.IsAbs(c.Path):
		return nil, fmt.Errorf("cannot listen on %q: not an absolute path", c.Path)
	case len(c.Path) > MaxPath:
		return nil, fmt.Errorf("cannot listen on %q: %d bytes long, a socket's path has at most %d; choose a shorter one",
			c.Path, len(c.Path), MaxPath)
	case c.Mode&^fs.ModePerm != 0:
		return nil, fmt.Errorf("cannot listen on %q: mode %v has more than permission bits", c.Path, c.Mode)
	}
	if err := l.make(); err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", c.Path, err)
	}
	return l, nil
}

// make binds and listens under a lock on the directory, so that of two daemons that
// start at once one finds the other.
func (l *Listener) make() (err error) {
	dir, err := os.Open(filepath.Dir(l.c.Path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }() // drops the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("flock %s: %w", dir.Name(), err)
	}
	if err := clearWay(l.c.Path); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	sock := os.NewFile(uintptr(fd), l.c.Path)
	defer func() { err = errors.Join(err, sock.Close()) }()
	if err := l.bind(fd); err != nil {
		return err
	}
	l.owned = true
	err = l.inherit(sock)
	if err != nil {
		err = errors.Join(err, l.remove())
	}
	return err
}

// bind gives the socket its path, group and mode, and only then lets it listen.
func (l *Listener) bind(fd int) error {
	// bind(2) makes the file with the mode of the socket, less the umask: never wider.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fmt.Errorf("fchmod: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: l.c.Path}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	err := unix.Lstat(l.c.Path, &l.made)
	if err == nil && l.c.GID >= 0 {
		if err = unix.Lchown(l.c.Path, -1, l.c.GID); err != nil {
			err = fmt.Errorf("chown to group %d: %w", l.c.GID, err)
		}
	}
	if err == nil {
		err = unix.Chmod(l.c.Path, uint32(l.c.Mode.Perm()))
	}
	if err == nil {
		err = passCred(fd)
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return errors.Join(err, os.Remove(l.c.Path))
	}
	return nil
}

// clearWay removes the socket that a dead daemon left at path.
func clearWay(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("a file is there that is no socket (%v); remove it or choose another path", info.Mode().Type())
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	closeErr := unix.Close(fd)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return errors.Join(os.Remove(path), closeErr)
	case err == nil, errors.Is(err, unix.EAGAIN): // EAGAIN: its backlog is full
		return errors.New("another daemon listens there; stop it or choose another path")
	}
	return fmt.Errorf("a socket is there and whether it is in use cannot be told: connect: %w", err)
}

// passCred asks for credentials with every message. A connection has the flag from
// its listener (Linux 3.11), so no first message can come without.
func passCred(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return fmt.Errorf("setsockopt SO_PASSCRED: %w", err)
	}
	return nil
}

// inherit makes sock, which listens, ours. sock itself stays the caller's.
func (l *Listener) inherit(sock *os.File) error {
	err := onFD(sock, func(fd int) error {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return fmt.Errorf("getsockopt SO_DOMAIN: %w", err)
		}
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("getsockopt SO_TYPE: %w", err)
		}
		listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil {
			return fmt.Errorf("getsockopt SO_ACCEPTCONN: %w", err)
		}
		if domain != unix.AF_UNIX || kind != unix.SOCK_STREAM || listening == 0 {
			return errors.New("not a listening Unix stream socket")
		}
		return passCred(fd)
	})
	if err != nil {
		return err
	}
	ln, err := net.FileListener(sock)
	if err != nil {
		return err
	}
	u, ok := ln.(*net.UnixListener)
	if !ok {
		return errors.Join(errors.New("not a listening Unix stream socket"), ln.Close())
	}
	u.SetUnlinkOnClose(false)
	l.ln = u
	return nil
}

// Accept returns the next connection. A peer that is turned away gives a *RefusedError
// error, after which Accept may be called again; net.ErrClosed after Close; any other
// error is the socket's. While the host lacks descriptors or memory it waits.
func (l *Listener) Accept() (*Conn, error) {
	for {
		nc, err := l.ln.AcceptUnix()
		if err == nil {
			return l.welcome(nc)
		}
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) &&
			!errors.Is(err, syscall.ENOBUFS) && !errors.Is(err, syscall.ENOMEM) {
			return nil, err
		}
		t := time.NewTimer(acceptPause)
		select {
		case <-l.closed:
			t.Stop()
			return nil, net.ErrClosed
		case <-t.C:
		}
	}
}

// welcome finds out who is there and turns away who must be.
func (l *Listener) welcome(nc *net.UnixConn) (*Conn, error) {
	p, err := peerOf(nc)
	if err == nil {
		err = p.refusal(l.c.RefuseBelow)
	}
	if err == nil {
		err = nc.SetWriteBuffer(sendBuffer)
	}
	if err == nil {
		err = l.enter(p.UID)
	}
	if err == nil {
		return newConn(nc, p, func() { l.leave(p.UID) }), nil
	}
	r := &RefusedError{Peer: p, Err: err}
	if l.c.Refusal != nil {
		// The peer's own affair: a refused peer that does not read gets nothing.
		if nc.SetWriteDeadline(time.Now().Add(refusalWrite)) == nil {
			_, _ = nc.Write(l.c.Refusal(r))
		}
	}
	r.Err = errors.Join(r.Err, p.close(), nc.Close())
	return nil, r
}

func (l *Listener) enter(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.total >= l.c.MaxConns:
		return fmt.Errorf("%w: %d are open", ErrTooMany, l.total)
	case uid != 0 && l.open[uid] >= max(l.c.MaxConns/UserShare, 1):
		return fmt.Errorf("%w: uid %d has %d open", ErrTooMany, uid, l.open[uid])
	}
	l.total++
	l.open[uid]++
	return nil
}

func (l *Listener) leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[uid]--; l.open[uid] == 0 {
		delete(l.open, uid)
	}
}

// Addr returns the socket's path.
func (l *Listener) Addr() string { return l.c.Path }

// Close stops listening and removes the socket file if Listen made it and it is still
// that one. Accept returns; connections stay open. Only the first call does anything.
func (l *Listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.remove()
		if l.ln != nil {
			err = errors.Join(err, l.ln.Close())
		}
	})
	return err
}

// File is a second descriptor of the socket, for the daemon that is to go on with it.
func (l *Listener) File() (*os.File, error) { return l.ln.File() }

// Leave stops accepting and leaves socket and file as they are: who connects waits for
// whoever has them next. Only the first call of Leave or Close does anything.
func (l *Listener) Leave() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.ln.Close()
	})
	return err
}

func (l *Listener) remove() error {
	if !l.owned {
		return nil
	}
	var now unix.Stat_t
	err := unix.Lstat(l.c.Path, &now)
	if errors.Is(err, unix.ENOENT) || err == nil && (now.Dev != l.made.Dev || now.Ino != l.made.Ino) {
		return nil // removed or replaced by somebody else
	}
	if err != nil {
		return fmt.Errorf("lstat %s: %w", l.c.Path, err)
	}
	return os.Remove(l.c.Path)
}

// onFD runs f on file's descriptor without changing its blocking mode.
func onFD(file syscall.Conn, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}
