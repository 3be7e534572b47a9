package relay

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
)

func TestSlowSinkBlocksItselfOnly(t *testing.T) {
	slow := newRig(t, func(c *OutputConfig) { c.Keep = MinKeep })
	slow.serve(t)
	stuck := make(chan struct{})
	entered := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- slow.Deliver(t.Context(), stuckSink{entered, stuck}) }()
	mustWrite(t, slow.out, "x\n")
	<-entered
	fast := newRig(t, nil)
	fast.serve(t)
	mustWrite(t, fast.out, "quick\n")
	fast.closeAll(t)
	rec := newRecorder(Cursor{})
	if err := fast.Deliver(t.Context(), rec); err != nil {
		t.Errorf("Deliver() beside a stuck one = %v; want nil", err)
	}
	fillPipe(t, slow, MinKeep)
	close(stuck)
	slow.closeAll(t)
	if err := <-done; err != nil {
		t.Errorf("Deliver() once the sink moves = %v; want nil", err)
	}
}

type stuckSink struct{ entered, stuck chan struct{} }

func (s stuckSink) Write([]byte) error {
	select {
	case <-s.stuck:
		return nil
	default:
	}
	close(s.entered)
	<-s.stuck
	return nil
}

func TestDropIsExact(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep, c.Overflow = MinKeep, Drop })
	r.serve(t)
	rnd := rand.New(rand.NewPCG(4, 4))
	want := randomText(rnd, 3<<20)
	mustWrite(t, r.out, string(want))
	r.closeAll(t)
	if err := <-r.served; err != nil {
		t.Fatalf("Serve() = %v; want nil", err)
	}
	before := r.Counts().Dropped
	rec := newRecorder(Cursor{})
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	got := rec.got["stdout"].Bytes()
	if rec.gaps == 0 || rec.gaps+int64(len(got)) != int64(len(want)) {
		t.Errorf("gap of %d + %d bytes; want %d in all and a gap", rec.gaps, len(got), len(want))
	}
	if len(got) < MinKeep {
		t.Errorf("delivered after a drop = %d bytes; want at least the %d kept", len(got), MinKeep)
	}
	if !bytes.Equal(got, want[len(want)-len(got):]) {
		t.Error("delivered bytes are not the last ones written")
	}
	if after := r.Counts().Dropped; before != rec.gaps || after != rec.gaps {
		t.Errorf("Counts().Dropped = %d before the gap is told, %d after; want %d", before, after, rec.gaps)
	}
}

// TestWhatCannotBeFreedEndsNoStream: a daemon that cannot note what it frees, as one that
// has no descriptor left, takes every byte all the same once it can.
func TestWhatCannotBeFreedEndsNoStream(t *testing.T) {
	warned := make(chan error, 16)
	r := newRig(t, func(c *OutputConfig) {
		c.Keep, c.Overflow, c.Warn = MinKeep, Drop, func(err error) { warned <- err }
	})
	marks := marksIn(r.c.Dir).path
	if err := errors.Join(os.Rename(marks, marks+".aside"), os.Mkdir(marks, 0o700)); err != nil {
		t.Fatal(err)
	}
	r.serve(t)
	const total = 3 << 20
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		mustWrite(t, r.out, string(randomText(rand.New(rand.NewPCG(5, 5)), total)))
	}()
	select {
	case err := <-warned:
		if !errors.Is(err, syscall.EISDIR) {
			t.Errorf("told %v; want why", err)
		}
	case <-time.After(patience):
		t.Fatal("nobody is told that nothing can be freed")
	}
	if err := errors.Join(os.Remove(marks), os.Rename(marks+".aside", marks)); err != nil {
		t.Fatal(err)
	}
	<-wrote
	r.closeAll(t)
	if err := <-r.served; err != nil {
		t.Fatalf("Serve() = %v; want nil", err)
	}
	if c := r.Counts(); c.Stdout != total || !c.Drained {
		t.Errorf("Counts() = %+v; want %d bytes, all of them", c, total)
	}
}

// TestDropWhileDelivering has the pump overtake the reader all the time: no zero of a
// punched hole may ever come out, and all bytes are accounted for.
func TestDropWhileDelivering(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep, c.Overflow, c.Format.Grouping = MinKeep, Drop, Batch })
	r.serve(t)
	const total = 64 << 20
	go func() {
		defer r.closeAll(t)
		line := strings.Repeat("x", 63) + "\n"
		chunk := strings.Repeat(line, 1024)
		for range total / len(chunk) {
			if _, err := r.out.WriteString(chunk); err != nil {
				return
			}
		}
	}()
	s := &zeroFinder{}
	if err := r.Deliver(t.Context(), s); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	if s.zeros != 0 {
		t.Errorf("events with zero bytes = %d; want 0", s.zeros)
	}
	if c := r.Counts(); c.Stdout != total || c.Dropped != s.gaps || c.Dropped+s.bytes != total {
		t.Errorf("Counts() = %+v, gaps %d, bytes %d; want them to add up to %d", c, s.gaps, s.bytes, total)
	}
}

type zeroFinder struct {
	bytes, gaps int64
	zeros       int
}

func (z *zeroFinder) Write(frames []byte) error {
	for line := range bytes.Lines(frames) {
		e, err := parseEvent(line)
		if err != nil {
			return err
		}
		if bytes.IndexByte(e.Text, 0) >= 0 {
			z.zeros++
		}
		if e.Gap != nil {
			z.gaps += e.Gap.To - e.Gap.From
		}
		z.bytes += int64(len(e.Text))
	}
	return nil
}

func TestHolesAreFreed(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep = MinKeep })
	r.serve(t)
	rec := &counting{}
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), rec) }()
	mustWrite(t, r.out, strings.Repeat("0123456789abcde\n", 1<<20)) // 16 MiB
	r.closeAll(t)
	if err := <-done; err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	if err := <-r.served; err != nil {
		t.Fatalf("Serve() = %v; want nil", err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(r.c.Dir, "stdout"), &st); err != nil {
		t.Fatalf("Stat(spool) = %v; want nil", err)
	}
	if st.Size != 16<<20 {
		t.Errorf("spool's size = %d; want %d, the cursor", st.Size, 16<<20)
	}
	const most = max(MinKeep, inFlight) + punchStep + spliceMax
	if st.Blocks*512 > most {
		t.Errorf("spool occupies %d bytes; want at most %d", st.Blocks*512, most)
	}
	low, size := r.Retained(proto.Stdout)
	if size-low < MinKeep {
		t.Errorf("Retained() = %d to %d; want the last %d bytes", low, size, MinKeep)
	}
	follower := newRecorder(Cursor{Stdout: low})
	if _, err := r.Follow(t.Context(), follower, Format{}, Cursor{Stdout: low}); err != nil {
		t.Fatalf("Follow(%d) = %v; want nil", low, err)
	}
	follower.check(t)
	if got := int64(follower.got["stdout"].Len()); got != size-low || follower.gaps != 0 {
		t.Errorf("Follow(%d) gave %d bytes, gap %d; want %d and none", low, got, follower.gaps, size-low)
	}
}

func TestLimitIsExact(t *testing.T) {
	for _, c := range []struct {
		name  string
		write int
		hit   bool
	}{{"below", 99_999, false}, {"at", 100_000, false}, {"above", 100_001, true}, {"far above", 5 << 20, true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(o *OutputConfig) { o.Limit = 100_000 })
			r.serve(t)
			go func() {
				b := bytes.Repeat([]byte("a"), c.write)
				_, _ = r.out.Write(b[:c.write/2]) // fails where the relay reads no more
				_ = r.out.Close()
				_, _ = r.err.Write(b[c.write/2:])
				_ = r.err.Close()
			}()
			hit := false
			select {
			case <-r.LimitHit():
				hit = true
				r.End(10 * time.Millisecond)
			case err := <-r.served:
				if err != nil {
					t.Errorf("Serve() = %v; want nil", err)
				}
			}
			if hit != c.hit {
				t.Errorf("LimitHit() after %d bytes = %v; want %v", c.write, hit, c.hit)
			}
			rec := newRecorder(Cursor{})
			if err := r.Deliver(t.Context(), rec); err != nil {
				t.Fatalf("Deliver() = %v; want nil", err)
			}
			n := r.Counts()
			if want := int64(min(c.write, 100_000)); n.Stdout+n.Stderr > 100_000 || !hit && n.Stdout+n.Stderr != want || n.Drained == hit {
				t.Errorf("Counts() = %+v; want %d bytes, drained %v", n, want, !hit)
			}
		})
	}
}

func TestLimitReachedExactly(t *testing.T) {
	r := newRig(t, func(o *OutputConfig) { o.Limit = 10 })
	r.serve(t)
	mustWrite(t, r.out, "0123456789")
	rec := newRecorder(Cursor{})
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), rec) }()
	rec.waitFor(t, "0123456789")
	mustWrite(t, r.out, "x")
	<-r.LimitHit()
	if n := r.Counts(); n.Stdout != 10 {
		t.Errorf("Counts() = %+v; want 10 bytes", n)
	}
	r.closeAll(t)
	if err := <-done; err != nil {
		t.Errorf("Deliver() = %v; want nil", err)
	}
}

// TestAdoption: a second Output of the same files goes on at the same byte.
func TestAdoption(t *testing.T) {
	dir := shmDir(t)
	r1, w := nonblockPipe(t)
	c := OutputConfig{Dir: dir, ProcID: "p", ReqID: "q", Stdout: r1, Keep: MinKeep}
	want := randomText(rand.New(rand.NewPCG(9, 9)), 1<<20)
	go func() {
		defer w.Close()
		_, _ = w.Write(want) // fails only if the test has
	}()
	rec := newRecorder(Cursor{})
	for life := range 50 {
		o, err := NewOutput(c)
		if err != nil {
			t.Fatalf("life %d: NewOutput() = %v; want an output", life, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		if life == 49 {
			ctx, cancel = context.WithTimeout(t.Context(), patience)
		}
		served := make(chan error, 1)
		go func() { served <- o.Serve(ctx) }()
		err = o.Deliver(ctx, rec)
		serr := <-served
		cancel()
		if cerr := o.Detach(); cerr != nil {
			t.Fatalf("Detach() = %v; want nil", cerr)
		}
		if err == nil && serr == nil {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) || life == 49 {
			t.Fatalf("life %d: Deliver() = %v, Serve() = %v; want only the time to be over", life, err, serr)
		}
	}
	rec.check(t)
	if got := rec.got["stdout"].Bytes(); !bytes.Equal(got, want) {
		t.Errorf("stdout over all lives = %d bytes; want the %d written", len(got), len(want))
	}
}

func TestSetCursor(t *testing.T) {
	r := newRig(t, nil)
	r.serve(t)
	mustWrite(t, r.out, "one\ntwo\n")
	r.closeAll(t)
	if err := r.Deliver(t.Context(), newRecorder(Cursor{})); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	if err := r.SetCursor(9, 0); !errors.Is(err, ErrRange) {
		t.Errorf("SetCursor(9, 0) = %v; want %v", err, ErrRange)
	}
	if err := r.SetCursor(4, 0); err != nil {
		t.Errorf("SetCursor(4, 0) = %v; want nil", err)
	}
	rec := newRecorder(r.Cursor())
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	if got := rec.texts(); !equal(got, []string{"two\n"}) || r.Counts().Dropped != 0 {
		t.Errorf("after SetCursor(4): events = %q, %+v; want \"two\\n\", nothing dropped", got, r.Counts())
	}
}

func TestServeAndDeliverStop(t *testing.T) {
	before := runtime.NumGoroutine()
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	served, delivered := make(chan error, 1), make(chan error, 1)
	go func() { served <- r.Serve(ctx) }()
	rec := newRecorder(Cursor{})
	go func() { delivered <- r.Deliver(ctx, rec) }()
	mustWrite(t, r.out, "a\n")
	rec.waitFor(t, "a\n")
	if err := r.Deliver(t.Context(), rec); !errors.Is(err, ErrDelivering) {
		t.Errorf("a second Deliver() = %v; want %v", err, ErrDelivering)
	}
	cancel()
	for name, ch := range map[string]chan error{"Serve": served, "Deliver": delivered} {
		if err := <-ch; !errors.Is(err, context.Canceled) {
			t.Errorf("%s() = %v; want %v", name, err, context.Canceled)
		}
	}
	r.serve(t) // again
	mustWrite(t, r.err, "b\n")
	r.closeAll(t)
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Errorf("Deliver() again = %v; want nil", err)
	}
	rec.check(t)
	if err := <-r.served; err != nil {
		t.Errorf("Serve() again = %v; want nil", err)
	}
	waitGoroutines(t, before)
}

// waitGoroutines wants no more goroutines than there were.
func waitGoroutines(t *testing.T, before int) {
	t.Helper()
	for late := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(late) {
			buf := make([]byte, 1<<16)
			t.Fatalf("goroutines = %d; want %d:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	r, _ := nonblockPipe(t)
	plain, err := os.Open("/dev/null")
	if err != nil {
		t.Fatalf("Open(/dev/null) = %v; want nil", err)
	}
	defer plain.Close()
	for name, c := range map[string]OutputConfig{
		"no pipe":       {Dir: t.TempDir(), Keep: MinKeep},
		"little keep":   {Dir: t.TempDir(), Keep: MinKeep - 1, Stdout: r},
		"no directory":  {Dir: "/nonexistent", Keep: MinKeep, Stdout: r},
		"PTY, no relay": {Dir: t.TempDir(), Keep: MinKeep, Stdout: r, PTY: r},
		"not pollable":  {Dir: t.TempDir(), Keep: MinKeep, Stdout: plain},
	} {
		if o, err := NewOutput(c); err == nil {
			t.Errorf("%s: NewOutput() = %v; want an error", name, o)
		}
	}
}
