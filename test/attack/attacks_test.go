package attack

import (
	"errors"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Layers that refuse.
const (
	byView       = "view"     // it is not there
	byMount      = "mount"    // mount attributes and pins
	byLandlock   = "landlock" // no rule allows it
	bySeccomp    = "seccomp"  // the filter
	byIDs        = "ids"      // another uid, no capabilities, not dumpable
	byNetNS      = "netns"    // no such network
	byPidNS      = "pidns"    // no such process
	byDaemon     = "daemon"   // refuses the caller
	byCgroup     = "cgroup"   // limits of memory
	byLimit      = "rlimit"   // setrlimit(2)
	anywhere     = ""         // in every pen
	onlyListed   = "listed"   // where exec: listed holds
	withDeny     = "deny"     // where the workspace has denied paths
	littleMemory = "memory"   // where memory is limited to 64 MiB

	askDaemon = "ask the daemon for a process"
)

// attack is one way out that must be shut.
type attack struct {
	name    string
	layer   string   // that refuses it
	want    []string // errnos that count as refused
	where   string   // pens in which it is tried
	control bool     // an ordinary user outside of a pen succeeds with it
	try     func() error
}

// attacks are all of them, by class as docs/security.md lists these.
func attacks(o order) []attack {
	return slices.Concat(terminal(), inherited(), setID(), paths(), denied(), executable(o), surface(), processes(), network(o), kernelFiles(), limits())
}

// errnoName names an errno as the kernel's headers do; anything else is told whole.
func errnoName(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		if n := unix.ErrnoName(e); n != "" {
			return n
		}
	}
	return err.Error()
}

// call makes a system call by its number.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// calling is call as a try.
func calling(nr uintptr, args ...uintptr) func() error {
	return func() error { return call(nr, args...) }
}

// each tries several: nil when one of them succeeds, else all their errors, each
// once, with commas between.
func each(tries ...func() error) func() error {
	return func() error {
		var errs []string
		for _, t := range tries {
			err := t()
			if err == nil {
				return nil
			}
			errs = append(errs, errnoName(err))
		}
		slices.Sort(errs)
		return errors.New(strings.Join(slices.Compact(errs), ","))
	}
}

// refusedBy reports whether a told error is one that counts as refused.
func (a attack) refusedBy(told string) bool {
	for e := range strings.SplitSeq(told, ",") {
		if !slices.Contains(a.want, e) {
			return false
		}
	}
	return true
}
