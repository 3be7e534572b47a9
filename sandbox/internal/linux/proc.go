package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// PidfdOpen returns a descriptor of a process: pidfd_open(2), Linux 5.3. It fails with
// ESRCH where there is none, also where a thread has its number now.
func PidfdOpen(pid int) (*os.File, error) {
	n, err := PidfdNumber(pid)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "pidfd "+strconv.Itoa(pid)), nil
}

// PidfdNumber is PidfdOpen for a descriptor that is only handed on.
func PidfdNumber(pid int) (int, error) {
	n := -1
	err := retry("pidfd_open", func() (err error) { n, err = unix.PidfdOpen(pid, 0); return })
	if pid > 0 && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)) { // a thread's: the latter by older kernels
		err = os.NewSyscallError("pidfd_open", unix.ESRCH)
	}
	if err != nil {
		return -1, err
	}
	return n, nil
}

// TakeNumber duplicates descriptor n of pidfd's process, to be handed on:
// pidfd_getfd(2), Linux 5.6.
func TakeNumber(pidfd, n int) (int, error) {
	got := -1
	err := retry("pidfd_getfd", func() (err error) { got, err = unix.PidfdGetfd(pidfd, n, 0); return })
	if err != nil {
		return -1, err
	}
	return got, nil
}

// TakeFile is TakeNumber for a descriptor that stays here.
func TakeFile(pidfd *os.File, n int, name string) (*os.File, error) {
	got, err := TakeNumber(fd(pidfd), n)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(got), name), nil
}

// Ended reports whether the process of pidfd has ended, reaped or not.
func Ended(pidfd *os.File) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd(pidfd)), Events: unix.POLLIN}}
	var n int
	err := retry("poll", func() (err error) { n, err = unix.Poll(p, 0); return })
	return n > 0, err
}

// StartTime returns when a process was started, in clock ticks since the boot: field 22
// of proc_pid_stat(5). The name before it may hold anything but ends at the last
// parenthesis.
func StartTime(pid int) (uint64, error) {
	b, err := ReadProc("/proc/"+strconv.Itoa(pid)+"/stat", 4096)
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return 0, fmt.Errorf("cannot read the start of process %d: %q", pid, b)
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

// Kill sends sig to the process of pidfd: pidfd_send_signal(2), Linux 5.1.
func Kill(pidfd *os.File, sig syscall.Signal) error {
	return retry("pidfd_send_signal", func() error { return unix.PidfdSendSignal(fd(pidfd), sig, nil, 0) })
}

const signalGroup = 4 // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9

// KillGroup sends sig to the process group that pidfd's process leads or is in:
// pidfd_send_signal(2) with PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9, EINVAL before.
func KillGroup(pidfd *os.File, sig syscall.Signal) error {
	return retry("pidfd_send_signal group", func() error {
		return unix.PidfdSendSignal(fd(pidfd), sig, nil, signalGroup)
	})
}

// GroupOf returns the process group of pid: getpgid(2).
func GroupOf(pid int) (int, error) {
	var g int
	err := retry("getpgid", func() (err error) { g, err = unix.Getpgid(pid); return })
	return g, err
}

// Reap waits until our child behind the pollable pidfd has ended and takes its
// status: waitid(2) with P_PIDFD, Linux 5.4. It uses no thread while it waits.
func Reap(pidfd *os.File) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var got error
	err = rc.Read(func(u uintptr) bool {
		var info unix.Siginfo
		got = retry("waitid", func() error {
			return unix.Waitid(unix.P_PIDFD, int(u), &info, unix.WEXITED|unix.WNOHANG, nil)
		})
		return got != nil && !errors.Is(got, unix.EAGAIN) || info.Signo != 0 // 0: not yet
	})
	if err != nil {
		return err
	}
	return got
}

// WaitGone waits until the process behind the pollable pidfd has ended, whoever's
// child it is.
func WaitGone(pidfd *os.File) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var got error
	err = rc.Read(func(u uintptr) bool {
		p := []unix.PollFd{{Fd: int32(u), Events: unix.POLLIN}}
		var n int
		got = retry("poll", func() (err error) { n, err = unix.Poll(p, 0); return })
		return got != nil || n > 0
	})
	if err != nil {
		return err
	}
	return got
}

// NotDumpable keeps other processes of our uid from tracing us and from opening
// our files in /proc: prctl(2) PR_SET_DUMPABLE.
func NotDumpable() error {
	return retry("prctl PR_SET_DUMPABLE", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

// SetSize sets the size of a terminal: ioctl(2) TIOCSWINSZ, ioctl_tty(2).
func SetSize(tty *os.File, rows, cols uint16) error {
	return retry("ioctl TIOCSWINSZ", func() error {
		return unix.IoctlSetWinsize(fd(tty), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}
