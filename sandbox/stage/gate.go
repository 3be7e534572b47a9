package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
)

// confined waits until all that confines the target is in force, and reads that back.
func (l *launcher) confined(ctx context.Context) (sandbox.Enforcement, error) {
	m, r, err := l.await(ctx)
	if err != nil {
		return sandbox.Enforcement{}, err
	}
	c, ok := r.(launch.Confined)
	if !ok {
		return sandbox.Enforcement{}, failed("wait for the target", fmt.Errorf("it sent %T", r))
	}
	l.canaries = c
	if err := l.found(m.Cred); err != nil {
		return sandbox.Enforcement{}, err
	}
	l.laps.Lap("launch.confined")
	e, err := l.verify()
	l.laps.Lap("launch.verify")
	return e, err
}

// gate waits until the target waits at its last gate, and looks there at what it has
// opened for its command.
func (l *launcher) gate(ctx context.Context) error {
	m, r, err := l.await(ctx)
	if err != nil {
		return err
	}
	if _, ok := r.(launch.Waiting); !ok || m.Cred == nil || int(m.Cred.Pid) != l.target {
		return failed("wait for the last gate", fmt.Errorf("%+v sent %T", m.Cred, r))
	}
	l.laps.Lap("launch.gate")
	if err := l.opened(); err != nil {
		return failed("check that program and directory are what was looked at", err)
	}
	l.laps.Lap("launch.opened")
	return nil
}

// await returns what the target says next, or the step that failed. Who says so is told
// by the kernel: SCM_CREDENTIALS, unix(7), with the pid as we see it.
func (l *launcher) await(ctx context.Context) (linux.Message, launch.Record, error) {
	m, err := linux.ReceiveUntil(ctx, linux.Receive, l.status, make([]byte, launch.MaxRecord+1))
	linux.CloseNumbers(m.FDs...)
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		err = errors.New("PID 1 ended without a word")
	}
	var r launch.Record
	if err == nil {
		r, err = launch.DecodeRecord(m.Data)
	}
	if err != nil {
		return m, nil, failed("wait for the target", err)
	}
	if r, ok := r.(launch.Failed); ok {
		text := l.v.prog.Step(r.Step)
		return m, nil, &sandbox.StepError{
			Step: r.Step, Text: text, Where: l.v.prog.Where(r.Step), Errno: r.Errno, Hint: sandbox.StepHint(text, r.Errno),
		}
	}
	return m, r, nil
}

// found checks that the one who waits is in the job cgroup and is not PID 1.
func (l *launcher) found(c *unix.Ucred) error {
	if c == nil || c.Pid <= 0 || int(c.Pid) == l.pid {
		return failed("find the target", errors.New("its record names no process of its own"))
	}
	l.target = int(c.Pid)
	return l.inJob()
}

// inJob checks that the target is in the job cgroup.
func (l *launcher) inJob() error {
	b, err := linux.ReadNumber(l.job, "cgroup.procs", maxProcFile)
	if err != nil {
		return failed("find the target", err)
	}
	if !slices.Contains(strings.Fields(string(b)), strconv.Itoa(l.target)) {
		return failed("find the target", fmt.Errorf("process %d is not in the cgroup %s/job", l.target, l.site.Cgroup))
	}
	return nil
}

const maxProcFile = 4 << 20 // bytes of a file of proc(5) or of a cgroup
