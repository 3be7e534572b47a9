package socket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of a connection.
var (
	// ErrOtherUID says that bytes came from a process of another uid than the one that
	// connected, or from nobody the kernel would name. The connection is of no use.
	ErrOtherUID = errors.New("bytes from another user came over the connection")
	// ErrTooLong says that a frame was longer than proto.MaxFrame. It is skipped; the
	// next ReadFrame goes on behind it.
	ErrTooLong = errors.New("frame is too long")
	// ErrBroken says that an earlier Write ended within a line: nothing can follow.
	ErrBroken = errors.New("an earlier write was cut short")
)

// Conn is one connection. One goroutine reads; any number write, each a whole line.
type Conn struct {
	nc   *net.UnixConn
	peer Peer
	in   *frames

	writing sync.Mutex
	broken  error // within writing

	once   sync.Once
	closed atomic.Bool // set before the connection is shut down
	leave  func()
}

func newConn(nc *net.UnixConn, p Peer, leave func()) *Conn {
	c := &Conn{nc: nc, peer: p, leave: leave}
	c.in = newFrames(c.recv)
	return c
}

// Peer returns who connected.
func (c *Conn) Peer() Peer { return c.peer }

// ReadFrame returns the next line without its end ("\n" or "\r\n"); empty lines are
// passed over. The slice is valid until the next call. It fails with io.EOF at the
// end, io.ErrUnexpectedEOF when the end cuts a line, ErrTooLong once for each line
// that is, ErrOtherUID, net.ErrClosed after Close.
func (c *Conn) ReadFrame() ([]byte, error) { return c.in.next() }

// recv reads what has come into p. Every message's sender must be the peer's uid:
// with SO_PASSCRED the kernel never joins the bytes of two senders in one call, unix(7).
// There is room for the credentials only, so passed descriptors are dropped by the
// kernel (MSG_CTRUNC) before they could fill our table.
func (c *Conn) recv(p []byte) (int, error) {
	raw, err := c.nc.SyscallConn()
	if err != nil {
		return 0, err
	}
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn int
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, inner = unix.Recvmsg(int(fd), p, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if !errors.Is(inner, unix.EINTR) {
				return !errors.Is(inner, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case n <= 0 && c.closed.Load():
		return 0, net.ErrClosed // the kernel tells our own shutdown as the peer's end
	case errors.Is(inner, unix.ECONNRESET):
		return 0, io.EOF // the peer closed without having read everything
	case inner != nil:
		return 0, fmt.Errorf("recvmsg: %w", inner)
	case n == 0:
		return 0, io.EOF
	}
	if err := c.sender(oob[:oobn]); err != nil {
		return 0, err // none of these bytes is a frame of the peer's
	}
	return n, nil
}

// sender checks who sent the message that oob came with.
func (c *Conn) sender(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("recvmsg: control message: %w", err)
	}
	known := false
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch m.Header.Type {
		case unix.SCM_CREDENTIALS:
			cred, err := unix.ParseUnixCredentials(&m)
			if err != nil {
				return fmt.Errorf("recvmsg: credentials: %w", err)
			}
			if cred.Uid != c.peer.UID {
				return fmt.Errorf("%w: uid %d, connected as %d", ErrOtherUID, cred.Uid, c.peer.UID)
			}
			known = true
		case unix.SCM_RIGHTS:
			fds, err := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				err = errors.Join(err, unix.Close(fd))
			}
			if err != nil {
				return fmt.Errorf("recvmsg: passed descriptors: %w", err)
			}
		}
	}
	if !known {
		return fmt.Errorf("%w: the kernel names no sender", ErrOtherUID)
	}
	return nil
}

// Write sends b, whole lines, and returns when the kernel has taken it all. Writers
// wait for each other. An error within a line leaves the connection broken: all later
// writes fail with ErrBroken. Otherwise it fails with net.ErrClosed after Close.
func (c *Conn) Write(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.broken != nil {
		return c.broken
	}
	n, err := c.nc.Write(b)
	if errors.Is(err, unix.EPIPE) && c.closed.Load() {
		err = net.ErrClosed // by our own shutdown, not by the peer
	}
	if err != nil && n > 0 {
		c.broken = fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return err
}

// SetReadDeadline ends a waiting ReadFrame at t with os.ErrDeadlineExceeded; zero: never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetWriteDeadline ends a waiting Write at t with os.ErrDeadlineExceeded; zero: never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }

// File returns a copy of the connection's descriptor, for the stage to see who is at
// the other end. The caller closes it, and reads and writes nothing.
func (c *Conn) File() (*os.File, error) {
	var f *os.File
	err := onFD(c.nc, func(fd int) error {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fmt.Errorf("fcntl F_DUPFD_CLOEXEC: %w", err)
		}
		f = os.NewFile(uintptr(dup), "connection")
		return nil
	})
	return f, err
}

// AwaitGone returns when nobody is at the other end any more, or after Close: a peer that
// has only ended sending still reads. The kernel tells it as a hangup, poll(2).
func (c *Conn) AwaitGone() {
	raw, err := c.nc.SyscallConn()
	if err != nil {
		return // closed
	}
	// It ends with the connection at the latest.
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		return err != nil && !errors.Is(err, unix.EINTR) || p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
}

// CloseRead ends reading: a waiting ReadFrame returns io.EOF; writing goes on.
func (c *Conn) CloseRead() error { return c.nc.CloseRead() }

// Close ends the connection and unblocks who reads or writes. Only the first call
// does anything. The other end sees it, whoever still has a copy of the descriptor, after
// all that was written.
func (c *Conn) Close() error {
	var err error
	c.once.Do(func() {
		c.closed.Store(true)
		err = onFD(c.nc, func(fd int) error {
			if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
				return fmt.Errorf("shutdown: %w", err)
			}
			return nil
		})
		err = errors.Join(err, c.nc.Close(), c.peer.close())
		c.leave()
	})
	return err
}
