package attack

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// neighbours: processes, shared memory, queues and sockets of others. Targets makes
// them on the host, for the user that the pen runs as.
func neighbours() []Attack {
	gone, none := []string{"ESRCH"}, []string{"none"}
	queue := func(nr uintptr, args ...uintptr) try {
		return func(s *Scene) error { return call(nr, append([]uintptr{uintptr(s.Key)}, args...)...) }
	}
	ipc := []string{"ENOENT", "EPERM"}
	pid := func(f func(pid int) error) try { return func(s *Scene) error { return f(s.Victim) } }
	all := []Attack{
		{ID: "sysv-memory", Layer: IPCNS, Tries: "find a SysV segment of the host by its key", Want: ipc, Control: user(), try: queue(unix.SYS_SHMGET, 0, 0)},
		{ID: "sysv-semaphore", Layer: IPCNS, Tries: "find a SysV semaphore of the host", Want: ipc, Control: user(), try: queue(unix.SYS_SEMGET, 0, 0)},
		{ID: "sysv-queue", Layer: IPCNS, Tries: "find a SysV queue of the host", Want: ipc, Control: user(), try: queue(unix.SYS_MSGGET, 0)},
		{ID: "posix-memory", Layer: View, Tries: "open a POSIX segment of the host in /dev/shm", Want: []string{"ENOENT"}, Control: user(), try: func(s *Scene) error { return open("/dev/shm/"+s.Word, unix.O_RDWR) }},
		{ID: "posix-queue", Layer: IPCNS, Tries: "open a POSIX queue of the host", Want: ipc, Control: user(), try: func(s *Scene) error {
			return call(unix.SYS_MQ_OPEN, text(s.Word), unix.O_RDONLY|unix.O_NONBLOCK, 0, 0)
		}},
		{ID: "signal-host", Layer: PidNS, Tries: "signal a process of the same user on the host", Want: gone, Control: user(), try: pid(func(p int) error { return unix.Kill(p, 0) })},
		{ID: "tgkill-host", Layer: PidNS, Tries: "tgkill it", Want: gone, Control: user(), try: pid(func(p int) error { return unix.Tgkill(p, p, 0) })},
		{ID: "pidfd-host", Layer: PidNS, Tries: "pidfd_open it", Want: gone, Control: user(), try: pid(func(p int) error {
			fd, err := unix.PidfdOpen(p, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		})},
		{ID: "limit-host", Layer: PidNS, Tries: "read its limits with prlimit", Want: gone, Control: user(), try: pid(func(p int) error { return unix.Prlimit(p, unix.RLIMIT_NOFILE, nil, &unix.Rlimit{}) })},
		{ID: "affinity-host", Layer: PidNS, Tries: "read its processors", Want: gone, Control: user(), try: pid(func(p int) error { return unix.SchedGetaffinity(p, &unix.CPUSet{}) })},
		{ID: "priority-host", Layer: PidNS, Tries: "lower its priority", Want: gone, Control: user(), try: pid(func(p int) error { return unix.Setpriority(unix.PRIO_PROCESS, p, 19) })},
		{ID: "session-host", Layer: PidNS, Tries: "learn its session", Want: gone, Control: user(), try: pid(func(p int) error { _, err := unix.Getsid(p); return err })},
		{ID: "proc-host", Layer: PidNS, Tries: "find it in /proc", Want: []string{"ENOENT"}, Control: user(), try: func(s *Scene) error { return open("/proc/"+strconv.Itoa(s.Victim), unix.O_RDONLY) }},
		{ID: "proc-host-environ", Layer: PidNS, Tries: "read its environment", Want: []string{"ENOENT"}, Control: user(), try: func(s *Scene) error { return open("/proc/"+strconv.Itoa(s.Victim)+"/environ", unix.O_RDONLY) }},
		{ID: "see-others", Layer: PidNS, Tries: "find any process but PID 1 and itself", Want: none, Control: user(), try: foreignProcess},
		{ID: "signal-pen", Layer: PidNS, Tries: "signal a process of another pen", Want: gone, Control: root(), try: inPen(func(p int) error { return unix.Kill(p, 0) })},
		{ID: "proc-pen", Layer: PidNS, Tries: "find a process of another pen in /proc", Want: []string{"ENOENT"}, Control: root(), try: inPen(func(p int) error { return open("/proc/"+strconv.Itoa(p), unix.O_RDONLY) })},
		{ID: "abstract-pen", Layer: NetNS, Tries: "connect to an abstract socket of another pen", Want: []string{"ECONNREFUSED", "EPERM"}, Needs: []Need{Apart}, Control: no("its name is in the other pen's namespace"), try: inPen(func(int) error { return connects(unix.SOCK_STREAM, "@"+PenName) })},
		{ID: "memory-pen", Layer: View, Tries: "open shared memory of another pen", Want: []string{"ENOENT"}, Control: no("it is in the other pen's file system"), try: inPen(func(int) error { return open("/dev/shm/"+PenName, unix.O_RDWR) })},
		{ID: "tmp-pen", Layer: View, Tries: "open a file in /tmp of another pen", Want: []string{"ENOENT"}, Control: no("it is in the other pen's file system"), try: inPen(func(int) error { return open("/tmp/"+PenName, unix.O_RDONLY) })},
		{ID: "count-connections", Layer: NetNS, Tries: "see the host's sockets in /proc/net/unix", Want: none, Needs: []Need{NetNone}, Control: user(), try: seesSocket},
	}
	return class(Neighbours, all...)
}

// PenName is what a neighbour in another pen calls what it makes.
const PenName = "pinfold-neighbour"

func inPen(t func(pid int) error) try {
	return func(s *Scene) error {
		if s.Neighbour == 0 {
			return lacking("another pen")
		}
		return t(s.Neighbour)
	}
}

// foreignProcess looks for a process that is neither PID 1 nor this one: it is
// alone in its pen.
func foreignProcess(*Scene) error {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, p := range all {
		if n := filepath.Base(p); n != "1" && n != strconv.Itoa(os.Getpid()) {
			return nil
		}
	}
	return errors.New("none")
}
