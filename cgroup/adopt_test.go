package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// successor opens a base once more, as the next daemon does after the one of b was killed.
func successor(tb testing.TB, b *Base) *Base {
	tb.Helper()
	next, err := Reopen(b.Hierarchies())
	if err != nil {
		tb.Fatalf("Reopen() = %v; want nil", err)
	}
	for i := range next.hiers {
		if next.hiers[i].Dir != b.hiers[i].Dir {
			tb.Fatalf("hierarchy %d is at %s; want %s", i, next.hiers[i].Dir, b.hiers[i].Dir)
		}
		next.hiers[i].made = false // the first removes it
	}
	return next
}

// TestAdoptAtOnce: each finds its groups whole, whoever opens them first.
func TestAdoptAtOnce(t *testing.T) {
	old := openBase(t)
	caller, own := Limits{Memory: 512 << 20, Swap: -1}, Limits{Memory: 256 << 20, Swap: -1}
	var paths []string
	for i := range 16 {
		paths = append(paths, placed(t, old, "s1", "p"+strconv.Itoa(i), caller, own, Limits{Memory: 64 << 20, Swap: -1}).Path())
	}
	b := successor(t, old)
	jobs := make([]*Job, len(paths))
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i, p := range paths {
		wg.Go(func() {
			<-begin
			j, err := b.Adopt(p)
			if err != nil {
				t.Errorf("Adopt(%s) = %v; want nil", p, err)
				return
			}
			jobs[i] = j
			if g := j.group; b.Lacks()[ControllerMemory] == "" && (j.Limits().Memory != 64<<20 || g.Limits().Memory != own.Memory || g.parent.Limits().Memory != caller.Memory || len(j.before) != 3) {
				t.Errorf("Adopt(%s): limits %+v, session %+v, caller %+v, %d levels watched; want them whole", p, j.Limits(), g.Limits(), g.parent.Limits(), len(j.before))
			}
		})
	}
	close(begin)
	wg.Wait()
	for _, j := range jobs {
		if j == nil {
			continue
		}
		if j.group != jobs[0].group {
			t.Errorf("%s has another group than %s; want one for each directory", j.Path(), jobs[0].Path())
		}
		if err := j.Remove(deadline(t)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(jobs[0].group.Remove(), jobs[0].group.parent.Remove(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestReopen: the base is found where it was, and not made where it was not.
func TestReopen(t *testing.T) {
	b := openBase(t)
	j := placed(t, b, "s1", "p", NoLimits(), NoLimits(), Limits{Memory: 64 << 20, Swap: -1, Pids: 9})
	next, err := Reopen(b.Hierarchies())
	if err != nil {
		t.Fatalf("Reopen() = %v; want nil", err)
	}
	if !slices.Equal(next.Hierarchies(), b.Hierarchies()) || next.CallersPath() != b.CallersPath() {
		t.Errorf("Reopen() is at %+v, %s; want %+v, %s", next.Hierarchies(), next.CallersPath(), b.Hierarchies(), b.CallersPath())
	}
	if _, err := next.Adopt(j.Path()); err != nil {
		t.Errorf("Adopt() = %v; want nil", err)
	}
	for i := range next.hiers {
		if !next.hiers[i].made {
			t.Errorf("the base at %s is not taken for our own: it would stay", next.hiers[i].Dir)
		}
		next.hiers[i].made = false // the first removes it
	}
	if err := errors.Join(j.Remove(deadline(t)), j.group.Remove(), j.group.parent.Remove(), next.Close()); err != nil {
		t.Error(err)
	}
	gone := b.Hierarchies()
	gone[0].Dir += "-gone"
	for name, hiers := range map[string][]Hierarchy{"none": nil, "gone": gone, "no cgroup": {{Dir: t.TempDir()}}, "the whole tree": {{Dir: filepath.Dir(b.Hierarchies()[0].Dir)}}} {
		if _, err := Reopen(hiers); !errors.Is(err, ErrGone) {
			t.Errorf("Reopen(%s) = %v; want ErrGone", name, err)
		}
	}
	if _, err := os.Stat(gone[0].Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(%s) = %v; want nothing made", gone[0].Dir, err)
	}
}

// placed makes a process of a caller and a session with limits.
func placed(tb testing.TB, b *Base, session, process string, caller, own, l Limits) *Job {
	tb.Helper()
	g, err := b.Caller(4242, caller)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := g.Session(session, own)
	if err != nil {
		tb.Fatal(err)
	}
	j, err := s.Process(process, l)
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

// TestAdopt: what an earlier daemon made is swept but for what is kept, and that does all that it did.
func TestAdopt(t *testing.T) {
	old := openBase(t)
	l := Limits{Memory: 64 << 20, Swap: -1, Pids: 20, CPU: 0.5}
	caller := Limits{Memory: 512 << 20, Swap: -1, Pids: 100}
	kept := placed(t, old, "s1", "kept", caller, NoLimits(), l)
	doomed := []*exec.Cmd{
		start(t, placed(t, old, "s1", "beside", caller, NoLimits(), l), "exec sleep 1000"),
		start(t, placed(t, old, "s2", "other", caller, NoLimits(), NoLimits()), "exec sleep 1000"),
	}
	for _, cmd := range doomed {
		until(t, "what is to be swept has joined", func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
			return err == nil && string(b) == "sleep\n"
		})
	}
	stays := start(t, kept, "sleep 1000 & wait")
	until(t, "the target to join", func() bool { p, err := kept.Pids(); return err == nil && len(p) == 2 })

	b := successor(t, old)
	if err := b.Sweep(deadline(t), kept.Path(), "callers/4242/s3/none"); err != nil {
		t.Fatalf("Sweep() = %v; want nil", err)
	}
	for _, cmd := range doomed {
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("Wait() of what is swept = %v; want it killed", err)
		}
	}
	left, err := b.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range left {
		rel := dir[strings.Index(dir, "/callers/")+1:]
		if !strings.HasPrefix(rel, kept.Path()) && !strings.HasPrefix(kept.Path(), rel+"/") {
			t.Errorf("Leftovers() has %s; want it swept", dir)
		}
	}

	j, err := b.Adopt(kept.Path())
	if err != nil {
		t.Fatalf("Adopt() = %v; want nil", err)
	}
	if got := j.Limits(); b.Lacks()[ControllerMemory] == "" && got.Memory != l.Memory ||
		b.Lacks()[ControllerPids] == "" && got.Pids != l.Pids || b.Lacks()[ControllerCPU] == "" && got.CPU != l.CPU {
		t.Errorf("Limits() = %+v; want %+v", got, l)
	}
	if got, want := j.Applied(), kept.Applied(); !slices.Equal(applied(got), applied(want)) {
		t.Errorf("Applied() = %+v; want %+v", got, want)
	}
	if g := j.group.parent; b.Lacks()[ControllerMemory] == "" && g.Limits().Memory != caller.Memory || b.Lacks()[ControllerPids] == "" && g.Limits().Pids != caller.Pids {
		t.Errorf("Limits() of the caller = %+v; want %+v", g.Limits(), caller)
	}
	if got, want := j.Join(), kept.Join(); !slices.Equal(got, want) {
		t.Errorf("Join() = %+v; want %+v", got, want)
	}
	if u, err := j.Usage(); err != nil || u.Pids != 2 || u.CPUUser < 0 {
		t.Errorf("Usage() = %+v, %v; want two tasks", u, err)
	}
	ctx := deadline(t)
	if err := errors.Join(j.Freeze(ctx), j.Thaw(ctx), j.Set(Limits{Memory: 96 << 20, Swap: -1, Pids: 30}, Refuse)); err != nil {
		t.Errorf("Freeze, Thaw, Set = %v; want nil", err)
	}
	if empty, err := j.Empty(); empty || err != nil {
		t.Errorf("Empty() = %v, %v; want false", empty, err)
	}
	if err := errors.Join(j.Kill(), j.WaitEmpty(ctx)); err != nil {
		t.Errorf("Kill, WaitEmpty = %v; want nil", err)
	}
	_ = stays.Wait() // killed
	if err := errors.Join(j.Remove(ctx), j.group.Remove(), j.group.parent.Remove(), b.Close()); err != nil {
		t.Errorf("Remove of job, session and caller, Close = %v; want nil", err)
	}
}

// applied are the settings that are in force, in a comparable form; io.weight of 50 and the like are not among the test's.
func applied(list []Setting) []string {
	var out []string
	for _, s := range list {
		if s.State == StateApplied {
			out = append(out, s.File+"="+s.Value)
		}
	}
	slices.Sort(out)
	return out
}

// TestAdoptNothing: no path leads to another cgroup than that of a process, and nothing is made.
func TestAdoptNothing(t *testing.T) {
	b := openBase(t)
	j := placed(t, b, "s1", "p", NoLimits(), NoLimits(), NoLimits())
	if err := os.Mkdir(filepath.Join(b.hiers[0].Dir, "callers/4242/s1/half"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"callers/4242/s1/none", "callers/4242/s9/p", "callers/9/s1/p", "callers/4242/s1/half"} {
		if _, err := b.Adopt(path); !errors.Is(err, ErrGone) {
			t.Errorf("Adopt(%s) = %v; want ErrGone", path, err)
		}
	}
	for _, path := range []string{"", "callers", "callers/4242/s1", j.Path() + "/job", "callers/4242/../s1", "/callers/4242/s1/p", "daemon/4242/s1/p", "callers/4242/s1/init"} {
		if _, err := b.Adopt(path); err == nil || errors.Is(err, ErrGone) {
			t.Errorf("Adopt(%q) = %v; want a refusal", path, err)
		}
		if err := b.Sweep(deadline(t), path); err == nil {
			t.Errorf("Sweep(keep %q) = nil; want a refusal", path)
		}
	}
	if _, err := b.Adopt(j.Path()); err != nil {
		t.Errorf("Adopt(%s) after the refused sweeps = %v; want nil", j.Path(), err)
	}
	if err := b.Sweep(deadline(t)); err != nil {
		t.Fatal(err)
	}
	placed(t, b, "s1", "p", NoLimits(), NoLimits(), NoLimits()) // in groups that were there before the sweep
	if left, err := b.Leftovers(); err != nil || len(left) == 0 || slices.ContainsFunc(left, func(d string) bool { return strings.Contains(d, "/s9") }) {
		t.Errorf("Leftovers() = %v, %v; want no s9", left, err)
	}
}

// TestAdoptOutOfMemory: a kill that nobody watched is told with whose limit it was.
func TestAdoptOutOfMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		session, own Limits
		want         Scope
	}{
		"process": {NoLimits(), Limits{Memory: 24 << 20, Swap: 0}, ScopeProcess},
		"session": {Limits{Memory: 24 << 20, Swap: 0}, Limits{Memory: 256 << 20, Swap: -1}, ScopeSession},
	} {
		t.Run(name, func(t *testing.T) {
			old := openBase(t)
			need(t, old, ControllerMemory)
			caller := Limits{Memory: 512 << 20, Swap: -1}
			lost := placed(t, old, "s1", "p", caller, tt.session, tt.own)
			quiet := placed(t, old, "s1", "quiet", caller, tt.session, tt.own)
			if err := start(t, lost, "exec tail /dev/zero").Wait(); err == nil {
				t.Fatal("tail /dev/zero = exit 0; want it killed")
			}
			b := successor(t, old)
			if err := b.Sweep(deadline(t), lost.Path(), quiet.Path()); err != nil {
				t.Fatal(err)
			}
			j, err := b.Adopt(lost.Path())
			if err != nil {
				t.Fatal(err)
			}
			if err := j.WaitOOM(deadline(t)); err != nil {
				t.Errorf("WaitOOM() = %v; want nil at once", err)
			}
			if e, err := j.Events(); err != nil || e.OOMKills < 1 || e.OOMScope != tt.want || e.OOMLimit != 24<<20 {
				t.Errorf("Events() = %+v, %v; want a kill by the limit of the %s", e, err, tt.want)
			}
			q, err := b.Adopt(quiet.Path())
			if err != nil {
				t.Fatal(err)
			}
			if e, err := q.Events(); err != nil || e.OOMKills != 0 || e.OOMScope != ScopeNone {
				t.Errorf("Events() of the other = %+v, %v; want no kill", e, err)
			}
			if err := start(t, q, "exec tail /dev/zero").Wait(); err == nil {
				t.Fatal("tail /dev/zero = exit 0; want it killed")
			}
			if e, err := q.Events(); err != nil || e.OOMKills < 1 || e.OOMScope != tt.want || e.OOMLimit != 24<<20 {
				t.Errorf("Events() of the other, killed while watched = %+v, %v; want the limit of the %s", e, err, tt.want)
			}
			for _, k := range []*Job{j, q} {
				if err := k.Remove(deadline(t)); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(j.group.Remove(), j.group.parent.Remove(), b.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAdoptOfWhatIsGone: nothing is known of the levels above it, so that they can be
// swept and made again.
func TestAdoptOfWhatIsGone(t *testing.T) {
	old := openBase(t)
	gone := placed(t, old, "s1", "gone", NoLimits(), NoLimits(), NoLimits())
	if err := gone.Remove(deadline(t)); err != nil {
		t.Fatal(err)
	}
	b := successor(t, old)
	if _, err := b.Adopt(gone.Path()); !errors.Is(err, ErrGone) {
		t.Fatalf("Adopt() of a process whose cgroup was removed = %v; want ErrGone", err)
	}
	if err := b.Sweep(deadline(t)); err != nil {
		t.Fatalf("Sweep() = %v; want nil", err)
	}
	again := placed(t, b, "s2", "next", NoLimits(), NoLimits(), NoLimits())
	if err := again.Remove(deadline(t)); err != nil {
		t.Error(err)
	}
	for _, g := range again.Groups() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}
}
