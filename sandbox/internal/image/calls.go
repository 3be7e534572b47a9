package image

import (
	"slices"

	"golang.org/x/sys/unix"
)

// call is a system call that a Program may make.
type call struct {
	name   string
	number uint16
	args   int // as strace(1) prints it
}

// calls lists them by name. Only calls that every architecture has are here.
var calls = []call{
	{"add_key", unix.SYS_ADD_KEY, 5},
	{"capset", unix.SYS_CAPSET, 2},
	{"chdir", unix.SYS_CHDIR, 1},
	{"clone", unix.SYS_CLONE, 5},
	{"clone3", unix.SYS_CLONE3, 2},
	{"close", unix.SYS_CLOSE, 1},
	{"close_range", unix.SYS_CLOSE_RANGE, 3},
	{"dup3", unix.SYS_DUP3, 3},
	{"execve", unix.SYS_EXECVE, 3},
	{"execveat", unix.SYS_EXECVEAT, 5},
	{"exit_group", unix.SYS_EXIT_GROUP, 1},
	{"fchdir", unix.SYS_FCHDIR, 1},
	{"fchownat", unix.SYS_FCHOWNAT, 5},
	{"fcntl", unix.SYS_FCNTL, 3},
	{"getpid", unix.SYS_GETPID, 0},
	{"ioctl", unix.SYS_IOCTL, 3},
	{"landlock_add_rule", unix.SYS_LANDLOCK_ADD_RULE, 4},
	{"landlock_restrict_self", unix.SYS_LANDLOCK_RESTRICT_SELF, 2},
	{"memfd_create", unix.SYS_MEMFD_CREATE, 2},
	{"mkdirat", unix.SYS_MKDIRAT, 3},
	{"mknodat", unix.SYS_MKNODAT, 4},
	{"mmap", unix.SYS_MMAP, 6},
	{"mount", unix.SYS_MOUNT, 5},
	{"mount_setattr", unix.SYS_MOUNT_SETATTR, 5},
	{"move_mount", unix.SYS_MOVE_MOUNT, 5},
	{"munmap", unix.SYS_MUNMAP, 2},
	{"openat", unix.SYS_OPENAT, 4},
	{"openat2", unix.SYS_OPENAT2, 4},
	{"pivot_root", unix.SYS_PIVOT_ROOT, 2},
	{"pipe2", unix.SYS_PIPE2, 2},
	{"ppoll", unix.SYS_PPOLL, 5},
	{"prctl", unix.SYS_PRCTL, 5},
	{"prlimit64", unix.SYS_PRLIMIT64, 4},
	{"read", unix.SYS_READ, 3},
	{"recvfrom", unix.SYS_RECVFROM, 6},
	{"rt_sigaction", unix.SYS_RT_SIGACTION, 4},
	{"rt_sigprocmask", unix.SYS_RT_SIGPROCMASK, 4},
	{"seccomp", unix.SYS_SECCOMP, 3},
	{"setgroups", unix.SYS_SETGROUPS, 2},
	{"sethostname", unix.SYS_SETHOSTNAME, 2},
	{"setresgid", unix.SYS_SETRESGID, 3},
	{"setresuid", unix.SYS_SETRESUID, 3},
	{"setsid", unix.SYS_SETSID, 0},
	{"signalfd4", unix.SYS_SIGNALFD4, 4},
	{"socket", unix.SYS_SOCKET, 3},
	{"umask", unix.SYS_UMASK, 1},
	{"umount2", unix.SYS_UMOUNT2, 2},
	{"unshare", unix.SYS_UNSHARE, 1},
	{"wait4", unix.SYS_WAIT4, 4},
	{"write", unix.SYS_WRITE, 3},
}

func find(name string) *call {
	i := slices.IndexFunc(calls, func(c call) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return &calls[i]
}
