package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// InputKind says what stdin is.
type InputKind int

// The kinds of stdin.
const (
	Pipe     InputKind = iota // a pipe: its end is told by closing it
	Terminal                  // a PTY's master: its end is told by the VEOF character
)

// After says whether stdin stays open after a write.
type After int

// What follows a write.
const (
	KeepOpen After = iota // more may come
	ThenEOF               // stdin ends after these bytes
)

// InputConfig is what an Input is made of.
type InputConfig struct {
	Stdin    *os.File // write end of a pipe, or a PTY's master; nonblocking
	Kind     InputKind
	MaxQueue int64 // bytes that may wait; one write longer than it is taken when none waits
	// CloseStdin closes every copy of a pipe's write end: that of PID 1 of the pen
	// first, then Stdin. Not called for a Terminal.
	CloseStdin func() error
}

// Input feeds one process's stdin: writes in the order in which they came, each
// answered once the kernel has taken all of it. Use NewInput.
//
// The end of a Terminal is what a person would type: the VEOF character of the
// terminal's settings (usually ^D), twice when the line before it is unfinished,
// because the first only hands that line over. A program that has switched canonical
// mode off gets the character itself. A terminal's stdin stays open after it.
type Input struct {
	c     InputConfig
	start time.Time

	mu      sync.Mutex
	queue   []*write // the first is the one being written
	waiting int64    // bytes in queue
	closed  error    // why no write is taken any more
	stop    error    // why the one being written is given up
	work    chan struct{}

	midLine bool         // of a Terminal: the last byte was no newline; Serve's own
	last    atomic.Int64 // nanoseconds after start
	taken   atomic.Int64 // bytes that the kernel took
	unread  atomic.Int64 // bytes in the pipe when it was last looked at
}

// write is one Write on its way.
type write struct {
	data   []byte
	eof    After
	begun  bool
	answer chan error // capacity 1
}

// NewInput returns the feeder of c.Stdin. It fails if c makes no sense.
func NewInput(c InputConfig) (*Input, error) {
	switch {
	case c.Stdin == nil:
		return nil, errors.New("cannot feed stdin: no file")
	case c.Kind == Pipe && c.CloseStdin == nil:
		return nil, errors.New("cannot feed stdin: no way to close it")
	case c.MaxQueue <= 0:
		return nil, fmt.Errorf("cannot feed stdin: a queue of %d bytes", c.MaxQueue)
	}
	if err := c.Stdin.SetWriteDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("cannot feed stdin: not a nonblocking pipe or terminal: %w", err)
	}
	return &Input{c: c, start: time.Now(), work: make(chan struct{}, 1)}, nil
}

// Write hands data to the process and returns nil when the kernel has taken every
// byte, and closed stdin where eof asks for it. It fails with ErrBusy, ErrEOF or
// ErrDead when nothing was taken, with ErrUnknown when a part was. When ctx is done
// first, the write is taken back: ctx's error when nothing was taken, else ErrUnknown,
// and later writes follow the part. data must not change before it returns.
func (in *Input) Write(ctx context.Context, data []byte, eof After) error {
	w := &write{data: data, eof: eof, answer: make(chan error, 1)}
	if err := in.add(w); err != nil {
		return err
	}
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
	}
	in.takeBack(w, context.Cause(ctx))
	return <-w.answer
}

func (in *Input) add(w *write) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed != nil:
		return in.closed
	case len(in.queue) >= MaxWrites, len(in.queue) > 0 && in.waiting+int64(len(w.data)) > in.c.MaxQueue:
		return ErrBusy
	}
	in.queue = append(in.queue, w)
	in.waiting += int64(len(w.data))
	if w.eof == ThenEOF && in.c.Kind == Pipe {
		in.closed = ErrEOF
	}
	in.wake()
	return nil
}

// takeBack ends a write whose caller has lost interest.
func (in *Input) takeBack(w *write, why error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.Index(in.queue, w)
	if i < 0 {
		return // answered
	}
	if w.begun {
		in.interrupt(why)
		return
	}
	in.remove(i, why)
}

// remove takes a write that is not begun out of the queue. mu is held.
func (in *Input) remove(i int, why error) {
	w := in.queue[i]
	in.queue = slices.Delete(in.queue, i, i+1)
	in.waiting -= int64(len(w.data))
	if errors.Is(in.closed, ErrEOF) && w.eof == ThenEOF {
		in.closed = nil
	}
	w.answer <- why
}

// End says that the process is gone: what waits is answered with ErrDead or ErrUnknown.
func (in *Input) End() { in.shut(ErrDead) }

// shut ends everything that waits and will come with why.
func (in *Input) shut(why error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = why
	in.interrupt(why)
	in.fail(why)
	in.wake()
}

// interrupt ends the system call of the write that is being made. mu is held.
func (in *Input) interrupt(why error) {
	if len(in.queue) == 0 || !in.queue[0].begun {
		return
	}
	in.stop = why
	// Only a closed file can refuse (NewInput tried it); then the call has ended already.
	_ = in.c.Stdin.SetWriteDeadline(time.Unix(1, 0))
}

// fail answers every write that is not begun. mu is held.
func (in *Input) fail(why error) {
	keep := in.queue[:0]
	in.waiting = 0
	for _, w := range in.queue {
		if w.begun {
			keep = append(keep, w)
			in.waiting += int64(len(w.data))
			continue
		}
		w.answer <- why
	}
	clear(in.queue[len(keep):])
	in.queue = keep
}

func (in *Input) wake() {
	select {
	case in.work <- struct{}{}:
	default:
	}
}

// Serve makes the writes until stdin is closed, its reader is gone (both nil) or ctx is
// done (its error); then every waiting write is answered and no other is taken.
func (in *Input) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { in.shut(context.Cause(ctx)) })
	defer stop()
	for {
		w, done := in.next()
		if done {
			return context.Cause(ctx)
		}
		if w == nil {
			<-in.work
			continue
		}
		n, err := in.put(w)
		if err == nil && w.eof == ThenEOF {
			err = in.putEOF()
		}
		in.answer(w, n, err)
	}
}

// next returns the write to make: nil when there is none now. done says that there
// never will be one.
func (in *Input) next() (w *write, done bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queue) == 0 {
		return nil, in.closed != nil
	}
	in.queue[0].begun = true
	return in.queue[0], false
}

// put writes w's bytes and returns how many the kernel took.
func (in *Input) put(w *write) (int, error) {
	if len(w.data) == 0 {
		return 0, nil
	}
	n, err := in.c.Stdin.Write(w.data)
	if n > 0 {
		in.taken.Add(int64(n))
		in.last.Store(int64(time.Since(in.start)))
		in.midLine = !bytes.HasSuffix(w.data[:n], []byte{'\n'})
	}
	return n, err
}

// putEOF closes a pipe, or types the end at a terminal.
func (in *Input) putEOF() error {
	if in.c.Kind == Pipe {
		if err := in.c.CloseStdin(); err != nil {
			return fmt.Errorf("cannot close stdin: %w", err)
		}
		return nil
	}
	var veof byte
	err := control(in.c.Stdin, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			veof = t.Cc[unix.VEOF]
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot end the terminal's input: ioctl TCGETS: %w", err)
	}
	keys := []byte{veof}
	if in.midLine {
		keys = []byte{veof, veof}
	}
	if _, err := in.c.Stdin.Write(keys); err != nil {
		return err
	}
	in.midLine = false
	return nil
}

// answer tells w's caller what became of it, and takes it off the queue.
func (in *Input) answer(w *write, n int, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	why := err
	switch {
	case err == nil:
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO):
		why = ErrDead
		in.closed = ErrDead
	case errors.Is(err, os.ErrDeadlineExceeded) && in.stop != nil:
		why = in.stop
	}
	if err != nil && n > 0 {
		why = fmt.Errorf("%w: %d of %d bytes: %s", ErrUnknown, n, len(w.data), why.Error()) // not ErrDead too
	}
	if in.stop != nil {
		in.stop = nil
		// As in interrupt: only a closed file refuses, and then nothing is written.
		_ = in.c.Stdin.SetWriteDeadline(time.Time{})
	}
	in.queue = slices.Delete(in.queue, 0, 1)
	in.waiting -= int64(len(w.data))
	w.answer <- why
	if errors.Is(in.closed, ErrDead) {
		in.fail(ErrDead)
	}
}

// LastActivity returns when the process last read its stdin, as far as can be seen:
// when the kernel last took bytes, or now if the pipe holds other than at the last
// call. A terminal shows the first only. FIONREAD: pipe(7), ioctl_pipe.
func (in *Input) LastActivity() time.Time {
	if in.c.Kind == Pipe {
		unread := -1
		err := control(in.c.Stdin, func(fd int) (err error) {
			unread, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
			return err
		})
		if err == nil && in.unread.Swap(int64(unread)) != int64(unread) { // a closed pipe has no news
			in.last.Store(int64(time.Since(in.start)))
		}
	}
	return in.start.Add(time.Duration(in.last.Load()))
}
