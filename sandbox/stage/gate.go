package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
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
	return l.verify()
}

// await returns once the target reads from its last gate, or with the step that
// failed before.
func (l *launcher) await(ctx context.Context) error {
	wait := firstWait
	for {
		if err := l.status.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return failed("wait for the last gate", err)
		}
		wait = min(2*wait, lastWait)
		buf := make([]byte, launch.MaxRecord+1)
		m, err := linux.Receive(l.status, buf)
		if err == nil {
			linux.CloseAll(m.Files...)
			return l.record(m.Data)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return failed("wait for the last gate", errors.New("PID 1 ended without a word"))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return failed("wait for the last gate", err)
		}
		if ctx.Err() != nil {
			return failed("wait for the last gate", ctx.Err())
		}
		ok, err := l.atGate()
		if err != nil {
			return failed("wait for the last gate", err)
		}
		if ok {
			return l.status.SetReadDeadline(time.Time{})
		}
	}
}

const (
	firstWait = 500 * time.Microsecond
	lastWait  = 5 * time.Millisecond
)

func (l *launcher) record(b []byte) error {
	r, err := launch.DecodeRecord(b)
	if err != nil {
		return failed("wait for the last gate", err)
	}
	f, ok := r.(launch.Failed)
	if !ok {
		return failed("wait for the last gate", fmt.Errorf("PID 1 sent %T", r))
	}
	text := l.v.prog.Step(f.Step)
	return &sandbox.StepError{
		Step: f.Step, Text: text, Where: l.v.prog.Where(f.Step), Errno: f.Errno, Hint: sandbox.StepHint(text, f.Errno),
	}
}

// atGate finds the target in its cgroup and reports whether it reads from its
// last gate: syscall in proc(5).
func (l *launcher) atGate() (bool, error) {
	if l.target == 0 {
		b, err := linux.ReadFrom(l.job, maxProcFile)
		if err != nil {
			return false, err
		}
		line, _, _ := bytes.Cut(b, []byte("\n"))
		if len(line) == 0 {
			return false, nil
		}
		if l.target, err = strconv.Atoi(string(line)); err != nil {
			return false, err
		}
	}
	b, err := linux.ReadProc(procPath(l.target, "syscall"), maxProcFile)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return false, nil // it failed: its record comes
	}
	if err != nil {
		return false, err
	}
	return bytes.HasPrefix(b, fmt.Appendf(nil, "%d %#x ", unix.SYS_READ, image.FDGate2)), nil
}

const maxProcFile = 4 << 20 // bytes of a file of proc(5) or of a cgroup
