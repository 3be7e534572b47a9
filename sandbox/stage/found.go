package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
)

// finder finds the pens of this state directory. It is told where to look and believes
// nothing: whoever has the daemon names any process of the host.
type finder struct {
	config *Config
	boot   string
	uid    uint32 // of PID 1s
}

// found is the PID 1 of a pen that was found, and what it holds.
type found struct {
	init *os.File // pidfd
	held []held
}

// held is a descriptor for the daemon.
type held struct {
	name string
	file *os.File
}

func (f *found) close() {
	linux.CloseAll(f.init)
	for _, h := range f.held {
		linux.CloseAll(h.file)
	}
}

// add keeps a descriptor.
func (f *found) add(name string, file *os.File) { f.held = append(f.held, held{name, file}) }

// find proves that a mark is of a pen that lives, and takes its descriptors. What is
// asked of a number is of the process behind the pidfd for as long as that has not ended.
func (f *finder) find(ctx context.Context, m *sandbox.Mark) (*found, error) {
	if m.Boot != f.boot {
		return nil, noPen("the host has booted since")
	}
	init, err := f.process(m.Init)
	if err != nil {
		return nil, err
	}
	h := &found{init: init}
	err = f.prove(m)
	var status *os.File
	if err == nil {
		status, err = takeKind(init, image.FDPeer, isStatus)
	}
	if err == nil {
		h.add(sandbox.FileStatus, status)
		err = f.settled(ctx, m, init, status)
	}
	if err == nil {
		err = h.streams()
	}
	if err == nil {
		err = f.target(m, h)
	}
	if err == nil {
		err = alive(init)
	}
	if err == nil {
		d, e := linux.Dup(init)
		h.add(sandbox.FileInit, d)
		err = e
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// process opens the process of a mark: the one that was started then, not a later one
// with its number.
func (f *finder) process(p sandbox.ProcessMark) (*os.File, error) {
	if p.Pid <= 0 {
		return nil, noPen("%d is no process", p.Pid)
	}
	fd, err := linux.PidfdOpen(p.Pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, noPen("process %d has ended", p.Pid)
	}
	if err != nil {
		return nil, err
	}
	start, err := linux.StartTime(p.Pid)
	ended, e := linux.Ended(fd)
	switch {
	case e != nil:
		err = e
	case ended || gone(err) || errors.Is(err, unix.ESRCH):
		err = noPen("process %d has ended", p.Pid)
	case err == nil && start != p.Start:
		err = noPen("process %d is another: it was started at %d, not at %d", p.Pid, start, p.Start)
	}
	if err != nil {
		linux.CloseAll(fd)
		return nil, err
	}
	return fd, nil
}

// alive says that the process has not ended.
func alive(pidfd *os.File) error {
	ended, err := linux.Ended(pidfd)
	if err == nil && ended {
		return noPen("its PID 1 has ended")
	}
	return err
}

// prove shows that the process is the PID 1 of one of our pens: alone in the cgroup that
// our pens have theirs in, and the first of its pid namespace; and it executes an image of a stage of this state
// directory. Nobody can make a process execute that who does not have it in their hands
// anyway: what it executes is decided by a process itself.
func (f *finder) prove(m *sandbox.Mark) error {
	in, err := f.members(m.Cgroup + "/init")
	if err != nil {
		return err
	}
	if !slices.Equal(in, []string{strconv.Itoa(m.Init.Pid)}) {
		return noPen("process %d is not in the cgroup %s/init alone", m.Init.Pid, m.Cgroup)
	}
	st, err := readStatus(m.Init.Pid)
	if err != nil {
		return err
	}
	if st.innermost != "1" {
		return noPen("process %d is no PID 1 of a pen", m.Init.Pid)
	}
	return f.executesImage(m.Init.Pid)
}

// members are the processes of a cgroup below our base.
func (f *finder) members(rel string) ([]string, error) {
	dir, ok := f.config.base("")
	if !ok {
		return nil, noPen("the stage was given no cgroup v2 directory")
	}
	if !filepath.IsLocal(rel) || filepath.Clean(rel) != rel {
		return nil, noPen("%q is no cgroup of ours", rel)
	}
	base, err := linux.OpenAt(nil, dir, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(base)
	n, err := linux.OpenNumber(base, rel+"/cgroup.procs", unix.O_RDONLY, linux.OneFS)
	if gone(err) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
		return nil, noPen("there is no cgroup %s", rel)
	}
	if err != nil {
		return nil, err
	}
	defer linux.CloseNumbers(n)
	b, err := linux.ReadNumber(n, "cgroup.procs", maxProcFile)
	if errors.Is(err, unix.ENODEV) {
		return nil, noPen("the cgroup %s was removed", rel)
	}
	return strings.Fields(string(b)), err
}

// imageName is the name of the images of a state directory, as exe in proc(5) shows it.
func imageName(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "pinfold-init-" + hex.EncodeToString(sum[:8])
}

// executesImage reports whether a process executes an image that a stage of this state directory
// wrote: an anonymous file of our own uid with our name or, where there can be none, a
// nameless one in our directory (image.Program.Memfd).
func (f *finder) executesImage(pid int) error {
	st, err := linux.StatPath(procPath(pid, "exe"))
	var name string
	if err == nil {
		name, err = os.Readlink(procPath(pid, "exe"))
	}
	if gone(err) || errors.Is(err, unix.ESRCH) {
		return noPen("process %d has ended", pid)
	}
	if err != nil {
		return err
	}
	memory, err := linux.AnonymousFile("pinfold-same")
	if err != nil {
		return err
	}
	defer linux.CloseAll(memory)
	own, err := linux.Stat(memory)
	if err != nil {
		return err
	}
	dir := filepath.Join(f.config.State, "stage")
	disk, err := linux.StatPath(dir)
	if err != nil {
		return err
	}
	anonymous := st.Dev == own.Dev && name == "/memfd:"+imageName(f.config.State)+" (deleted)"
	nameless := st.Dev == disk.Dev && st.Nlink == 0 && strings.HasPrefix(name, dir+"/#") && strings.HasSuffix(name, " (deleted)")
	if !anonymous && !nameless || st.Mode != unix.S_IFREG|image.Mode || int(st.Uid) != os.Geteuid() {
		return noPen("process %d does not execute an image of ours, but %s", pid, name)
	}
	return nil
}

// maxSettleTime bounds how long a PID 1 may take from its last gate until it holds no more
// than it may.
const maxSettleTime = 5 * time.Second

// settled waits until the target runs and PID 1 has given up what it had. The first that it
// says after its last gate is that it has.
func (f *finder) settled(ctx context.Context, m *sandbox.Mark, init, status *os.File) error {
	st, err := readStatus(m.Init.Pid)
	waits := false
	if err == nil {
		waits, err = waitsForExec(init)
	}
	if err == nil && (waits || !f.holds(st)) {
		if err = started(ctx, status); err == nil {
			st, err = readStatus(m.Init.Pid)
		}
	}
	switch {
	case gone(err) || errors.Is(err, unix.ESRCH):
		return noPen("its PID 1 has ended")
	case err != nil:
		return err
	case !f.holds(st):
		return noPen("process %d has other rights than a PID 1 that waits", m.Init.Pid)
	}
	return nil
}

// waitsForExec reports whether a PID 1 still has the pipe that tells it of the target's exec.
func waitsForExec(init *os.File) (bool, error) {
	p, err := linux.TakeFile(init, image.FDAliveRead, "pipe of the exec")
	if errors.Is(err, unix.EBADF) {
		return false, nil
	}
	linux.CloseAll(p)
	return err == nil, err
}

// holds reports whether a process has what PID 1 has once the target runs.
func (f *finder) holds(st *procStatus) bool {
	return st.uid == f.uid && st.sameIDs && st.caps == (sandbox.CapSets{}) && st.noNewPrivs && st.seccomp == unix.SECCOMP_MODE_FILTER
}

// started waits for the record that tells of the start, and leaves it where it is.
func started(ctx context.Context, status *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, maxSettleTime)
	defer cancel()
	m, err := linux.ReceiveUntil(ctx, linux.Peek, status, make([]byte, launch.MaxRecord+1))
	linux.CloseNumbers(m.FDs...)
	if err != nil {
		return noPen("its target was not started: %v", err)
	}
	r, err := launch.DecodeRecord(m.Data)
	if _, ok := r.(launch.Started); !ok {
		return noPen("its target was not started: %T, %v", r, err)
	}
	return nil
}

// streams takes the far ends of the streams. Where PID 1 has closed the one of standard
// input, or never had one, there is none.
func (f *found) streams() error {
	in, err := takeKind(f.init, image.FDHeldIn, func(in *os.File) bool { return isPipe(in, unix.O_WRONLY) || isTerminal(in) })
	if errors.Is(err, unix.EBADF) {
		in, err = nil, nil
	}
	if err != nil {
		return err
	}
	name, end, mode := sandbox.FileStderr, sandbox.FileStdin, unix.O_RDONLY
	if in != nil && isTerminal(in) {
		name, end, mode = sandbox.FileRelay, sandbox.FilePTY, unix.O_WRONLY
	}
	if in != nil {
		f.add(end, in)
	}
	out, err := takeKind(f.init, image.FDHeldOut, func(out *os.File) bool { return isPipe(out, unix.O_RDONLY) })
	if err != nil {
		return err
	}
	f.add(sandbox.FileStdout, out)
	last, err := takeKind(f.init, image.FDHeldErr, func(last *os.File) bool { return isPipe(last, mode) })
	if err != nil {
		return err
	}
	f.add(name, last)
	return nil
}

// takeKind takes a descriptor of a process, which must be of a kind.
func takeKind(pidfd *os.File, n int, is func(*os.File) bool) (*os.File, error) {
	f, err := linux.TakeFile(pidfd, n, "descriptor "+strconv.Itoa(n))
	if errors.Is(err, unix.ESRCH) {
		return nil, noPen("its PID 1 has ended")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot take descriptor %d of PID 1: %w", n, err)
	}
	if !is(f) {
		linux.CloseAll(f)
		return nil, noPen("descriptor %d of its PID 1 is not what a pen has there", n)
	}
	return f, nil
}

func isStatus(f *os.File) bool { return linux.IsSeqpacket(f) }

func isPipe(f *os.File, mode int) bool {
	st, err := linux.Stat(f)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return false
	}
	got, err := linux.AccessMode(f)
	return err == nil && got == mode
}

// isTerminal reports whether f is the master of a terminal: pts(4).
func isTerminal(f *os.File) bool {
	st, err := linux.Stat(f)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(5, 2)
}

// target opens the main process where it has not ended: in the job's cgroup, and in the
// pid namespace of its PID 1.
func (f *finder) target(m *sandbox.Mark, h *found) error {
	fd, err := f.process(m.Target)
	if errors.Is(err, sandbox.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.inJob(m)
	if ended, e := linux.Ended(fd); err != nil && e == nil && ended { // while it was looked at
		linux.CloseAll(fd)
		return nil
	}
	if err != nil {
		linux.CloseAll(fd)
		return err
	}
	h.add(sandbox.FileTarget, fd)
	return nil
}

func (f *finder) inJob(m *sandbox.Mark) error {
	in, err := f.members(m.Cgroup + "/job")
	if err != nil {
		return err
	}
	if !slices.Contains(in, strconv.Itoa(m.Target.Pid)) {
		return noPen("process %d is not in the cgroup %s/job", m.Target.Pid, m.Cgroup)
	}
	a, err := linux.StatPath(procPath(m.Init.Pid, "ns/pid"))
	if err != nil {
		return err
	}
	b, err := linux.StatPath(procPath(m.Target.Pid, "ns/pid"))
	if err != nil {
		return err
	}
	if idOf(a) != idOf(b) {
		return noPen("process %d is in another pen", m.Target.Pid)
	}
	return nil
}
