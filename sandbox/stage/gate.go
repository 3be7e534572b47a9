package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
)

// gate waits until the target waits at its last gate, and reads there what is in
// force.
func (l *launcher) gate(ctx context.Context) (sandbox.Enforcement, error) {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	if err := l.await(ctx); err != nil {
		return sandbox.Enforcement{}, err
	}
	if err := l.status.SetReadDeadline(time.Time{}); err != nil {
		return sandbox.Enforcement{}, failed("wait for the last gate", err)
	}
	l.laps.Lap("launch.pid1")
	e, err := l.verify()
	l.laps.Lap("launch.verify")
	return e, err
}

// await returns once the target says that it goes to its last gate, or with the
// step that failed before. Who says so is told by the kernel: SCM_CREDENTIALS,
// unix(7), with the pid as we see it.
func (l *launcher) await(ctx context.Context) error {
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ran)
		_ = l.status.SetReadDeadline(time.Unix(1, 0)) // a closed socket wakes the reader by itself
	})
	defer func() {
		if !stop() {
			<-ran // else it could cut short a later read
		}
	}()
	buf := make([]byte, launch.MaxRecord+1)
	m, err := linux.Receive(l.status, buf)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		err = errors.New("PID 1 ended without a word")
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	if err != nil {
		linux.CloseAll(m.Files...)
		return failed("wait for the last gate", err)
	}
	linux.CloseAll(m.Files...)
	r, err := launch.DecodeRecord(m.Data)
	if err != nil {
		return failed("wait for the last gate", err)
	}
	switch r := r.(type) {
	case launch.Waiting:
		l.canaries = r
		return l.found(m)
	case launch.Failed:
		text := l.v.prog.Step(r.Step)
		return &sandbox.StepError{
			Step: r.Step, Text: text, Where: l.v.prog.Where(r.Step), Errno: r.Errno, Hint: sandbox.StepHint(text, r.Errno),
		}
	default:
		return failed("wait for the last gate", fmt.Errorf("PID 1 sent %T", r))
	}
}

// found checks that the one who waits is in the job cgroup and is not PID 1.
func (l *launcher) found(m linux.Message) error {
	if m.Cred == nil || m.Cred.Pid <= 0 || int(m.Cred.Pid) == l.pid {
		return failed("find the target", errors.New("its record names no process of its own"))
	}
	l.target = int(m.Cred.Pid)
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
