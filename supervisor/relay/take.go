package relay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// setDeadline makes a wait for s's bytes end at t.
func (o *Output) setDeadline(s *stream, t time.Time) {
	for _, f := range []*os.File{s.in, o.c.PTY} {
		if f != nil {
			// Only a closed file can refuse (newStream tried it), and the pump reports that.
			_ = f.SetReadDeadline(t)
		}
	}
}

// take moves at most room bytes and returns how many; 0 is end of file. It waits
// until there is one.
func (o *Output) take(s *stream, room int) (int, error) {
	if o.c.PTY == nil {
		return await(s.in, func(fd int) (int, error) { return o.move(fd, s, room) })
	}
	for {
		n := 0
		err := control(s.in, func(fd int) (err error) {
			n, err = o.move(fd, s, room)
			return err
		})
		if !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		if err := o.fromMaster(); err != nil {
			return 0, err
		}
	}
}

// move takes at most room bytes from the pipe fd to the end of the spool, never more
// than Limit allows over both streams, and does not wait: EAGAIN. The size of the
// spool is not counted up here.
func (o *Output) move(fd int, s *stream, room int) (int, error) {
	if o.c.Limit == 0 {
		return s.splice(fd, room)
	}
	if o.c.Limit-o.taken.Load() <= 2*spliceMax { // both streams could pass it together
		o.limitMu.Lock()
		defer o.limitMu.Unlock()
		room = int(min(int64(room), o.c.Limit-o.taken.Load()))
	}
	if room <= 0 {
		return 0, o.atLimit(fd)
	}
	n, err := s.splice(fd, room)
	o.taken.Add(int64(n))
	return n, err
}

// atLimit tells apart what the pipe has beyond the last byte allowed: more (errLimit),
// nothing yet (EAGAIN) or its end (nil).
func (o *Output) atLimit(fd int) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		return err
	}
	switch {
	case fds[0].Revents&unix.POLLIN != 0:
		o.hitOnce.Do(func() { close(o.limitHit) })
		return errLimit
	case fds[0].Revents&unix.POLLHUP != 0:
		return nil
	}
	return unix.EAGAIN
}

// splice appends at most room bytes of the pipe fd to the spool without copying them
// through this process. The kernel writes at an explicit offset, so the file must not
// be O_APPEND; splice(2), to a file on tmpfs since Linux 2.6.31. Where the file system
// cannot (EINVAL) it reads and writes, and a crash between the two loses those bytes.
func (s *stream) splice(fd, room int) (int, error) {
	off := s.spool.size.Load()
	n, err := unix.Splice(fd, nil, int(s.spool.file.Fd()), &off, room, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if !errors.Is(err, unix.EINVAL) {
		return int(max(n, 0)), err
	}
	buf := make([]byte, min(room, MaxPiece))
	got, err := unix.Read(fd, buf)
	if err != nil || got == 0 {
		return 0, err
	}
	if _, err := s.spool.file.WriteAt(buf[:got], s.spool.size.Load()); err != nil {
		return 0, fmt.Errorf("cannot write spool %q: %d bytes are lost: %w", s.spool.path, got, err)
	}
	return got, nil
}

// fromMaster moves what the terminal's master has into the relay pipe, which is empty,
// and waits for the first byte. splice from a terminal: Linux 6.5; before, EINVAL.
func (o *Output) fromMaster() error {
	n, err := await(o.c.PTY, func(master int) (n int, err error) {
		cerr := control(o.c.Relay, func(pipe int) error {
			var m int64
			m, err = unix.Splice(master, nil, pipe, nil, MaxPiece, unix.SPLICE_F_NONBLOCK)
			n = int(max(m, 0))
			if errors.Is(err, unix.EINVAL) {
				n, err = copyPlain(master, pipe)
			}
			return nil
		})
		return n, errors.Join(err, cerr)
	})
	if errors.Is(err, unix.EIO) || err == nil && n == 0 {
		return errHung
	}
	return err
}

// copyPlain reads once from a terminal and writes it to a pipe that has room for a page.
func copyPlain(from, to int) (int, error) {
	var buf [4096]byte
	n, err := unix.Read(from, buf[:])
	if err != nil || n == 0 {
		return 0, err
	}
	for done := 0; done < n; {
		m, err := unix.Write(to, buf[done:n])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return done, fmt.Errorf("write relay pipe: %w", err)
		}
		done += max(m, 0)
	}
	return n, nil
}

// await calls f on file's descriptor until it says anything but EAGAIN, and lets the
// runtime's poller wait in between. The file's read deadline ends the wait.
func await(file *os.File, f func(fd int) (int, error)) (n int, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, inner = f(int(fd))
			if !errors.Is(inner, unix.EINTR) {
				return !errors.Is(inner, unix.EAGAIN)
			}
		}
	})
	if err == nil {
		err = inner
	}
	if errors.Is(err, io.EOF) {
		return n, nil
	}
	return n, err
}
