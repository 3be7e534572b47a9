package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"pinfold/sandbox/internal/linux"
)

// Signal sends sig to the main process's group, by pidfd: PIDFD_SIGNAL_PROCESS_GROUP,
// Linux 6.9; before that, and where the main process had ended before its pen was
// adopted, to each member of the job cgroup that is in the group.
// os.ErrProcessDone when nobody is left in it.
func (p *Process) Signal(sig syscall.Signal) error {
	err := error(syscall.EINVAL)
	if p.target != nil {
		err = linux.KillGroup(p.target, sig)
	}
	if errors.Is(err, syscall.EINVAL) {
		err = p.signalMembers(sig)
	}
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("cannot send %v: %w", sig, err)
	}
	return nil
}

// signalMembers is Signal for kernels that have no group flag. A member is held
// by its pidfd before its group is read, so a pid that is used again is never hit.
func (p *Process) signalMembers(sig syscall.Signal) error {
	if p.job == "" {
		return linux.Kill(p.target, sig)
	}
	f, err := os.Open(p.job + "/cgroup.procs")
	if err != nil {
		return err
	}
	defer linux.CloseAll(f)
	hit := false
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		pid, err := strconv.Atoi(sc.Text())
		if err != nil {
			return fmt.Errorf("cannot read cgroup.procs: %w", err)
		}
		ok, err := p.signalMember(pid, sig)
		if err != nil {
			return err
		}
		hit = hit || ok
	}
	if err := sc.Err(); err != nil {
		return err
	}
	if !hit {
		return syscall.ESRCH
	}
	return nil
}

func (p *Process) signalMember(pid int, sig syscall.Signal) (bool, error) {
	fd, err := linux.PidfdOpen(pid)
	if errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer linux.CloseAll(fd)
	g, err := linux.GroupOf(pid)
	if err == nil && g != p.Pid {
		return false, nil
	}
	if err == nil {
		err = linux.Kill(fd, sig)
	}
	if errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	return err == nil, err
}
