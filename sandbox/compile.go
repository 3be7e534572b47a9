package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
)

// Switch turns something of a Build on.
type Switch uint8

// States of a Switch.
const (
	Off Switch = iota
	On
)

// Join is the kind of a file to which the target writes "0" to enter a cgroup.
// cgroups(7).
type Join string

// Kinds of Join. The tasks file of v1 moves one thread and so avoids the lock of
// whole thread groups.
const (
	JoinTasks Join = "tasks"        // v1
	JoinProcs Join = "cgroup.procs" // v2
)

// DenyMount is a mount that denies a path or pins one of its parents: a
// descriptor that comes after those of the attaches is mounted on Path.
type DenyMount struct {
	// From is where Path begins: the index of an earlier DenyMount or, counted
	// before those, of an attach, so that 0 is the first attach and
	// len(Profile.Attach) the first DenyMount. FromView: Path is absolute in the view.
	From int
	Path string // one name with From; no symlink in it is followed
}

// FromView says that the Path of a DenyMount is absolute.
const FromView = -1

// Build is what a Program depends on besides its Profile: facts about the host
// and the files of one launch.
type Build struct {
	Join        []Join            // cgroups that the target enters by descriptors FDJoin…, in order
	IntoCgroup  Switch            // the target is cloned into the v2 cgroup of FDJob: CLONE_INTO_CGROUP, Linux 5.7
	Groups      Switch            // supplementary groups are dropped; Off where a user namespace denies setgroups(2)
	MemfdNoexec Switch            // with exec: listed, vm.memfd_noexec=2 is set in the pen: Linux 6.3, PID 1 is host uid 0
	Announce    Switch            // the target sends a Waiting record before it reads from the last gate
	LandlockABI int               // 0: no Landlock
	Filter      []unix.SockFilter // of the target; nil: no seccomp
	AttachFiles []int             // indexes of the attaches that are files, not directories
	Ignored     []int             // signals that PID 1 begins with ignored: an exec keeps that, signal(7)
	LastCap     int               // highest capability that the kernel has: cap_last_cap in proc(5); 0: not known
	Closed      []string          // files of /proc that are masked elsewhere, and that this kernel does not have or opens for root alone
	DenyMounts  []DenyMount
}

// CloneFlags returns the namespaces that PID 1 of a profile begins in: clone(2).
// IPC and the network follow their controls.
func CloneFlags(p Profile) uintptr {
	f := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS)
	if level(p, ControlIPCNS) != LevelOff {
		f |= unix.CLONE_NEWIPC
	}
	if p.Net == NetNone {
		f |= unix.CLONE_NEWNET
	}
	if p.UserNS {
		f |= unix.CLONE_NEWUSER
	}
	return f
}

func level(p Profile, c Control) Level {
	for _, n := range p.Controls {
		if n.Control == c {
			return n.Level
		}
	}
	return LevelRequired
}

// Compile returns the exact list of system calls that PID 1 and the target of a
// pen make. It is pure: the same Profile and Build give the same Program. It
// fails when the Profile asks for something that cannot be built.
func Compile(p Profile, b Build) (*image.Program, error) {
	if err := b.check(p); err != nil {
		return nil, fmt.Errorf("cannot compile profile %q: %w", p.Name, err)
	}
	c := &compiler{Program: image.New(), p: p, b: b}
	c.compile()
	prog, err := c.Link()
	if err != nil {
		return nil, fmt.Errorf("cannot compile profile %q: %w", p.Name, err)
	}
	return prog, nil
}
