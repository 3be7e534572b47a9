// Package attack holds the attacks on a pen: for each the layer that must refuse
// it, what the kernel must answer, and where the same attack gets through. It owns
// the table, the program that makes the attacks inside of a pen, and the targets
// on the host that they aim at; it never starts a pen and never judges by anything
// but the kernel's answer.
package attack

import (
	"errors"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Layer is what must refuse an attack.
type Layer string

// The layers.
const (
	View     Layer = "view"     // it is not there
	Mounts   Layer = "mounts"   // attributes of mounts, masks and pins
	Landlock Layer = "landlock" // no rule allows it
	Seccomp  Layer = "seccomp"  // the filter
	IDs      Layer = "ids"      // another uid, no capability, not dumpable
	NetNS    Layer = "netns"    // no such network
	IPCNS    Layer = "ipcns"    // no such segment or queue
	PidNS    Layer = "pidns"    // no such process
	Cgroup   Layer = "cgroup"   // limits and the kill of the whole group
	Limits   Layer = "rlimits"  // setrlimit(2)
	Daemon   Layer = "daemon"   // refuses the caller
)

// Class is a heading under which attacks are listed.
type Class string

// The classes.
const (
	Terminal    Class = "terminal"
	Inherited   Class = "inherited"
	Paths       Class = "paths"
	Allowlist   Class = "allowlist"
	Surface     Class = "kernel"
	Gaps        Class = "landlock"
	Daemons     Class = "daemons"
	Neighbours  Class = "neighbours"
	KernelFiles Class = "proc"
	Cgroups     Class = "cgroup"
	Network     Class = "network"
	Resources   Class = "resources"
	Ending      Class = "ending"
	Stage       Class = "stage"
	Interface   Class = "interface"
)

// Classes are all of them, in the order of docs/security.md.
func Classes() []Class {
	return []Class{
		Terminal, Inherited, Paths, Allowlist, Surface, Gaps, Daemons, Neighbours, KernelFiles, Cgroups, Network, Resources, Ending, Stage, Interface,
	}
}

// Need is a trait of a pen without which an attack proves nothing.
type Need string

// The needs.
const (
	NetNone    Need = "net: none"
	NetHost    Need = "net: host"
	ExecListed Need = "exec: listed"
	NotRoot    Need = "a uid other than 0 inside"
	Denies     Need = "denied paths in the workspace"
	Little     Need = "a memory limit of 64 MiB"
	Scoped     Need = "landlock, ABI 6"
	Apart      Need = "net: none, or landlock, ABI 6"
	OwnHome    Need = "home: private"
	PidLimit   Need = "a limit of processes of at most 1024"
	FileLimit  Need = "a limit of open files of at most 65536"
	Strict     Need = "seccomp: strict"
)

// Room is where a control run is made: outside of any pen.
type Room string

// The rooms.
const (
	AsUser Room = "user" // an ordinary user of the host
	AsRoot Room = "root" // root of the host
	InBox  Room = "box"  // root of the host in new mount, uts, ipc, net, pid and cgroup namespaces
	Nobody Room = ""     // no control run; Why says why
)

// Control is the same attack where nothing refuses it.
type Control struct {
	Room Room
	Past bool   // another answer than the refusal is enough: the arguments are of no use on purpose
	Cap  int    // capability that even root of the host may lack; 0: none
	Why  string // there is no control run
}

// Attack is one way out that must be shut.
type Attack struct {
	ID      string // CLASS/NAME
	Class   Class
	Layer   Layer    // that refuses it
	Tries   string   // what is tried, for a reader
	Want    []string // answers that count as refused
	Needs   []Need
	Reads   string // path of the host that it reads: policy must not give it, and it must be there
	Writes  string // path of the host that it writes: likewise
	Control Control
	Harmful string // why it is not for a host that others use; empty: harmless
	Alone   bool   // in a process of its own, which it may end
	Ends    bool   // judged by whoever started the pen, once that has ended

	try func(*Scene) error
}

// Table lists all attacks, class by class.
func Table() []Attack {
	return slices.Concat(terminal(), inherited(), paths(), setID(), denied(), allowlist(), surface(), families(), gaps(), daemons(), neighbours(),
		kernelFiles(), cgroups(), network(), resources(), ending(), stage(), wire())
}

// Verdict is what became of an attack.
type Verdict string

// The verdicts.
const (
	Held          Verdict = "held"
	Broken        Verdict = "broken"
	NotApplicable Verdict = "not_applicable"
)

// Lacking begins the answer of an attack that could not be made.
const Lacking = "lacks "

// Judge says what an answer means. An empty one is a success of the attack.
func (a Attack) Judge(told string) (Verdict, string) {
	want := strings.Join(a.Want, " or ")
	lack, lacks := strings.CutPrefix(told, Lacking)
	switch {
	case lacks:
		return NotApplicable, lack
	case told == "":
		return Broken, "it succeeded; " + string(a.Layer) + " must answer " + want
	case !slices.Contains(a.Want, told):
		return Broken, "answered " + told + "; " + string(a.Layer) + " must answer " + want
	}
	return Held, told
}

// lacking says that an attack cannot be made here.
type lacking string

func (l lacking) Error() string { return Lacking + string(l) }

// told names an answer: an errno as the kernel's headers do, anything else whole.
func told(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		if n := unix.ErrnoName(e); n != "" {
			return n
		}
	}
	return err.Error()
}

// class gives a class to attacks and completes their names.
func class(c Class, list ...Attack) []Attack {
	for i := range list {
		list[i].Class, list[i].ID = c, string(c)+"/"+list[i].ID
	}
	return list
}

// user, root and box are control runs that succeed; past ones get beyond the refusal.
func user() Control         { return Control{Room: AsUser} }
func root() Control         { return Control{Room: AsRoot} }
func box() Control          { return Control{Room: InBox} }
func past(r Room) Control   { return Control{Room: r, Past: true} }
func resource() Control     { return Control{Room: AsRoot, Cap: unix.CAP_SYS_RESOURCE} }
func no(why string) Control { return Control{Why: why} }
