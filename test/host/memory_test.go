package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// memory is what the daemon has in one moment, in bytes.
type memory struct {
	resident int64 // VmRSS of the daemon
	stage    int64 // VmRSS of the stage
	charged  int64 // anonymous and shared memory of the daemon's cgroup, spools with it
	kernel   int64 // kernel memory of that cgroup, buffers of sockets and pipes with it
}

func (m memory) String() string {
	return fmt.Sprintf("resident %.1f MiB, stage %.1f MiB, charged %.1f MiB, kernel %.1f MiB", mib(m.resident), mib(m.stage), mib(m.charged), mib(m.kernel))
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// memoryGroup is the cgroup to which the daemon's memory is charged. Page cache is not counted: the kernel takes it back by itself.
type memoryGroup struct {
	t     *testing.T
	dir   string
	v1    bool
	pid   int
	stage int
}

// newMemoryGroup finds the daemon's cgroup, or on a v1 hierarchy moves daemon and stage into one of their own: what they take from then on is charged there.
func newMemoryGroup(t *testing.T, d *daemon) *memoryGroup {
	t.Helper()
	g := &memoryGroup{t: t, pid: d.cmd.Process.Pid}
	procs, err := d.processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		number, line, _ := strings.Cut(p, " ")
		if strings.Contains(line, "pinfold-stage") {
			if g.stage, err = strconv.Atoi(number); err != nil {
				t.Fatal(err)
			}
		}
	}
	var v2 string
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/cgroup", g.pid))) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if f[1] == "memory" {
			g.v1 = true
			g.dir = filepath.Join("/sys/fs/cgroup/memory", f[2], fmt.Sprintf("pinfold-test-memory-%d", g.pid))
		}
		if f[0] == "0" {
			v2 = filepath.Join("/sys/fs/cgroup", f[2])
		}
	}
	if !g.v1 {
		g.dir = v2
		return g
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{g.pid, g.stage} {
		if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if !d.over {
			d.stop() // a cgroup with members cannot be removed
		}
		eventually(t, "the cgroup can be removed", func() bool {
			err := syscall.Rmdir(g.dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	})
	return g
}

// number reads a file of one number, or one line of a file of many.
func (g *memoryGroup) number(file, name string) int64 {
	g.t.Helper()
	text := readFile(g.t, filepath.Join(g.dir, file))
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if name == "" && len(f) == 1 || name != "" && len(f) == 2 && f[0] == name {
			n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
			if err != nil {
				g.t.Fatal(err)
			}
			return n
		}
	}
	g.t.Fatalf("%s of %s has no %q", file, g.dir, name)
	return 0
}

func (g *memoryGroup) now() memory {
	g.t.Helper()
	m := memory{resident: int64(residentKB(g.t, g.pid)) << 10, stage: int64(residentKB(g.t, g.stage)) << 10}
	if g.v1 {
		m.charged = g.number("memory.stat", "total_rss") + g.number("memory.stat", "total_shmem")
		m.kernel = g.number("memory.kmem.usage_in_bytes", "")
		return m
	}
	m.charged = g.number("memory.stat", "anon") + g.number("memory.stat", "shmem")
	m.kernel = g.number("memory.stat", "kernel") + g.number("memory.stat", "sock")
	return m
}

// watch looks four times a second until done.
func (g *memoryGroup) watch(done <-chan struct{}) []memory {
	g.t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var seen []memory
	for {
		select {
		case <-done:
			return seen
		case <-tick.C:
			seen = append(seen, g.now())
		}
	}
}

// middle is the median of each figure.
func middle(part []memory) memory {
	of := func(figure func(memory) int64) int64 {
		all := make([]int64, len(part))
		for i, m := range part {
			all[i] = figure(m)
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return memory{
		resident: of(func(m memory) int64 { return m.resident }), stage: of(func(m memory) int64 { return m.stage }),
		charged: of(func(m memory) int64 { return m.charged }), kernel: of(func(m memory) int64 { return m.kernel }),
	}
}

// checkFlat compares the middle of the second quarter, after the warm-up, with that of the last. Single peaks tell when the collector ran.
func checkFlat(t *testing.T, seen []memory) {
	t.Helper()
	if len(seen) < 8 {
		t.Fatalf("memory was looked at %d times; want at least 8", len(seen))
	}
	n := len(seen) / 4
	warm, last := middle(seen[n:2*n]), middle(seen[len(seen)-n:])
	t.Logf("memory, the middle of the second quarter: %s; of the last: %s", warm, last)
	for _, c := range []struct {
		what     string
		from, to int64
	}{
		{"resident memory of the daemon", warm.resident, last.resident},
		{"resident memory of the stage", warm.stage, last.stage},
		{"memory charged to its cgroup", warm.charged, last.charged},
		{"kernel memory charged to it", warm.kernel, last.kernel},
	} {
		if c.to > c.from+max(soakGrowth, c.from/4) {
			t.Errorf("%s: %.1f MiB, then %.1f MiB; want it flat, within %d MiB or a quarter", c.what, mib(c.from), mib(c.to), soakGrowth>>20)
		}
	}
}
