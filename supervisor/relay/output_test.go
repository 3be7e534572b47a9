package relay

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
)

// TestEveryByteOnce writes random text on both streams in random pieces, with clients
// that go away after random amounts, and wants each byte once, in order, numbered.
func TestEveryByteOnce(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			r := newRig(t, func(c *OutputConfig) {
				c.Keep = MinKeep << rnd.IntN(3)
				c.Quiet = time.Duration(1+rnd.IntN(3)) * time.Millisecond
				c.Format.Grouping = Grouping(rnd.IntN(2))
				if rnd.IntN(2) == 0 {
					c.Format.Form = proto.DataObject
				}
			})
			r.serve(t)
			want := [2][]byte{randomText(rnd, 700_000), randomText(rnd, 300_000)}
			for i, w := range []*os.File{r.out, r.err} {
				go writeRandomly(rand.New(rand.NewPCG(seed, 2)), w, want[i])
			}
			rec := newRecorder(Cursor{})
			deliverThrough(t, r.Output, rec, rnd)
			rec.check(t)
			for i, s := range []string{"stdout", "stderr"} {
				if got := rec.got[s].Bytes(); !bytes.Equal(got, want[i]) {
					t.Errorf("%s = %d bytes; want the %d written", s, len(got), len(want[i]))
				}
			}
			c := r.Counts()
			if c.Stdout != 700_000 || c.Stderr != 300_000 || c.Dropped != 0 || !c.Drained {
				t.Errorf("Counts() = %+v; want 700000, 300000, nothing dropped, drained", c)
			}
			if got := r.NextSeq(); got != rec.seq+1 {
				t.Errorf("NextSeq() = %d; want %d", got, rec.seq+1)
			}
			if err := <-r.served; err != nil {
				t.Errorf("Serve() = %v; want nil", err)
			}
		})
	}
}

// deliverThrough delivers to rec with a client that breaks, is slow or is called off.
func deliverThrough(t *testing.T, o *Output, rec *recorder, rnd *rand.Rand) {
	t.Helper()
	for late := time.Now().Add(patience); ; {
		rec.budget = rnd.IntN(1 << 20)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rnd.IntN(40))*time.Millisecond)
		err := o.Deliver(ctx, rec)
		cancel()
		switch {
		case err == nil:
			return
		case time.Now().After(late):
			t.Fatalf("Deliver() after %v = %v, %+v; want all delivered", patience, err, o.Counts())
		case !errors.Is(err, errGone) && !errors.Is(err, context.DeadlineExceeded):
			t.Fatalf("Deliver() = %v; want the sink's or the context's error", err)
		}
	}
}

// randomText is lines of text, some long, some with bytes that are not UTF-8.
func randomText(rnd *rand.Rand, n int) []byte {
	var b []byte
	for len(b) < n {
		switch rnd.IntN(12) {
		case 0:
			b = append(b, 0xff, 0xe2, 0x82)
		case 1:
			b = append(b, "€😀é"...)
		case 2:
			b = append(b, bytes.Repeat([]byte{byte(rnd.IntN(128))}, rnd.IntN(9000))...)
		case 3:
			b = append(b, bytes.Repeat([]byte("z"), rnd.IntN(2)*70_000)...)
		default:
			b = append(b, "line "+strconv.Itoa(rnd.IntN(1e6))+"\n"...)
		}
	}
	return b[:n]
}

func writeRandomly(rnd *rand.Rand, w *os.File, b []byte) {
	defer w.Close()
	for len(b) > 0 {
		n := min(1+rnd.IntN(20_000), len(b))
		if _, err := w.Write(b[:n]); err != nil {
			return // the test has ended
		}
		b = b[n:]
		if rnd.IntN(8) == 0 {
			time.Sleep(time.Duration(rnd.IntN(4)) * time.Millisecond)
		}
	}
}

func TestUTF8SplitAnywhere(t *testing.T) {
	text := "aé€😀z\n"
	for cut := 1; cut < len(text); cut++ {
		r := newRig(t, func(c *OutputConfig) { c.Quiet = time.Millisecond })
		r.serve(t)
		rec := newRecorder(Cursor{})
		done := make(chan error, 1)
		go func() { done <- r.Deliver(t.Context(), rec) }()
		mustWrite(t, r.out, text[:cut])
		whole := len(text[:cut]) - unfinished([]byte(text[:cut]))
		rec.waitFor(t, text[:whole])
		mustWrite(t, r.out, text[cut:])
		r.closeAll(t)
		if err := <-done; err != nil {
			t.Fatalf("Deliver() = %v; want nil", err)
		}
		rec.check(t)
		for _, e := range rec.events {
			if e.B64 {
				t.Errorf("split at %d: event %q in base64; want text", cut, e.Text)
			}
		}
		if got := rec.got["stdout"].String(); got != text {
			t.Errorf("split at %d: stdout = %q; want %q", cut, got, text)
		}
	}
}

func mustWrite(tb testing.TB, w *os.File, s string) {
	tb.Helper()
	if _, err := w.WriteString(s); err != nil {
		tb.Fatalf("Write(%.20q) = %v; want nil", s, err)
	}
}

func TestBytesThatAreNotUTF8(t *testing.T) {
	r := newRig(t, nil)
	r.serve(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	mustWrite(t, r.out, "good\n"+string(all)+"\ngood\n")
	r.closeAll(t)
	rec := newRecorder(Cursor{})
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	var b64 []bool
	for _, e := range rec.events {
		b64 = append(b64, e.B64)
	}
	// Byte 10 ends the first of the two pieces that 256 bytes are.
	if want := []bool{false, false, true, false}; !equal(b64, want) {
		t.Errorf("base64 by event = %v; want %v", b64, want)
	}
	if got := rec.got["stdout"].Bytes(); !bytes.Equal(got, []byte("good\n"+string(all)+"\ngood\n")) {
		t.Errorf("stdout = %q; want every byte as written", got)
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestPromptIsSeen(t *testing.T) {
	r := newRig(t, nil)
	r.serve(t)
	rec := newRecorder(Cursor{})
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), rec) }()
	start := time.Now()
	mustWrite(t, r.out, "password: ")
	rec.waitFor(t, "password: ")
	if d := time.Since(start); d < DefaultQuiet {
		t.Errorf("a partial line was sent after %v; want %v of silence first", d, DefaultQuiet)
	}
	mustWrite(t, r.out, "ok\n")
	r.closeAll(t)
	if err := <-done; err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	if got, want := rec.texts(), []string{"password: ", "ok\n"}; !equal(got, want) {
		t.Errorf("events = %q; want %q", got, want)
	}
}

func TestBatchCarriesManyLines(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Format.Grouping = Batch })
	r.serve(t)
	mustWrite(t, r.out, strings.Repeat("line\n", 1000))
	r.closeAll(t)
	if err := <-r.served; err != nil {
		t.Fatalf("Serve() = %v; want nil", err)
	}
	rec := newRecorder(Cursor{})
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	if len(rec.events) != 1 {
		t.Errorf("events of 1000 lines in a batch = %d; want 1", len(rec.events))
	}
}

// TestFastExits is field experience: a short command's last words on stderr, always.
func TestFastExits(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 50
	}
	fds := openFDs(t)
	for i := range n {
		r := newRig(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- r.Serve(ctx) }()
		cmd := exec.Command("/bin/sh", "-c", "echo e >&2; exit 1")
		stdout, stderr := blocking(t, r.out), blocking(t, r.err)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		if err := errors.Join(cmd.Start(), stdout.Close(), stderr.Close()); err != nil {
			t.Fatalf("Start() = %v; want nil", err)
		}
		r.closeAll(t)
		rec := newRecorder(Cursor{})
		go func() { _ = cmd.Wait(); r.End(patience) }()
		if err := r.Deliver(ctx, rec); err != nil {
			t.Fatalf("Deliver() = %v; want nil", err)
		}
		if err := <-served; err != nil {
			t.Fatalf("Serve() = %v; want nil", err)
		}
		cancel()
		<-r.gone
		if got := rec.texts(); !equal(got, []string{"e\n"}) || !r.Counts().Drained {
			t.Fatalf("run %d: events = %q, %+v; want \"e\\n\", drained", i, got, r.Counts())
		}
		if err := errors.Join(r.Close(), r.c.Stdout.Close(), r.c.Stderr.Close()); err != nil {
			t.Fatalf("Close() = %v; want nil", err)
		}
	}
	if now := openFDs(t); now > fds+2 { // the poller's own
		t.Errorf("open descriptors after %d outputs = %d; want %d", n, now, fds)
	}
}

// blocking gives the child an end without O_NONBLOCK of its own.
func blocking(tb testing.TB, f *os.File) *os.File {
	tb.Helper()
	dup, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fdOf(tb, f)), os.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("OpenFile(pipe) = %v; want its write end", err)
	}
	return dup
}

func fdOf(tb testing.TB, f *os.File) int {
	tb.Helper()
	n := -1
	if err := control(f, func(fd int) error { n = fd; return nil }); err != nil {
		tb.Fatalf("control() = %v; want nil", err)
	}
	return n
}

func TestEndGivesUp(t *testing.T) {
	r := newRig(t, nil) // its write ends stay open, as a grandchild's do
	r.serve(t)
	mustWrite(t, r.out, "said\n")
	rec := newRecorder(Cursor{})
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), rec) }()
	rec.waitFor(t, "said\n")
	r.End(10 * time.Millisecond)
	if err := <-done; err != nil {
		t.Errorf("Deliver() = %v; want nil", err)
	}
	if err := <-r.served; err != nil {
		t.Errorf("Serve() = %v; want nil", err)
	}
	if c := r.Counts(); c.Drained || c.Stdout != 5 {
		t.Errorf("Counts() = %+v; want 5 bytes, not drained", c)
	}
}

// TestEndTakesThePipe: under block, what the pipe holds at the end is taken although
// the owner is Keep behind.
func TestEndTakesThePipe(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep = MinKeep })
	r.serve(t)
	total := fillPipe(t, r, MinKeep)
	r.closeAll(t)
	r.End(patience)
	if err := <-r.served; err != nil {
		t.Fatalf("Serve() = %v; want nil", err)
	}
	if c := r.Counts(); c.Stdout != total || !c.Drained || c.Dropped != 0 {
		t.Errorf("Counts() = %+v; want %d bytes, drained, nothing dropped", c, total)
	}
	rec := newRecorder(Cursor{})
	if err := r.Deliver(t.Context(), rec); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	rec.check(t)
	if got := int64(rec.got["stdout"].Len()); got != total || rec.gaps != 0 {
		t.Errorf("delivered %d bytes and a gap of %d; want %d and none", got, rec.gaps, total)
	}
}

// fillPipe writes until nothing is taken any more and returns how much that was. It
// wants the spool to hold exactly keep bytes then.
func fillPipe(t *testing.T, r *rig, keep int64) int64 {
	t.Helper()
	var total int64
	chunk := bytes.Repeat([]byte("0123456789abcde\n"), 256)
	late := time.Now().Add(patience)
	for r.Counts().Stdout < keep {
		if err := r.out.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatalf("SetWriteDeadline() = %v; want nil", err)
		}
		n, err := r.out.Write(chunk)
		total += int64(n)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(late) {
			t.Fatalf("Write(pipe) = %v after %d bytes; want the spool full at %d", err, total, keep)
		}
	}
	for {
		if err := r.out.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatalf("SetWriteDeadline() = %v; want nil", err)
		}
		n, err := r.out.Write(chunk)
		total += int64(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil || total > 16*keep+1<<21 {
			t.Fatalf("Write(pipe) = %v after %d bytes; want the writer to be stopped", err, total)
		}
	}
	if c := r.Counts(); c.Stdout != keep {
		t.Errorf("taken with nobody to deliver to = %d; want exactly Keep, %d", c.Stdout, keep)
	}
	return total
}

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
	if most := int64(MinKeep + punchStep + spliceMax); st.Blocks*512 > most {
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
		c.From = o.Cursor()
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
		"no pipe":        {Dir: t.TempDir(), Keep: MinKeep},
		"little keep":    {Dir: t.TempDir(), Keep: MinKeep - 1, Stdout: r},
		"no directory":   {Dir: "/nonexistent", Keep: MinKeep, Stdout: r},
		"PTY, no relay":  {Dir: t.TempDir(), Keep: MinKeep, Stdout: r, PTY: r},
		"not pollable":   {Dir: t.TempDir(), Keep: MinKeep, Stdout: plain},
		"past the spool": {Dir: t.TempDir(), Keep: MinKeep, Stdout: r, From: Cursor{Stdout: 1}},
	} {
		if o, err := NewOutput(c); err == nil {
			t.Errorf("%s: NewOutput() = %v; want an error", name, o)
		}
	}
}
