package linux

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// MaxFiles is how many descriptors one message can carry: SCM_MAX_FD, unix(7).
const MaxFiles = 253

// ErrTruncated says that a message was longer than the buffer or carried more
// descriptors than fit.
var ErrTruncated = errors.New("message truncated")

// SocketPair makes a connected pair of SOCK_SEQPACKET Unix sockets: socketpair(2).
// Both ends have O_CLOEXEC and are blocking.
func SocketPair(name string) (a, b *os.File, err error) {
	s, err := socketPair(0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(s[0]), name), os.NewFile(uintptr(s[1]), name+" (peer)"), nil
}

// StatusPair is SocketPair with ends that are non-blocking, so that the first is
// pollable; the second is a bare number, since it is given away.
func StatusPair(name string) (ours *os.File, theirs int, err error) {
	s, err := socketPair(unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, -1, err
	}
	return os.NewFile(uintptr(s[0]), name), s[1], nil
}

func socketPair(flags int) (s [2]int, err error) {
	err = retry("socketpair", func() (err error) {
		s, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|flags, 0)
		return
	})
	return s, err
}

// Send sends one message with descriptors on a pollable socket: sendmsg(2) with
// MSG_NOSIGNAL. It waits while the peer's queue is full.
func Send(s *os.File, data []byte, files ...*os.File) error {
	return SendNumbers(s, data, Numbers(files)...)
}

// Numbers returns the descriptors of files, valid until these are closed.
func Numbers(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = fd(f)
	}
	return fds
}

// Files makes files of descriptors that were received, and takes them over: each number is
// −1 afterwards. A nonblocking one is watched by the runtime from then on.
func Files(numbers []int) []*os.File {
	files := make([]*os.File, len(numbers))
	for i, n := range numbers {
		files[i] = os.NewFile(uintptr(n), "received")
		numbers[i] = -1
	}
	return files
}

// SendNumbers is Send with bare descriptors.
func SendNumbers(s *os.File, data []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	rc, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = rc.Write(func(u uintptr) bool {
		sent = retry("sendmsg", func() error { return unix.Sendmsg(int(u), data, oob, nil, unix.MSG_NOSIGNAL) })
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err != nil {
		return closed(err)
	}
	return sent
}

// closed makes os.ErrClosed of what the runtime answers for a file that is closed
// while it is waited for, which is an error of its own that nobody can name.
func closed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return errors.Join(os.ErrClosed, err)
}

// Message is one received message.
type Message struct {
	Data []byte      // part of the buffer given to Receive
	FDs  []int       // what came with it, whose owner is the receiver
	Cred *unix.Ucred // of the sender, where the socket has SO_PASSCRED
}

// Receive takes one message from a pollable socket: recvmsg(2) with
// MSG_CMSG_CLOEXEC. It answers io.EOF when the peer is gone, ErrTruncated (with
// every descriptor closed) when the message does not fit. A peer that ends with
// something unread makes ECONNRESET once, ahead of what it had sent: unix(7). That
// is read on from; a second one is an error.
func Receive(s *os.File, buf []byte) (Message, error) { return receiveOn(s, buf, 0) }

// Peek is Receive that leaves the message where it is: MSG_PEEK, recv(2).
func Peek(s *os.File, buf []byte) (Message, error) { return receiveOn(s, buf, unix.MSG_PEEK) }

// ReceiveUntil is receive, which is Receive or Peek, and ends with the error of ctx once that
// is done. Nobody else reads from s meanwhile; a later reader is not cut short.
func ReceiveUntil(ctx context.Context, receive func(*os.File, []byte) (Message, error), s *os.File, buf []byte) (Message, error) {
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ran)
		_ = s.SetReadDeadline(time.Unix(1, 0)) // a closed socket wakes the reader by itself
	})
	m, err := receive(s, buf)
	if stop() {
		return m, err
	}
	<-ran
	if err != nil {
		err = ctx.Err()
	}
	return m, errors.Join(err, s.SetReadDeadline(time.Time{}))
}

func receiveOn(s *os.File, buf []byte, how int) (Message, error) {
	m, err := receive(s, buf, how)
	if errors.Is(err, unix.ECONNRESET) {
		m, err = receive(s, buf, how)
	}
	return m, err
}

func receive(s *os.File, buf []byte, how int) (Message, error) {
	rc, err := s.SyscallConn()
	if err != nil {
		return Message{}, err
	}
	oob := make([]byte, unix.CmsgSpace(MaxFiles*4)+unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn, flags int
	var got error
	err = rc.Read(func(u uintptr) bool {
		got = retry("recvmsg", func() (err error) {
			n, oobn, flags, _, err = unix.Recvmsg(int(u), buf, oob, how|unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			return
		})
		return !errors.Is(got, unix.EAGAIN)
	})
	if err != nil {
		return Message{}, closed(err)
	}
	if got != nil {
		return Message{}, got
	}
	m, err := parseControl(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = ErrTruncated
	}
	if err == nil && n == 0 && len(m.FDs) == 0 {
		err = io.EOF
	}
	if err != nil {
		CloseNumbers(m.FDs...)
		return Message{}, err
	}
	m.Data = buf[:n]
	return m, nil
}

func parseControl(oob []byte) (Message, error) {
	var m Message
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return m, os.NewSyscallError("recvmsg control", err)
	}
	for _, c := range msgs {
		if c.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch c.Header.Type {
		case unix.SCM_RIGHTS:
			fds, err := unix.ParseUnixRights(&c)
			if err != nil {
				return m, os.NewSyscallError("recvmsg rights", err)
			}
			m.FDs = append(m.FDs, fds...)
		case unix.SCM_CREDENTIALS:
			if m.Cred, err = unix.ParseUnixCredentials(&c); err != nil {
				return m, os.NewSyscallError("recvmsg credentials", err)
			}
		}
	}
	return m, nil
}

// PassCred asks for the sender's credentials with every message: SO_PASSCRED,
// unix(7). The kernel fills them in, as seen from our pid and user namespaces.
func PassCred(s *os.File) error {
	return retry("setsockopt SO_PASSCRED", func() error {
		return unix.SetsockoptInt(fd(s), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
}

// IsSeqpacket reports whether s is a Unix socket of type SOCK_SEQPACKET: SO_DOMAIN and
// SO_TYPE, socket(7).
func IsSeqpacket(s *os.File) bool {
	domain, err := unix.GetsockoptInt(fd(s), unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	kind, err := unix.GetsockoptInt(fd(s), unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && kind == unix.SOCK_SEQPACKET
}

// Peer is who connected a socket.
type Peer struct {
	UID, GID uint32
	PID      int32
	Groups   []uint32
}

// Same reports whether both have the same rights.
func (p Peer) Same(o Peer) bool {
	return p.UID == o.UID && p.GID == o.GID && slices.Equal(p.Groups, o.Groups)
}

// PeerOf returns who connected the Unix socket n, at the time it did: SO_PEERCRED
// and SO_PEERGROUPS (Linux 4.13), unix(7).
func PeerOf(n int) (Peer, error) {
	var c *unix.Ucred
	err := retry("getsockopt SO_PEERCRED", func() (err error) {
		c, err = unix.GetsockoptUcred(n, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return
	})
	if err != nil {
		return Peer{}, err
	}
	g, err := peerGroups(n)
	if err != nil {
		return Peer{}, err
	}
	return Peer{UID: c.Uid, GID: c.Gid, PID: c.Pid, Groups: g}, nil
}
