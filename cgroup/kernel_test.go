package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/test/testkit"
)

const patience = 20 * time.Second

// openBase makes a base of the test's own and takes it away again; what is left then is an error. It skips only where the
// host gives no cgroup to anybody like us, which Open proves by naming the cure.
func openBase(tb testing.TB) *Base {
	tb.Helper()
	name := fmt.Sprintf("pinfold-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	b, err := Open(name, tb.TempDir())
	if errors.Is(err, ErrNoBase) {
		testkit.LeaveOut(tb, fmt.Sprintf("this host lacks a cgroup of our own: %v", err))
	}
	if err != nil {
		tb.Fatalf("Open(%s) = %v; want nil", name, err)
	}
	hiers := b.Hierarchies()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Sweep(ctx); err != nil {
			tb.Errorf("Sweep() = %v; want nil", err)
		}
		if left, err := b.Leftovers(); len(left) > 0 || err != nil {
			tb.Errorf("Leftovers() = %v, %v; want none", left, err)
		}
		if err := b.Close(); err != nil {
			tb.Errorf("Close() = %v; want nil", err)
		}
		for _, h := range hiers {
			if _, err := os.Stat(h.Dir); !errors.Is(err, os.ErrNotExist) {
				tb.Errorf("after Close() Stat(%s) = %v; want no such file", h.Dir, err)
			}
		}
	})
	return b
}

// need skips when the host lacks a controller, which Lacks proves.
func need(tb testing.TB, b *Base, controllers ...string) {
	tb.Helper()
	for _, c := range controllers {
		if why, lacks := b.Lacks()[c]; lacks {
			testkit.LeaveOut(tb, fmt.Sprintf("this host lacks %s: %s", c, why))
		}
	}
}

// newJob makes a process below caller 4242.
func newJob(tb testing.TB, b *Base, l Limits) *Job {
	tb.Helper()
	g, err := b.Caller(4242, NoLimits())
	if err != nil {
		tb.Fatalf("Caller() = %v; want nil", err)
	}
	s, err := g.Session("s1", NoLimits())
	if err != nil {
		tb.Fatalf("Session() = %v; want nil", err)
	}
	j, err := s.Process("p"+strconv.FormatInt(time.Now().UnixNano(), 36), l)
	if err != nil {
		tb.Fatalf("Process(%+v) = %v; want nil", l, err)
	}
	return j
}

// start runs a shell script as the job's target: it joins as a target does, by writing "0".
func start(tb testing.TB, j *Job, script string) *exec.Cmd {
	tb.Helper()
	dirs := map[string]string{}
	for _, h := range j.group.base.Hierarchies() {
		dirs[h.Controller] = h.Dir
	}
	args := []string{"-c", `for f; do echo 0 > "$f" || exit 99; done; set --; ` + script, "sh"}
	for _, f := range j.Join() {
		args = append(args, filepath.Join(dirs[f.Controller], f.Path))
	}
	cmd := exec.Command("sh", args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		tb.Fatalf("Start(%q) = %v; want nil", script, err)
	}
	tb.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may be gone already
			_ = cmd.Wait()         // its status is of no interest
		}
	})
	return cmd
}

func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// until waits for a condition that the kernel does not notify.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited %v for %s in vain", patience, what)
		}
	}
}

func setting(list []Setting, file string) Setting {
	for _, s := range list {
		if s.File == file {
			return s
		}
	}
	return Setting{}
}

func TestOpenHere(t *testing.T) {
	b := openBase(t)
	hiers := b.Hierarchies()
	if len(hiers) == 0 || hiers[0].Controller != "" {
		t.Fatalf("Hierarchies() = %+v; want the v2 tree first", hiers)
	}
	for _, h := range hiers {
		if _, err := os.Stat(filepath.Join(h.Dir, "callers/cgroup.procs")); err != nil {
			t.Errorf("Stat(%s/callers/cgroup.procs) = %v; want nil", h.Dir, err)
		}
	}
	if (b.Backend() == BackendHybrid) != (len(hiers) > 1) {
		t.Errorf("Backend() = %s with hierarchies %+v; want hybrid with more than one", b.Backend(), hiers)
	}
	for c, why := range b.Lacks() {
		if !strings.Contains(why, ":") || len(why) < 20 {
			t.Errorf("Lacks()[%s] = %q; want cause and cure", c, why)
		}
	}
	j := newJob(t, b, NoLimits())
	cmd := start(t, j, "exec sleep 1000")
	until(t, "the target to join", func() bool { p, err := j.Pids(); return err == nil && slices.Contains(p, cmd.Process.Pid) })
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	want := "\n0::" + b.CallersPath() + "/4242/s1/" + j.id + "/job\n"
	if err != nil || !strings.Contains("\n"+string(text), want) {
		t.Errorf("/proc/pid/cgroup = %s, %v; want %q in it", text, err, want)
	}
}

func TestSecondOpenFindsTheSameBase(t *testing.T) {
	state := t.TempDir()
	a, err := Open("", state)
	if errors.Is(err, ErrNoBase) {
		testkit.LeaveOut(t, fmt.Sprintf("this host lacks a cgroup of our own: %v", err))
	}
	if err != nil {
		t.Fatalf("Open() = %v; want nil", err)
	}
	b, err := Open("", state)
	if err != nil {
		t.Fatalf("second Open() = %v; want nil", err)
	}
	if b.CallersPath() != a.CallersPath() {
		t.Errorf("CallersPath() = %s; want %s", b.CallersPath(), a.CallersPath())
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	// The first stands for a daemon that was killed: the second removes what that one made.
	for i := range a.hiers {
		if _, err := os.Stat(a.hiers[i].Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Stat(%s) after Close = %v; want it gone", a.hiers[i].Dir, err)
		}
		a.hiers[i].made = false
	}
	if err := a.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
}

func TestAppliedIsWhatTheKernelShows(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerMemory, ControllerPids, ControllerCPU)
	l := Limits{Memory: 32<<20 + 1, Swap: 0, Pids: 17, CPU: 0.5, IOWeight: 50}
	j := newJob(t, b, l)
	applied := j.Applied()
	values := map[string]string{
		"memory.limit_in_bytes": "33554432", "memory.max": "33554432", "pids.max": "17",
		"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000", "memory.oom.group": "1",
	}
	for _, s := range applied {
		if want, ok := values[s.File]; ok && (s.Value != want || s.State != StateApplied) {
			t.Errorf("Applied() has %+v; want value %s", s, want)
		}
		if s.State == StateUnsupported && s.Why == "" {
			t.Errorf("Applied() has %+v; want a cause", s)
		}
		if s.State == StateUnsupported && (s.Controller == ControllerMemory || s.Controller == ControllerPids || s.Controller == ControllerCPU) {
			t.Errorf("Applied() has %+v; want it applied: the host has the controller", s)
		}
	}
	if len(applied) < 5 {
		t.Errorf("Applied() = %+v; want one for each limit", applied)
	}
	if err := j.Remove(deadline(t)); err != nil {
		t.Errorf("Remove() = %v; want nil", err)
	}
}

func TestOOM(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerMemory)
	j := newJob(t, b, Limits{Memory: 24 << 20, Swap: 0})
	ctx := deadline(t)
	seen := make(chan error, 1)
	go func() { seen <- j.WaitOOM(ctx) }()
	// The shell outlives its child: on v1 the kernel ends one task only.
	cmd := start(t, j, "tail /dev/zero; sleep 1000")
	if err := <-seen; err != nil {
		t.Fatalf("WaitOOM() = %v; want nil", err)
	}
	if err := j.Kill(); err != nil {
		t.Fatalf("Kill() = %v; want nil", err)
	}
	if err := j.WaitEmpty(ctx); err != nil {
		t.Fatalf("WaitEmpty() = %v; want nil", err)
	}
	_ = cmd.Wait() // killed
	e, err := j.Events()
	if err != nil || e.OOMKills < 1 || e.OOMScope != ScopeProcess || e.OOMLimit != 24<<20 {
		t.Errorf("Events() = %+v, %v; want kills with the process's limit", e, err)
	}
	if e.MemoryPeak < 20<<20 || e.MemoryPeak > 24<<20 {
		t.Errorf("Events().MemoryPeak = %d; want about the limit %d", e.MemoryPeak, 24<<20)
	}
}

func TestOOMOfSession(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerMemory)
	g, err := b.Caller(7, Limits{Memory: 512 << 20, Swap: -1})
	if err != nil {
		t.Fatalf("Caller() = %v; want nil", err)
	}
	s, err := g.Session("s", Limits{Memory: 24 << 20, Swap: 0})
	if err != nil {
		t.Fatalf("Session() = %v; want nil", err)
	}
	j, err := s.Process("p", Limits{Memory: 256 << 20, Swap: -1})
	if err != nil {
		t.Fatalf("Process() = %v; want nil", err)
	}
	if err := start(t, j, "exec tail /dev/zero").Wait(); err == nil {
		t.Error("tail /dev/zero = exit 0; want it killed")
	}
	e, err := j.Events()
	if err != nil || e.OOMKills < 1 || e.OOMScope != ScopeSession || e.OOMLimit != 24<<20 {
		t.Errorf("Events() = %+v, %v; want kills with the session's limit", e, err)
	}
}

func TestWaitOOMEnds(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerMemory)
	j := newJob(t, b, NoLimits())
	ctx, cancel := context.WithCancel(deadline(t))
	seen := make(chan error, 1)
	go func() { seen <- j.WaitOOM(ctx) }()
	cancel()
	if err := <-seen; !errors.Is(err, context.Canceled) {
		t.Errorf("WaitOOM(cancelled) = %v; want %v", err, context.Canceled)
	}
	if e, err := j.Events(); err != nil || e.OOMKills != 0 || e.OOMScope != ScopeNone {
		t.Errorf("Events() = %+v, %v; want no kill", e, err)
	}
	go func() { seen <- j.WaitOOM(deadline(t)) }()
	time.Sleep(20 * time.Millisecond) // most often registered by now; both orders must end alike
	if err := j.Remove(deadline(t)); err != nil {
		t.Fatalf("Remove() = %v; want nil", err)
	}
	if b.Backend() == BackendHybrid {
		if err := <-seen; !errors.Is(err, ErrGone) && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("WaitOOM(removed) = %v; want %v", err, ErrGone)
		}
	}
}

func TestForkBomb(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerPids)
	l := NoLimits()
	l.Pids = 12
	j := newJob(t, b, l)
	cmd := start(t, j, "exec 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1000 & done; wait")
	until(t, "a refused fork", func() bool { e, err := j.Events(); return err == nil && e.PidsRefused > 0 })
	u, err := j.Usage()
	if err != nil || u.Pids > 12 || u.Pids < 1 {
		t.Errorf("Usage().Pids = %d, %v; want 1 to 12", u.Pids, err)
	}
	if err := j.Remove(deadline(t)); err != nil {
		t.Errorf("Remove() = %v; want nil", err)
	}
	_ = cmd.Wait() // killed
}

func TestFreezeAndThaw(t *testing.T) {
	b := openBase(t)
	j := newJob(t, b, NoLimits())
	out := filepath.Join(t.TempDir(), "out")
	start(t, j, "while :; do echo x >> "+out+"; done")
	size := func() int64 {
		info, err := os.Stat(out)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	until(t, "the first line", func() bool { return size() > 0 })
	if err := j.Freeze(deadline(t)); err != nil {
		t.Fatalf("Freeze() = %v; want nil", err)
	}
	before := size()
	time.Sleep(50 * time.Millisecond)
	if after := size(); after != before {
		t.Errorf("size while frozen = %d; want %d", after, before)
	}
	if err := j.Thaw(deadline(t)); err != nil {
		t.Fatalf("Thaw() = %v; want nil", err)
	}
	until(t, "more lines", func() bool { return size() > before })
	if err := j.Freeze(deadline(t)); err != nil {
		t.Fatalf("Freeze() = %v; want nil", err)
	}
	if err := j.Remove(deadline(t)); err != nil {
		t.Errorf("Remove() of a frozen job = %v; want nil", err)
	}
}

func TestKillEndsAll(t *testing.T) {
	const script = `setsid sh -c 'sh -c "kill -STOP \$\$" & sleep 1000 & trap "" TERM; wait' & (sleep 1000 &) ; exec sleep 1000`
	kills := map[string]func(*Job) error{
		"cgroup.kill": (*Job).Kill,
		"one by one": func(j *Job) error {
			d, name, err := j.v2()
			return errors.Join(err, killEach(d, name))
		},
	}
	for name, killJob := range kills {
		t.Run(name, func(t *testing.T) {
			b := openBase(t)
			j := newJob(t, b, NoLimits())
			// A first process in init lives on when the job is killed.
			first := exec.Command("sleep", "1000")
			fd, err := os.Open(filepath.Join(b.Hierarchies()[0].Dir, j.Path(), initDir))
			if err != nil {
				t.Fatal(err)
			}
			first.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
			if err := first.Start(); err != nil {
				t.Fatalf("Start() in init = %v; want nil", err)
			}
			if err := fd.Close(); err != nil {
				t.Error(err)
			}
			main := start(t, j, script)
			until(t, "five processes", func() bool { p, err := j.Pids(); return err == nil && len(p) >= 5 })
			if err := killJob(j); err != nil {
				t.Fatalf("kill = %v; want nil", err)
			}
			if err := j.WaitEmpty(deadline(t)); err != nil {
				t.Fatalf("WaitEmpty() = %v; want nil", err)
			}
			if p, err := j.Pids(); len(p) != 0 || err != nil {
				t.Errorf("Pids() = %v, %v; want none", p, err)
			}
			_ = main.Wait() // killed
			if err := first.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("Signal(0) to the first process = %v; want nil: it outlives the job", err)
			}
			if err := j.Remove(deadline(t)); err != nil {
				t.Errorf("Remove() = %v; want nil", err)
			}
			if err := first.Wait(); err == nil {
				t.Error("first process = exit 0; want it killed by Remove")
			}
		})
	}
}

func TestWaitEmpty(t *testing.T) {
	b := openBase(t)
	j := newJob(t, b, NoLimits())
	if err := j.WaitEmpty(deadline(t)); err != nil {
		t.Errorf("WaitEmpty() of a fresh job = %v; want nil", err)
	}
	cmd := start(t, j, "echo; read x") // stdin is /dev/null: ends by itself
	if err := cmd.Wait(); err == nil {
		t.Error("read at the end of input = exit 0; want 1")
	}
	if err := j.WaitEmpty(deadline(t)); err != nil {
		t.Errorf("WaitEmpty() = %v; want nil", err)
	}
	cmd = start(t, j, "exec sleep 1000")
	until(t, "the target to join", func() bool { p, err := j.Pids(); return err == nil && len(p) == 1 })
	short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := j.WaitEmpty(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitEmpty() of a full job = %v; want %v", err, context.DeadlineExceeded)
	}
	waited := make(chan error, 1)
	go func() { waited <- j.WaitEmpty(deadline(t)) }()
	time.Sleep(20 * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := <-waited; err != nil {
		t.Errorf("WaitEmpty() = %v; want nil", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("WaitEmpty() took %v after the kill; want the kernel's notification", d)
	}
}
