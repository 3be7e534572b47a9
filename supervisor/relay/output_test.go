package relay

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
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
			if got, err := r.TakeSeq(); got != rec.seq+1 || err != nil {
				t.Errorf("TakeSeq() = %d, %v; want %d", got, err, rec.seq+1)
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
