package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Pen is a pen whose target waits at the last gate. It ends in exactly one of
// Start, Open and Abort.
type Pen struct {
	Enforcement Enforcement // what the kernel showed at the gate
	InitPid     int         // PID 1 of the pen, as this process sees it
	Pid         int         // the target, as this process sees it
	Laps        []Lap       // of the launch, where they were asked for

	stage   *Stage
	id      uint64
	initUID uint32 // what PID 1 is to become
	program string // path inside the pen
	job     string // directory of the job cgroup in v2, or ""
	mark    Mark   // without what was read back
	files   map[string]*os.File
}

// Start opens the gate and returns once the target's program runs. If the exec
// fails, the error is a *StepError and nothing is left of the pen.
func (p *Pen) Start(ctx context.Context) (*Process, error) {
	q, err := p.Open(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Started(ctx, q); err != nil {
		return nil, err
	}
	return q, nil
}

// Open opens the gate. What comes of it Started waits for, which must follow.
func (p *Pen) Open(ctx context.Context) (*Process, error) {
	err := p.open()
	var q *Process
	if err == nil {
		q, err = p.process()
	}
	if err != nil {
		return nil, errors.Join(err, p.Abort(context.WithoutCancel(ctx)))
	}
	return q, nil
}

// Started waits until the program of q, which Open gave, runs. After an error nothing is
// left of the pen.
func (p *Pen) Started(ctx context.Context, q *Process) error {
	r, from, err := q.next(ctx, linux.Receive)
	if err == nil {
		switch r := r.(type) {
		case launch.Started:
			if err = p.dropped(from); err == nil {
				return nil
			}
		case launch.Failed:
			err = p.stepError(context.WithoutCancel(ctx), r)
		default:
			err = fmt.Errorf("cannot start: PID 1 of the pen sent %T", r)
		}
	}
	return errors.Join(err, q.end(context.WithoutCancel(ctx)))
}

// open lets the target through its last gate. The stage has ended every pen that was
// not started when it is gone.
func (p *Pen) open() error {
	gate := p.files[FileGate]
	if gate == nil {
		return errors.New("cannot start: the pen was started or ended before")
	}
	delete(p.files, FileGate)
	defer linux.CloseAll(gate)
	select {
	case <-p.stage.done:
		return ErrStageGone
	default:
	}
	err := linux.WriteNumber(linux.FD(gate), []byte{1})
	if errors.Is(err, syscall.EPIPE) { // what ended it says why on the status socket
		return nil
	}
	return err
}

// dropped checks what the kernel says of PID 1, which tells of the start only once it
// has given up what it had.
func (p *Pen) dropped(c *unix.Ucred) error {
	if p.initUID == 0 {
		return nil
	}
	if c == nil || c.Uid != p.initUID || c.Gid != p.initUID || int(c.Pid) != p.InitPid {
		return fmt.Errorf("cannot start: PID 1 of the pen is %+v, not %d as uid and gid %d: it has kept more than it may", c, p.InitPid, p.initUID)
	}
	return nil
}

func (p *Pen) stepError(ctx context.Context, f launch.Failed) error {
	e := &StepError{Step: f.Step, Text: "?", Where: WhereTarget, Errno: f.Errno, Path: p.program}
	var t stagewire.Text
	if _, err := p.stage.ask(ctx, stagewire.OpStep, stagewire.Pen{Pen: p.id, Step: f.Step}, &t, dropAnswer); err == nil {
		e.Text, e.Where = t.Text, t.Where
	}
	e.Hint = StepHint(e.Text, e.Errno)
	return e
}

// Abort ends the pen; nothing of it is left when Abort returns nil.
func (p *Pen) Abort(ctx context.Context) error {
	for _, f := range p.files {
		linux.CloseAll(f)
	}
	p.files = nil
	_, err := p.stage.ask(ctx, stagewire.OpAbort, stagewire.Pen{Pen: p.id}, nil, dropAnswer)
	if errors.Is(err, ErrStageGone) {
		return nil // its last act is to end every pen that was not started
	}
	return err
}

// process takes over the descriptors, ready to be waited for.
func (p *Pen) process() (*Process, error) {
	for n, f := range p.files {
		if n == FileInit || n == FileTarget {
			continue // nothing is read from a pidfd
		}
		g, err := linux.Pollable(f)
		if err != nil {
			delete(p.files, n)
			return nil, fmt.Errorf("cannot take over %s of the pen: %w", n, err)
		}
		p.files[n] = g
	}
	q := &Process{
		Pid: p.Pid, InitPid: p.InitPid, Enforcement: p.Enforcement,
		Stdin: p.files[FileStdin], Stdout: p.files[FileStdout], Stderr: p.files[FileStderr],
		PTY: p.files[FilePTY], Relay: p.files[FileRelay],
		stage: p.stage, id: p.id, job: p.job, mark: p.mark,
		init: p.files[FileInit], target: p.files[FileTarget], status: p.files[FileStatus],
		reading: make(chan struct{}, 1),
	}
	p.files = nil
	return q, nil
}

// Process is a started target in its pen.
type Process struct {
	Pid         int // as this process sees it
	InitPid     int // PID 1 of the pen
	Enforcement Enforcement

	// The daemon's ends of the standard streams, pollable; PID 1 of the pen holds
	// a second descriptor of each. Nil where there is none. With a terminal PTY is
	// the master, Stdout and Relay are the two ends of a pipe through which its
	// output can be spliced, and Stdin and Stderr are nil.
	Stdin, Stdout, Stderr, PTY, Relay *os.File

	stage                *Stage
	id                   uint64
	job                  string
	mark                 Mark     // without what was read back
	init, target, status *os.File // target is nil where it had ended before the pen was adopted

	reading chan struct{} // holds one token while somebody reads the status socket
	ended   *Status       // guarded by reading

	mu       sync.Mutex
	released bool
}

// next takes one record from PID 1, or looks at it, with what the kernel says of its
// sender; the caller is the only reader.
func (p *Process) next(ctx context.Context, receive func(*os.File, []byte) (linux.Message, error)) (launch.Record, *unix.Ucred, error) {
	buf := make([]byte, launch.MaxRecord+1) // one more: a longer record is an error, not cut
	m, err := linux.ReceiveUntil(ctx, receive, p.status, buf)
	linux.CloseNumbers(m.FDs...)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil, nil, ErrLost
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the record of PID 1: %w", err)
	}
	r, err := launch.DecodeRecord(m.Data)
	return r, m.Cred, err
}

// Wait returns the target's end as PID 1 reported it. It may be called again and
// from several goroutines. ErrLost: PID 1 went without a record. The record stays in
// the socket for as long as PID 1 does, so that whoever adopts the pen finds it again.
func (p *Process) Wait(ctx context.Context) (Status, error) {
	select {
	case p.reading <- struct{}{}:
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
	defer func() { <-p.reading }()
	for p.ended == nil {
		r, _, err := p.next(ctx, linux.Peek)
		if err != nil {
			return Status{}, err
		}
		if e, ok := r.(launch.Ended); ok {
			s := statusOf(e)
			p.ended = &s
			continue
		}
		if _, _, err := p.next(ctx, linux.Receive); err != nil { // what else there is lies before it
			return Status{}, err
		}
	}
	return *p.ended, nil
}

// CloseStdin closes the write end of standard input: PID 1's copy first, then
// ours, so that the reader sees end of file. Closing again does nothing.
func (p *Process) CloseStdin() error {
	if p.Stdin == nil {
		return nil
	}
	if err := linux.Send(p.status, launch.CloseFD(image.FDHeldIn)); err != nil && !gone(err) {
		return fmt.Errorf("cannot close standard input: %w", err)
	}
	if err := p.Stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// gone reports whether err says that nobody is at the other end any more.
func gone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrClosed)
}

// Resize sets the size of the target's terminal.
func (p *Process) Resize(rows, cols uint16) error {
	if p.PTY == nil {
		return errors.New("cannot resize: the process has no terminal")
	}
	return linux.SetSize(p.PTY, rows, cols)
}

// Denies says what became of denied paths that did not exist when the pen was
// made: those with AbsentCheck that are there now, and placeholders that somebody
// outside of the pen removed or replaced. Asked once nothing runs in the pen any
// more, and before Release.
func (p *Process) Denies(ctx context.Context) ([]DenyEvent, error) {
	if !slices.ContainsFunc(p.Enforcement.Denies, func(d DenyState) bool { return d.Absent == AbsentCheck || d.Absent == AbsentPlaceholder }) {
		return nil, nil
	}
	var all []DenyEvent
	if _, err := p.stage.ask(ctx, stagewire.OpDenies, stagewire.Pen{Pen: p.id}, &all, dropAnswer); err != nil {
		return nil, fmt.Errorf("cannot look for the denied paths: %w", err)
	}
	return all, nil
}

// Release tells PID 1 to go, waits until it is gone and all that the launch made
// is cleaned up, and closes every descriptor. Whatever still runs in the pen is
// killed by the kernel with its PID 1. Releasing again does nothing.
func (p *Process) Release(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released {
		return nil
	}
	if err := linux.Send(p.status, launch.Release()); err != nil && !gone(err) {
		return fmt.Errorf("cannot release the pen: %w", err)
	}
	if err := p.settled(ctx); err != nil {
		return err
	}
	p.closeAll()
	return nil
}

// settled waits until PID 1 is gone and cleaned up after.
func (p *Process) settled(ctx context.Context) error {
	_, err := p.stage.ask(ctx, stagewire.OpReaped, stagewire.Pen{Pen: p.id}, nil, dropAnswer)
	if errors.Is(err, ErrStageGone) {
		err = p.waitGone(ctx)
	}
	if err != nil {
		return fmt.Errorf("cannot wait for PID 1 of the pen: %w", err)
	}
	return nil
}

// waitGone waits for PID 1 without a stage.
func (p *Process) waitGone(ctx context.Context) error {
	d, err := linux.Dup(p.init)
	if err != nil {
		return err
	}
	if d, err = linux.Pollable(d); err != nil {
		return err
	}
	defer linux.CloseAll(d)
	defer context.AfterFunc(ctx, func() { linux.CloseAll(d) })()
	return linux.WaitGone(d)
}

func (p *Process) closeAll() {
	p.released = true
	linux.CloseAll(p.Stdin, p.Stdout, p.Stderr, p.PTY, p.Relay, p.init, p.target, p.status)
}

// end kills PID 1, and with it everything in the pen.
func (p *Process) end(ctx context.Context) error {
	err := linux.Kill(p.init, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	return errors.Join(err, p.Release(ctx))
}

// Kill kills PID 1 with SIGKILL and so everything in the pen. No record follows.
func (p *Process) Kill() error {
	if err := linux.Kill(p.init, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func statusOf(e launch.Ended) Status {
	u := e.Usage
	s := Status{
		Exited: e.Status.Exited(), Core: e.Status.CoreDump(),
		User: time.Duration(u.Utime.Nano()), System: time.Duration(u.Stime.Nano()), MaxRSS: Bytes(u.Maxrss) << 10, // KiB: getrusage(2)
		InBlock: u.Inblock, OutBlock: u.Oublock, VolSwitches: u.Nvcsw, InvolSwitches: u.Nivcsw,
	}
	if s.Exited {
		s.Code = e.Status.ExitStatus()
	} else {
		s.Signal = int(e.Status.Signal())
	}
	return s
}
