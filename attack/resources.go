package attack

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// resources: each hits its own limit.
func resources() []Attack {
	perm := []string{"EPERM", "EACCES"}
	var all []Attack
	all = append(all,
		Attack{ID: "raise-nofile", Layer: Limits, Tries: "raise the hard limit of open files", Want: []string{"EPERM"}, Control: resource(), try: raises(unix.RLIMIT_NOFILE)},
		Attack{ID: "raise-core", Layer: Limits, Tries: "raise the hard limit of core dumps", Want: []string{"ignored"}, Control: no("a host may have no limit that could be raised"), try: raises(unix.RLIMIT_CORE)},
	)
	for _, d := range []struct{ name, dir string }{{"tmp", "/tmp"}, {"shm", "/dev/shm"}, {"home", "~"}} {
		a := Attack{ID: "fill-" + d.name, Layer: Mounts, Tries: "reserve 1 TiB in " + d.name, Want: []string{"ENOSPC"}, Control: no("it would fill the host"), try: fills(d.dir)}
		if d.name == "home" {
			a = only(OwnHome, a)
		}
		all = append(all, a)
	}
	all = append(all,
		Attack{ID: "core-dump", Layer: Seccomp, Tries: "have the host take a core dump", Want: []string{"ignored"}, Control: user(), try: dumps},
		Attack{ID: "inodes", Layer: Mounts, Tries: "make 20000 files in /dev/shm", Want: []string{"ENOSPC"}, Control: user(), try: manyFiles},
		Attack{ID: "terminals", Layer: Mounts, Tries: "open 100 terminals", Want: []string{"ENOSPC"}, Control: user(), try: manyTerminals},
		only(FileLimit, Attack{ID: "open-files", Layer: Limits, Tries: "open 65537 files", Want: []string{"EMFILE"}, Control: no("hosts have limits of their own"), try: manyOpen}),
		Attack{ID: "nice", Layer: IDs, Tries: "nice -5", Want: perm, Control: root(), try: func(*Scene) error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) }},
		Attack{ID: "real-time", Layer: IDs, Tries: "SCHED_FIFO", Want: perm, Control: past(AsRoot), try: scheduler(1)},
		Attack{ID: "round-robin", Layer: IDs, Tries: "SCHED_RR", Want: perm, Control: past(AsRoot), try: scheduler(2)},
		Attack{ID: "deadline", Layer: IDs, Tries: "SCHED_DEADLINE", Want: perm, Control: past(AsRoot), try: func(*Scene) error {
			a := &[6]uint64{0: 48 | 6<<32, 3: 1e6, 4: 1e7, 5: 1e7} // struct sched_attr: size, policy, runtime, deadline, period
			a[2] = 0
			return call(unix.SYS_SCHED_SETATTR, 0, pointer(a), 0)
		}},
		Attack{ID: "io-real-time", Layer: IDs, Tries: "ioprio_set to real time", Want: perm, Control: root(), try: calling(unix.SYS_IOPRIO_SET, 1, 0, 1<<13)},
		Attack{ID: "lock-memory", Layer: Limits, Tries: "mlock all memory to come", Want: []string{"EPERM", "ENOMEM"}, Control: root(), try: locks},
		Attack{ID: "huge-pages", Layer: IDs, Tries: "shmget with huge pages", Want: []string{"EPERM", "ENOMEM"}, Control: no("a host may have no huge pages"), try: segment(2<<20, 0o600|0o4000)},
		Attack{ID: "pipe-size", Layer: IDs, Tries: "make a pipe of 64 MiB", Want: perm, Control: resource(), try: widePipe},
		Attack{ID: "socket-buffer", Layer: IDs, Tries: "SO_RCVBUFFORCE", Want: perm, Control: root(), try: func(*Scene) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<28)
		}},
		only(Little, Attack{ID: "socket-memory", Layer: Cgroup, Tries: "keep 144 MB in sockets", Want: []string{"dropped", "SIGKILL"}, Harmful: "it takes the host's memory", Alone: true, Control: user(), try: hoards}),
		only(Little, Attack{ID: "memory", Layer: Cgroup, Tries: "use 256 MiB", Want: []string{"SIGKILL"}, Harmful: "it takes the host's memory", Alone: true, Control: user(), try: eats}),
		only(Little, Attack{ID: "tmp-memory", Layer: Cgroup, Tries: "write 256 MiB to /tmp and /dev/shm", Want: []string{"SIGKILL", "ENOSPC"}, Harmful: "it takes the host's memory", Alone: true, Control: no("the host's /tmp may be a disk"), try: writesTmp}),
		only(PidLimit, Attack{ID: "fork-bomb", Layer: Cgroup, Tries: "fork 1100 times", Want: []string{"EAGAIN"}, Harmful: "it takes the host's processors", Control: user(), try: forks}),
	)
	return class(Resources, all...)
}

// raises sets a hard limit one higher.
func raises(resource int) try {
	return func(*Scene) error {
		var l unix.Rlimit
		if err := unix.Getrlimit(resource, &l); err != nil {
			return err
		}
		if l.Max == unix.RLIM_INFINITY {
			return lacking("a limit to raise")
		}
		most := l.Max
		l.Max++
		if err := unix.Setrlimit(resource, &l); err != nil {
			return err
		}
		if err := unix.Getrlimit(resource, &l); err != nil {
			return err
		}
		if l.Max > most {
			return nil
		}
		return errors.New("ignored")
	}
}

// dumps sets the limits of core dumps with which a program of the host's gets them:
// every one but 1.
func dumps(*Scene) error {
	var l unix.Rlimit
	for _, set := range []func(*unix.Rlimit) error{
		func(l *unix.Rlimit) error { return call(unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, pointer(l)) },
		func(l *unix.Rlimit) error { return call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, pointer(l), 0) },
		func(l *unix.Rlimit) error {
			return call(unix.SYS_PRLIMIT64, 0, high|unix.RLIMIT_CORE, pointer(l), pointer(&unix.Rlimit{}))
		},
	} {
		if err := set(&unix.Rlimit{}); err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
			return err
		}
		if l.Cur != 1 {
			return nil
		}
	}
	return errors.New("ignored")
}

// fills reserves more than a memory file system may hold: the kernel compares before
// it takes a page.
func fills(dir string) try {
	return func(s *Scene) error {
		dir := dir
		if dir == "~" {
			home, err := os.UserHomeDir()
			if err != nil {
				return lacking("a home: " + told(err))
			}
			dir = home
		}
		name := dir + "/fill-" + s.Word
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return lacking("a file in " + dir + ": " + told(err))
		}
		defer func() { _ = errors.Join(unix.Close(fd), os.Remove(name)) }()
		return unix.Fallocate(fd, 0, 0, 1<<40)
	}
}

func manyFiles(s *Scene) error {
	dir := "/dev/shm/many-" + s.Word
	if err := os.Mkdir(dir, 0o700); err != nil {
		return lacking("a directory in /dev/shm: " + told(err))
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for i := range 20000 {
		fd, err := unix.Open(dir+"/"+strconv.Itoa(i), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

func manyTerminals(*Scene) error { return many("/dev/ptmx", 100) }

func manyOpen(*Scene) error { return many("/dev/null", 65537) }

// many opens a file many times and closes all again.
func many(path string, n int) (err error) {
	var open []int
	for len(open) < n && err == nil {
		var fd int
		if fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0); err == nil {
			open = append(open, fd)
		}
	}
	for _, fd := range open {
		_ = unix.Close(fd)
	}
	return err
}

func scheduler(policy uintptr) try {
	return func(*Scene) error {
		p := int32(1)
		return call(unix.SYS_SCHED_SETSCHEDULER, 0, policy, pointer(&p))
	}
}

// locks asks for what is above any limit of an ordinary user.
func locks(*Scene) error {
	m, err := unix.Mmap(-1, 0, 256<<20, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return lacking("an address range: " + told(err))
	}
	defer func() { _ = unix.Munmap(m) }()
	const onFault = 1 // MLOCK_ONFAULT: nothing is taken
	return call(unix.SYS_MLOCK2, pointer(&m[0]), uintptr(len(m)), onFault)
}

func widePipe(*Scene) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer func() { _ = errors.Join(unix.Close(p[0]), unix.Close(p[1])) }()
	_, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 64<<20)
	return err
}

const (
	sockets   = 300
	datagram  = 60000
	perSocket = 8 // datagrams for each socket: 144 MB in all
	tooMuch   = 64 << 20
)

// hoards fills the buffers of many sockets on the loopback device, and succeeds when
// they keep more than the pen's memory.
func hoards(*Scene) error {
	sender, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	var all []int
	for range sockets {
		n, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		all = append(all, n)
		if err := errors.Join(unix.SetsockoptInt(n, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20), unix.Bind(n, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
			return err
		}
		to, err := unix.Getsockname(n)
		if err != nil {
			return err
		}
		for range perSocket {
			_ = unix.Sendto(sender, make([]byte, datagram), unix.MSG_DONTWAIT, to)
		}
	}
	kept := 0
	for _, n := range all {
		for {
			got, _, err := unix.Recvfrom(n, make([]byte, datagram), 0)
			if err != nil {
				break
			}
			kept += got
		}
		_ = unix.Close(n)
	}
	if kept > tooMuch {
		return nil
	}
	return errors.New("dropped")
}

func eats(*Scene) error {
	m, err := unix.Mmap(-1, 0, 256<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := 0; i < len(m); i += 4096 {
		m[i] = 1
	}
	return unix.Munmap(m)
}

func writesTmp(s *Scene) error {
	page := make([]byte, 1<<20)
	for _, dir := range []string{"/tmp", "/dev/shm", "."} {
		f, err := os.OpenFile(dir+"/eat-"+s.Word, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		for range 256 {
			if _, err := f.Write(page); err != nil {
				break // this one is full; the next counts to the same limit
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return unix.ENOSPC
}

// forks makes children that wait, until the kernel refuses one; then it ends them all.
func forks(*Scene) (err error) {
	var children []int
	arg := pointer(&unix.Timespec{Sec: int64(time.Hour / time.Second)})
	for range 1100 {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			err = e
			break
		}
		if pid == 0 {
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, arg, 0, 0)
			}
		}
		children = append(children, int(pid))
	}
	for _, pid := range children {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, pid := range children {
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	return err
}
