package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"pinfold/test/testkit"
)

func TestUsage(t *testing.T) {
	b := openBase(t)
	l := NoLimits()
	l.CPU = 0.2
	j := newJob(t, b, l)
	// What a process had before it joined is charged where it came from, so it takes some here.
	cmd := start(t, j, "x=xxxxxxxxxxxxxxxx; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do x=$x$x; done; while :; do :; done")
	_, lacks := b.Lacks()[ControllerCPU]
	_, noMemory := b.Lacks()[ControllerMemory]
	until(t, "the job to be throttled and to have memory", func() bool {
		u, err := j.Usage()
		return err == nil && u.CPUUser > 0 && (lacks || u.Throttled > 0) && (noMemory || u.MemoryPeak > 0)
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	u, err := j.Usage()
	if err != nil || u.CPUUser <= 0 || u.CPUSystem < 0 {
		t.Errorf("Usage() = %+v, %v; want cpu time", u, err)
	}
	if !noMemory && (u.MemoryPeak <= 0 || u.Memory < 0) {
		t.Errorf("Usage() = %+v; want a memory peak", u)
	}
	if !lacks && (u.ThrottledRuns <= 0 || u.Throttled <= 0) {
		t.Errorf("Usage() = %+v; want it throttled", u)
	}
	e, err := j.Events()
	fu, fe, ferr := j.Figures()
	if err != nil || ferr != nil || fe != e || fu.MemoryPeak != u.MemoryPeak || fu.CPUUser != u.CPUUser {
		t.Errorf("Figures() = %+v, %+v, %v; want %+v, %+v, nil as Usage and Events say (%v)", fu, fe, ferr, u, e, err)
	}
	g, err := j.group.Usage()
	if rounding := time.Millisecond; err != nil || g.CPUUser+g.CPUSystem+rounding < u.CPUUser+u.CPUSystem {
		t.Errorf("session Usage() = %+v, %v; want at least the job's %+v", g, err, u)
	}
}

func TestSetRefusesLessThanInUse(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerPids)
	l := NoLimits()
	l.Pids = 10
	j := newJob(t, b, l)
	start(t, j, "sleep 1000 & sleep 1000 & sleep 1000 & wait")
	until(t, "four processes", func() bool { p, err := j.Pids(); return err == nil && len(p) == 4 })
	l.Pids = 2
	if err := j.Set(l, Refuse); !errors.Is(err, ErrInUse) {
		t.Errorf("Set(pids 2, Refuse) with 4 = %v; want %v", err, ErrInUse)
	}
	if got := setting(j.Applied(), "pids.max").Value; got != "10" {
		t.Errorf("Applied() pids.max = %s; want 10, as before", got)
	}
	if err := j.Set(l, Forced); err != nil {
		t.Errorf("Set(pids 2, Forced) = %v; want nil", err)
	}
	if got := setting(j.Applied(), "pids.max").Value; got != "2" {
		t.Errorf("Applied() pids.max = %s; want 2", got)
	}
}

func TestQuotas(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerMemory, ControllerPids, ControllerCPU)
	quota := Limits{Memory: 128 << 20, Swap: -1, Pids: 40, CPU: 1}
	g, err := b.Caller(9, quota)
	if err != nil {
		t.Fatalf("Caller() = %v; want nil", err)
	}
	if again, err := b.Caller(9, quota); again != g || err != nil {
		t.Errorf("Caller() again = %p, %v; want the same group %p", again, err, g)
	}
	s, err := g.Session("s", NoLimits())
	if err != nil {
		t.Fatalf("Session() = %v; want nil", err)
	}
	j, err := s.Process("p", Limits{Memory: -1, Swap: -1, CPU: 2}) // above the caller's: a v1 hierarchy would refuse it
	if err != nil {
		t.Fatalf("Process() = %v; want nil", err)
	}
	if b.Backend() == BackendHybrid {
		var pids bool
		for _, f := range j.Join() {
			pids = pids || f.Controller == ControllerPids && f.Path == "callers/9/tasks"
		}
		if !pids {
			t.Errorf("Join() = %+v; want callers/9/tasks of pids: the quota is there", j.Join())
		}
	}
	if _, err := s.Process("p", NoLimits()); !errors.Is(err, ErrExists) {
		t.Errorf("Process(p) again = %v; want %v", err, ErrExists)
	}
	if err := g.Remove(); !errors.Is(err, ErrBusy) {
		t.Errorf("Remove() of a caller with a session = %v; want %v", err, ErrBusy)
	}
	if err := j.Remove(deadline(t)); err != nil {
		t.Errorf("Remove() = %v; want nil", err)
	}
	if err := errors.Join(s.Remove(), g.Remove()); err != nil {
		t.Errorf("Remove() of session and caller = %v; want nil", err)
	}
	if _, err := g.Session("s", NoLimits()); !errors.Is(err, ErrGone) {
		t.Errorf("Session() of a removed caller = %v; want %v", err, ErrGone)
	}
	if g2, err := b.Caller(9, quota); err != nil || setting(g2.Applied(), "pids.max").Value != "40" {
		t.Errorf("Caller() after Remove = %v; want a new one with its quota", err)
	}
}

func TestRemoveGivesUpAtTheDeadline(t *testing.T) {
	b := openBase(t)
	j := newJob(t, b, NoLimits())
	start(t, j, "exec sleep 1000")
	until(t, "the target to join", func() bool { p, err := j.Pids(); return err == nil && len(p) == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := j.Remove(ctx)
	left, ok := errors.AsType[*LeftoverError](err)
	if !errors.Is(err, context.Canceled) || !ok || len(left.Pids) == 0 || len(left.Dirs) == 0 {
		t.Errorf("Remove(cancelled) = %v; want a LeftoverError with the process", err)
	}
	if err := j.Remove(deadline(t)); err != nil {
		t.Errorf("Remove() = %v; want nil", err)
	}
}

func TestRemoveEndsMembersOfV1Alone(t *testing.T) {
	b := openBase(t)
	if b.Backend() != BackendHybrid {
		testkit.LeaveOut(t, "this host has no v1 hierarchies: /sys/fs/cgroup is a cgroup2 mount")
	}
	need(t, b, ControllerMemory)
	j := newJob(t, b, NoLimits())
	stray := exec.Command("sleep", "1000")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	i := b.index(ControllerMemory)
	if err := b.hiers[i].base.write(filepath.Join(j.Path(), "cgroup.procs"), strconv.Itoa(stray.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if err := j.Remove(deadline(t)); err != nil {
		t.Errorf("Remove() = %v; want nil", err)
	}
	if err := stray.Wait(); err == nil {
		t.Error("stray process = exit 0; want it killed")
	}
}

func TestFailedProcessLeavesNothing(t *testing.T) {
	b := openBase(t)
	need(t, b, ControllerMemory)
	g, err := b.Caller(3, NoLimits())
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.Session("s", NoLimits())
	if err != nil {
		t.Fatal(err)
	}
	before, err := b.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	l := NoLimits()
	l.IOWeight = 20_000
	if _, err := s.Process("p", l); err == nil {
		t.Error("Process(io weight 20000) = nil; want an error")
	}
	if _, err := s.Process("../p", NoLimits()); err == nil {
		t.Error("Process(../p) = nil; want an error")
	}
	after, err := b.Leftovers()
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("Leftovers() = %v, %v; want %v", after, err, before)
	}
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	b := openBase(t)
	run := func() {
		j := newJob(t, b, Limits{Memory: 32 << 20, Swap: 0, Pids: 9, CPU: 1})
		_, err1 := j.Usage()
		_, err2 := j.Events()
		if err := errors.Join(err1, err2, j.WaitEmpty(deadline(t)), j.Freeze(deadline(t)), j.Thaw(deadline(t)), j.Remove(deadline(t))); err != nil {
			t.Fatal(err)
		}
	}
	run()
	before := count()
	for range 20 {
		run()
	}
	if after := count(); after > before {
		t.Errorf("open descriptors after 20 processes = %d; want %d", after, before)
	}
}

func BenchmarkProcess(b *testing.B) {
	base := openBase(b)
	g, err := base.Caller(1, NoLimits())
	if err != nil {
		b.Fatal(err)
	}
	s, err := g.Session("s", NoLimits())
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name string
		l    Limits
	}{
		{"no limits", NoLimits()},
		{"memory swap pids", Limits{Memory: 1 << 30, Swap: 0, Pids: 256}},
		{"memory swap pids cpu", Limits{Memory: 1 << 30, Swap: 0, Pids: 256, CPU: 1}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var making, removing time.Duration
			for i := range b.N {
				t0 := time.Now()
				j, err := s.Process("p"+strconv.Itoa(i), bench.l)
				if err != nil {
					b.Fatal(err)
				}
				t1 := time.Now()
				if err := j.Remove(context.Background()); err != nil {
					b.Fatal(err)
				}
				making += t1.Sub(t0)
				removing += time.Since(t1)
			}
			b.ReportMetric(float64(making.Microseconds())/float64(b.N), "µs/make")
			b.ReportMetric(float64(removing.Microseconds())/float64(b.N), "µs/remove")
		})
	}
}
