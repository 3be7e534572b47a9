package relay

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"pinfold/proto"
)

// TestFollowBelowWhatIsKept: the first event is a gap with the exact range, and what
// comes after it is right to the byte.
func TestFollowBelowWhatIsKept(t *testing.T) {
	const n = 2<<20 + 5
	r := finished(t, n, func(c *OutputConfig) { c.Keep, c.Overflow = MinKeep, Drop })
	low, size := r.Retained(proto.Stdout)
	if low == 0 || size != n || size-low < MinKeep {
		t.Fatalf("Retained() = %d to %d; want less than all %d, and at least %d", low, size, n, MinKeep)
	}
	lowErr, _ := r.Retained(proto.Stderr)
	for _, at := range []int64{0, 10, low - 1} {
		c := newChecker(Cursor{Stdout: at})
		if _, err := r.Follow(t.Context(), c, Format{Grouping: Batch}, Cursor{Stdout: at}); err != nil {
			t.Fatalf("Follow(%d) = %v; want nil", at, err)
		}
		c.want(t, n, n)
		if got := c.gaps[proto.Stdout]; len(got) != 1 || got[0] != (proto.Gap{From: at, To: low}) {
			t.Errorf("Follow(%d) told the gaps %+v; want %d to %d", at, got, at, low)
		}
	}
	at := Cursor{Stdout: low, Stderr: lowErr}
	c := newChecker(at)
	if _, err := r.Follow(t.Context(), c, Format{Grouping: Batch}, at); err != nil || c.missing() != 0 {
		t.Errorf("Follow(%+v) = %v with %d bytes missing; want none: they are kept", at, err, c.missing())
	}
	for _, at := range []Cursor{{Stdout: n + 1}, {Stdout: -1}, {Stderr: n + 1}} {
		if _, err := r.Follow(t.Context(), c, Format{}, at); !errors.Is(err, ErrRange) {
			t.Errorf("Follow(%+v) = %v; want %v", at, err, ErrRange)
		}
		if err := r.SetCursor(at.Stdout, at.Stderr); !errors.Is(err, ErrRange) {
			t.Errorf("SetCursor(%+v) = %v; want %v", at, err, ErrRange)
		}
	}
}

// TestComesBackForWhatTheSocketHad: a client stalls until its process is stopped, and
// breaks its connection. What the socket had is in no spool's undelivered part, and the
// client has not read a byte: it gets all of them on its new connection.
func TestComesBackForWhatTheSocketHad(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep, c.Format.Grouping = MinKeep, Batch })
	r.serve(t)
	ours, theirs := socketPair(t)
	if err := ours.(*net.UnixConn).SetWriteBuffer(1 << 20); err != nil { //nolint:errcheck,forcetypeassert // the test's own
		t.Fatalf("SetWriteBuffer() = %v; want nil", err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), connSink{ours}) }()
	const total = 4 << 20
	go func() {
		_ = writePattern(r.out, proto.Stdout, 0, total, func() int { return 50_000 }) // what is missing is seen
		_, _ = r.out.Close(), r.err.Close()
	}()
	stopped := settles(func() int64 { return r.Counts().Stdout })
	sent := r.Cursor().Stdout
	if sent == 0 || stopped-sent < MinKeep || stopped >= total {
		t.Fatalf("%d bytes were taken and %d sent; want the process stopped by a client that reads nothing", stopped, sent)
	}
	if sent > inFlight {
		t.Errorf("a socket took %d bytes; want at most the %d that may be in flight", sent, inFlight)
	}
	_ = theirs.Close()
	if err := <-done; err == nil {
		t.Fatal("Deliver() to a broken connection = nil; want an error")
	}
	back := newChecker(Cursor{})
	back.seq = r.Cursor().Seq
	if err := errors.Join(r.SetCursor(0, 0), r.Deliver(t.Context(), back)); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	back.want(t, total, 0)
	if n := back.missing(); n != 0 {
		t.Errorf("a client that comes back misses %d of the %d bytes in its old socket; want none", n, sent)
	}
}

// settles waits until a figure has not changed for a while, and returns it.
func settles(f func() int64) int64 {
	for last := int64(-1); ; {
		now := f()
		if now == last {
			return now
		}
		last = now
		time.Sleep(300 * time.Millisecond)
	}
}

// TestRewindBlocks: an owner that goes back is Keep behind again, and the process waits
// for it, attached or not.
func TestRewindBlocks(t *testing.T) {
	r := newRig(t, func(c *OutputConfig) { c.Keep, c.Format.Grouping = MinKeep, Batch })
	r.serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, done := newChecker(Cursor{}), make(chan error, 1)
	go func() { done <- r.Deliver(ctx, first) }()
	const part = 1 << 20
	if err := writePattern(r.out, proto.Stdout, 0, part, func() int { return 50_000 }); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	for late := time.Now().Add(patience); r.Cursor().Stdout < part-64; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("Cursor() after %v = %+v; want %d", patience, r.Cursor(), part)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("Deliver() = %v; want %v", err, context.Canceled)
	}
	taken := r.Counts().Stdout
	if err := r.SetCursor(0, 0); err != nil {
		t.Fatalf("SetCursor(0, 0) = %v; want nil", err)
	}
	go func() {
		_ = writePattern(r.out, proto.Stdout, part, 2*part, func() int { return 50_000 }) // what is missing is seen
		_, _ = r.out.Close(), r.err.Close()
	}()
	if now := settles(func() int64 { return r.Counts().Stdout }); now > taken+spliceMax {
		t.Errorf("taken with an owner at 0 = %d; want no more than was on its way, %d", now, taken)
	}
	back := newChecker(Cursor{Seq: r.Cursor().Seq})
	if err := r.Deliver(t.Context(), back); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	back.want(t, 2*part, 0)
	if back.missing() != 0 || r.Counts().Dropped != 0 {
		t.Errorf("%d bytes missing, %+v; want none", back.missing(), r.Counts())
	}
}

// TestGapThatArrived: a daemon is killed with a gap on its way. Where the owner comes
// back says whether it has arrived, and it counts once.
func TestGapThatArrived(t *testing.T) {
	for name, arrived := range map[string]bool{"arrived": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			const n = 1 << 20
			r := finished(t, n, func(c *OutputConfig) { c.Keep, c.Overflow, c.Format.Grouping = MinKeep, Drop, Batch })
			if err := r.out.Close(); !errors.Is(err, os.ErrClosed) {
				t.Fatalf("Close() = %v; want %v", err, os.ErrClosed)
			}
			want := r.Counts().Dropped
			client := newChecker(Cursor{})
			err := r.Deliver(t.Context(), sinkFunc(func(b []byte) error {
				if arrived {
					_ = client.Write(b) // checked below
				}
				return errGone
			}))
			if !errors.Is(err, errGone) {
				t.Fatalf("Deliver() = %v; want %v", err, errGone)
			}
			o := reopened(t, r)
			at := client.cursor()
			if err := errors.Join(o.SetCursor(at.Stdout, at.Stderr), o.Deliver(t.Context(), client)); err != nil {
				t.Fatalf("Deliver() = %v; want nil", err)
			}
			client.want(t, n, n)
			if got := o.Counts().Dropped; got != want || client.missing() != want {
				t.Errorf("Dropped = %d, %d told; want %d", got, client.missing(), want)
			}
		})
	}
}
