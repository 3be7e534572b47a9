package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"pinfold/proto"

	"golang.org/x/sys/unix"
)

// world is a process whose pipes outlive daemons, and its client.
type world struct {
	rnd    *rand.Rand
	c      OutputConfig
	total  [2]int64
	client *checker
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 11))
	r1, w1 := nonblockPipe(t)
	r2, w2 := nonblockPipe(t)
	w := &world{
		rnd: rnd, client: newChecker(Cursor{}), total: [2]int64{2<<20 + rnd.Int64N(2<<20), rnd.Int64N(1 << 20)},
		c: OutputConfig{
			Dir: shmDir(t), ProcID: "p", ReqID: "q", Stdout: r1, Stderr: r2, Keep: MinKeep << rnd.IntN(3), Overflow: Overflow(rnd.IntN(2)),
			Quiet: time.Millisecond, Format: Format{Grouping: Batch},
		},
	}
	if rnd.IntN(2) == 0 {
		w.c.Budget = NewBudget(0).Part(256<<10 + rnd.Int64N(4<<20))
	}
	var wg sync.WaitGroup
	for i, end := range []*os.File{w1, w2} {
		kind := []proto.Stream{proto.Stdout, proto.Stderr}[i]
		mine := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			_ = writePattern(end, kind, 0, w.total[i], func() int { // what is missing is seen
				if mine.IntN(8) == 0 {
					time.Sleep(time.Duration(mine.IntN(2000)) * time.Microsecond)
				}
				return 1 + mine.IntN(40_000)
			})
			_ = end.Close()
		})
	}
	t.Cleanup(func() {
		_, _ = w1.Close(), w2.Close()
		wg.Wait()
	})
	return w
}

// mortal is a connection that breaks within a write after some lines, or once its
// daemon is dead.
type mortal struct {
	to    *checker
	lines int
	dead  <-chan struct{}
}

func (m *mortal) Write(frames []byte) error {
	m.to.mu.Lock()
	defer m.to.mu.Unlock()
	for len(frames) > 0 {
		select {
		case <-m.dead:
			return errGone
		default:
		}
		if m.lines--; m.lines < 0 {
			return errGone
		}
		i := 0
		for frames[i] != '\n' {
			i++
		}
		m.to.take(frames[:i+1])
		frames = frames[i+1:]
	}
	return m.to.err
}

// TestLives has an output that goes through daemons which are killed, with connections
// that break within a write, at random. The client checks every byte by its offset, and
// what is missing must be what was counted.
func TestLives(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 4
	}
	for seed := range uint64(seeds) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			w := newWorld(t, seed)
			for late := time.Now().Add(patience); !w.live(t); {
				if time.Now().After(late) {
					t.Fatalf("the client has come to %+v after %v; want %v", w.client.cursor(), patience, w.total)
				}
			}
		})
	}
}

// live is the life of one daemon; true: all was delivered.
func (w *world) live(t *testing.T) bool {
	t.Helper()
	o, err := NewOutput(w.c)
	if err != nil {
		t.Fatalf("NewOutput() = %v; want an output", err)
	}
	w.compareDropped(t, o)
	ctx, die := context.WithTimeout(t.Context(), time.Duration(w.rnd.IntN(40))*time.Millisecond)
	defer die()
	served := make(chan error, 1)
	go func() { served <- o.Serve(ctx) }()
	var followers sync.WaitGroup
	for range w.rnd.IntN(3) {
		w.follow(ctx, t, o, &followers)
	}
	done := w.own(ctx, t, o)
	if done {
		w.finish(t, o)
	}
	die()
	if err := <-served; err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		t.Fatalf("Serve() = %v; want nil or the context's error", err)
	}
	followers.Wait()
	if w.rnd.IntN(3) == 0 {
		if err := o.Detach(); err != nil {
			t.Fatalf("Detach() = %v; want nil", err)
		}
		return done
	}
	for _, s := range o.streams { // as the kernel does when it ends a program
		s.budget.leave(s)
		if err := s.spool.close(); err != nil {
			t.Fatalf("close() = %v; want nil", err)
		}
	}
	return done
}

// compareDropped compares what a new daemon counts as dropped, before the owner says
// where it stands, with what the owner misses. Until then what was in the dead one's
// memory counts as dropped: it may have been sent or not.
func (w *world) compareDropped(t *testing.T, o *Output) {
	t.Helper()
	got, want, memory := o.Counts().Dropped, w.client.missing(), int64(2*(flushAt+2*inBuffer))
	at := w.client.cursor()
	for _, kind := range []proto.Stream{proto.Stdout, proto.Stderr} {
		low, _ := o.Retained(kind)
		if kind == proto.Stdout {
			want += max(0, low-at.Stdout)
		} else {
			want += max(0, low-at.Stderr)
		}
	}
	if w.c.Overflow == Block {
		memory = 0
	}
	if got < want || got > want+memory {
		t.Fatalf("Dropped for a new daemon, overflow %v = %d; want %d, and at most %d more", w.c.Overflow, got, want, memory)
	}
}

// own is the owner, over some connections; true: it has everything.
func (w *world) own(ctx context.Context, t *testing.T, o *Output) bool {
	t.Helper()
	for ctx.Err() == nil {
		at := w.client.cursor()
		if err := o.SetCursor(at.Stdout, at.Stderr); err != nil {
			t.Fatalf("SetCursor(%+v) = %v; want nil", at, err)
		}
		err := o.Deliver(ctx, &mortal{to: w.client, lines: w.rnd.IntN(200), dead: ctx.Done()})
		if w.client.err != nil {
			t.Fatalf("events = %v; want each byte once, in its place", w.client.err)
		}
		if err == nil {
			return true
		}
		if !errors.Is(err, errGone) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Deliver() = %v; want the sink's or the context's error", err)
		}
	}
	return false
}

// follow reads beside the owner, from anywhere.
func (w *world) follow(ctx context.Context, t *testing.T, o *Output, wg *sync.WaitGroup) {
	t.Helper()
	from := Cursor{Stdout: w.rnd.Int64N(o.Counts().Stdout + 1), Stderr: w.rnd.Int64N(o.Counts().Stderr + 1)}
	low, _ := o.Retained(proto.Stdout)
	c := newChecker(from)
	wg.Go(func() {
		if _, err := o.Follow(ctx, c, Format{Grouping: Batch}, from); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			t.Errorf("Follow() = %v; want nil or the context's error", err)
		}
		gaps := c.gaps[proto.Stdout]
		if c.err != nil || len(gaps) > 0 && gaps[0].From == from.Stdout && gaps[0].To < low {
			t.Errorf("Follow(%+v) = %v, %+v; want each byte from %d on", from, c.err, gaps, low)
		}
	})
}

// finish checks what is known at the end.
func (w *world) finish(t *testing.T, o *Output) {
	t.Helper()
	w.client.want(t, w.total[0], w.total[1])
	c := o.Counts()
	if want := w.client.missing(); c.Dropped != want || c.Stdout != w.total[0] || c.Stderr != w.total[1] || !c.Drained {
		t.Errorf("Counts() = %+v; want %v bytes, %d dropped, drained", c, w.total, want)
	}
	if w.c.Overflow == Block && c.Dropped != 0 {
		t.Errorf("Counts() under block = %+v; want nothing dropped", c)
	}
	for i, kind := range []proto.Stream{proto.Stdout, proto.Stderr} {
		low, size := o.Retained(kind)
		if want := min(w.total[i], w.c.Keep); w.c.Budget == nil && size-low < want {
			t.Errorf("Retained(%s) = %d to %d; want the last %d bytes", kind, low, size, want)
		}
	}
}

// TestTerminalOutlivesDaemons: what a terminal says goes through a pipe that PID 1 of
// the pen holds, so that no byte is in a daemon alone when it is killed.
func TestTerminalOutlivesDaemons(t *testing.T) {
	master, slave := terminal(t)
	mode, err := unix.IoctlGetTermios(fdOf(t, slave), unix.TCGETS)
	if err != nil {
		t.Fatalf("ioctl(TCGETS) = %v; want nil", err)
	}
	mode.Oflag &^= unix.OPOST // bytes as they are
	if err := unix.IoctlSetTermios(fdOf(t, slave), unix.TCSETS, mode); err != nil {
		t.Fatalf("ioctl(TCSETS) = %v; want nil", err)
	}
	pr, pw := nonblockPipe(t)
	c := OutputConfig{Dir: shmDir(t), ProcID: "p", ReqID: "q", Stdout: pr, PTY: master, Relay: pw, Keep: MinKeep, Format: Format{Grouping: Batch}}
	const total = 1 << 20
	go func() {
		b := fill(proto.Stdout, make([]byte, total), 0)
		_, _ = slave.Write(b) // what is missing is seen
	}()
	client, lives := newChecker(Cursor{}), 0
	for late := time.Now().Add(patience); client.cursor().Stdout < total; lives++ {
		o, err := NewOutput(c)
		if err != nil {
			t.Fatalf("NewOutput() = %v; want an output", err)
		}
		ctx, die := context.WithTimeout(t.Context(), 5*time.Millisecond)
		served := make(chan error, 1)
		go func() { served <- o.Serve(ctx) }()
		if err := o.SetCursor(client.cursor().Stdout, 0); err != nil {
			t.Fatalf("SetCursor() = %v; want nil", err)
		}
		if err := o.Deliver(ctx, client); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Deliver() = %v; want only the time to be over", err)
		}
		if err := <-served; !errors.Is(err, context.DeadlineExceeded) || time.Now().After(late) {
			t.Fatalf("Serve() = %v, the client has come to %d; want %d in %v", err, client.cursor().Stdout, total, patience)
		}
		die()
		if err := o.streams[0].spool.close(); err != nil { // as the kernel does when it ends a program
			t.Fatalf("close() = %v; want nil", err)
		}
	}
	client.want(t, total, 0)
	if lives < 3 {
		t.Errorf("lives = %d; want some to prove anything", lives)
	}
}
