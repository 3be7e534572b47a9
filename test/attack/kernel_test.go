package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const high = uintptr(1) << 32 // bits that a filter may look at and the kernel does not

// pointer is the address of what p points to, which stays where it is: reflection
// moves it to the heap, and the attacker never collects garbage.
func pointer[T any](p *T) uintptr { return reflect.ValueOf(p).Pointer() }

func text(s string) uintptr {
	b := append([]byte(s), 0)
	return pointer(&b[0])
}

// terminal: nothing is pushed into a terminal, and there is none to open.
func terminal() []attack {
	char := byte('x')
	return []attack{
		{
			name: "TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS", layer: bySeccomp, want: []string{"EPERM"},
			try: each(calling(unix.SYS_IOCTL, 0, unix.TIOCSTI, pointer(&char)), calling(unix.SYS_IOCTL, 0, 0x541c, pointer(&char)),
				calling(unix.SYS_IOCTL, 0, 0x5423, pointer(&char)), calling(unix.SYS_IOCTL, 0, 0x541d, 0)),
		},
		{
			name: "TIOCSTI with high bits", layer: bySeccomp, want: []string{"EPERM"},
			try: calling(unix.SYS_IOCTL, 0, high|unix.TIOCSTI, pointer(&char)),
		},
		{
			name: "open the controlling terminal", layer: byView, want: []string{"ENXIO", "ENOENT"},
			try: func() error { return opens("/dev/tty", os.O_RDWR) },
		},
	}
}

func opens(path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// opening opens each path; one that opens is a success.
func opening(flag int, paths ...string) func() error {
	var tries []func() error
	for _, p := range paths {
		tries = append(tries, func() error { return opens(p, flag) })
	}
	return each(tries...)
}

// inherited: nothing but three descriptors, no way into PID 1.
func inherited() []attack {
	return []attack{
		{name: "find a descriptor that was left open", layer: byIDs, want: []string{"none"}, try: strayDescriptor},
		{
			name: "reach into PID 1 through proc", layer: byIDs, want: []string{"EACCES", "EPERM"},
			try: opening(os.O_RDONLY, "/proc/1/mem", "/proc/1/exe", "/proc/1/root/", "/proc/1/cwd/", "/proc/1/fd", "/proc/1/environ", "/proc/1/maps", "/proc/1/fd/10", "/proc/1/task/1/mem"),
		},
		{
			name: "write to the own program", layer: byMount, want: []string{"ETXTBSY", "EROFS", "EACCES"},
			try: opening(os.O_RDWR, "/proc/self/exe"),
		},
		{
			name: "write to the program of PID 1", layer: byIDs, want: []string{"EACCES", "EPERM"},
			try: opening(os.O_WRONLY, "/proc/1/exe"),
		},
		{name: "have a capability", layer: byIDs, want: []string{"none"}, try: hasCapability},
	}
}

// strayDescriptor looks for descriptors beyond the standard streams; the runtime's
// own are of no file.
func strayDescriptor() error {
	for n := 3; n < 4096; n++ {
		to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(n))
		if err == nil && !strings.HasPrefix(to, "anon_inode:") {
			return nil
		}
	}
	return errors.New("none")
}

func hasCapability() error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 2 && (strings.HasPrefix(f[0], "Cap") && strings.Trim(f[1], "0") != "" || f[0] == "NoNewPrivs:" && f[1] != "1") {
			return nil
		}
	}
	return errors.New("none")
}

// surface: system calls that no pen has.
func surface() []attack {
	var s []attack
	add := func(name string, want []string, tries ...func() error) {
		s = append(s, attack{name: name, layer: bySeccomp, want: want, try: each(tries...)})
	}
	perm := []string{"EPERM"}
	var unshares []func() error
	for _, f := range []uintptr{
		unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS,
		unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME, unix.CLONE_NEWUSER | unix.CLONE_NEWNS, high | unix.CLONE_NEWUSER,
	} {
		unshares = append(unshares, calling(unix.SYS_UNSHARE, f))
	}
	add("unshare any namespace", perm, unshares...)
	add("clone into a user namespace", perm, calling(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0),
		calling(unix.SYS_CLONE, high|unix.CLONE_NEWNS|unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0))
	var args [11]uint64
	args[0] = unix.CLONE_NEWUSER
	add("clone3, openat2 and fchmodat2, whose arguments lie in memory", []string{"ENOSYS"}, calling(unix.SYS_CLONE3, pointer(&args), 88),
		calling(unix.SYS_OPENAT2, 0, 0, 0, 0), calling(unix.SYS_FCHMODAT2, 0, 0, 0, 0))
	add("setns", perm, calling(unix.SYS_SETNS, 0, 0))
	add("mount, the old way and the new", perm, calling(unix.SYS_MOUNT, text("none"), text("/tmp"), text("tmpfs"), 0, 0),
		calling(unix.SYS_UMOUNT2, text("/proc/sys"), unix.MNT_DETACH), calling(unix.SYS_PIVOT_ROOT, text("."), text(".")),
		calling(unix.SYS_CHROOT, text("/tmp")), calling(unix.SYS_FSOPEN, text("tmpfs"), 0), calling(unix.SYS_FSMOUNT, 0, 0, 0),
		calling(unix.SYS_OPEN_TREE, 0, text("/"), 1), calling(unix.SYS_MOVE_MOUNT, 0, 0, 0, 0, 0),
		calling(unix.SYS_MOUNT_SETATTR, 0, text("/"), 0, 0, 0), calling(unix.SYS_FSPICK, 0, text("/"), 0), calling(467, 0, 0, 0, 0, 0))
	add("keyrings", perm, calling(unix.SYS_ADD_KEY, 0, 0, 0, 0, 0), calling(unix.SYS_KEYCTL, 0, ^uintptr(2), 0), calling(unix.SYS_REQUEST_KEY, 0, 0, 0, 0))
	add("bpf, perf, userfaultfd, io_uring, fanotify", perm, calling(unix.SYS_BPF, 0, 0, 0), calling(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0),
		calling(unix.SYS_USERFAULTFD, 1), calling(unix.SYS_IO_URING_SETUP, 1, pointer(&args)), calling(unix.SYS_IO_URING_ENTER, 0, 0, 0, 0, 0),
		calling(unix.SYS_FANOTIFY_INIT, 0, 0))
	add("modules, kexec, reboot, swap, acct, quota, clock, host name, syslog", perm, calling(unix.SYS_FINIT_MODULE, 0, 0, 0),
		calling(unix.SYS_INIT_MODULE, 0, 0, 0), calling(unix.SYS_DELETE_MODULE, 0, 0), calling(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		calling(unix.SYS_REBOOT, 0, 0, 0, 0), calling(unix.SYS_SWAPON, 0, 0), calling(unix.SYS_SWAPOFF, 0), calling(unix.SYS_ACCT, 0),
		calling(unix.SYS_QUOTACTL, 0, 0, 0, 0), calling(unix.SYS_SETTIMEOFDAY, 0, 0), calling(unix.SYS_CLOCK_SETTIME, 0, 0),
		calling(unix.SYS_SETHOSTNAME, text("x"), 1), calling(unix.SYS_SYSLOG, 3, 0, 0))
	add("take the host's contexts of asynchronous I/O", perm, calling(unix.SYS_IO_SETUP, 1000, pointer(new(uint64))))
	add("open_by_handle_at", perm, calling(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0))
	add("personality beyond a few", perm, calling(unix.SYS_PERSONALITY, 0x0400000), calling(unix.SYS_PERSONALITY, high|0x0040000))
	if runtime.GOARCH == "amd64" {
		const x32 = 0x40000000
		add("the x32 ABI", []string{"ENOSYS"}, calling(x32+39), calling(x32+unix.SYS_OPENAT, 0, 0, 0, 0), calling(x32+520), calling(x32|unix.SYS_MOUNT))
	}
	add("system calls with high bits in their number", []string{"ENOSYS", "EPERM"}, calling(high|unix.SYS_MOUNT), calling(1<<31|unix.SYS_MOUNT), calling(^uintptr(0)))
	return s
}

// processes: nobody else can be seen, signalled, traced or read.
func processes() []attack {
	one := unix.RemoteIovec{Base: 0x400000, Len: 8}
	var buf [8]byte
	info := [16]uint64{0: 9, 1: ^uint64(0) >> 32} // siginfo_t with si_code SI_QUEUE
	local := unix.Iovec{Base: &buf[0], Len: 8}
	return []attack{
		{
			name: "signal PID 1", layer: byIDs, want: []string{"EPERM"},
			try: each(func() error { return unix.Kill(1, unix.SIGKILL) }, func() error { return unix.Kill(1, unix.SIGSTOP) },
				func() error { return unix.Tgkill(1, 1, unix.SIGSEGV) }, calling(unix.SYS_RT_SIGQUEUEINFO, 1, 9, pointer(&info))),
		},
		{
			name: "trace and read PID 1", layer: bySeccomp, want: []string{"EPERM"},
			try: each(calling(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1, 0, 0), calling(unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0),
				calling(unix.SYS_PROCESS_VM_READV, 1, pointer(&local), 1, pointer(&one), 1, 0),
				calling(unix.SYS_PROCESS_VM_WRITEV, 1, pointer(&local), 1, pointer(&one), 1, 0), calling(unix.SYS_KCMP, 1, 1, 0, 0, 0),
				takeDescriptor),
		},
		{name: "limit PID 1", layer: byIDs, want: []string{"EPERM"}, try: func() error {
			return unix.Prlimit(1, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil)
		}},
		{name: "see a process of the host", layer: byPidNS, want: []string{"none"}, control: true, try: foreignProcess},
		{name: "signal everything", layer: byPidNS, want: []string{"ESRCH", "EPERM"}, try: func() error {
			if os.Getpid() > 1<<12 { // outside of a pen this would be harm
				return unix.ESRCH
			}
			return unix.Kill(-1, 0)
		}},
	}
}

func takeDescriptor() error {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.PidfdGetfd(fd, 10, 0)
	return err
}

// foreignProcess looks for a process that is neither PID 1 nor this one: it is
// alone in its pen.
func foreignProcess() error {
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

// kernelFiles: knobs and secrets of the host's kernel.
func kernelFiles() []attack {
	shut := []string{"EACCES", "EPERM", "ENOENT", "EROFS"}
	return []attack{
		{
			name: "write the kernel's knobs", layer: byMount, want: shut,
			try: opening(os.O_WRONLY, "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/binfmt_misc/register", "/proc/irq/default_smp_affinity"),
		},
		{
			name: "read what the kernel keeps", layer: byMount, want: append([]string{"empty"}, shut...),
			try: each(reads("/proc/kcore"), reads("/proc/kmsg"), reads("/proc/keys"), reads("/proc/key-users"), reads("/proc/timer_list"), reads("/proc/kpageflags"), reads("/dev/mem"), reads("/dev/kmsg"), reads("/dev/port")),
		},
		{
			name: "find the kernel's other file systems", layer: byView, want: []string{"ENOENT"}, control: true,
			try: opening(os.O_RDONLY, "/sys/kernel", "/sys/fs/cgroup", "/sys/kernel/debug", "/dev/mem", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/loop-control"),
		},
		{name: "press SysRq", layer: byMount, want: shut, try: sysrq},
		{
			name: "mount, freeze and move through cgroup files", layer: byView, want: shut,
			try: opening(os.O_WRONLY, "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/memory/tasks", "/sys/fs/cgroup/memory/release_agent"),
		},
		{name: "be spared when memory is short", layer: byIDs, want: shut, try: func() error {
			return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
		}},
	}
}

// reads succeeds when there is something to read.
func reads(path string) func() error {
	return func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
			return err
		}
		b := make([]byte, 1)
		if n, _ := unix.Read(int(f.Fd()), b); n != 1 {
			return errors.New("empty")
		}
		return nil
	}
}

// sysrq opens the trigger and writes nothing to it.
func sysrq() error {
	f, err := os.OpenFile("/proc/sysrq-trigger", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR { // the mask
		return unix.EACCES
	}
	return nil
}

// dumps sets the limits of core dumps with which a program of the host's gets them:
// every one but 1.
func dumps() error {
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

// limits: what was limited stays so.
func limits() []attack {
	raise := func(resource int) func() error {
		return func() error {
			var l unix.Rlimit
			if err := unix.Getrlimit(resource, &l); err != nil {
				return err
			}
			if l.Max == unix.RLIM_INFINITY {
				return fmt.Errorf("no limit to raise")
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
	return []attack{
		{name: "raise a limit", layer: byLimit, want: []string{"EPERM", "ignored"}, try: each(raise(unix.RLIMIT_NOFILE), raise(unix.RLIMIT_CORE))},
		{name: "have the host take a core dump", layer: bySeccomp, want: []string{"ignored"}, control: true, try: dumps},
		{name: "take priority", layer: byIDs, want: []string{"EPERM", "EACCES"}, try: each(
			func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) },
			func() error { p := int32(1); return call(unix.SYS_SCHED_SETSCHEDULER, 0, 1, pointer(&p)) },
		)},
	}
}
