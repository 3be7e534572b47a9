package attack

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Requests that x/sys does not name: ioctl_tty(2), ioctl_console(2).
const (
	tiocLinux = 0x541c
	tiocCons  = 0x541d
	tiocSetD  = 0x5423
)

// pty gives a new terminal to a try: both ends are of the attacker's own.
func pty(request uintptr, arg func() uintptr) try {
	return func(*Scene) error {
		master, slave, err := OpenPty()
		if err != nil {
			return lacking("a terminal: " + told(err))
		}
		defer func() { _ = errors.Join(master.Close(), slave.Close()) }()
		return call(unix.SYS_IOCTL, slave.Fd(), request, arg())
	}
}

// OpenPty makes a terminal and opens both ends of it.
func OpenPty() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}

// terminal: nothing is pushed into a terminal, and there is none to open.
func terminal() []Attack {
	perm := []string{"EPERM"}
	char := func() uintptr { return pointer(new(byte)) }
	paste := func() uintptr { return pointer(&[2]byte{3}) }
	return class(
		Terminal,
		Attack{ID: "push-input", Layer: Seccomp, Tries: "TIOCSTI on a terminal of its own", Want: perm, Control: root(), try: pty(unix.TIOCSTI, char)},
		Attack{ID: "push-input-high-bits", Layer: Seccomp, Tries: "TIOCSTI with bits above the 32nd set", Want: perm, Control: root(), try: pty(high|unix.TIOCSTI, char)},
		Attack{ID: "push-input-stdin", Layer: Seccomp, Tries: "TIOCSTI on standard input", Want: perm, Control: past(AsUser), try: func(*Scene) error { return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, char()) }},
		Attack{ID: "paste-selection", Layer: Seccomp, Tries: "TIOCLINUX", Want: perm, Control: past(AsRoot), try: pty(tiocLinux, paste)},
		Attack{ID: "paste-selection-high-bits", Layer: Seccomp, Tries: "TIOCLINUX with high bits", Want: perm, Control: past(AsRoot), try: pty(high|tiocLinux, paste)},
		Attack{ID: "line-discipline", Layer: Seccomp, Tries: "TIOCSETD", Want: perm, Control: user(), try: pty(tiocSetD, func() uintptr { return pointer(new(int32)) })},
		Attack{ID: "take-console", Layer: Seccomp, Tries: "TIOCCONS on what is no terminal", Want: perm, Control: past(AsRoot), try: calling(unix.SYS_IOCTL, 0, tiocCons, 0)},
		Attack{ID: "hang-up", Layer: Seccomp, Tries: "vhangup", Want: perm, Control: root(), try: calling(unix.SYS_VHANGUP)},
		Attack{ID: "open-dev-tty", Layer: View, Tries: "open /dev/tty", Want: []string{"ENXIO", "ENOENT"}, Control: no("a control run has no terminal either"), try: opens("/dev/tty", unix.O_RDWR)},
		Attack{ID: "open-console", Layer: View, Tries: "open /dev/console", Want: []string{"ENOENT"}, Reads: "/dev/console", Control: root(), try: opens("/dev/console", unix.O_RDWR)},
		Attack{ID: "open-anothers-terminal", Layer: View, Tries: "open a terminal of the host by its path", Want: []string{"ENOENT"}, Control: root(), try: func(s *Scene) error {
			if s.Pts == "" {
				return lacking("a terminal of the host")
			}
			return open(s.Pts, unix.O_RDWR)
		}},
	)
}
