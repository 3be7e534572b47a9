package relay

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/test/testkit"

	"golang.org/x/sys/unix"
)

// TestFinishedGoFirst: at the bound the output that was retained longest goes, whole,
// and only it; a process that lives loses nothing and waits once none is left.
func TestFinishedGoFirst(t *testing.T) {
	const n, limit = 150_001, 1 << 20
	budget := NewBudget(0).Part(limit)
	var old []*Output
	for range 3 {
		r := finished(t, n, func(c *OutputConfig) { c.Budget = budget })
		if err := r.Retain(); err != nil {
			t.Fatalf("Retain() = %v; want nil", err)
		}
		old = append(old, r.Output)
	}
	if got := budget.Used(); got != 6*n {
		t.Errorf("Used() = %d; want %d: finished spools count", got, 6*n)
	}
	live := newRig(t, func(c *OutputConfig) { c.Budget, c.Keep, c.Format.Grouping = budget, 8<<20, Batch })
	live.serve(t)
	put := func(from, to int64) {
		t.Helper()
		if err := writePattern(live.out, proto.Stdout, from, to, func() int { return 10_000 }); err != nil {
			t.Fatalf("Write() = %v; want nil", err)
		}
		for late := time.Now().Add(patience); live.Counts().Stdout < to; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("Counts() after %v = %+v; want %d taken: a finished output can go", patience, live.Counts(), to)
			}
		}
	}
	put(0, 300_000)
	wantEvicted(t, old, n, true, false, false)
	put(300_000, 600_000)
	wantEvicted(t, old, n, true, true, false)
	go func() {
		_ = writePattern(live.out, proto.Stdout, 600_000, 2<<20, func() int { return 10_000 }) // what is missing is seen
		_, _ = live.out.Close(), live.err.Close()
	}()
	taken := settles(func() int64 { return live.Counts().Stdout })
	wantEvicted(t, old, n, true, true, true)
	if used := budget.Used(); used != taken || used > limit+MinKeep {
		t.Errorf("Used() = %d with %d taken; want all of the live one's, about %d", used, taken, limit)
	}
	owner := newChecker(Cursor{})
	if err := live.Deliver(t.Context(), owner); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	owner.want(t, 2<<20, 0)
	if owner.missing() != 0 {
		t.Errorf("a live process lost %d bytes; want none", owner.missing())
	}
	for _, o := range append(old, live.Output) {
		if err := o.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("Used() after all were closed = %d; want 0", used)
	}
}

// wantEvicted reads all outputs: of an evicted one, also once it is reopened, a gap of
// everything comes and not a byte; of another all.
func wantEvicted(t *testing.T, outs []*Output, n int64, evicted ...bool) {
	t.Helper()
	for i, o := range outs {
		for again := range 2 {
			if again == 1 {
				c := o.c
				c.Budget = nil
				var err error
				if o, err = ReopenOutput(c); err != nil {
					t.Fatalf("ReopenOutput() = %v; want nil", err)
				}
			}
			c := newChecker(Cursor{})
			if _, err := o.Follow(t.Context(), c, Format{Grouping: Batch}, Cursor{}); err != nil {
				t.Fatalf("Follow() = %v; want nil", err)
			}
			c.want(t, n, n)
			if got := c.missing(); evicted[i] && got != 2*n || !evicted[i] && got != 0 {
				t.Errorf("output %d of %v, reopened %d: %d bytes missing; want all or none of %d", i, evicted, again, got, 2*n)
			}
			if d := o.Counts().Dropped; evicted[i] != (d == 2*n) {
				t.Errorf("output %d of %v: Dropped = %d; want what no owner got", i, evicted, d)
			}
		}
	}
}

// TestFullFileSystemMakesRoom: on a full file system a finished output of another
// caller's goes, then what other callers' owners have got already; a process with an
// owner that reads never waits for good.
func TestFullFileSystemMakesRoom(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("pinfold-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m"); err != nil {
		t.Fatalf("mount(tmpfs) = %v; want nil", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("umount(%s) = %v; want nil", dir, err)
		}
	})
	all := NewBudget(0)
	place := func(name string) func(c *OutputConfig) {
		at := filepath.Join(dir, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatalf("Mkdir() = %v; want nil", err)
		}
		return func(c *OutputConfig) { c.Dir, c.Keep, c.Budget, c.Format.Grouping = at, 8<<20, all.Part(0), Batch }
	}
	done := finished(t, 400_000, place("finished"))
	if err := done.Retain(); err != nil {
		t.Fatalf("Retain() = %v; want nil", err)
	}
	idle := newRig(t, place("idle")) // its owner has all, and it keeps its last 8 MiB
	idle.serve(t)
	got := newChecker(Cursor{})
	go func() { _ = idle.Deliver(t.Context(), got) }() // ends with the test
	const kept = 2 << 20
	if err := writePattern(idle.out, proto.Stdout, 0, kept, func() int { return 50_000 }); err != nil {
		t.Fatalf("Write() = %v; want nil", err)
	}
	settles(func() int64 { return idle.Cursor().Stdout })
	busy := newRig(t, place("busy"))
	busy.serve(t)
	const total = 6 << 20
	go func() {
		_ = writePattern(busy.out, proto.Stdout, 0, total, func() int { return 50_000 }) // what is missing is seen
		_, _ = busy.out.Close(), busy.err.Close()
	}()
	owner := newChecker(Cursor{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := busy.Deliver(ctx, owner); err != nil {
		t.Fatalf("Deliver() = %v; want nil", err)
	}
	owner.want(t, total, 0)
	if c := busy.Counts(); c.Dropped != 0 || !c.Drained || owner.missing() != 0 {
		t.Errorf("Counts() = %+v; want nothing dropped, drained", c)
	}
	wantEvicted(t, []*Output{done.Output}, 400_000, true)
	low, size := idle.Retained(proto.Stdout)
	if size != kept || low == 0 || size-low < 64<<10 {
		t.Errorf("Retained() of an idle process = %d to %d; want some given up, and not what may be in flight", low, size)
	}
}

// TestAnEvictionThatComesTooLate: who needs room has chosen an output that is being closed.
// That is no error, which would cut off the one who needs room.
func TestAnEvictionThatComesTooLate(t *testing.T) {
	r := finished(t, 150_001, func(c *OutputConfig) { c.Budget = NewBudget(0) })
	if err := r.Retain(); err != nil {
		t.Fatal(err)
	}
	err := r.leave(func() error {
		if err := os.Remove(r.marks.path); err != nil {
			return err
		}
		if freed, err := r.evict(); freed != 0 || err != nil {
			t.Errorf("evict() of what is being closed = %d, %v; want nothing freed", freed, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
