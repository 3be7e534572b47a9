package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
)

// trialTime is the longest that one trial may take: each takes a few milliseconds.
const trialTime = 5 * time.Second

// blocked says which call of a trial was refused, and how. A nil *blocked means
// that the trial went through.
type blocked struct {
	call  string        // as strace(1) would name it
	errno syscall.Errno // 0: see note
	note  string
}

func (b *blocked) String() string {
	if b.errno == 0 {
		return b.call + ": " + b.note
	}
	name := unix.ErrnoName(b.errno)
	if name == "" {
		name = b.errno.Error()
	}
	return b.call + ": " + name
}

// blockedBy turns the error of a kernel call into a *blocked; an error that is
// none comes back as it is.
func blockedBy(err error) (*blocked, error) {
	if err == nil {
		return nil, nil //nolint:nilnil // nil is "went through", by blocked's definition
	}
	if sys, ok := errors.AsType[*os.SyscallError](err); ok {
		return &blocked{call: sys.Syscall, errno: linux.Errno(err)}, nil
	}
	if errno := linux.Errno(err); errno != 0 {
		return &blocked{call: "kernel", errno: errno}, nil
	}
	return nil, err
}

// trial is a child that makes a few system calls in namespaces of its own.
type trial struct {
	flags  uintptr              // CLONE_NEW*
	steps  func(*image.Program) // what it does; then it exits
	files  map[int]*os.File     // descriptors by their fixed numbers
	cgroup *os.File             // v2 cgroup that it is cloned into
}

// child is a trial that runs.
type child struct {
	pid     int
	status  *os.File
	program *image.Program
}

// imageDirs are where an image lies when anonymous files cannot be executed.
func imageDirs() []string { return []string{"/run", "/dev/shm", "/tmp", "/var/tmp"} }

// start starts a trial. The *blocked is about clone(2).
func (t trial) start() (*child, *blocked, error) {
	p := image.New()
	p.In("trial")
	t.steps(p)
	p.Call("exit_group", []image.Arg{image.Int(0)})
	p, err := p.Link()
	if err != nil {
		return nil, nil, err
	}
	f, err := writeImage(p)
	if err != nil {
		return nil, nil, err
	}
	defer linux.CloseAll(f)
	return t.startImage(p, f)
}

func writeImage(p *image.Program) (*os.File, error) {
	var errs []error
	for _, dir := range imageDirs() {
		f, err := p.Memfd("pinfold-probe", dir)
		if err == nil {
			return f, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (t trial) startImage(p *image.Program, f *os.File) (*child, *blocked, error) {
	ours, theirs, err := linux.SocketPair("trial")
	if err != nil {
		return nil, nil, err
	}
	defer linux.CloseAll(theirs)
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: t.places(theirs), Sys: t.attr()}
	high, err := outOfTheWay(f, attr.Files)
	if err != nil {
		linux.CloseAll(ours)
		return nil, nil, err
	}
	defer linux.CloseAll(high)
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", linux.FD(high)), []string{"pinfold-probe"}, attr)
	if err != nil {
		linux.CloseAll(ours)
		return nil, &blocked{call: "clone(" + flagNames(t.flags) + ")", errno: linux.Errno(err)}, nil
	}
	return &child{pid: pid, status: ours, program: p}, nil, nil
}

// outOfTheWay duplicates f to a number that ForkExec does not use while it puts
// files on their places.
func outOfTheWay(f *os.File, files []uintptr) (*os.File, error) {
	above := len(files)
	for _, n := range files {
		if n != ^uintptr(0) {
			above = max(above, int(n))
		}
	}
	n, err := unix.FcntlInt(uintptr(linux.FD(f)), unix.F_DUPFD_CLOEXEC, above+2*len(files))
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

func (t trial) attr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: t.flags}
	if t.flags&unix.CLONE_NEWUSER != 0 {
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if t.cgroup != nil {
		a.UseCgroupFD, a.CgroupFD = true, linux.FD(t.cgroup)
	}
	return a
}

// places puts the descriptors on their fixed numbers; the others are closed.
func (t trial) places(status *os.File) []uintptr {
	most := image.FDStatus
	for n := range t.files {
		most = max(most, n)
	}
	out := make([]uintptr, most+1)
	for i := range out {
		out[i] = ^uintptr(0)
	}
	out[image.FDStatus] = uintptr(linux.FD(status))
	for n, f := range t.files {
		out[n] = uintptr(linux.FD(f))
	}
	return out
}

// finish waits for a child, at most until the deadline of ctx or for trialTime,
// ends it, and says which step was refused.
func (c *child) finish(ctx context.Context) (*blocked, error) {
	defer linux.CloseAll(c.status)
	late := c.waitStatus(ctx)
	if late != nil {
		if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
			return nil, os.NewSyscallError("kill", err)
		}
	}
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.pid, &ws, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("wait4", err)
		}
		break
	}
	switch {
	case late != nil:
		return late, nil
	case ws.Exited() && ws.ExitStatus() == 0:
		return nil, nil //nolint:nilnil // went through
	case ws.Signaled():
		return &blocked{call: "the child", note: "ended by " + unix.SignalName(ws.Signal())}, nil
	}
	return c.record()
}

// waitStatus returns once the child wrote a record or is gone.
func (c *child) waitStatus(ctx context.Context) *blocked {
	end := time.Now().Add(trialTime)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	for {
		left := time.Until(end)
		if left <= 0 {
			return &blocked{call: "the child", note: "no answer in time"}
		}
		p := []unix.PollFd{{Fd: int32(linux.FD(c.status)), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(left/time.Millisecond)+1)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return &blocked{call: "poll", errno: linux.Errno(err)}
		}
		return nil
	}
}

// record reads which step failed.
func (c *child) record() (*blocked, error) {
	b := make([]byte, 2*image.FailedSize)
	n, _, err := unix.Recvfrom(linux.FD(c.status), b, unix.MSG_DONTWAIT)
	if err != nil || n != image.FailedSize || binary.LittleEndian.Uint32(b) != image.RecordFailed {
		return nil, fmt.Errorf("cannot read the record of a trial: %d bytes, %w", n, err)
	}
	step, errno := binary.LittleEndian.Uint32(b[4:]), syscall.Errno(binary.LittleEndian.Uint32(b[8:]))
	text, _, _ := strings.Cut(c.program.Step(int(step)), " refused with ")
	text, _, _ = strings.Cut(text, " -> ")
	if errno == 0 || errno == unix.EPROTO {
		return &blocked{call: text, note: "went through and should not have"}, nil
	}
	return &blocked{call: text, errno: errno}, nil
}

// run is start and finish.
func (t trial) run(ctx context.Context) (*blocked, error) {
	c, b, err := t.start()
	if err != nil || b != nil {
		return b, err
	}
	return c.finish(ctx)
}

func flagNames(flags uintptr) string {
	var out []string
	for _, f := range []struct {
		bit  uintptr
		name string
	}{
		{unix.CLONE_NEWUSER, "CLONE_NEWUSER"},
		{unix.CLONE_NEWNS, "CLONE_NEWNS"},
		{unix.CLONE_NEWPID, "CLONE_NEWPID"},
		{unix.CLONE_NEWIPC, "CLONE_NEWIPC"},
		{unix.CLONE_NEWUTS, "CLONE_NEWUTS"},
		{unix.CLONE_NEWNET, "CLONE_NEWNET"},
	} {
		if flags&f.bit != 0 {
			out = append(out, f.name)
		}
	}
	if len(out) == 0 {
		return "0"
	}
	return strings.Join(out, "|")
}
