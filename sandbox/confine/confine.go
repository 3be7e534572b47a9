// Package confine takes from the process that calls it, from all of its threads and
// for good, what it does not go on needing: capabilities, the files that it does not
// write, and the system calls that it does not make. It knows no more of who calls
// than what Needs says, and confines nobody else.
package confine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"pinfold/sandbox/internal/ruleset"
)

// Needs is what a process keeps.
type Needs struct {
	Caps   []int    // capabilities, as far as it has them: unix.CAP_*
	Trees  []string // directories below which it makes, writes and removes files
	Remove []string // directories below which it removes directories
	Unlink []string // directories below which it removes files
	Files  []string // files that it writes
}

// Kept is what Self left in force.
type Kept struct {
	Landlock int // ABI of the ruleset; 0: this host has no Landlock
}

// Self confines the calling process. Reading, and what is open, stays as it was; what
// else it may do is Needs, and the calls of the filter. Where it fails, the process may
// be confined in part and is to end. A host without Landlock is no error: Kept tells.
func Self(n Needs) (Kept, error) {
	if err := everywhere("prctl PR_SET_NO_NEW_PRIVS", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return Kept{}, err
	}
	abi, err := restrict(n)
	if err != nil && !errors.Is(err, ruleset.ErrUnsupported) {
		return Kept{}, fmt.Errorf("cannot confine this process by Landlock: %w", err)
	}
	if err := dropCaps(n.Caps); err != nil {
		return Kept{}, fmt.Errorf("cannot drop capabilities: %w", err)
	}
	if err := install(); err != nil {
		return Kept{}, fmt.Errorf("cannot confine this process by seccomp: %w", err)
	}
	return Kept{Landlock: abi}, nil
}

// everywhere makes a system call on every thread. Each must get the same answer: where
// threads differ, the runtime ends the process.
func everywhere(call string, nr, a, b, c, d, e uintptr) error {
	if _, _, errno := psx.Syscall6(nr, a, b, c, d, e, 0); errno != 0 {
		return os.NewSyscallError(call, errno)
	}
	return nil
}
