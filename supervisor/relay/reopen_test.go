package relay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
)

// finished returns the output of a process that wrote n bytes of pattern to each stream
// and ended, delivered to nobody.
func finished(t *testing.T, n int64, change func(*OutputConfig)) *rig {
	t.Helper()
	r := newRig(t, func(c *OutputConfig) {
		c.Keep = 8 << 20
		if change != nil {
			change(c)
		}
	})
	r.serve(t)
	for kind, w := range map[proto.Stream]*os.File{proto.Stdout: r.out, proto.Stderr: r.err} {
		if err := writePattern(w, kind, 0, n, func() int { return 30_000 }); err != nil {
			t.Fatalf("Write(%s) = %v; want nil", kind, err)
		}
	}
	r.closeAll(t)
	if err := <-r.served; err != nil {
		t.Fatalf("Serve() = %v; want nil", err)
	}
	return r
}

// reopened is r's output once its daemon was killed and its process is gone.
func reopened(t *testing.T, r *rig) *Output {
	t.Helper()
	o, err := ReopenOutput(r.c)
	if err != nil {
		t.Fatalf("ReopenOutput() = %v; want an output", err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// TestReopenFinished reads a finished output from its files alone: by several readers
// from anywhere, by the owner too, with no file open in between.
func TestReopenFinished(t *testing.T) {
	const n = 1<<20 + 77
	r := finished(t, n, nil)
	fds := openFDs(t)
	o := reopened(t, r)
	if now := openFDs(t); now > fds {
		t.Errorf("open descriptors with a reopened output = %d; want %d", now, fds)
	}
	if c := o.Counts(); c != (Counts{Stdout: n, Stderr: n, Drained: true}) {
		t.Errorf("Counts() = %+v; want %d bytes each, drained", c, n)
	}
	var wg sync.WaitGroup
	for _, from := range []Cursor{{}, {Stdout: 1, Stderr: n}, {Stdout: 4096, Stderr: 4097, Seq: 9}, {Stdout: n, Stderr: n}} {
		wg.Go(func() {
			c := newChecker(from)
			at, err := o.Follow(t.Context(), c, Format{Grouping: Batch}, from)
			if err != nil || at.Stdout != n || at.Stderr != n || c.missing() != 0 {
				t.Errorf("Follow(%+v) = %+v, %v with %d bytes missing; want the end", from, at, err, c.missing())
			}
			c.want(t, n, n)
		})
	}
	wg.Wait()
	owner := newChecker(Cursor{Stdout: 5000})
	if err := errors.Join(o.SetCursor(5000, 0), o.Deliver(t.Context(), owner)); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	owner.want(t, n, n)
	if now := openFDs(t); now > fds {
		t.Errorf("open descriptors after all have read = %d; want %d", now, fds)
	}
	if err := o.Serve(t.Context()); err != nil {
		t.Errorf("Serve() of a finished output = %v; want nil", err)
	}
}

// TestReopenUnfinished: a daemon and the process were killed, and what the pipe held is
// gone with them.
func TestReopenUnfinished(t *testing.T) {
	r := newRig(t, nil)
	r.serve(t)
	mustWrite(t, r.out, "said\n")
	rec := newRecorder(Cursor{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Deliver(ctx, rec) }()
	rec.waitFor(t, "said\n")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("Deliver() = %v; want %v", err, context.Canceled)
	}
	if c := reopened(t, r).Counts(); c.Stdout != 5 || c.Drained {
		t.Errorf("Counts() of what a killed process left = %+v; want 5 bytes, not drained", c)
	}
}

func TestReopenRefuses(t *testing.T) {
	r := finished(t, 100, nil)
	if _, err := ReopenOutput(OutputConfig{Dir: t.TempDir(), Keep: MinKeep}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReopenOutput(nothing) = %v; want %v", err, os.ErrNotExist)
	}
	for name, c := range map[string]struct{ marks, want string }{
		"newer":       {`{"version":2,"streams":[]}`, "start the newer one"},
		"no marks":    {`nothing`, "cannot read marks"},
		"negative":    {`{"version":1,"streams":[{"delivered":-1},{}]}`, "negative offset"},
		"past spool":  {`{"version":1,"streams":[{"delivered":101},{}]}`, ErrRange.Error()},
		"no streams":  {`{"version":1,"streams":[]}`, "streams"},
		"one too few": {`{"version":1,"streams":[{}]}`, "streams"},
	} {
		if err := os.WriteFile(filepath.Join(r.c.Dir, "marks"), []byte(c.marks), 0o600); err != nil {
			t.Fatalf("WriteFile() = %v; want nil", err)
		}
		o, err := ReopenOutput(r.c)
		if name == "one too few" { // of a terminal it would be right
			o, err = NewOutput(r.c)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want an error with %q", name, o, err, c.want)
		}
	}
}

// TestCloseEndsReaders: those who read a forgotten output are told, and nothing of it
// stays open or on disk.
func TestCloseEndsReaders(t *testing.T) {
	r := newRig(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { r.served <- r.Serve(ctx) }()
	mustWrite(t, r.out, "x\n")
	done := make(chan error, 2)
	rec := newRecorder(Cursor{})
	go func() { done <- r.Deliver(t.Context(), rec) }()
	go func() {
		_, err := r.Follow(t.Context(), newRecorder(Cursor{}), Format{}, Cursor{})
		done <- err
	}()
	rec.waitFor(t, "x\n")
	stop()
	if err := <-r.served; !errors.Is(err, context.Canceled) {
		t.Fatalf("Serve() = %v; want %v", err, context.Canceled)
	}
	if err := r.Close(); err != nil {
		t.Fatalf("Close() = %v; want nil", err)
	}
	late := time.After(patience)
	for range 2 {
		select {
		case err := <-done:
			if !errors.Is(err, ErrForgotten) {
				t.Errorf("a reader of a closed output = %v; want %v", err, ErrForgotten)
			}
		case <-late:
			t.Fatalf("a reader of a closed output reads on after %v", patience)
		}
	}
	if _, err := r.Follow(t.Context(), newRecorder(Cursor{}), Format{}, Cursor{}); !errors.Is(err, ErrForgotten) {
		t.Errorf("Follow() of a closed output = %v; want %v", err, ErrForgotten)
	}
	if names, err := os.ReadDir(r.c.Dir); err != nil || len(names) > 0 {
		t.Errorf("files of a closed output = %v, %v; want none", names, err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close() again = %v; want nil", err)
	}
	for _, s := range r.streams {
		if s.spool.users != 0 || s.spool.file != nil {
			t.Errorf("spool of %s has %d users; want none", s.kind, s.spool.users)
		}
	}
}

// TestNumbersAreNeverGivenTwice: over a failed write, a final event, a replay, a clean
// end of a daemon and a kill.
func TestNumbersAreNeverGivenTwice(t *testing.T) {
	r := finished(t, 1000, nil)
	seen := newRecorder(Cursor{}) // wants consecutive numbers
	if err := r.Deliver(t.Context(), sinkFunc(func([]byte) error { return errGone })); !errors.Is(err, errGone) {
		t.Fatalf("Deliver() = %v; want %v", err, errGone)
	}
	seen.seq = r.Cursor().Seq
	if seen.seq == 0 {
		t.Error("a failed write used up no number; its client may have seen some")
	}
	deliver := func(o *Output) {
		t.Helper()
		seen.at["stdout"], seen.at["stderr"] = 0, 0
		if err := errors.Join(o.Serve(t.Context()), o.SetCursor(0, 0), o.Deliver(t.Context(), seen)); err != nil {
			t.Fatalf("Deliver() = %v; want nil", err)
		}
		seq, err := o.TakeSeq()
		if seen.seq++; err != nil || seq != seen.seq {
			t.Errorf("TakeSeq() = %d, %v; want %d", seq, err, seen.seq)
		}
		seen.check(t)
	}
	deliver(r.Output)
	deliver(r.Output)
	if err := r.Detach(); err != nil {
		t.Fatalf("Detach() = %v; want nil", err)
	}
	after, err := NewOutput(r.c)
	if err != nil {
		t.Fatalf("NewOutput() = %v; want nil", err)
	}
	deliver(after) // goes on with the next number
	killed, err := NewOutput(r.c)
	if err != nil {
		t.Fatalf("NewOutput() = %v; want nil", err)
	}
	t.Cleanup(func() { _, _ = after.Close(), killed.Close() })
	if got := killed.Cursor().Seq; got < seen.seq || got > seen.seq+seqStep {
		t.Errorf("after a kill the last number = %d; want at least %d, and at most %d more", got, seen.seq, seqStep)
	}
	seen.seq = killed.Cursor().Seq
	deliver(killed)
}

type sinkFunc func([]byte) error

func (f sinkFunc) Write(b []byte) error { return f(b) }
