// Package launch starts an image as PID 1 of a new pen and knows the messages
// that pass on its status socket. It never looks at what the image does and
// never waits for it.
package launch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start is one pen to start.
type Start struct {
	Image  *os.File    // as image.Program.Memfd returns it
	Files  map[int]int // number in PID 1 (image.FD…) -> descriptor here; 0, 1, 2 and the held ones must be there
	Flags  uintptr     // namespaces: CLONE_NEW… of clone(2)
	Cgroup *os.File    // v2 directory that PID 1 begins in (CLONE_INTO_CGROUP, Linux 5.7); nil: this process's
	Argv   []string    // of the image: what ps(1) shows of PID 1
	Env    []string

	// On calls f once on the thread to start from, before it returns. PID 1 begins with a
	// copy of that thread's mount namespace and root. nil: any thread.
	On func(f func())

	// With CLONE_NEWUSER; user_namespaces(7).
	UIDMaps, GIDMaps []syscall.SysProcIDMap
	Groups           Groups
	Credential       *syscall.Credential // ids inside that the image is executed with; 0 keeps its capabilities
	Ambient          []uintptr           // capabilities kept where the ids are not 0: capabilities(7)
}

// Groups says whether a user namespace may call setgroups(2).
type Groups string

// Answers to setgroups in a user namespace.
const (
	GroupsDenied  Groups = "" // as a process without CAP_SETGID must: user_namespaces(7)
	GroupsAllowed Groups = "allowed"
)

// Run starts PID 1, which waits at the first gate. It returns its pid and a
// pidfd (Linux 5.3) that the caller closes; the caller also waits for the pid.
func Run(s Start) (int, *os.File, error) {
	if len(s.Argv) == 0 {
		return 0, nil, errors.New("cannot start PID 1 of the pen: argv is empty")
	}
	for n := range s.Files {
		if n < 0 || n >= aboveFixed {
			return 0, nil, fmt.Errorf("cannot start PID 1 of the pen: descriptor number %d is not below %d", n, aboveFixed)
		}
	}
	// The child puts Files on their numbers before its exec, so the image must have none of those.
	im, err := unix.FcntlInt(s.Image.Fd(), unix.F_DUPFD_CLOEXEC, aboveAll(table(s.Files)))
	if err != nil {
		return 0, nil, fmt.Errorf("cannot start PID 1 of the pen: %w", os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err))
	}
	defer func() { _ = unix.Close(im) }()
	start := forkExec
	if sharing(s) {
		start = runShared
	}
	pid, pidfd, err := start(s, im)
	if err != nil {
		return pid, nil, fmt.Errorf("cannot start PID 1 of the pen: %w", err)
	}
	return pid, os.NewFile(uintptr(pidfd), "pidfd"), nil
}

func (s Start) on(f func()) {
	if s.On == nil {
		f()
		return
	}
	s.On(f)
}

// forkExec starts an image by package syscall: a vfork, but with CLONE_NEWUSER a
// fork that copies our memory's page tables.
func forkExec(s Start, im int) (pid, pidfd int, err error) {
	pidfd = -1
	sys := &syscall.SysProcAttr{
		Cloneflags:                 s.Flags,
		PidFD:                      &pidfd,
		UidMappings:                s.UIDMaps,
		GidMappings:                s.GIDMaps,
		GidMappingsEnableSetgroups: s.Groups == GroupsAllowed,
		Credential:                 s.Credential,
		AmbientCaps:                s.Ambient,
	}
	if s.Cgroup != nil {
		sys.UseCgroupFD = true
		sys.CgroupFD = int(s.Cgroup.Fd())
	}
	attr := &syscall.ProcAttr{Env: s.Env, Files: table(s.Files), Sys: sys}
	s.on(func() { pid, err = syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(im), s.Argv, attr) })
	if err != nil {
		return 0, -1, os.NewSyscallError("clone", err)
	}
	if pidfd < 0 {
		return pid, -1, fmt.Errorf("cannot get a pidfd for %d: the kernel is older than 5.3", pid)
	}
	return pid, pidfd, nil
}

// aboveAll is above every number that the child uses on its way to files: it puts
// some of them, and one of its own, aside above the highest first. Not higher than
// needed: the kernel copies the table of descriptors up to the last that is open.
func aboveAll(files []uintptr) int {
	top := len(files)
	for _, fd := range files {
		if fd != ^uintptr(0) {
			top = max(top, int(fd))
		}
	}
	return top + len(files) + 2
}

// aboveFixed is above every number that a pen may have in Files.
const aboveFixed = 512

// table puts descriptors on their numbers and closes the gaps between them.
func table(files map[int]int) []uintptr {
	top := 2
	for n := range files {
		top = max(top, n)
	}
	t := slices.Repeat([]uintptr{^uintptr(0)}, top+1)
	for n, fd := range files {
		t[n] = uintptr(fd)
	}
	return t
}
