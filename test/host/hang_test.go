package host

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// startLimit is timeout.start of these tests; slack is for a loaded host.
const (
	startLimit = 2 * time.Second
	slack      = 4 * time.Second
)

// hung checks a start that cannot get on: it is given up in time, and nothing is left
// of it.
func (d *daemon) hung(c *client.Client, base, what string) {
	d.t.Helper()
	at := time.Now()
	_, err := c.Spawn(soon(d.t), shell("echo never"))
	took := time.Since(at)
	e := refused(d.t, "Spawn with "+what, err, proto.CodeStartFailed)
	if took < startLimit || took > startLimit+slack {
		d.t.Errorf("Spawn with %s took %s; want %s and little more", what, took, startLimit)
	}
	if !strings.Contains(e.Hint, "timeout.start") {
		d.t.Errorf("Spawn with %s = %v; want a hint at timeout.start", what, e)
	}
	eventually(d.t, "nothing is left of a start with "+what, func() bool {
		return len(procs(d.t, base, "init"))+len(procs(d.t, base, "job")) == 0
	})
}

// procs are the processes in the leaves of that name below the base in v2.
func procs(t *testing.T, base, leaf string) []int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(base, "callers", "*", "*", "*", leaf, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has just gone
		}
		for s := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(s); err == nil && pid > 0 {
				out = append(out, pid)
			}
		}
	}
	return out
}

// base is the daemon's base in the v2 hierarchy.
func (d *daemon) base() string {
	d.t.Helper()
	dirs, err := d.cgroups()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.freeze")); err == nil {
			if i := strings.Index(dir, d.cgroup); i >= 0 {
				return dir[:i+len(d.cgroup)]
			}
		}
	}
	d.t.Fatalf("no cgroup of v2 among %q", dirs)
	return ""
}

// TestAStartThatHangs is given up after timeout.start, wherever it hangs.
func TestAStartThatHangs(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    timeout: { start: "+startLimit.String()+", stop: 1s }"))
	c := d.agent()
	runOK(t, c, shell("echo well"))

	// PID 1 cannot begin: its cgroup is frozen.
	base := d.base()
	eventually(t, "PID 1 of what has ended is gone", func() bool { return len(procs(t, base, "init")) == 0 })
	freeze := filepath.Join(base, "callers", "cgroup.freeze")
	if err := os.WriteFile(freeze, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	d.hung(c, base, "a frozen cgroup")
	if err := os.WriteFile(freeze, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	runOK(t, c, shell("echo well"))

	// PID 1 is stopped between two of its steps.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		seen := map[int]bool{}
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, pid := range procs(t, base, "init") {
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || !strings.Contains(exe, "pinfold-init") || seen[pid] {
					continue // it is not yet the image
				}
				seen[pid] = true
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
			}
		}
	})
	hung := 0
	for range 10 {
		at := time.Now()
		p, err := c.Spawn(soon(t), shell("echo never"))
		if err != nil {
			refused(t, "Spawn with a stopped PID 1", err, proto.CodeStartFailed)
			if took := time.Since(at); took > startLimit+slack {
				t.Errorf("Spawn with a stopped PID 1 took %s; want %s and little more", took, startLimit)
			}
			if hung++; hung == 2 {
				break
			}
			continue
		}
		for _, pid := range procs(t, base, "init") { // too late: let it go on
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		output(t, p)
	}
	close(stop)
	wg.Wait()
	if hung == 0 {
		t.Error("no start hung with PID 1 stopped at once; want some")
	}
	eventually(t, "nothing is left of stopped starts", func() bool { return len(procs(t, base, "init"))+len(procs(t, base, "job")) == 0 })
	runOK(t, d.agent(), shell("echo well"))
}

// kills is how often TestTheDaemonIsKilledAtAnyMoment kills it.
const kills = 30

// TestTheDaemonIsKilledAtAnyMoment of starts under load: no process is left that
// nobody confined, and the next daemon on the same state ends what is left and works.
func TestTheDaemonIsKilledAtAnyMoment(t *testing.T) {
	d := prepare(t, basic("    detach_ttl: 0s", shortGrace)) // what is adopted waits for nobody
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	base := ""
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range kills {
		if err := d.launch(); err != nil {
			t.Fatalf("pinfoldd after %d kills = %v; want it ready\n%s", i, err, d.log)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				c, err := client.Dial(t.Context(), d.sock)
				if err != nil {
					return
				}
				defer func() { _ = c.Close() }()
				if _, err := c.Handshake(t.Context(), &proto.Handshake{}); err != nil {
					return
				}
				for {
					if _, err := c.Spawn(t.Context(), shell("trap '' TERM; sleep 600")); err != nil {
						return // it was killed
					}
				}
			})
		}
		time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
		if err := d.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = d.cmd.Wait() // it was killed
		wg.Wait()
		base = d.base()
		allConfined(t, base)
	}
	if err := d.launch(); err != nil {
		t.Fatalf("the last pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	eventually(t, "nothing is left of what nobody comes back for", func() bool { return len(procs(t, base, "init"))+len(procs(t, base, "job")) == 0 })
	if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
	d.stop()
}

// allConfined looks at every process of a pen: after the death of the daemon each that
// goes on has passed its last gate, with no_new_privs, a filter and no capability; the
// others end by themselves.
func allConfined(t *testing.T, base string) {
	t.Helper()
	loose := func() string {
		for _, pid := range append(procs(t, base, "job"), procs(t, base, "init")...) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				continue
			}
			s := string(b)
			if statusField(s, "NoNewPrivs:") != "1" || statusField(s, "Seccomp:") != "2" || statusField(s, "CapEff:") != "0000000000000000" || statusField(s, "CapBnd:") != "0000000000000000" {
				return s
			}
		}
		return ""
	}
	deadline := time.Now().Add(patience)
	for s := loose(); s != ""; s = loose() {
		if time.Now().After(deadline) {
			t.Fatalf("a process outlives the daemon without all that confines it:\n%s", s)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
