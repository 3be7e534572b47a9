package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/proto"
	"pinfold/proto/client"
)

// work is one process of an agent: what it is, what the agent does with it while it
// runs, and what must have come of it.
type work struct {
	kind  string
	spawn proto.Spawn
	act   func(ctx context.Context, a *agent, id string, o *captured) error // nil: nothing
	out   func(stdout, stderr string) error                                 // what is wrong with its output
	end   func(v *proto.Verdict) error                                      // what is wrong with its verdict
}

// works are the kinds of work; those that are named more than once come more often.
func works() []func() work {
	return []func() work{
		writing, writing, writing, reading, reading, reading, onTerminal, killedByRequest, outOfTime, outOfMemory, leavingOthers,
	}
}

func numbered(prefix, end string, lines int) string {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "%s %d%s", prefix, i, end)
	}
	return b.String()
}

func exactly(what, got, want string) error {
	if got == want {
		return nil
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("%s has %d bytes, want %d; they differ from byte %d on: %q, want %q", what, len(got), len(want), at, clip(got[at:]), clip(want[at:]))
}

func exitedWith(code int) func(*proto.Verdict) error {
	return func(v *proto.Verdict) error {
		if v.Cause != proto.CauseExited || v.Code != code {
			return fmt.Errorf("want exited with %d", code)
		}
		return nil
	}
}

// writing writes numbered lines on both streams, some as fast as they are taken, some slowly.
func writing() work {
	lines, every, code := 500+rand.IntN(8000), 1+rand.IntN(200), rand.IntN(100)
	pause := []float64{0, 0, 0.002, 0.02}[rand.IntN(4)]
	if pause > 0 {
		lines = min(lines, int(2/pause)*every)
	}
	w := work{kind: "writing", end: exitedWith(code)}
	w.spawn = python(fmt.Sprintf(`
import sys, time
for i in range(%d):
    sys.stdout.write("out %%d\n" %% i)
    sys.stderr.write("err %%d\n" %% i)
    if i %% %d == 0:
        sys.stdout.flush(); sys.stderr.flush(); time.sleep(%g)
sys.stdout.flush(); sys.stderr.flush()
sys.exit(%d)
`, lines, every, pause, code))
	w.spawn.StdinMode = proto.StdinNull
	w.out = func(stdout, stderr string) error {
		return errors.Join(exactly("stdout", stdout, numbered("out", "\n", lines)), exactly("stderr", stderr, numbered("err", "\n", lines)))
	}
	return w
}

// onTerminal writes numbered lines to a terminal.
func onTerminal() work {
	lines := 200 + rand.IntN(2000)
	w := work{kind: "terminal", end: exitedWith(6)}
	w.spawn = python(fmt.Sprintf(`
import sys, time
for i in range(%d):
    print("pty", i)
    if i %% 50 == 0:
        sys.stdout.flush(); time.sleep(0.005)
sys.exit(6)
`, lines))
	w.spawn.PTY = &proto.PTY{Rows: 24, Cols: 80}
	w.out = func(stdout, stderr string) error {
		return errors.Join(exactly("stdout", stdout, numbered("pty", "\r\n", lines)), exactly("stderr", stderr, ""))
	}
	return w
}

// reading says which numbered lines it has read, on both streams, and when it saw the
// end of its standard input.
func reading() work {
	lines := 10 + rand.IntN(50)
	w := work{kind: "reading"}
	w.spawn = python(`
import sys, time
n = 0
for line in sys.stdin:
    n += 1
    print("got " + line, end="", flush=True)
    print("err " + line, end="", file=sys.stderr, flush=True)
print("eof", time.monotonic_ns(), flush=True)
sys.exit(17)
`)
	w.act = func(ctx context.Context, a *agent, id string, o *captured) error {
		f := &feeder{a: a, id: id, o: o}
		for i := range lines {
			if err := f.line(ctx, fmt.Sprintf("in %d", i)); err != nil {
				return err
			}
			if rand.IntN(4) == 0 {
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
			}
		}
		if err := f.sees(ctx, fmt.Sprintf("got in %d\n", lines-1)); err != nil {
			return err
		}
		return f.close(ctx)
	}
	w.out = func(stdout, stderr string) error {
		stdout, _, _ = strings.Cut(stdout, "eof ")
		return errors.Join(exactly("stdin as told by stdout", numberedOnly(stdout), numbered("got in", "\n", lines)), exactly("stdin as told by stderr", numberedOnly(stderr), numbered("err in", "\n", lines)))
	}
	w.end = exitedWith(17)
	return w
}

// numberedOnly is text without the marks.
func numberedOnly(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, " mark ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// feeder writes to a process's standard input, each line once.
type feeder struct {
	a     *agent
	id    string
	o     *captured
	marks int
}

// write writes a line once, or says that nobody knows whether it was written.
func (f *feeder) write(ctx context.Context, text string, eof bool) (proto.Outcome, *proto.OpsGetResp, error) {
	op := f.a.op("write")
	return f.a.operate(ctx, op, func(c *client.Client) error {
		return c.Write(ctx, &proto.WriteReq{ProcID: f.id, Data: text, EOF: eof, OpID: op})
	})
}

// line writes a line until it was read for sure: where nobody knows, it looks at what
// the reader says once that has read something later.
func (f *feeder) line(ctx context.Context, text string) error {
	for {
		outcome, _, err := f.write(ctx, text+"\n", false)
		if err != nil || outcome == proto.OutcomeApplied {
			return err
		}
		if err := f.mark(ctx); err != nil {
			return err
		}
		stdout, _ := f.o.text()
		if strings.Contains(stdout, "got "+text+"\n") {
			f.a.score.add("unknown write, was read")
			return nil
		}
		f.a.score.add("unknown write, was not read")
	}
}

// mark writes a line of its own and waits until it was read.
func (f *feeder) mark(ctx context.Context) error {
	for {
		f.marks++
		mark := fmt.Sprintf("mark %d", f.marks)
		outcome, _, err := f.write(ctx, mark+"\n", false)
		if err != nil {
			return err
		}
		if outcome != proto.OutcomeApplied {
			continue
		}
		return f.sees(ctx, "got "+mark+"\n")
	}
}

// sees waits until the reader has said something.
func (f *feeder) sees(ctx context.Context, text string) error {
	for {
		if stdout, _ := f.o.text(); strings.Contains(stdout, text) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %q: %w", text, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// close ends standard input. When that is answered, the reader has seen it soon.
func (f *feeder) close(ctx context.Context) error {
	for {
		outcome, known, err := f.write(ctx, "", true)
		closed := monotonic()
		if refused := refusalOf(err); refused != nil && refused.Code == proto.CodeProcDead {
			return nil // the close whose outcome nobody knew was one
		}
		if err != nil {
			return err
		}
		if outcome != proto.OutcomeApplied {
			continue
		}
		if known != nil {
			return nil // when it was closed is not known
		}
		return f.timed(ctx, closed)
	}
}

// timed notes how long after the answer the reader has seen the end.
func (f *feeder) timed(ctx context.Context, closed time.Duration) error {
	for {
		stdout, _ := f.o.text()
		_, at, _ := strings.Cut(stdout, "eof ")
		if text, whole := strings.CutSuffix(at, "\n"); whole {
			ns, err := strconv.ParseInt(text, 10, 64)
			f.a.score.took("eof", max(time.Duration(ns)-closed, 0))
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// monotonic is the kernel's clock as every process of the host has it.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail: clock_gettime(2)
	return time.Duration(ts.Nano())
}

// killedByRequest is ended by the agent.
func killedByRequest() work {
	sig := []proto.Signal{proto.SigTerm, proto.SigKill}[rand.IntN(2)]
	w := work{kind: "killed", spawn: shell("echo ready; sleep 600")}
	w.act = func(ctx context.Context, a *agent, id string, o *captured) error {
		f := &feeder{a: a, id: id, o: o}
		if err := f.sees(ctx, "ready\n"); err != nil {
			return err
		}
		return a.kill(ctx, id, sig)
	}
	w.out = func(stdout, _ string) error { return exactly("stdout", stdout, "ready\n") }
	w.end = func(v *proto.Verdict) error {
		if v.Cause != proto.CauseKilled || v.By != "request" || v.Signal != string(sig) {
			return fmt.Errorf("want killed by request with %s", sig)
		}
		return nil
	}
	return w
}

// outOfTime reaches its wall timeout of a second; on an emulated host, where a program takes
// as long to say its first word, of five.
func outOfTime() work {
	limit := 1
	if _, emulated := os.LookupEnv(startVar); emulated {
		limit = 5
	}
	least := time.Duration(limit)*time.Second - 10*time.Millisecond
	w := work{kind: "out of time", spawn: shell("echo ready; while :; do sleep 0.1; done")}
	w.spawn.Timeout = proto.WholeSeconds(limit)
	w.out = func(stdout, _ string) error { return exactly("stdout", stdout, "ready\n") }
	w.end = func(v *proto.Verdict) error {
		took := v.EndedAt.Time().Sub(v.StartedAt.Time())
		if v.Cause != proto.CauseTimeoutWall || v.By != "timer" || took < least || took > 15*time.Second {
			return fmt.Errorf("took %s; want timeout_wall after %d s", took, limit)
		}
		return nil
	}
	return w
}

// outOfMemory takes more than it may.
func outOfMemory() work {
	w := work{kind: "out of memory", spawn: python(`
import time
print("ready", flush=True)
time.sleep(0.1)
x = bytearray(200 << 20)
print("not reached", flush=True)
`)}
	w.out = func(stdout, _ string) error { return exactly("stdout", stdout, "ready\n") }
	w.end = func(v *proto.Verdict) error {
		if v.Cause != proto.CauseOOM || v.Scope != "process" {
			return errors.New("want oom, scope process")
		}
		return nil
	}
	return w
}

// leavingOthers ends while others of it hold its pipes.
func leavingOthers() work {
	w := work{kind: "leaving others", spawn: shell("(setsid sleep 600 &); sleep 600 & echo up; exit 4"), end: exitedWith(4)}
	w.out = func(stdout, _ string) error { return exactly("stdout", stdout, "up\n") }
	return w
}

// done is a work that has ended as it should.
type done struct {
	id, label string
	w         work
	o         *captured
}

// do has one work done, with all that must come of it.
func (a *agent) do(ctx context.Context, w work, label string) (*done, error) {
	w.spawn.Labels, w.spawn.OpID = []string{label}, a.op("spawn")
	id, p, err := a.spawn(ctx, w.spawn)
	if err != nil {
		return nil, err
	}
	o := &captured{}
	acted := make(chan error, 1)
	actx, cancel := context.WithCancel(ctx)
	go func() {
		if w.act == nil {
			acted <- nil
			return
		}
		acted <- w.act(actx, a, id, o)
	}()
	err = a.follow(ctx, id, p, o)
	if err != nil {
		cancel()
	}
	aerr := <-acted
	cancel()
	if err := errors.Join(err, aerr); err != nil {
		return nil, fmt.Errorf("process %s: %w", id, err)
	}
	stdout, stderr := o.text()
	if err := errors.Join(w.out(stdout, stderr), w.end(o.verdict)); err != nil {
		return nil, fmt.Errorf("process %s, %d times attached to, verdict %+v: %w", id, o.connections, *o.verdict, err)
	}
	v := o.verdict
	if int(v.Output.Stdout) != len(stdout) || int(v.Output.Stderr) != len(stderr) || v.Output.Dropped != 0 || !v.Output.Drained {
		return nil, fmt.Errorf("process %s: verdict %+v; want drained, nothing dropped, and %d and %d bytes", id, *v, len(stdout), len(stderr))
	}
	a.score.add(w.kind)
	return &done{id: id, label: label, w: w, o: o}, nil
}

// again asks a second time for all of a finished process.
func (a *agent) again(ctx context.Context, x *done) error {
	o := &captured{}
	if err := a.follow(ctx, x.id, nil, o); err != nil {
		return fmt.Errorf("finished process %s: %w", x.id, err)
	}
	out, errs := x.o.text()
	outAgain, errsAgain := o.text()
	err := errors.Join(exactly("stdout again", outAgain, out), exactly("stderr again", errsAgain, errs))
	if o.verdict.Cause != x.o.verdict.Cause || o.verdict.Code != x.o.verdict.Code {
		err = errors.Join(err, fmt.Errorf("verdict %+v; want that of the first time, %+v", *o.verdict, *x.o.verdict))
	}
	if err != nil {
		return fmt.Errorf("finished process %s: %w", x.id, err)
	}
	return nil
}
