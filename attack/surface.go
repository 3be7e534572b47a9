package attack

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// surface: system calls that no pen has.
func surface() []Attack {
	all := append(mounting(), namespaces()...)
	all = append(append(all, others()...), host()...)
	all = append(all, x32()...)
	for _, n := range []numbered{{"above-31", high | unix.SYS_MOUNT}, {"bit-31", 1<<31 | unix.SYS_MOUNT}, {"all-ones", ^uintptr(0)}} {
		all = append(all, Attack{
			ID: "number-" + n.name, Layer: Seccomp, Tries: "a system call with high bits in its number", Want: []string{"ENOSYS", "EPERM"},
			Control: no("a kernel without a filter answers ENOSYS too"), try: calling(n.value),
		})
	}
	return class(Surface, all...)
}

// numbered is a number with a name.
type numbered struct {
	name  string
	value uintptr
}

// refused is an attack that the filter answers with EPERM.
func refused(id, tries string, c Control, t try) Attack {
	return Attack{ID: id, Layer: Seccomp, Tries: tries, Want: []string{"EPERM"}, Control: c, try: t}
}

// mounting is the mount interface, old and new.
func mounting() []Attack {
	return []Attack{
		refused("mount-tmpfs", "mount a tmpfs", box(), calling(unix.SYS_MOUNT, text("none"), text("/tmp"), text("tmpfs"), 0, 0)),
		refused("mount-bind", "bind / over /tmp", box(), calling(unix.SYS_MOUNT, text("/"), text("/tmp"), 0, unix.MS_BIND|unix.MS_REC, 0)),
		refused("mount-remount", "make / writable", past(InBox), calling(unix.SYS_MOUNT, text("none"), text("/"), 0, unix.MS_REMOUNT|unix.MS_BIND, 0)),
		refused("mount-proc", "mount another proc", box(), calling(unix.SYS_MOUNT, text("none"), text("/tmp"), text("proc"), 0, 0)),
		refused("mount-propagation", "make / shared", box(), calling(unix.SYS_MOUNT, text("none"), text("/"), 0, unix.MS_SHARED|unix.MS_REC, 0)),
		refused("umount", "unmount /proc", box(), calling(unix.SYS_UMOUNT2, text("/proc"), unix.MNT_DETACH)),
		refused("pivot-root", "pivot_root", past(InBox), calling(unix.SYS_PIVOT_ROOT, text("."), text("."))),
		refused("fsopen", "fsopen", box(), calling(unix.SYS_FSOPEN, text("tmpfs"), 0)),
		refused("fsconfig", "fsconfig", past(InBox), calling(unix.SYS_FSCONFIG, 0, 0, 0, 0, 0)),
		refused("fsmount", "fsmount", past(InBox), calling(unix.SYS_FSMOUNT, 0, 0, 0)),
		refused("fspick", "fspick", box(), calling(unix.SYS_FSPICK, minus(100), text("/"), 0)),
		refused("open-tree", "open_tree with OPEN_TREE_CLONE", box(), calling(unix.SYS_OPEN_TREE, minus(100), text("/"), 1)),
		refused("move-mount", "move_mount", past(InBox), calling(unix.SYS_MOVE_MOUNT, minus(100), text("/"), minus(100), text("/tmp"), 0)),
		refused("mount-setattr", "mount_setattr", box(), func(*Scene) error {
			return call(unix.SYS_MOUNT_SETATTR, minus(100), text("/"), 0, pointer(&[4]uint64{}), 32)
		}),
		refused("open-tree-attr", "open_tree_attr", past(InBox), calling(467, minus(100), text("/"), 1, 0, 0)),
	}
}

func minus(n int) uintptr { return uintptr(-n) }

// namespaces: none is made, none is entered.
func namespaces() []Attack {
	absent := func(id, tries string, t try) Attack {
		return Attack{ID: id, Layer: Seccomp, Tries: tries, Want: []string{"ENOSYS"}, Control: user(), try: t}
	}
	var all []Attack
	for _, n := range []numbered{
		{"mnt", unix.CLONE_NEWNS}, {"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP},
	} {
		all = append(all, refused("unshare-"+n.name, "unshare the "+n.name+" namespace", root(), calling(unix.SYS_UNSHARE, n.value)))
		all = append(all, refused("clone-"+n.name, "clone into a new "+n.name+" namespace", root(), forking(unix.SYS_CLONE, n.value|uintptr(unix.SIGCHLD))))
	}
	for _, ns := range []string{"mnt", "net", "uts", "ipc", "pid", "cgroup"} {
		all = append(all, refused("setns-"+ns, "setns to its own "+ns+" namespace", past(AsRoot), func(*Scene) error {
			fd, err := unix.Open("/proc/self/ns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return lacking("a descriptor of a namespace: " + told(err))
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Setns(fd, 0)
		}))
	}
	var how [3]uint64
	args := [11]uint64{4: uint64(unix.SIGCHLD)}
	return append(all,
		refused("unshare-user", "unshare the user namespace", past(AsUser), calling(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)),
		refused("unshare-time", "unshare the time namespace", past(AsRoot), calling(unix.SYS_UNSHARE, unix.CLONE_NEWTIME)),
		refused("unshare-high-bits", "unshare with high bits in the flags", past(AsUser), calling(unix.SYS_UNSHARE, high|unix.CLONE_NEWUSER)),
		refused("clone-user", "clone into a new user namespace", past(AsRoot), forking(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))),
		refused("clone-high-bits", "clone with high bits in the flags", past(AsRoot), forking(unix.SYS_CLONE, high|unix.CLONE_NEWUSER|unix.CLONE_NEWNS|uintptr(unix.SIGCHLD))),
		absent("clone3", "clone3, whose arguments lie in memory", forking(unix.SYS_CLONE3, pointer(&args), 88)),
		absent("openat2", "openat2, whose arguments lie in memory", calling(unix.SYS_OPENAT2, minus(100), text("."), pointer(&how), 24)),
		Attack{ID: "fchmodat2", Layer: Seccomp, Tries: "fchmodat2", Want: []string{"ENOSYS"}, Control: past(AsUser), try: calling(unix.SYS_FCHMODAT2, 0, 0, 0, 0)},
	)
}

// others: other processes' memory and files, keyrings, and what makes calls that
// the filter does not see.
func others() []Attack {
	self := func(f func(pid uintptr) error) try {
		return func(*Scene) error { return f(uintptr(unix.Getpid())) }
	}
	vector := func(nr uintptr) try {
		return self(func(pid uintptr) error {
			from, to := new([8]byte), new([8]byte)
			l, r := &[2]uintptr{pointer(from), 8}, &[2]uintptr{pointer(to), 8}
			return call(nr, pid, pointer(l), 1, pointer(r), 1, 0)
		})
	}
	pidfd := func(f func(fd uintptr) error) try {
		return self(func(pid uintptr) error {
			fd, err := unix.PidfdOpen(int(pid), 0)
			if err != nil {
				return lacking("a pidfd: " + told(err))
			}
			defer func() { _ = unix.Close(fd) }()
			return f(uintptr(fd))
		})
	}
	return []Attack{
		refused("ptrace-me", "PTRACE_TRACEME", user(), inChild(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0)),
		refused("vm-read", "process_vm_readv of itself", user(), vector(unix.SYS_PROCESS_VM_READV)),
		refused("vm-write", "process_vm_writev of itself", user(), vector(unix.SYS_PROCESS_VM_WRITEV)),
		refused("kcmp", "kcmp with itself", past(AsUser), self(func(pid uintptr) error { return call(unix.SYS_KCMP, pid, pid, 1, 0, 0) })),
		refused("pidfd-getfd", "pidfd_getfd of itself", user(), pidfd(func(fd uintptr) error { return call(unix.SYS_PIDFD_GETFD, fd, 0, 0) })),
		refused("process-madvise", "process_madvise", past(AsUser), pidfd(func(fd uintptr) error { return call(unix.SYS_PROCESS_MADVISE, fd, 0, 0, 4, 0) })),
		refused("add-key", "add_key", past(AsUser), calling(unix.SYS_ADD_KEY, 0, 0, 0, 0, 0)),
		refused("keyctl", "KEYCTL_GET_KEYRING_ID", past(AsUser), calling(unix.SYS_KEYCTL, 0, minus(3), 0)),
		refused("request-key", "request_key", past(AsUser), calling(unix.SYS_REQUEST_KEY, 0, 0, 0, 0)),
		refused("bpf", "bpf", past(AsRoot), calling(unix.SYS_BPF, 0, 0, 0)),
		refused("perf", "perf_event_open", past(AsRoot), calling(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0)),
		refused("userfaultfd", "userfaultfd", past(AsRoot), calling(unix.SYS_USERFAULTFD, 0)),
		refused("io-uring-setup", "io_uring_setup", past(AsRoot), func(*Scene) error { return call(unix.SYS_IO_URING_SETUP, 1, pointer(new([120]byte))) }),
		refused("io-uring-enter", "io_uring_enter", past(AsUser), calling(unix.SYS_IO_URING_ENTER, 0, 0, 0, 0, 0)),
		refused("io-uring-register", "io_uring_register", past(AsUser), calling(unix.SYS_IO_URING_REGISTER, 0, 0, 0, 0)),
		refused("fanotify-init", "fanotify_init", past(AsRoot), calling(unix.SYS_FANOTIFY_INIT, 0, 0)),
		refused("fanotify-mark", "fanotify_mark", past(AsUser), calling(unix.SYS_FANOTIFY_MARK, 0, 0, 0, 0, 0)),
		refused("aio-contexts", "io_setup: the host's contexts of asynchronous I/O", past(AsUser), func(*Scene) error {
			return call(unix.SYS_IO_SETUP, 1, pointer(new(uint64)))
		}),
		refused("personality", "personality READ_IMPLIES_EXEC", user(), calling(unix.SYS_PERSONALITY, 0x0400000)),
		refused("personality-high-bits", "personality with high bits", user(), calling(unix.SYS_PERSONALITY, high|0x0040000)),
		refused("mce-kill", "PR_MCE_KILL", past(AsUser), calling(unix.SYS_PRCTL, unix.PR_MCE_KILL, 0, 0, 0, 0)),
		refused("sched-core", "PR_SCHED_CORE", past(AsUser), calling(unix.SYS_PRCTL, unix.PR_SCHED_CORE, 0, 0, 0, 0)),
		only(Strict, refused("strict-sysv", "shmget under seccomp: strict", user(), segment(4096, 0o600))),
		only(Strict, refused("strict-handles", "name_to_handle_at under seccomp: strict", past(AsUser), calling(unix.SYS_NAME_TO_HANDLE_AT, 0, 0, 0, 0, 0))),
		only(Strict, refused("strict-sync", "sync under seccomp: strict", user(), calling(unix.SYS_SYNC))),
		only(Strict, refused("strict-memfd-secret", "memfd_secret under seccomp: strict", past(AsUser), calling(unix.SYS_MEMFD_SECRET, 0))),
	}
}

// segment makes shared memory, and removes it again.
func segment(size, flags uintptr) try {
	return func(*Scene) error {
		id, _, e := unix.Syscall(unix.SYS_SHMGET, 0, size, unix.IPC_CREAT|flags)
		if e != 0 {
			return e
		}
		return call(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0)
	}
}

// only adds a need to an attack.
func only(n Need, a Attack) Attack {
	a.Needs = append(a.Needs, n)
	return a
}

// host: what governs the whole host. Arguments are of no use where a success would do harm.
func host() []Attack {
	name := "pinfold-attack"
	size := uintptr(len(name))
	list := []struct {
		id string
		c  Control
		nr uintptr
		a  []uintptr
	}{
		{"init-module", past(AsRoot), unix.SYS_INIT_MODULE, []uintptr{0, 0, 0}},
		{"finit-module", past(AsRoot), unix.SYS_FINIT_MODULE, []uintptr{minus(1), 0, 0}},
		{"delete-module", past(AsRoot), unix.SYS_DELETE_MODULE, []uintptr{0, 0}},
		{"kexec-load", past(AsRoot), unix.SYS_KEXEC_LOAD, []uintptr{0, 1 << 20, 0, 0xffff}},
		{"kexec-file-load", past(AsRoot), unix.SYS_KEXEC_FILE_LOAD, []uintptr{minus(1), minus(1), 0, 0, 0xffff}},
		{"reboot", past(AsRoot), unix.SYS_REBOOT, []uintptr{0, 0, 0, 0}},
		{"swapon", past(AsRoot), unix.SYS_SWAPON, []uintptr{0, 0}},
		{"swapoff", past(AsRoot), unix.SYS_SWAPOFF, []uintptr{0}},
		{"acct", past(AsRoot), unix.SYS_ACCT, []uintptr{1}},
		{"quotactl", past(AsRoot), unix.SYS_QUOTACTL, []uintptr{0xffffffff, 0, 0, 0}},
		{"quotactl-fd", past(AsRoot), unix.SYS_QUOTACTL_FD, []uintptr{minus(1), 0, 0, 0}},
		{"settimeofday", root(), unix.SYS_SETTIMEOFDAY, []uintptr{0, 0}},
		{"clock-settime", past(AsRoot), unix.SYS_CLOCK_SETTIME, []uintptr{0, 0}},
		{"adjtimex", past(AsUser), unix.SYS_ADJTIMEX, []uintptr{0}},
		{"clock-adjtime", past(AsUser), unix.SYS_CLOCK_ADJTIME, []uintptr{0, 0}},
		{"host-name", box(), unix.SYS_SETHOSTNAME, []uintptr{text(name), size}},
		{"domain-name", box(), unix.SYS_SETDOMAINNAME, []uintptr{text(name), size}},
		{"syslog-read", past(AsRoot), unix.SYS_SYSLOG, []uintptr{3, 0, 0}},
		{"syslog-size", root(), unix.SYS_SYSLOG, []uintptr{10, 0, 0}},
		{"move-pages", past(AsRoot), unix.SYS_MOVE_PAGES, []uintptr{0, 0, 0, 0, 0, 0}},
	}
	all := make([]Attack, 0, len(list))
	for _, l := range list {
		all = append(all, refused(l.id, "system call "+strconv.Itoa(int(l.nr))+" ("+l.id+")", l.c, calling(l.nr, l.a...)))
	}
	return all
}

// families: sockets of other families and protocols than a pen needs.
func families() []Attack {
	var all []Attack
	for _, s := range []struct {
		name                   string
		family, kind, protocol uintptr
	}{
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"packet-high-bits", high | unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"raw6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"alg", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"netlink-uevent", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		{"netlink-audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"netlink-netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{"netlink-generic", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC},
		{"netlink-diag", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG},
		{"mptcp", unix.AF_INET, unix.SOCK_STREAM, 262},
		{"sctp", unix.AF_INET, unix.SOCK_STREAM, 132},
		{"udplite", unix.AF_INET, unix.SOCK_DGRAM, 136},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 1},
		{"can", unix.AF_CAN, unix.SOCK_RAW, 1},
		{"xdp", unix.AF_XDP, unix.SOCK_RAW, 0},
		{"tipc", unix.AF_TIPC, unix.SOCK_STREAM, 0},
		{"key", unix.AF_KEY, unix.SOCK_RAW, 2},
		{"rds", unix.AF_RDS, unix.SOCK_SEQPACKET, 0},
	} {
		all = append(all, refused("socket-"+s.name, "a socket of this family or protocol", past(AsRoot), calling(unix.SYS_SOCKET, s.family, s.kind, s.protocol)))
	}
	return class(Surface, all...)
}
