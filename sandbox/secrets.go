package sandbox

import (
	"os"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
)

// KeepSecrets makes this process one that nobody may trace, read the memory or
// environment of, or get a core dump of, unless they have CAP_SYS_PTRACE: prctl(2)
// PR_SET_DUMPABLE. It lowers the soft limit of core dumps too, for those that it
// starts; the hard limit stays, so that a profile can still set its own.
func KeepSecrets() error {
	if err := linux.NotDumpable(); err != nil {
		return err
	}
	return LimitCore()
}

// LimitCore is KeepSecrets for a process that must stay dumpable: it lowers the soft
// limit of core dumps alone.
func LimitCore() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	l.Cur = min(l.Max, NoCore().Value)
	return os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_CORE, &l))
}
