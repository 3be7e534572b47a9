package confine

import "golang.org/x/sys/unix"

// call is one entry of the filter's list.
type call struct {
	name   string
	answer uint32
	words  []word // all must match, else it is refused
}

// word is a condition on one 32-bit word of the arguments: argument n begins at 2n.
type word struct {
	at   int
	mask uint32 // 0: the whole word
	in   []uint32
}

// plain are the calls that go through whatever their arguments: what a daemon in use
// was seen to make, and beside it what the Go runtime and its libraries may turn to.
// Not among them is whatever starts a program, makes or names a socket, changes an id,
// an owner, a mode or a mount, or looks into another process.
func plain() []string {
	return []string{
		// the runtime: threads, time, memory, signals
		"futex", "nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "sched_yield", "sched_getaffinity",
		"getcpu", "set_robust_list", "get_robust_list", "rseq", "membarrier", "set_tid_address", "arch_prctl", "exit", "exit_group", "restart_syscall",
		"mmap", "munmap", "mprotect", "mremap", "madvise", "mincore", "brk", "mlock", "munlock",
		"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait", "sigaltstack", "tgkill", "setitimer",
		"timer_create", "timer_settime", "timer_delete", "timer_gettime",
		"getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getresuid", "getresgid", "getpgrp", "getpgid", "getsid",
		"getrusage", "getrlimit", "times", "uname", "sysinfo", "getrandom", "umask", "capget",
		// waiting
		"epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6", "eventfd2",
		"timerfd_create", "timerfd_settime", "timerfd_gettime", "inotify_init1", "inotify_add_watch", "inotify_rm_watch", "wait4", "waitid",
		// files
		"close", "close_range", "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "lseek",
		"stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "getdents64", "readlink", "readlinkat", "access", "faccessat", "faccessat2", "getcwd",
		"mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "ftruncate", "fallocate", "fadvise64",
		"fsync", "fdatasync", "sync_file_range", "flock", "getxattr", "fgetxattr", "fcntl", "dup", "dup2", "dup3", "pipe2", "memfd_create",
		"splice", "tee", "vmsplice", "sendfile", "copy_file_range",
		// sockets that are open
		"accept4", "getsockopt", "setsockopt", "getsockname", "getpeername", "recvfrom", "recvmsg", "sendmsg", "shutdown",
		// processes of pens
		"pidfd_open", "pidfd_send_signal",
	}
}

// calls is the whole list.
func calls() []call {
	var out []call
	for _, name := range plain() {
		out = append(out, call{name: name, answer: allow})
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	return append(out,
		call{"clone", allow, []word{{0, unix.CLONE_THREAD | namespaces, []uint32{unix.CLONE_THREAD}}}}, // threads, no processes
		call{"clone3", absent, nil}, // its flags lie in memory; libraries turn to clone
		call{"openat", allow, []word{opening(2)}},
		call{"open", allow, []word{opening(1)}},
		call{"openat2", absent, nil},                                            // its flags lie in memory; libraries turn to openat
		call{"prlimit64", allow, []word{{0, 0, []uint32{0}}}},                   // of this process
		call{"sendto", allow, []word{{8, 0, []uint32{0}}, {9, 0, []uint32{0}}}}, // to where the socket is connected
		call{"prctl", allow, []word{{0, 0, []uint32{
			unix.PR_SET_TIMERSLACK, unix.PR_GET_TIMERSLACK, unix.PR_SET_VMA, unix.PR_SET_NAME, unix.PR_GET_NAME,
			unix.PR_GET_DUMPABLE, unix.PR_GET_NO_NEW_PRIVS, unix.PR_CAPBSET_READ,
		}}}},
		call{"ioctl", allow, []word{{2, 0, []uint32{
			unix.TCGETS, unix.TIOCGWINSZ, unix.TIOCSWINSZ, unix.TIOCINQ, unix.TIOCOUTQ, unix.TIOCGPTN,
		}}}},
	)
}

// opening is the condition on flags of open(2), argument n: what is opened for reading
// alone is not truncated. Landlock lets that be done to any file before ABI 3, since it
// looks at whether a file is open for writing.
func opening(n int) word {
	const cut = unix.O_TRUNC
	return word{2 * n, unix.O_ACCMODE | cut, []uint32{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | cut, unix.O_RDWR | cut}}
}
