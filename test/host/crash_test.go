package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// TestAKilledDaemonLeavesNothingUnowned: the next one on the same state owns what the
// first left, and ends it when its client does not come back.
func TestAKilledDaemonLeavesNothingUnowned(t *testing.T) {
	t.Parallel()
	d := prepare(t, basic("    detach_ttl: 2s", shortGrace))
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	c, err := client.Dial(soon(t), d.sock)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Handshake(soon(t), &proto.Handshake{}); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, c, shell(`trap "" TERM HUP; (setsid sleep 600 &); echo ready; while :; do sleep 1; done`))
	await(t, p, "ready")
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err == nil {
		t.Fatal("a killed daemon exits 0")
	}
	if err := d.launch(); err != nil {
		t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	if s := procState(p.PID); s == "" || s == "Z" {
		t.Errorf("the process is in state %q once the next daemon is ready; want it to go on", s)
	}
	eventually(t, "the process that nobody came back for has ended", func() bool {
		s := procState(p.PID)
		return s == "" || s == "Z"
	})
	if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
	eventually(t, "the stage of the first daemon has ended", func() bool {
		procs, err := d.processes()
		if err != nil {
			t.Fatal(err)
		}
		return len(procs) <= 2
	})
	d.stop()
}

// TestClientsThatLeaveInTheMiddleOfAStart leave nothing.
func TestClientsThatLeaveInTheMiddleOfAStart(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    detach_ttl: 1s", shortGrace))
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			w := d.connect()
			w.hello("")
			for j := range 4 {
				w.ask("proc/spawn/req", fmt.Sprintf("s%d", j), `,"cmd":["sleep","600"]`)
			}
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			_ = w.conn.Close()
		})
	}
	wg.Wait()
	eventually(t, "no cgroup of a caller is left", func() bool { return len(d.below()) == 0 })
	procs, err := d.processes()
	if err != nil || len(procs) > 2 {
		t.Errorf("processes = %q, %v; want the daemon and its stage alone", procs, err)
	}
}

// TestTheDaemonEndsInTheMiddleOfStarts; stop looks the host over.
func TestTheDaemonEndsInTheMiddleOfStarts(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 30 * time.Millisecond, 100 * time.Millisecond} {
		d := start(t, basic("", shortGrace))
		for range 4 {
			w := d.connect()
			w.hello("")
			for j := range 8 {
				w.ask("proc/spawn/req", fmt.Sprintf("s%d", j), `,"cmd":["sh","-c","trap '' TERM; sleep 600"]`)
			}
		}
		time.Sleep(after)
		d.stop()
	}
}

// TestTheCallersQuotaIsTheKernels: memory and pids over all of its sessions.
func TestTheCallersQuotaIsTheKernels(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    quota: { memory: 96MiB, pids: 30 }", "    cgroup: { memory: 80MiB, swap: 0, pids: 25 }\n"+shortGrace))
	hold := python(`x = bytearray(60 << 20); print("held", flush=True); input()`)
	first := spawn(t, d.agent(), hold)
	await(t, first, "held\n")
	c := d.agent()
	_, _, v := run(t, c, python(`x = bytearray(60 << 20); print("held", flush=True)`))
	ended, err := c.Status(soon(t), "")
	if err != nil {
		t.Fatal(err)
	}
	// The kernel chooses whom of the caller's it kills; one of the two it must be.
	if v.Cause == proto.CauseExited {
		_, _, v = output(t, first)
	}
	if v.Cause != proto.CauseOOM || v.Scope != "caller" {
		t.Errorf("verdict beyond the caller's quota = %+v; want oom, scope caller; %+v", v, ended.Procs)
	}
	// A shell that is refused a fork gives up; xargs waits for one of its own to end.
	many := shell(`seq 20 | xargs -P 20 -n 1 sh -c 'exec sleep 600'`)
	a, b := spawn(t, d.agent(), many), spawn(t, d.agent(), many)
	for _, p := range []*client.Process{a, b} {
		p.Discard()
	}
	eventually(t, "the second is refused forks", func() bool {
		x, err1 := countPids(a)
		y, err2 := countPids(b)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if x+y > 30 {
			t.Fatalf("pids = %d + %d; want at most 30 in all", x, y)
		}
		return x+y >= 25
	})
}

// countPids counts the members of a process's job by its own cgroup.
func countPids(p *client.Process) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, top := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
			if procs, err := os.ReadFile(top + path + "/cgroup.procs"); err == nil {
				return strings.Count(string(procs), "\n"), nil
			}
		}
	}
	return 0, errors.New("no cgroup of v2")
}

// TestManyConnections: half-open ones, silent ones, and then those that work.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range 400 {
		c, err := net.DialTimeout("unix", d.sock, 2*time.Second)
		if err != nil {
			break // the daemon takes no more for now
		}
		conns = append(conns, c)
	}
	if len(conns) < 16 {
		t.Fatalf("%d connections were taken; want more", len(conns))
	}
	for _, c := range conns[:len(conns)/2] {
		_ = c.Close()
	}
	eventually(t, "a new client is served beside silent ones", func() bool {
		c, err := client.Dial(soon(t), d.sock)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Handshake(soon(t), &proto.Handshake{}); err != nil {
			return false
		}
		return runOK(t, c, shell("echo well")) == "well\n"
	})
}

// TestTheStageIsNeeded: a daemon whose stage is killed says so and exits 1; the next
// one is well.
func TestTheStageIsNeeded(t *testing.T) {
	t.Parallel()
	d := prepare(t, basic("", shortGrace))
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	procs, err := d.processes()
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, p := range procs {
		var pid int
		if _, err := fmt.Sscan(p, &pid); err == nil && strings.Contains(p, "pinfold-stage") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed++
		}
	}
	if killed != 1 {
		t.Fatalf("processes = %q; want one stage", procs)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.cmd.Wait() // its exit code is looked at below
	}()
	select {
	case <-done:
	case <-time.After(stopWithin()):
		_ = d.cmd.Process.Signal(syscall.SIGQUIT)
		t.Fatalf("pinfoldd runs on %s after its stage has ended; want exit 1\n%s", stopWithin(), d.log)
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(d.log.String(), "stage") {
		t.Errorf("pinfoldd without its stage = exit %d; want 1 and a word about it\n%s", code, d.log)
	}
	if err := d.launch(); err != nil {
		t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
	d.stop()
}
