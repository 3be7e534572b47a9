package host

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pinfold/proto"
	"pinfold/proto/client"
)

// Limits of siegeProfile that the test looks at.
const (
	siegeMemory = 256 << 20
	siegeOutput = 4 << 20
)

const siegeProfile = `    cgroup: { memory: 256MiB, swap: 0, pids: 64 }
    rlimits: { nofile: 256 }
    output: { limit: 4MiB }
    timeout: { wall: 60s, start: 60s, stop: 1s }`

// attack is a process that takes all that it can get of one thing.
type attack struct {
	name  string
	spawn proto.Spawn
	cause proto.Cause
	says  string // what its output holds: that it came to its limit
	bytes int64  // of output, where just that many must come
}

func hog(script string) proto.Spawn {
	const head = `
import errno, mmap, os, signal, socket, sys, threading, time
def say(what, n): os.write(1, ("%s %d\n" % (what, n)).encode())
def until(*errors, end=1 << 20):
    def step(f):
        globals()["n"] = 0
        for i in range(end):
            try: f()
            except OSError as e:
                if e.errno not in errors: raise
                return errno.errorcode[e.errno]
            globals()["n"] = i + 1
        return "endless"
    return step
`
	return proto.Spawn{Cmd: []string{"python3", "-c", head + script}, StdinMode: proto.StdinNull}
}

func within(s proto.Spawn, l proto.Limits, wall proto.WholeSeconds) proto.Spawn {
	s.Limits, s.Timeout = &l, wall
	return s
}

// attacks are one of each kind.
func attacks() []attack {
	const small = 48 << 20
	terminal := proto.Spawn{Cmd: []string{"yes", strings.Repeat("t", 500)}, PTY: &proto.PTY{Rows: 24, Cols: 80}}
	return []attack{
		{name: "fork bomb", cause: proto.CauseTimeoutWall, says: "EAGAIN", spawn: within(hog(`
while True:
    try: os.fork()
    except OSError as e: say(errno.errorcode[e.errno], os.getpid()); time.sleep(0.1)
`), proto.Limits{}, 8)},
		{name: "threads", cause: proto.CauseExited, says: "threads", spawn: hog(`
n = 0
try:
    while n < 5000: threading.Thread(target=time.sleep, args=(2,), daemon=True).start(); n += 1
except RuntimeError: say("threads", n)
sys.stdout.flush(); os._exit(0 if n < 64 else 1)
`)},
		{name: "memory", cause: proto.CauseOOM, spawn: within(hog(`x = bytearray(1 << 30); say("never", 0)`), proto.Limits{Memory: small}, 0)},
		{name: "memory of tmpfs", cause: proto.CauseOOM, spawn: within(hog(`
f = open("/dev/shm/x", "wb"); b = bytes(1 << 20)
for i in range(64): f.write(b); f.flush()
say("never", 0)
`), proto.Limits{Memory: 24 << 20}, 0)},
		{name: "memory of pipes", cause: proto.CauseOOM, spawn: within(hog(`
import fcntl
b = bytes(1 << 20)
for i in range(100):
    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.set_blocking(w, False); os.write(w, b)
say("never", 0)
`), proto.Limits{Memory: small}, 0)},
		{name: "bytes of tmpfs", cause: proto.CauseExited, says: "ENOSPC", spawn: hog(`
f = os.open("/tmp/x", os.O_CREAT | os.O_WRONLY); b = bytes(1 << 16)
say(until(errno.ENOSPC)(lambda: os.write(f, b)), n); sys.exit(n * len(b) > 32 << 20)
`)},
		{name: "inodes of tmpfs", cause: proto.CauseExited, says: "ENOSPC", spawn: hog(`
say(until(errno.ENOSPC)(lambda: os.mknod("/tmp/%d" % n)), n); sys.exit(n > 16384)
`)},
		{name: "descriptors", cause: proto.CauseExited, says: "EMFILE", spawn: hog(`
say(until(errno.EMFILE)(lambda: os.open("/dev/null", os.O_RDONLY)), n); sys.exit(n > 256)
`)},
		{name: "output", cause: proto.CauseOutputLimit, bytes: siegeOutput, spawn: proto.Spawn{Cmd: []string{"yes", strings.Repeat("o", 5000)}, StdinMode: proto.StdinNull}},
		{name: "output of a terminal", cause: proto.CauseOutputLimit, bytes: siegeOutput, spawn: terminal},
		{name: "zombies", cause: proto.CauseExited, says: "EAGAIN", spawn: hog(`
say(until(errno.EAGAIN)(lambda: os.fork() or os._exit(0)), n); sys.exit(n > 64)
`)},
		{name: "orphans", cause: proto.CauseExited, says: "orphans", spawn: hog(`
made = 0
while made < 150:
    try: pid = os.fork()
    except OSError: time.sleep(0.01); continue
    if pid == 0:
        try: os.fork()
        except OSError: os._exit(1)
        os._exit(0)
    made += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
say("orphans", made)
`)},
		{name: "deep directories", cause: proto.CauseExited, says: "deep", spawn: hog(`
for top in "/tmp", "/workspace":
    os.chdir(top)
    def down(): os.mkdir("d" * 200); os.chdir("d" * 200)
    until(errno.ENOSPC, end=3000)(down); say("deep", n)
    if n < 1000: sys.exit(1)
`)},
		{name: "sockets", cause: proto.CauseExited, says: "EMFILE", spawn: hog(`
keep, b = [], bytes(1 << 16)
def pair():
    keep.append(socket.socketpair())
    keep[-1][0].setblocking(False)
    try: keep[-1][0].send(b)
    except BlockingIOError: pass
say(until(errno.EMFILE)(pair), n)
os._exit(0 if n <= 128 else 1)
`)},
		{name: "terminals", cause: proto.CauseExited, says: "ENOSPC", spawn: hog(`
say(until(errno.ENOSPC)(lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)), n); sys.exit(n > 64)
`)},
		{name: "processor", cause: proto.CauseTimeoutCPU, spawn: within(hog("while True: pass"), proto.Limits{TimeoutCPU: 1}, 0)},
		{name: "deaf", cause: proto.CauseTimeoutWall, says: "deaf", spawn: within(hog(`
signal.signal(signal.SIGTERM, signal.SIG_IGN); say("deaf", 0)
while True: time.sleep(0.01)
`), proto.Limits{}, 2)},
	}
}

// TestSiege: every attack at once and again, each in a pen of its own, while honest clients work: each ends at its own limit and the verdict says
// which, requests of the honest stay quick, and everything is given back.
func TestSiege(t *testing.T) { //nolint:paralleltest // it measures
	clients, lasts, full := soakSize(t)
	honest := max(8, clients/10)
	policy := strings.Replace(basic(soakPolicy, siegeProfile), "missing: skip", "missing: skip\n      tmp: { size: 32MiB, exec: false }", 1)
	d := start(t, policy)
	quiet := d.runHonest(honest, lasts/4)
	before := d.settled()
	t.Logf("%d honest clients alone: %s", honest, quiet)

	var outside *timings
	loadOutside(t, func() { outside = d.runHonest(honest, lasts/2) })
	t.Logf("beside an equal load outside: %s", outside)

	var under *timings
	rounds := d.underAttack(func() { under = d.runHonest(honest, lasts) })
	t.Logf("beside %d rounds of %d attacks: %s", rounds, len(attacks()), under)
	checkLatency(t, full, outside, under)
	d.checkGivenBack(before)
}

// underAttack repeats every attack while f runs, and waits for the last ones.
func (d *daemon) underAttack(f func()) (rounds int) {
	d.t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	count := make([]int, len(attacks()))
	for i, a := range attacks() {
		wg.Go(func() {
			for first := true; first || !isDone(done); first = false {
				if err := d.attack(a); err != nil {
					d.t.Errorf("%s: %v", a.name, err)
					return
				}
				count[i]++
			}
		})
	}
	f()
	close(done)
	wg.Wait()
	rounds = count[0]
	for _, n := range count {
		rounds = min(rounds, n)
	}
	return rounds
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// attack runs one and looks at its end.
func (d *daemon) attack(a attack) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	c, err := client.Dial(ctx, d.sock)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Handshake(ctx, &proto.Handshake{}); err != nil {
		return err
	}
	p, err := c.Spawn(ctx, a.spawn)
	if err != nil {
		return err
	}
	var out, errs bytes.Buffer
	v, err := p.Copy(ctx, &out, &errs)
	if err != nil {
		return err
	}
	text := clip(out.String()) + clip(errs.String())
	limit := proto.Size(siegeMemory)
	if l := a.spawn.Limits; l != nil && l.Memory > 0 {
		limit = l.Memory
	}
	switch {
	case v.Cause != a.cause || a.cause == proto.CauseExited && v.Code != 0:
		return fmt.Errorf("verdict = %+v; want %s; output %q", v, a.cause, text)
	case a.says != "" && !strings.Contains(text, a.says), strings.Contains(text, "never"):
		return fmt.Errorf("output = %q; want %q: it came to its limit and not beyond", text, a.says)
	case a.bytes > 0 && (int64(out.Len()) != a.bytes || int64(v.Output.Stdout) != a.bytes || v.Output.Dropped != 0):
		return fmt.Errorf("output = %d bytes, %+v; want just %d", out.Len(), v.Output, a.bytes)
	case v.Usage.MemoryPeak > limit+1<<20:
		return fmt.Errorf("memory_peak = %d; want at most the limit of %d", v.Usage.MemoryPeak, limit)
	case a.cause == proto.CauseOOM && (v.Scope != "process" || v.By != "kernel"):
		return fmt.Errorf("verdict = %+v; want oom of the process by the kernel", v)
	}
	return c.Shutdown(ctx, 0)
}

// bounded is what the fork bomb is outside of a pen: as many processes as its limit gives it, each of which forks all the time.
const bounded = `
import os, time
for i in range(63):
    if os.fork() == 0: break
while True:
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0); time.sleep(0.1)
`

// loadOutside runs as many processes as there are attacks outside of Pinfold while f runs: a fork bomb with an end, and of the others half are busy
// and half start a program all the time.
func loadOutside(t *testing.T, f func()) {
	t.Helper()
	var all []*exec.Cmd
	defer func() {
		for _, cmd := range all {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its children too
			_ = cmd.Wait()                                      // killed
		}
	}()
	for i := range attacks() {
		argv := [][]string{{"sh", "-c", "while :; do :; done"}, {"sh", "-c", "while :; do /bin/true; done"}}[i%2]
		if i == 0 {
			argv = []string{"python3", "-c", bounded}
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	f()
}
