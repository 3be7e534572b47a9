package filter

import "golang.org/x/sys/unix"

// To add a system call to a list, touch: 1 the list here, 2 the attack in
// kernel_test.go that shows the refusal.

// lookAbsent lists the calls that answer ENOSYS, so that libraries fall back to
// an older call whose arguments a filter can see: these pass them in memory.
func lookAbsent() []string {
	return []string{"clone3", "openat2", "fchmodat2"}
}

// off lists what moby's profile allows and no ordinary program needs. Policy may
// allow a name again unless never lists it.
func off() []string {
	return []string{
		"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise", // other processes' memory and files
		"fanotify_init", "fanotify_mark",
		"io_uring_setup", "io_uring_enter", "io_uring_register",
		"userfaultfd", "perf_event_open", "lookup_dcookie",
		"adjtimex", "clock_adjtime", // the host's clock
		"io_setup", "io_submit", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", // aio(7): fs.aio-max-nr is all of the host's
		"modify_ldt", // 16-bit code; CVE-2015-5157, CVE-2017-17053
	}
}

// strictOff lists what Strict takes from Default.
func strictOff() []string {
	return []string{
		"msgget", "msgctl", "msgsnd", "msgrcv", "semget", "semctl", "semop", "semtimedop", "shmget", "shmctl", "shmat", "shmdt", // sysvipc(7)
		"mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr", // mq_overview(7)
		"name_to_handle_at", "listmount", "statmount", "cachestat", "process_mrelease",
		"memfd_secret", "remap_file_pages", "epoll_ctl_old", "epoll_wait_old",
		"personality", "capset",
		"sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set",
		"sync", "syncfs", "readahead", // the whole host's disks
	}
}

// never says which calls no policy can allow, and why.
func never() map[string]string {
	reasons := []struct {
		why   string
		names []string
	}{
		{"its arguments lie in memory, where a filter cannot see them", []string{"clone3", "openat2", "fchmodat2"}},
		{"it makes calls that the filter does not see", []string{"io_uring_setup", "io_uring_enter", "io_uring_register"}},
		{"it proves that the filter is in force", []string{"add_key"}},
		{"keyrings are not separated between pens", []string{"request_key", "keyctl"}},
		{"the view of a pen is fixed before its program starts", []string{
			"mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr",
			"move_mount", "mount_setattr", "setns",
		}},
		{"it opens files outside of the view", []string{"open_by_handle_at"}},
		{"it governs the whole host", []string{
			"bpf", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module", "reboot", "swapon", "swapoff",
			"acct", "quotactl", "quotactl_fd", "iopl", "ioperm", "settimeofday", "clock_settime", "sethostname", "setdomainname",
			"fanotify_init", "syslog", "vhangup", "nfsservctl", "_sysctl",
		}},
	}
	out := map[string]string{}
	for _, r := range reasons {
		for _, name := range r.names {
			out[name] = r.why
		}
	}
	return out
}

const (
	setID      = unix.S_ISUID | unix.S_ISGID
	makesFile  = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// refuse is a clause that refuses any of bits in arg.
func refuse(arg int, bits uint32) clause {
	return clause{tests: []test{{arg: arg, mask: bits, in: []uint32{0}, not: true}}, then: perm}
}

// among is a test for the values of arg under mask.
func among(arg int, mask uint32, values ...uint32) test {
	return test{arg: arg, mask: mask, in: values}
}

// only is a rule that allows what passes one of the given clauses' tests.
func only(alternatives ...[]test) rule {
	r := rule{otherwise: perm}
	for _, tests := range alternatives {
		r.clauses = append(r.clauses, clause{tests: tests, then: allow})
	}
	return r
}

// except is a rule that allows all but what clauses refuse.
func except(clauses ...clause) rule {
	return rule{clauses: clauses, otherwise: allow}
}

// narrowed lists the calls whose arguments decide. No mode with a set-id bit is
// ever given to a file: through an idmapped mount it would be set-id on the host.
func narrowed() map[string]rule {
	mode := func(arg int) rule { return except(refuse(arg, setID)) }
	open := func(flags, mode int) rule {
		plain := clause{tests: []test{among(flags, makesFile, 0)}, then: allow}
		return except(plain, refuse(mode, setID))
	}
	node := func(arg int) rule {
		return only([]test{among(arg, setID, 0), among(arg, unix.S_IFMT, 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK)})
	}
	return map[string]rule{
		"chmod": mode(1), "fchmod": mode(1), "fchmodat": mode(2),
		"creat": mode(1), "mkdir": mode(1), "mkdirat": mode(2), "mq_open": mode(2),
		"open": open(1, 2), "openat": open(2, 3),
		"mknod": node(1), "mknodat": node(2),
		"socket":     socketRule(),
		"socketpair": only([]test{among(0, whole, unix.AF_UNIX)}),
		"clone":      except(refuse(0, namespaces)),
		"unshare":    except(refuse(0, namespaces|unix.CLONE_NEWTIME)),
		"ioctl":      except(clause{tests: []test{among(1, whole, badIoctls()...)}, then: perm}),
		"prctl":      except(clause{tests: []test{among(0, whole, badPrctls()...)}, then: perm}),
	}
}

// keepCore makes changes of RLIMIT_CORE look done: ssh-agent and others end when
// they are refused, and there is nothing left to limit. Reading it works as ever. A call that does
// both is refused, since what it reads would be missing.
func keepCore(byName map[string]rule) {
	core := func(arg int) test { return among(arg, whole, unix.RLIMIT_CORE) }
	null := func(arg int) []test {
		return []test{among(arg, whole, 0), {arg: arg, mask: whole, in: []uint32{0}, high: true}}
	}
	if _, ok := byName["setrlimit"]; ok {
		byName["setrlimit"] = except(clause{tests: []test{core(0)}, then: done})
	}
	if _, ok := byName["prlimit64"]; ok {
		byName["prlimit64"] = except(
			clause{tests: append([]test{core(1)}, null(2)...), then: allow},
			clause{tests: append([]test{core(1)}, null(3)...), then: done},
			clause{tests: []test{core(1)}, then: perm},
		)
	}
}

// socketRule allows the families UNIX, INET, INET6 and, of NETLINK, ROUTE. Of
// the internet families only TCP, UDP and ping: other protocols load modules,
// and MPTCP (262) passes by Landlock's rules for TCP.
func socketRule() rule {
	const kind = 0xf // the type without SOCK_CLOEXEC and SOCK_NONBLOCK; socket(2)
	return only(
		[]test{among(0, whole, unix.AF_UNIX)},
		[]test{
			among(0, whole, unix.AF_INET, unix.AF_INET6), among(1, kind, unix.SOCK_STREAM, unix.SOCK_DGRAM),
			among(2, whole, 0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6),
		},
		[]test{among(0, whole, unix.AF_NETLINK), among(2, whole, unix.NETLINK_ROUTE)},
	)
}

// badIoctls lists requests that inject input into a terminal, or that load
// line disciplines: ioctl_tty(2). The numbers are those of amd64 and arm64.
func badIoctls() []uint32 {
	const tiocSetd, tiocLinux, tiocCons = 0x5423, 0x541c, 0x541d
	return []uint32{
		unix.TIOCSTI,        // CVE-2017-5226 and many like it
		tiocLinux, tiocCons, // selection and paste: CVE-2023-28100
		tiocSetd, // CVE-2017-2636
	}
}

// badPrctls lists what prctl(2) can do to how others see the process.
func badPrctls() []uint32 {
	return []uint32{
		unix.PR_SET_MM, // the command line that ps and audit show
		unix.PR_TASK_PERF_EVENTS_DISABLE, unix.PR_TASK_PERF_EVENTS_ENABLE,
		unix.PR_SCHED_CORE, unix.PR_MCE_KILL,
	}
}
