package attack

import (
	"errors"
	"os"
	"reflect"
	"syscall"

	"golang.org/x/sys/unix"
)

const high = uintptr(1) << 32 // bits that a filter may look at and the kernel does not

// try is one attempt; nil is a success.
type try = func(*Scene) error

// pointer is the address of what p points to, which stays where it is: reflection
// moves it to the heap, and the attacker never collects garbage.
func pointer[T any](p *T) uintptr { return reflect.ValueOf(p).Pointer() }

// uninterrupted makes a call again that a signal has interrupted. The Go runtime sends itself
// some, and where a socket has a timeout the kernel leaves that to the caller: signal(7).
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func text(s string) uintptr {
	b := append([]byte(s), 0)
	return pointer(&b[0])
}

// call makes a system call by its number.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// calling is call as a try.
func calling(nr uintptr, args ...uintptr) try {
	return func(*Scene) error { return call(nr, args...) }
}

// forking makes a system call that returns in a child too, which ends at once.
func forking(nr uintptr, args ...uintptr) try {
	return func(*Scene) error {
		var a [6]uintptr
		copy(a[:], args)
		pid, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if e != 0 {
			return e
		}
		if pid == 0 {
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
		_, err := unix.Wait4(int(pid), nil, 0, nil)
		return err
	}
}

// inChild makes a system call in a child; the call's errno is its exit status.
func inChild(nr uintptr, args ...uintptr) try {
	return func(*Scene) error {
		var a [6]uintptr
		copy(a[:], args)
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			return e
		}
		if pid == 0 {
			_, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0)
			}
		}
		return exitErrno(int(pid))
	}
}

// exitErrno waits for a child whose exit status is an errno.
func exitErrno(pid int) error {
	var st unix.WaitStatus
	if _, err := unix.Wait4(pid, &st, 0, nil); err != nil {
		return err
	}
	if n := st.ExitStatus(); n != 0 {
		return unix.Errno(n)
	}
	return nil
}

// opens tries to open a path.
func opens(path string, flag int) try {
	return func(*Scene) error { return open(path, flag) }
}

func open(path string, flag int) error {
	fd, err := unix.Open(path, flag|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// plants tries to make a file without a name in a directory: it leaves nothing behind.
func plants(dir string) try { return opens(dir, unix.O_TMPFILE|unix.O_WRONLY) }

// reads tries to read one byte; nothing to read is "empty".
func reads(path string) try {
	return func(*Scene) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		n, err := unix.Read(fd, make([]byte, 1))
		if err == nil && n == 0 {
			return errors.New("empty")
		}
		return err
	}
}

// stats tries to learn that a path is there.
func stats(path string) try {
	return func(*Scene) error {
		var st unix.Stat_t
		return unix.Lstat(path, &st)
	}
}

// file makes a file of the attacker's own.
func file(name string) (string, error) {
	return name, os.WriteFile(name, nil, 0o600)
}

// starts runs a program and waits; one that fails by itself is "ran and failed".
func starts(argv ...string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	n := null.Fd()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: []string{"PATH=/usr/bin"}, Files: []uintptr{n, n, n}})
	if err != nil {
		return err
	}
	var st syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &st, 0, nil); err != nil {
		return err
	}
	if st.ExitStatus() != 0 {
		return errors.New("ran and failed")
	}
	return nil
}
