package stage_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pinfold/sandbox"
)

// echoes answers each line that it reads on both streams, and exits 7 at their end.
const echoes = `while read x; do echo "out $x"; echo "err $x" >&2; done; exit 7`

// adoptable are the profiles of which each has another far end or another PID 1.
func adoptable() map[string]func(*sandbox.Profile) {
	return map[string]func(*sandbox.Profile){
		"plain": func(*sandbox.Profile) {},
		"userns": func(p *sandbox.Profile) {
			p.UserNS = true
			p.Controls = controls()
			for i := range p.Controls {
				if p.Controls[i].Control == sandbox.ControlUserNS {
					p.Controls[i].Level = sandbox.LevelRequired
				}
			}
		},
		"root in a userns": func(p *sandbox.Profile) { p.UserNS, p.RootMap = true, true },
		"exec listed": func(p *sandbox.Profile) {
			p.Exec = sandbox.ExecListed
			for i := range p.Private {
				p.Private[i].NoExec = true
			}
		},
	}
}

// TestAdopt: daemon and stage are killed, and the next stage finds the pen as it was:
// what was written stays, what is written arrives, and the end is told as it is.
func TestAdopt(t *testing.T) {
	for name, edit := range adoptable() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := testProfile()
			edit(&p)
			v := b.victim(true, nil, b.spec(p, "/bin/sh", "-c", echoes))
			m := v.started()
			v.kill()
			b.successor()
			q := b.adopt(m)
			if d := cmp.Diff(m, q.Mark(), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("Mark() of what was adopted differs (-before +after):\n%s", d)
			}
			for _, x := range []string{"one", "two"} {
				if _, err := q.Stdin.WriteString(x + "\n"); err != nil {
					t.Fatal(err)
				}
				if out, errs := said(t, q.Stdout, 8), said(t, q.Stderr, 8); out != "out "+x+"\n" || errs != "err "+x+"\n" {
					t.Errorf("after %s: out %q, err %q", x, out, errs)
				}
			}
			b.endsWith(q, 7)
		})
	}
}

// endsWith closes standard input and sees the pen to its end.
func (b *bench) endsWith(q *sandbox.Process, code int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
	defer cancel()
	if err := q.CloseStdin(); err != nil {
		b.t.Error(err)
	}
	if st, err := q.Wait(ctx); err != nil || !st.Exited || st.Code != code {
		b.t.Errorf("Wait() = %+v, %v; want exit %d", st, err, code)
	}
	if rest, err := io.ReadAll(q.Stdout); err != nil && !errors.Is(err, syscall.EIO) || len(rest) > 0 {
		b.t.Errorf("left of the output: %q, %v", rest, err)
	}
	if err := q.Release(ctx); err != nil {
		b.t.Errorf("Release() = %v; want nil", err)
	}
	state, err := os.ReadFile("/proc/" + itoa(q.InitPid) + "/stat") // whose child it is now may reap it late
	dead := strings.Contains(string(state), ") Z ") || strings.Contains(string(state), ") X ")
	if err == nil && !dead || err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		b.t.Errorf("PID 1 after Release: %q, %v; want it gone", state, err)
	}
}

// TestAdoptTerminal: the master and both ends of its relay pipe come back.
func TestAdoptTerminal(t *testing.T) {
	b := newBench(t)
	p := testProfile()
	p.PTY = true
	s := b.spec(p, "/bin/sh", "-c", "stty -echo; read x; stty size; exit 7")
	v := b.victim(true, nil, s)
	m := v.started()
	v.kill()
	b.successor()
	q := b.adopt(m)
	if q.PTY == nil || q.Relay == nil || q.Stdin != nil || q.Stderr != nil {
		t.Fatalf("PTY %v, Relay %v, Stdin %v, Stderr %v; want the first two alone", q.PTY, q.Relay, q.Stdin, q.Stderr)
	}
	if _, err := q.Relay.WriteString("relay"); err != nil || said(t, q.Stdout, 5) != "relay" {
		t.Errorf("what goes into the relay pipe does not come out: %v", err)
	}
	if err := q.Resize(33, 77); err != nil {
		t.Fatal(err)
	}
	if _, err := q.PTY.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for !strings.Contains(all.String(), "33 77") {
		all.WriteString(said(t, q.PTY, 1))
		if t.Failed() {
			t.Fatalf("the terminal said %q", all.String())
		}
	}
	if err := q.Relay.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if st, err := q.Wait(ctx); err != nil || st.Code != 7 {
		t.Errorf("Wait() = %+v, %v; want exit 7", st, err)
	}
	if err := q.Release(ctx); err != nil {
		t.Error(err)
	}
}

// TestAdoptTwice: an end that one daemon has seen is there for the next, with output
// that nobody has read.
func TestAdoptTwice(t *testing.T) {
	b := newBench(t)
	p := testProfile()
	p.Stdin = sandbox.StdinNull
	v := b.victim(true, nil, b.spec(p, "/bin/sh", "-c", "echo all; kill -9 $$"))
	m := v.started()
	until(t, "the target to end", func() bool { return onlyPid(t, b.base+"/"+m.Cgroup+"/job") == 0 })
	v.kill()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for range 3 {
		b.successor()
		q := b.adopt(m)
		if q.Stdin != nil {
			t.Error("Stdin is there; want none")
		}
		for range 2 {
			st, err := q.Wait(ctx)
			if err != nil || st.Exited || st.Signal != int(syscall.SIGKILL) {
				t.Errorf("Wait() = %+v, %v; want SIGKILL", st, err)
			}
		}
		if err := q.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Signal() = %v; want ErrProcessDone", err)
		}
		b.killed = true
		kill(t, stagePid(t, b.state))
		<-b.Done()
	}
	b.successor()
	q := b.adopt(m)
	if out := said(t, q.Stdout, 4); out != "all\n" {
		t.Errorf("output = %q; want all", out)
	}
	if err := q.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := b.Adopt(t.Context(), m); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Adopt() after Release = %v; want ErrGone", err)
	}
}

// TestAdoptSignals: the main process and the rest of its group are reached, also where
// the main process is gone; and Kill ends all.
func TestAdoptSignals(t *testing.T) {
	b := newBench(t)
	p := testProfile()
	s := b.spec(p, "/bin/sh", "-c", "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.01; done")
	left := b.spec(p, "/bin/sh", "-c", "sleep 1000 & exit 4")
	v := b.victim(true, nil, s, left)
	m, gone := v.started(), v.started()
	v.kill()
	b.successor()
	q := b.adopt(m)
	said(t, q.Stdout, len("ready\n"))
	if err := q.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	b.endsWithOutput(q, "got\n", 5)
	r := b.adopt(gone)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if st, err := r.Wait(ctx); err != nil || st.Code != 4 {
		t.Errorf("Wait() = %+v, %v; want exit 4", st, err)
	}
	if err := r.Signal(syscall.SIGKILL); err != nil {
		t.Errorf("Signal() to what is left of the group = %v; want nil", err)
	}
	until(t, "the group to end", func() bool { return errors.Is(r.Signal(syscall.SIGKILL), os.ErrProcessDone) })
	if err := r.Kill(); err != nil {
		t.Error(err)
	}
	if err := r.Release(ctx); err != nil {
		t.Error(err)
	}
}

func (b *bench) endsWithOutput(q *sandbox.Process, want string, code int) {
	b.t.Helper()
	if out := said(b.t, q.Stdout, len(want)); out != want {
		b.t.Errorf("output = %q; want %q", out, want)
	}
	b.endsWith(q, code)
}

// TestAdoptAtTheGate: a pen whose last gate was not opened ends by itself. One whose
// gate was opened lives on, whether PID 1 has told of the start or not.
func TestAdoptAtTheGate(t *testing.T) {
	b := newBench(t)
	shut := b.spec(testProfile(), "/bin/sh", "-c", echoes)
	v := b.victim(false, nil, shut)
	m := v.next()
	v.kill()
	b.successor()
	if _, err := b.Adopt(t.Context(), m); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Adopt() of a pen whose gate was shut = %v; want ErrGone", err)
	}
	until(t, "the pen to end", func() bool { return onlyPid(t, b.base+"/"+m.Cgroup+"/init") == 0 })

	v = b.victim(true, nil, b.spec(testProfile(), "/bin/sh", "-c", echoes))
	m = v.halted()
	until(t, "the target's exec", func() bool {
		exe, err := os.Readlink("/proc/" + itoa(m.Target.Pid) + "/exe")
		return err == nil && !strings.Contains(exe, "memfd")
	})
	v.kill()
	b.successor()
	type answer struct {
		q   *sandbox.Process
		err error
	}
	adopted := make(chan answer)
	go func() {
		q, err := b.Adopt(t.Context(), m)
		adopted <- answer{q, err}
	}()
	time.Sleep(100 * time.Millisecond) // most often it waits by now; both orders must end alike
	if err := syscall.Kill(m.Init.Pid, syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	a := <-adopted
	if a.err != nil {
		t.Fatalf("Adopt() = %v; want the pen", a.err)
	}
	b.endsWith(a.q, 7)
}
