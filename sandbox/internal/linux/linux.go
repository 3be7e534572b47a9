// Package linux makes the raw kernel calls of the stage and of its client: each
// retried on EINTR and answered with an *os.SyscallError that names the call. It
// keeps no state and never decides anything.
package linux

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// retry calls f until it is not interrupted and names the call in its error.
func retry(call string, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError(call, err)
		}
	}
}

// Errno returns the errno inside err, or 0 when there is none.
func Errno(err error) syscall.Errno {
	e, _ := errors.AsType[syscall.Errno](err)
	return e
}

// ErrnoName returns the name of the errno inside err, such as ENOENT, or
// "UNKNOWN" when there is none.
func ErrnoName(err error) string {
	if n := unix.ErrnoName(Errno(err)); n != "" {
		return n
	}
	return "UNKNOWN"
}

// fd returns the descriptor of f without making it blocking; nil is AT_FDCWD.
func fd(f *os.File) int {
	if f == nil {
		return unix.AT_FDCWD
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return -1 // closed: the call answers EBADF
	}
	n := -1
	if err := rc.Control(func(u uintptr) { n = int(u) }); err != nil {
		return -1
	}
	return n
}

// FD returns the number of f's descriptor, valid until f is closed, or -1 when
// it is closed. Unlike File.Fd it leaves the descriptor's mode alone.
func FD(f *os.File) int {
	if f == nil {
		return -1
	}
	return fd(f)
}

// CloseAll closes every file that is not nil. Closing is all that is left to do
// with them, so their errors say nothing.
func CloseAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
