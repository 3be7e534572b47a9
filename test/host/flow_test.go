package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
)

const (
	yesVar  = "PINFOLD_TEST_YES" // for how long `yes` writes: 60s
	yesTime = 5 * time.Second
	// exact is how late a timer may be; on a loaded host, timesLater than the host's own.
	exact      = 100 * time.Millisecond
	timesLater = 4
)

func yesLasts(t *testing.T) time.Duration {
	t.Helper()
	v, ok := os.LookupEnv(yesVar)
	if !ok {
		return yesTime
	}
	lasts, err := time.ParseDuration(v)
	if err != nil || lasts < time.Second {
		t.Fatalf("%s = %q; want a time, such as 60s", yesVar, v)
	}
	return lasts
}

// TestYesAgainstAStalledReader: a process writes for as long as it is let and its client
// reads nothing; the daemon's memory stays flat, and timers of other processes, and of
// such ones, stay exact.
func TestYesAgainstAStalledReader(t *testing.T) { //nolint:paralleltest // it measures
	for _, overflow := range []string{"block", "drop"} {
		t.Run(overflow, func(t *testing.T) { //nolint:paralleltest // as above
			lasts := yesLasts(t)
			d := start(t, basic(soakPolicy, "    output: { keep: 1MiB, overflow: "+overflow+" }\n    timeout: { start: 60s, stop: 1s }"))
			group := newMemoryGroup(t, d)
			w := d.connect()
			w.hello("")
			w.ask("proc/spawn/req", "y", `,"cmd":["yes"],"stdin_mode":"null"`)
			if f := w.answerTo("y"); !f.OK {
				t.Fatalf("spawn = %s; want ok", f.raw)
			}
			late := &lateness{t: t, d: d, all: map[string][]time.Duration{}}
			var seen []memory
			done := make(chan struct{})
			go func() {
				defer close(done)
				late.measure(lasts)
			}()
			seen = group.watch(done)
			checkFlat(t, seen)
			late.check()
		})
	}
}

// lateness is how late timers are.
type lateness struct {
	t   *testing.T
	d   *daemon
	mu  sync.Mutex
	all map[string][]time.Duration
}

func (l *lateness) add(what string, took, want time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[what] = append(l.all[what], took-want)
}

// measure looks at each kind of timer again and again.
func (l *lateness) measure(lasts time.Duration) {
	until := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for _, one := range []func() error{l.wall, l.wallOfAWriter, l.grace, l.plain} {
		wg.Go(func() {
			for time.Now().Before(until) {
				if err := one(); err != nil {
					l.t.Errorf("cannot measure a timer: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// limited runs a command until its wall timeout of a second, and nobody reads what it writes.
func (l *lateness) limited(what string, s proto.Spawn) error {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	c, err := l.d.reach(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Handshake(ctx, &proto.Handshake{}); err != nil {
		return err
	}
	s.Timeout, s.StdinMode = 1, proto.StdinNull
	p, err := c.Spawn(ctx, s)
	if err != nil {
		return err
	}
	op, err := l.d.reach(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = op.Close() }()
	if _, err := op.Handshake(ctx, &proto.Handshake{Role: proto.RoleOperator}); err != nil {
		return err
	}
	v, err := op.Wait(ctx, p.ID, 0)
	if err != nil {
		return err
	}
	if v.Cause != proto.CauseTimeoutWall {
		return fmt.Errorf("verdict %+v; want timeout_wall", *v)
	}
	l.add(what, v.EndedAt.Time().Sub(v.StartedAt.Time()), time.Second)
	return nil
}

func (l *lateness) wall() error {
	return l.limited("wall timeout", proto.Spawn{Cmd: []string{"sleep", "600"}})
}

func (l *lateness) wallOfAWriter() error {
	return l.limited("wall timeout of a writer", proto.Spawn{Cmd: []string{"yes"}})
}

// grace is the time from SIGTERM to SIGKILL of a process that does not care.
func (l *lateness) grace() error {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	a := &agent{d: l.d, score: newScore()}
	if err := a.join(ctx); err != nil {
		return err
	}
	defer a.leave()
	p, err := a.c.Spawn(ctx, shell(`trap "" TERM; echo ready; while :; do sleep 0.05; done`))
	if err != nil {
		return err
	}
	if _, err := p.Next(ctx); err != nil {
		return err
	}
	began := time.Now()
	if _, err := p.Kill(ctx, proto.SigTerm); err != nil {
		return err
	}
	l.add("grace period", time.Since(began), time.Second)
	return nil
}

// plain is what this host, loaded as it is, makes of the same in no pen: a process is
// killed after a second, and its end is seen.
func (l *lateness) plain() error {
	cmd := exec.CommandContext(l.t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		return err
	}
	began := time.Now()
	time.AfterFunc(time.Second, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	_ = cmd.Wait() // it was killed
	l.add("the host's own", time.Since(began), time.Second)
	return nil
}

// check compares the middle and the latest of each kind.
func (l *lateness) check() {
	host := slices.Sorted(slices.Values(l.all["the host's own"]))
	for what, all := range l.all {
		slices.Sort(all)
		l.t.Logf("%s: %d times; late by %s to %s, half by %s", what, len(all), round(all[0]), round(all[len(all)-1]), round(all[len(all)/2]))
		if all[0] < -5*time.Millisecond {
			l.t.Errorf("%s was %s early; want it never before its time", what, -all[0])
		}
		if got, limit := all[len(all)/2], max(exact, timesLater*host[len(host)/2]); got > limit {
			l.t.Errorf("%s: half came %s late; want %s", what, got, limit)
		}
		if got := all[len(all)-1]; got > time.Second {
			l.t.Errorf("%s: one came %s late; want it within a second on any host", what, got)
		}
	}
}

// TestAPipeThatIsHeldElsewhere: who holds it is in no cgroup of the process's, so that
// nothing ends it. The end is told all the same, and that something may be missing.
func TestAPipeThatIsHeldElsewhere(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, shell(`echo ready; read x; echo last; exit 3`))
	await(t, p, "ready\n")
	held, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", p.PID), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if err := p.Write(soon(t), []byte("x\n")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, _, v := output(t, p)
	if took := time.Since(began); took < 500*time.Millisecond || took > finalLimit {
		t.Errorf("the final event came after %s; want it after the time for draining, about 1 s", took)
	}
	if out != "last\n" || v.Cause != proto.CauseExited || v.Code != 3 || v.Output.Drained {
		t.Errorf("%q, %+v; want all that was written before the end, exited with 3, and drained false", out, v)
	}
	// It is free for the next.
	if out := runOK(t, c, shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
}

// TestFinalEventsComeSoon though others hold the pipes: within a second, or on a loaded
// host about as soon as this host ends as many processes at all.
func TestFinalEventsComeSoon(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	var took []time.Duration
	for range 10 {
		p := spawn(t, c, shell(`(setsid sleep 600 &); (trap "" TERM; sleep 600) & echo ready; read x; exit 3`))
		await(t, p, "ready\n")
		if err := p.Write(soon(t), []byte("x\n")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, _, v := output(t, p); v.Cause != proto.CauseExited || v.Code != 3 || len(v.Survivors) == 0 || !v.Output.Drained {
			t.Errorf("verdict = %+v; want exited with 3, survivors, drained", v)
		}
		took = append(took, time.Since(began))
	}
	t.Logf("half of the final events came within %s, all within %s", quantile(took, 0.5), quantile(took, 1))
	if got := quantile(took, 0.5); got > time.Second {
		t.Errorf("half of the final events came within %s; want 1s", got)
	}
	if got := quantile(took, 1); got > finalLimit {
		t.Errorf("a final event came after %s; want %s", got, finalLimit)
	}
}

// TestAKilledPID1IsTold as what it is: nobody knows how the process ended.
func TestAKilledPID1IsTold(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, shell(`sleep 600 & echo ready; sleep 600`))
	await(t, p, "ready\n")
	killPID1(t, p.PID)
	_, _, v := output(t, p)
	if v.Cause != proto.CauseLost || v.By == "request" {
		t.Errorf("verdict = %+v; want lost", v)
	}
	if s := procState(p.PID); s != "" && s != "Z" {
		t.Errorf("the process is in state %s; want it gone with its PID 1", s)
	}
	if out := runOK(t, c, shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
	d.log.forget() // it tells of this as an error
}
