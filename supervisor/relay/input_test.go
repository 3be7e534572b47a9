package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// feeder is an Input with the far end of its pipe.
type feeder struct {
	*Input
	r      *os.File
	served chan error
}

func newFeeder(t *testing.T, queue int64) *feeder {
	t.Helper()
	r, w := nonblockPipe(t)
	in, err := NewInput(InputConfig{Stdin: w, MaxQueue: queue, CloseStdin: w.Close})
	if err != nil {
		t.Fatalf("NewInput() = %v; want an input", err)
	}
	f := &feeder{Input: in, r: r, served: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.served <- in.Serve(t.Context())
	}()
	t.Cleanup(func() { <-done })
	return f
}

// begin makes a write of 1 MiB that cannot end until somebody reads, and returns once a part of
// it is in the pipe.
func (f *feeder) begin(ctx context.Context, t *testing.T) chan error {
	t.Helper()
	answer := make(chan error, 1)
	go func() { answer <- f.Write(ctx, make([]byte, 1<<20), KeepOpen) }()
	for late := time.Now().Add(patience); f.unreadNow(t) == 0; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatalf("bytes in the pipe after %v = 0; want some", patience)
		}
	}
	return answer
}

func (f *feeder) unreadNow(t *testing.T) (n int) {
	t.Helper()
	err := control(f.r, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	if err != nil {
		t.Fatalf("ioctl(FIONREAD) = %v; want nil", err)
	}
	return n
}

func TestInputOrderAndEOF(t *testing.T) {
	f := newFeeder(t, 1<<20)
	cat := exec.Command("cat")
	cat.Stdin = f.r
	// The child's stdin shares the nonblocking pipe; cat would see EAGAIN.
	if err := control(f.r, func(fd int) error { return unix.SetNonblock(fd, false) }); err != nil {
		t.Fatalf("SetNonblock() = %v; want nil", err)
	}
	var got bytes.Buffer
	cat.Stdout = &got
	if err := cat.Start(); err != nil {
		t.Fatalf("Start(cat) = %v; want nil", err)
	}
	var want bytes.Buffer
	for i := range 200 {
		part := bytes.Repeat([]byte{byte(i)}, i*37)
		want.Write(part)
		after := KeepOpen
		if i == 199 {
			after = ThenEOF
		}
		if err := f.Write(t.Context(), part, after); err != nil {
			t.Fatalf("Write(%d bytes) = %v; want nil", len(part), err)
		}
	}
	if err := cat.Wait(); err != nil {
		t.Errorf("cat = %v; want its end at end of file", err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("cat read %d bytes; want the %d written, in order", got.Len(), want.Len())
	}
	if err := f.Write(t.Context(), []byte("x"), KeepOpen); !errors.Is(err, ErrEOF) {
		t.Errorf("Write() after EOF = %v; want %v", err, ErrEOF)
	}
	if err := <-f.served; err != nil {
		t.Errorf("Serve() after EOF = %v; want nil", err)
	}
}

func TestInputAnswersInOrder(t *testing.T) {
	f := newFeeder(t, 1<<30)
	first := f.begin(t.Context(), t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := f.Write(t.Context(), []byte("0123456789"), KeepOpen); err != nil {
				t.Errorf("Write() = %v; want nil", err)
			}
		})
	}
	select {
	case err := <-first:
		t.Fatalf("Write(1 MiB) = %v while nobody reads; want it to wait", err)
	default:
	}
	if _, err := io.CopyN(io.Discard, f.r, 1<<20+500); err != nil {
		t.Fatalf("reading stdin = %v; want all bytes", err)
	}
	if err := <-first; err != nil {
		t.Errorf("Write(1 MiB) = %v; want nil", err)
	}
	wg.Wait()
}

func TestInputQueueIsBounded(t *testing.T) {
	f := newFeeder(t, 1000)
	first := f.begin(t.Context(), t) // longer than the queue, but alone
	if err := f.Write(t.Context(), []byte("x"), KeepOpen); !errors.Is(err, ErrBusy) {
		t.Errorf("Write() to a full queue = %v; want %v", err, ErrBusy)
	}
	if _, err := io.CopyN(io.Discard, f.r, 1<<20); err != nil {
		t.Fatalf("reading stdin = %v; want all bytes", err)
	}
	if err := <-first; err != nil {
		t.Errorf("Write(1 MiB) = %v; want nil", err)
	}
	if err := f.Write(t.Context(), []byte("x"), KeepOpen); err != nil {
		t.Errorf("Write() to an empty queue = %v; want nil", err)
	}
}

func TestInputDeath(t *testing.T) {
	f := newFeeder(t, 1<<30)
	first := f.begin(t.Context(), t)
	second := make(chan error, 1)
	go func() { second <- f.Write(t.Context(), []byte("x"), KeepOpen) }()
	if err := f.r.Close(); err != nil {
		t.Fatalf("Close() = %v; want nil", err)
	}
	if err := <-first; !errors.Is(err, ErrUnknown) || errors.Is(err, ErrDead) {
		t.Errorf("Write() taken in part at the reader's end = %v; want %v alone", err, ErrUnknown)
	}
	if err := <-second; !errors.Is(err, ErrDead) || errors.Is(err, ErrUnknown) {
		t.Errorf("Write() not begun at the reader's end = %v; want %v alone", err, ErrDead)
	}
	if err := f.Write(t.Context(), nil, ThenEOF); !errors.Is(err, ErrDead) {
		t.Errorf("Write() to the dead = %v; want %v", err, ErrDead)
	}
	if err := <-f.served; err != nil {
		t.Errorf("Serve() after the reader's end = %v; want nil", err)
	}
}

func TestInputEnd(t *testing.T) {
	f := newFeeder(t, 1<<30)
	first := f.begin(t.Context(), t)
	f.End()
	if err := <-first; !errors.Is(err, ErrUnknown) {
		t.Errorf("Write() taken in part at End = %v; want %v", err, ErrUnknown)
	}
	if err := f.Write(t.Context(), []byte("x"), KeepOpen); !errors.Is(err, ErrDead) {
		t.Errorf("Write() after End = %v; want %v", err, ErrDead)
	}
	if err := <-f.served; err != nil {
		t.Errorf("Serve() after End = %v; want nil", err)
	}
}

func TestInputTakenBack(t *testing.T) {
	f := newFeeder(t, 1<<30)
	ctx, cancel := context.WithCancel(t.Context())
	first := f.begin(ctx, t)
	ctx2, cancel2 := context.WithCancel(t.Context())
	cancel2()
	if err := f.Write(ctx2, []byte("never"), ThenEOF); !errors.Is(err, context.Canceled) {
		t.Errorf("Write() called off in the queue = %v; want %v", err, context.Canceled)
	}
	third := make(chan error, 1)
	go func() { third <- f.Write(t.Context(), []byte("after"), ThenEOF) }()
	cancel()
	if err := <-first; !errors.Is(err, ErrUnknown) {
		t.Errorf("Write() called off within = %v; want %v", err, ErrUnknown)
	}
	got, err := io.ReadAll(f.r)
	if err != nil || !bytes.HasSuffix(got, []byte("\x00after")) || bytes.Contains(got, []byte("never")) {
		t.Errorf("stdin = …%q, %v; want zeros, then \"after\", then its end", got[max(0, len(got)-20):], err)
	}
	if err := <-third; err != nil {
		t.Errorf("Write() behind one called off = %v; want nil", err)
	}
}

func TestInputServeStops(t *testing.T) {
	_, w := nonblockPipe(t)
	in, err := NewInput(InputConfig{Stdin: w, MaxQueue: 1, CloseStdin: w.Close})
	if err != nil {
		t.Fatalf("NewInput() = %v; want an input", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- in.Serve(ctx) }()
	cancel()
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve() = %v; want %v", err, context.Canceled)
	}
	if err := in.Write(t.Context(), []byte("x"), KeepOpen); !errors.Is(err, context.Canceled) {
		t.Errorf("Write() after Serve = %v; want %v", err, context.Canceled)
	}
}

func TestInputActivityIsReading(t *testing.T) {
	f := newFeeder(t, 1<<20)
	if err := f.Write(t.Context(), []byte("abc"), KeepOpen); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	wrote := f.LastActivity()
	if again := f.LastActivity(); !again.Equal(wrote) {
		t.Errorf("LastActivity() with nothing going on = %v later; want the same", again.Sub(wrote))
	}
	if _, err := f.r.Read(make([]byte, 1)); err != nil {
		t.Fatalf("Read() = %v; want a byte", err)
	}
	if read := f.LastActivity(); !read.After(wrote) {
		t.Errorf("LastActivity() after a read = %v; want later than %v", read, wrote)
	}
}

// terminal opens a PTY: the master nonblocking, the slave for a child.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("open(/dev/ptmx) = %v; want a terminal", err)
	}
	master = os.NewFile(uintptr(fd), "master")
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatalf("ioctl(TIOCSPTLCK) = %v; want nil", err)
	}
	sfd, err := peer(fd)
	if err != nil {
		t.Fatalf("ioctl(TIOCGPTPEER) = %v; want the slave", err)
	}
	slave = os.NewFile(uintptr(sfd), "slave")
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

func peer(fd int) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// TestTerminal runs a command on a PTY with the relay pipe in between.
func TestTerminal(t *testing.T) {
	master, slave := terminal(t)
	pr, pw := nonblockPipe(t)
	r := newRig(t, func(c *OutputConfig) { c.Stdout, c.Stderr, c.PTY, c.Relay = pr, nil, master, pw })
	r.serve(t)
	in, err := NewInput(InputConfig{Stdin: master, Kind: Terminal, MaxQueue: 1 << 20})
	if err != nil {
		t.Fatalf("NewInput() = %v; want an input", err)
	}
	go func() { _ = in.Serve(t.Context()) }() // its end is the test's
	cmd := exec.Command("sh", "-c", `stty -echo; echo ready; cat; echo end; seq 1 2000`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := errors.Join(cmd.Start(), slave.Close()); err != nil {
		t.Fatalf("Start() = %v; want nil", err)
	}
	rec := newRecorder(Cursor{})
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), rec) }()
	rec.waitFor(t, "ready\r\n")
	if err := in.Write(t.Context(), []byte("hello\nworld"), ThenEOF); err != nil {
		t.Errorf("Write() = %v; want nil", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the command = %v; want it to see two ^D and end", err)
	}
	r.End(patience)
	if err := <-done; err != nil {
		t.Errorf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	var want strings.Builder
	want.WriteString("ready\r\nhello\r\nworldend\r\n")
	for i := range 2000 {
		want.WriteString(strconv.Itoa(i+1) + "\r\n")
	}
	if got := rec.got["stdout"].String(); got != want.String() {
		t.Errorf("terminal said %d bytes %.60q; want %d %.60q", len(got), got, want.Len(), want.String())
	}
	if c := r.Counts(); !c.Drained {
		t.Errorf("Counts() = %+v; want drained", c)
	}
}
