package sandbox

import (
	"strings"
	"syscall"
)

// StepHint returns what a user can do about a step that failed with errno, or "".
func StepHint(text string, errno syscall.Errno) string {
	for _, h := range hints() {
		if h.errno == errno && strings.Contains(text, h.in) {
			return h.say
		}
	}
	return ""
}

type hint struct {
	in    string
	errno syscall.Errno
	say   string
}

// hints are tried in order; the first whose text is part of the step holds.
func hints() []hint {
	const caps = "the stage needs root's capabilities in its user namespace: run pinfoldd as root, or as a user where unprivileged user namespaces are allowed"
	return []hint{
		{"prlimit64", syscall.EPERM, "the daemon's hard limit is lower than the profile's: raise it, or lower that of the profile"},
		{"execve", syscall.ENOENT, "the program's loader or interpreter is not in the view: add it to fs.read"},
		{"execve", syscall.EACCES, "the run uid may not execute it, or it lies on a mount with noexec"},
		{"execve", syscall.ENOEXEC, "the file is neither an ELF program of this machine nor a script with #!"},
		{"execve", syscall.E2BIG, "arguments and environment are too large"},
		{"clone", syscall.EPERM, "user namespaces are restricted: sysctl kernel.apparmor_restrict_unprivileged_userns=0 or kernel.unprivileged_userns_clone=1"},
		{"clone", syscall.ENOSPC, "too many namespaces: raise sysctl user.max_user_namespaces and its like"},
		{"clone", syscall.EAGAIN, "too many processes: raise pids.max of the daemon's cgroup or the uid's RLIMIT_NPROC"},
		{"\"proc\"", syscall.EPERM, "/proc is masked outside: run the daemon where /proc is whole"},
		{"landlock", syscall.EOPNOTSUPP, "Landlock is not enabled: add landlock to the lsm= boot parameter"},
		{"landlock", syscall.ENOSYS, "the kernel has no Landlock: Linux 5.13 brings it"},
		{"idmap", syscall.EINVAL, "this file system cannot be idmapped: use run_as: caller, or move the workspace"},
		{"mount", syscall.EPERM, caps},
		{"open_tree", syscall.EPERM, caps},
		{"fsopen", syscall.EPERM, caps},
	}
}
