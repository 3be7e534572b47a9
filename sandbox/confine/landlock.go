package confine

import (
	"errors"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/ruleset"
)

// Rights in the rules: landlock(7).
const (
	reading = ll.AccessFSReadFile | ll.AccessFSReadDir
	writing = ll.AccessFSWriteFile | ll.AccessFSTruncate
	making  = ll.AccessFSMakeDir | ll.AccessFSMakeReg
)

// restrict enforces a ruleset on every thread: everything may be read, n written, and
// nothing executed. Landlock refuses by itself what no right stands for: changes of the
// mount table, and looking into processes outside, as for ptrace(2). Signals are not
// scoped, since pens are outside. It returns the host's ABI.
func restrict(n Needs) (abi int, err error) {
	abi, err = ruleset.ABI()
	if err != nil {
		return 0, err
	}
	attr := ll.RulesetAttr{HandledAccessFS: ruleset.Handled(abi)}
	if abi >= 4 { // Linux 6.7
		attr.HandledAccessNet = ll.AccessNetBindTCP | ll.AccessNetConnectTCP
	}
	attr.Scoped = ruleset.Scoped(abi) &^ ll.ScopeSignal
	fd, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return 0, os.NewSyscallError("landlock_create_ruleset", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd))) }()
	for _, r := range rules(n) {
		if err := r.add(fd, attr.HandledAccessFS); err != nil {
			return 0, err
		}
	}
	if err := ll.AllThreadsLandlockRestrictSelf(fd, 0); err != nil {
		return 0, os.NewSyscallError("landlock_restrict_self", err)
	}
	return abi, nil
}

// rule allows access at a path and below it.
type rule struct {
	path   string
	access uint64
}

func rules(n Needs) []rule {
	out := []rule{{"/", reading}}
	for _, list := range []struct {
		paths  []string
		access uint64
	}{{n.Trees, writing | making | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile}, {n.Remove, ll.AccessFSRemoveDir}, {n.Unlink, ll.AccessFSRemoveFile}, {n.Files, writing}} {
		for _, p := range list.paths {
			out = append(out, rule{p, list.access})
		}
	}
	return out
}

func (r rule) add(ruleset int, handled uint64) error {
	fd, err := unix.Open(r.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot allow %s: open: %w", r.path, err)
	}
	at := ll.PathBeneathAttr{AllowedAccess: r.access & handled, ParentFd: fd}
	err = os.NewSyscallError("landlock_add_rule", ll.LandlockAddPathBeneathRule(ruleset, &at, 0))
	return errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
}
