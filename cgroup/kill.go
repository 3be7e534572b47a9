package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxKillRounds bounds how often members are listed and killed one by one, where the kernel cannot kill a whole cgroup.
	maxKillRounds = 64
	// maxBusyWait bounds the wait for a v1 directory whose last member is already dead but not yet taken off the list.
	maxBusyWait = 5 * time.Second
)

// LeftoverError is what Remove or Sweep could not end: the verdict names it.
type LeftoverError struct {
	Dirs []string // cgroup directories
	Pids []int    // processes in them
	Err  error    // what stood in the way
}

// Error names the directories and processes.
func (e *LeftoverError) Error() string {
	return fmt.Sprintf("cannot remove cgroups %v with processes %v: %v", e.Dirs, e.Pids, e.Err)
}

// Unwrap returns what stood in the way.
func (e *LeftoverError) Unwrap() error {
	return e.Err
}

// kill ends every task in the cgroup name and below it.
func kill(d dir, name string) error {
	err := d.write(filepath.Join(name, "cgroup.kill"), "1")
	if errors.Is(err, os.ErrNotExist) && exists(d.path, filepath.Join(name, "cgroup.procs")) {
		return killEach(d, name)
	}
	return err
}

// killEach does kill's work before Linux 5.14: frozen, no member can fork away from its SIGKILL.
func killEach(d dir, name string) error {
	if err := d.write(filepath.Join(name, "cgroup.freeze"), "1"); err != nil {
		return err
	}
	var errs []error
	for range maxKillRounds {
		n, err := killMembers(d, name)
		if err != nil {
			errs = append(errs, err)
		}
		if n == 0 || err != nil {
			break
		}
	}
	return errors.Join(append(errs, d.write(filepath.Join(name, "cgroup.freeze"), "0"))...)
}

// killMembers sends SIGKILL to each process of the cgroup name and those below it, and says how many had not been sent it before:
// a process that has it pending is on its way out and is not counted again.
func killMembers(d dir, name string) (int, error) {
	pids, err := d.pids(name)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, pid := range pids {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if noProcess(err) {
			continue
		}
		if err != nil {
			return n, os.NewSyscallError("pidfd_open", err)
		}
		if !dying(pidfd) {
			n++
		}
		err = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		if errors.Is(err, unix.ESRCH) {
			err = nil
		}
		if err = errors.Join(os.NewSyscallError("pidfd_send_signal", err), unix.Close(pidfd)); err != nil {
			return n, err
		}
	}
	children, err := d.names(name)
	if err != nil {
		return n, err
	}
	for _, child := range children {
		m, err := killMembers(d, filepath.Join(name, child))
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Remove ends what is still in the cgroup, the first process too, waits until it is empty and removes it from all hierarchies.
// At the end of ctx it returns a LeftoverError; it may be called again. Read Usage and Events before.
func (j *Job) Remove(ctx context.Context) error {
	b := j.group.base
	for i := len(j.in) - 1; i >= 0; i-- {
		if !j.inside(i) {
			continue
		}
		leaves := []string{j.id}
		if i == 0 {
			leaves = []string{filepath.Join(j.id, jobDir), filepath.Join(j.id, initDir), j.id}
		}
		for _, leaf := range leaves {
			if err := b.remove(ctx, i, filepath.Join(j.group.path, leaf)); err != nil {
				return errors.Join(err, b.leftover(j.Path()))
			}
		}
		j.mu.Lock()
		j.in[i] = false
		j.mu.Unlock()
	}
	return nil
}

// undo removes what Process made before it failed; nobody is in it yet.
func (j *Job) undo() error {
	var errs []error
	for i, in := range j.in {
		d, ok := j.group.have(i)
		if !in || !ok {
			continue
		}
		if i == 0 {
			errs = append(errs, d.rmdir(filepath.Join(j.id, jobDir)), d.rmdir(filepath.Join(j.id, initDir)))
		}
		errs = append(errs, d.rmdir(j.id))
	}
	return errors.Join(errs...)
}

// remove removes one directory (relative to the base) of a hierarchy. The common case is one rmdir(2); if it is busy,
// its members are killed and waited for by the kernel's notification.
func (b *Base) remove(ctx context.Context, i int, rel string) error {
	d := b.hiers[i].base
	for {
		err := d.rmdir(rel)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if cerr := ctx.Err(); cerr != nil {
			return errors.Join(cerr, err)
		}
		if i > 0 {
			err = waitV1(ctx, d, rel, err)
		} else if err = kill(d, rel); err == nil {
			err = waitEvent(ctx, d, rel, "populated", 0)
		}
		if err != nil && !errors.Is(err, ErrGone) {
			return err
		}
	}
}

// waitV1 kills the members of a v1 cgroup and waits until the first of them is gone, by its pidfd. v1 has no notification of
// emptiness: only when no member is listed any more, and yet the directory is busy, is the clock the one thing left to wait for.
func waitV1(ctx context.Context, d dir, rel string, cause error) error {
	pids, err := d.pids(rel)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		ok, err := killAndWait(ctx, pid)
		if ok || err != nil {
			return err
		}
	}
	children, err := d.names(rel)
	if err != nil {
		return err
	}
	if len(children) > 0 {
		return cause
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxBusyWait, cause)
	defer cancel()
	tick := time.NewTimer(time.Millisecond)
	defer tick.Stop()
	select {
	case <-tick.C:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), cause)
	}
}

// killAndWait kills a process and waits for its end; false: it was gone already.
func killAndWait(ctx context.Context, pid int) (bool, error) {
	pidfd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if noProcess(err) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("pidfd_open", err)
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	err = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, f.Close()
	}
	if err == nil {
		err = waitReadable(ctx, f, func(fd uintptr) (bool, error) { return dying(int(fd)), nil })
	}
	return true, errors.Join(err, f.Close())
}

// noProcess says whether pidfd_open(2) failed since a process has ended: with ENOENT, or
// with EINVAL on older kernels, where a thread has its number now.
func noProcess(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

// dying says whether a pidfd's process has ended: poll(2) shows that, pidfd_open(2).
func dying(pidfd int) bool {
	set := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := retry(func() (int, error) { return unix.Poll(set, 0) })
	return err == nil && n == 1
}

// leftover lists the directories at and below a place (relative to the base) that are still there, and the processes in them.
func (b *Base) leftover(rel string) error {
	e := &LeftoverError{Err: ErrBusy}
	var errs []error
	for i := range b.hiers {
		errs = append(errs, b.leftIn(i, rel, e))
	}
	if len(e.Dirs) == 0 {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, e)...)
}

// leftIn adds what is left in one hierarchy; a directory that goes away meanwhile is not left.
func (b *Base) leftIn(i int, rel string, e *LeftoverError) error {
	d := b.hiers[i].base
	names, err := d.names(rel)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if rel != callersDir {
		e.Dirs = append(e.Dirs, filepath.Join(d.path, rel))
	}
	pids, err := d.pids(rel)
	if err != nil && !errors.Is(gone(err), ErrGone) {
		return err
	}
	e.Pids = append(e.Pids, pids...)
	for _, name := range names {
		if err := b.leftIn(i, filepath.Join(rel, name), e); err != nil {
			return err
		}
	}
	return nil
}

// busy marks the error of a cgroup with members or children.
func busy(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// ignoreBusy drops ErrBusy: somebody else uses the group.
func ignoreBusy(err error) error {
	if errors.Is(err, ErrBusy) {
		return nil
	}
	return err
}
