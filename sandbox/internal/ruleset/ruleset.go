// Package ruleset makes Landlock rulesets as descriptors. It restricts nobody:
// the descriptor is handed to the process that restricts itself with it. It
// never asks for a right that the host's ABI lacks, and never settles for less
// than it was asked for.
package ruleset

import (
	"errors"
	"fmt"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// maxABI is the newest ABI whose rights this package knows; landlock(7).
const maxABI = 11

// ErrUnsupported is what New and ABI return where the kernel has no Landlock or
// Landlock is not in its list of security modules.
var ErrUnsupported = errors.New("landlock is not available")

// Rule allows Access below an open file. The descriptor may be an O_PATH one.
type Rule struct {
	FD     int
	File   bool   // FD is not a directory
	Access string // letters r (read, list), w (write, make, remove, rename), x (execute), l (list only)
}

// ABI returns the host's Landlock ABI, at most the newest that this package
// knows. Landlock: Linux 5.13, landlock(7).
func ABI() (int, error) {
	v, err := ll.LandlockGetABIVersion()
	switch {
	case errors.Is(err, unix.ENOSYS):
		return 0, fmt.Errorf("%w: the kernel was built without it (CONFIG_SECURITY_LANDLOCK)", ErrUnsupported)
	case errors.Is(err, unix.EOPNOTSUPP):
		return 0, fmt.Errorf("%w: it is not in the list of security modules (lsm=)", ErrUnsupported)
	case err != nil:
		return 0, fmt.Errorf("cannot read the landlock ABI: %w", err)
	case v < 1:
		return 0, fmt.Errorf("%w: the kernel answers ABI %d", ErrUnsupported, v)
	}
	return min(v, maxABI), nil
}

// New makes a ruleset that handles every file-system right of the host's ABI
// and, from ABI 6 (Linux 6.12), scopes abstract UNIX sockets and signals; what
// rules do not allow it denies. TCP and UDP are not handled: the network
// namespace decides about them. It returns the descriptor (close-on-exec; the
// caller closes it), the ABI and the mask of handled file-system rights.
// No rules, a rule without access and an unknown letter are errors.
func New(rules []Rule) (fd int, abi int, handled uint64, err error) {
	abi, err = ABI()
	if err != nil {
		return -1, 0, 0, err
	}
	if len(rules) == 0 {
		return -1, 0, 0, errors.New("cannot make a landlock ruleset: it has no rules, so that nothing could be opened")
	}
	paths := make([]landlock.Rule, 0, len(rules))
	for i, r := range rules {
		if err := check(r); err != nil {
			return -1, 0, 0, fmt.Errorf("cannot make landlock rule %d: %w", i, err)
		}
		bits := landlock.AccessFSSet(AccessBits(r.Access, !r.File, abi))
		paths = append(paths, landlock.PathAccess(bits, fmt.Sprintf("/proc/self/fd/%d", r.FD)))
	}
	c := landlock.Config{HandledAccessFS: landlock.AccessFSSet(Handled(abi)), Scoped: landlock.ScopedSet(Scoped(abi))}
	fd, _, err = c.NewRulesetFD(paths...)
	if err != nil {
		return -1, 0, 0, fmt.Errorf("cannot make a landlock ruleset: %w", err)
	}
	if fd < 0 {
		return -1, 0, 0, errors.New("cannot make a landlock ruleset: nothing to restrict; this is a bug in pinfold, please report")
	}
	return fd, abi, Handled(abi), nil
}

func check(r Rule) error {
	if r.FD < 0 {
		return fmt.Errorf("descriptor %d is not open", r.FD)
	}
	if r.Access == "" {
		return errors.New("it allows nothing")
	}
	if bad := strings.Trim(r.Access, "rwxl"); bad != "" {
		return fmt.Errorf("access %q: letters are r, w, x and l", r.Access)
	}
	return nil
}

// Handled returns the file-system rights that a ruleset handles under abi: all
// that the ABI has.
func Handled(abi int) uint64 {
	switch {
	case abi < 1:
		return 0
	case abi == 1:
		return ll.AccessFSRefer - 1
	case abi == 2: // Linux 5.19
		return ll.AccessFSTruncate - 1
	case abi < 5: // Linux 6.2
		return ll.AccessFSIoctlDev - 1
	case abi < 9: // Linux 6.10
		return ll.AccessFSResolveUnix - 1
	default: // Linux 7.1
		return ll.AccessFSResolveUnix<<1 - 1
	}
}

// Scoped returns the scopes that a ruleset has under abi: abstract UNIX sockets
// and signals from ABI 6 (Linux 6.12).
func Scoped(abi int) uint64 {
	if abi < 6 {
		return 0
	}
	return ll.ScopeAbstractUnixSocket | ll.ScopeSignal
}

// AccessBits returns the file-system rights of the letters in access for a rule
// on a directory (dir) or on any other file, cut to what abi has. Making device
// nodes is in no letter. Unknown letters add nothing.
func AccessBits(access string, dir bool, abi int) uint64 {
	var bits uint64
	for _, c := range access {
		switch c {
		case 'r':
			bits |= ll.AccessFSReadFile | ll.AccessFSReadDir
		case 'w':
			bits |= ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
				ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym |
				ll.AccessFSRefer | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
		case 'x':
			bits |= ll.AccessFSExecute
		case 'l':
			bits |= ll.AccessFSReadDir
		}
	}
	if !dir {
		bits &= ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSTruncate |
			ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
	}
	return bits & Handled(abi)
}
