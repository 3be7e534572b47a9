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
// opened.
func (l *launcher) gate(ctx context.Context) error {
	m, r, err := l.await(ctx)
	if err != nil {
		return err
	}
	if _, ok := r.(launch.Waiting); !ok || m.Cred == nil || int(m.Cred.Pid) != l.target {
		return failed("wait for the last gate", fmt.Errorf("%+v sent %T", m.Cred, r))
	}
	l.laps.Lap("launch.gate")
	if err := l.sameOpen(); err != nil {
		return failed("check that program and directory are what was looked at", err)
	}
	l.opened = true
	l.laps.Lap("launch.opened")
	return nil
}

// open has the target open program and directory before its command is known.
func (l *launcher) open() error {
	e, err := launch.Command{Program: l.opening.Program, Dir: l.opening.Dir, Argv: []string{""}}.Encode()
	if err == nil {
		err = l.send(e.Area, e.Open)
	}
	return err
}

// command gives the target its command, and has it open program and directory unless it
// has those open, and executes what is open: a script is found once more by its path.
// Where it has others open it waits at the last gate, through which it comes to the words:
// the first of them lead back there.
func (l *launcher) command() error {
	c := launch.Command{Program: l.c.Program, Dir: l.c.Dir, Argv: l.c.Argv, Env: l.c.Env, Script: l.c.Script}
	e, err := c.Encode()
	if err != nil {
		return err
	}
	defer clear(e.Area) // may hold secrets
	o := l.c.Opening()
	if l.opened && !c.Script && o.Known() && o == *l.opening {
		return l.send(e.Area, e.Exec)
	}
	if err := l.send(e.Area, append(e.Open, e.Exec...)); err != nil {
		return err
	}
	if l.opened {
		_, err = l.gate2.Write([]byte{1})
	}
	l.opening, l.opened = &o, false
	return err
}

// send puts a command where the target finds it, and sends words of it.
func (l *launcher) send(area, words []byte) error {
	if _, err := l.area.WriteAt(area, 0); err != nil {
		return err
	}
	return linux.WriteNumber(l.gate1, words)
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
