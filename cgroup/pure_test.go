package cgroup

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func unifiedHost() host {
	return host{
		home: map[string]home{ControllerMemory: homeV2, ControllerPids: homeV2, ControllerCPU: homeV2, ControllerIO: homeV2},
		lack: map[string]string{},
	}
}

func hybridHost() host {
	return host{
		home: map[string]home{ControllerMemory: homeV1, ControllerPids: homeV1, ControllerCPU: homeV1},
		lack: map[string]string{ControllerIO: "io lacks"},
	}
}

// show prints settings one a line, as the golden tables below have them.
func show(list []Setting) string {
	var out strings.Builder
	for _, s := range list {
		if s.State == StateUnsupported {
			fmt.Fprintf(&out, "%s unsupported: %s\n", s.Controller, s.Why)
			continue
		}
		fmt.Fprintf(&out, "%s %s=%s\n", s.Controller, s.File, s.Value)
	}
	return out.String()
}

func all() Limits {
	return Limits{Memory: 64 << 20, Swap: 16 << 20, Pids: 256, CPU: 1.5, IOWeight: 50}
}

func TestSettings(t *testing.T) {
	noSwap := hybridHost()
	noSwap.lack[ControllerSwap] = "no memsw"
	bare := host{home: map[string]home{}, lack: map[string]string{ControllerMemory: "no memory", ControllerSwap: "no memory"}}
	tests := []struct {
		name string
		host host
		l    Limits
		part part
		want string
	}{
		{"unified job", unifiedHost(), all(), partJob, `
memory memory.max=67108864
memory memory.oom.group=1
swap memory.swap.max=16777216
pids pids.max=256
cpu cpu.max=150000 100000
io io.weight=default 50
`},
		{"unified group", unifiedHost(), all(), partGroup, `
memory memory.max=67108864
swap memory.swap.max=16777216
pids pids.max=256
cpu cpu.max=150000 100000
io io.weight=default 50
`},
		{"hybrid job", hybridHost(), all(), partJob, `
memory memory.limit_in_bytes=67108864
swap memory.memsw.limit_in_bytes=83886080
sockets memory.kmem.tcp.limit_in_bytes=8388608
pids pids.max=256
cpu cpu.cfs_period_us=100000
cpu cpu.cfs_quota_us=150000
io unsupported: io lacks
`},
		{"hybrid without memsw", noSwap, Limits{Memory: 1 << 20, Swap: 0}, partJob, `
memory memory.limit_in_bytes=1048576
swap unsupported: no memsw
sockets memory.kmem.tcp.limit_in_bytes=131072
`},
		{"hybrid swap alone", hybridHost(), Limits{Memory: -1, Swap: 0}, partJob, `
swap unsupported: on cgroup v1 swap is limited together with memory: set a memory limit too
`},
		{"unified swap alone", unifiedHost(), Limits{Memory: -1, Swap: 0}, partJob, `
swap memory.swap.max=0
`},
		{"nothing", unifiedHost(), NoLimits(), partJob, "\n"},
		{"bare host", bare, Limits{Memory: 1, Swap: 0, Pids: 1, CPU: 1}, partJob, `
memory unsupported: no memory
swap unsupported: no memory
pids unsupported: pids controller is not available
cpu unsupported: cpu controller is not available
`},
		{"tiny cpu", unifiedHost(), Limits{Swap: -1, CPU: 0.0001}, partJob, `
cpu cpu.max=1000 100000
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := "\n" + show(tt.host.settings(tt.l, tt.part)); got != tt.want {
				t.Errorf("settings(%+v) = %s; want %s", tt.l, got, tt.want)
			}
		})
	}
}

func TestBareHostHasNoOOMGroup(t *testing.T) {
	h := host{home: map[string]home{}, lack: map[string]string{}}
	for _, s := range h.settings(all(), partJob) {
		if s.State != StateUnsupported || s.Why == "" {
			t.Errorf("settings on a bare host = %+v; want unsupported with a cause", s)
		}
	}
}

func TestChange(t *testing.T) {
	tests := []struct {
		name   string
		host   host
		old, l Limits
		want   string
	}{
		{"unified lift all", unifiedHost(), all(), NoLimits(), `
memory memory.max=max
swap memory.swap.max=max
pids pids.max=max
cpu cpu.max=max 100000
io io.weight=default 100
`},
		{"hybrid lift all: memory with swap first", hybridHost(), all(), NoLimits(), `
swap memory.memsw.limit_in_bytes=-1
memory memory.limit_in_bytes=-1
sockets memory.kmem.tcp.limit_in_bytes=-1
pids pids.max=max
cpu cpu.cfs_quota_us=-1
`},
		{"hybrid up: memory with swap first", hybridHost(), Limits{Memory: 1 << 20}, Limits{Memory: 2 << 20}, `
swap memory.memsw.limit_in_bytes=2097152
memory memory.limit_in_bytes=2097152
sockets memory.kmem.tcp.limit_in_bytes=262144
`},
		{"hybrid down: memory first", hybridHost(), Limits{Memory: 2 << 20}, Limits{Memory: 1 << 20}, `
memory memory.limit_in_bytes=1048576
swap memory.memsw.limit_in_bytes=1048576
sockets memory.kmem.tcp.limit_in_bytes=131072
`},
		{"keep", unifiedHost(), Limits{Memory: 1 << 20, Swap: -1}, Limits{Memory: 1 << 20, Swap: -1, Pids: 3}, `
memory memory.max=1048576
pids pids.max=3
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := "\n" + show(tt.host.change(tt.old, tt.l, partGroup)); got != tt.want {
				t.Errorf("change(%+v, %+v) = %s; want %s", tt.old, tt.l, got, tt.want)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	tests := []struct {
		file, want, got string
		ok              bool
	}{
		{"memory.max", "4097", "4096", true},
		{"memory.max", "8192", "4096", false},
		{"memory.max", "max", "max", true},
		{"memory.limit_in_bytes", "-1", "9223372036854771712", true},
		{"memory.limit_in_bytes", "-1", "4096", false},
		{"pids.max", "3", "3", true},
		{"pids.max", "3", "4", false},
		{"cpu.max", "150000 100000", "150000 100000", true},
		{"io.weight", "default 50", "default 100", false},
	}
	for _, tt := range tests {
		if got := accepted(tt.file, tt.want, tt.got); got != tt.ok {
			t.Errorf("accepted(%s, %s, %s) = %t; want %t", tt.file, tt.want, tt.got, got, tt.ok)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, l := range []Limits{{CPU: math.NaN()}, {CPU: math.Inf(1)}, {IOWeight: 10001}, {Memory: 1 << 62}, {Swap: 1 << 62}} {
		if err := l.check(); err == nil {
			t.Errorf("check(%+v) = nil; want an error", l)
		}
	}
	if err := all().check(); err != nil {
		t.Errorf("check(%+v) = %v; want nil", all(), err)
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "cgroup.procs", "tasks", "job", "init", "a b", "\x00", strings.Repeat("x", 129), "é"} {
		if err := checkName(name); err == nil {
			t.Errorf("checkName(%q) = nil; want an error", name)
		}
	}
	for _, name := range []string{"0", "1000", "a-b_C9", strings.Repeat("x", 128)} {
		if err := checkName(name); err != nil {
			t.Errorf("checkName(%q) = %v; want nil", name, err)
		}
	}
}

const hybridMounts = `30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs none ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 none rw,nsdelegate
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup none rw,xattr,name=systemd
36 30 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup none rw,cpu,cpuacct
37 30 0:33 /docker/4f /sys/fs/cgroup/memory rw - cgroup none rw,memory
38 30 0:34 / /sys/fs/cgroup/pids\040x rw - cgroup none rw,pids
`

const controllerTable = `#subsys_name	hierarchy	num_cgroups	enabled
cpu	1	1	1
memory	4	19	0
pids	8	1	1
`

func TestParseFacts(t *testing.T) {
	f, err := parseFacts(hybridMounts, map[string]string{"": "/a", "memory": "/docker/4f/x"}, controllerTable)
	if err != nil {
		t.Fatalf("parseFacts() = %v; want nil", err)
	}
	got := map[string]string{"": f.v2.mount}
	for c, tr := range f.v1 {
		got[c] = tr.mount
	}
	want := map[string]string{
		"": "/sys/fs/cgroup/unified", "cpu": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory", "pids": "/sys/fs/cgroup/pids x",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("parseFacts() mounts differ (-want +got):\n%s", d)
	}
	if dir, err := f.v1["memory"].dirOf(f.own["memory"]); err != nil || dir != "/sys/fs/cgroup/memory/x" {
		t.Errorf("dirOf(%s) = %s, %v; want /sys/fs/cgroup/memory/x", f.own["memory"], dir, err)
	}
	if _, err := f.v2.dirOf("/../x"); err == nil {
		t.Error("dirOf(/../x) = nil error; want one: outside of the namespace")
	}
	for c, want := range map[string]string{"memory": "cgroup_disable=memory", "io": "CONFIG_BLK_CGROUP", "pids": ""} {
		if got := f.kernelLack(c); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("kernelLack(%s) = %q; want %q in it", c, got, want)
		}
	}
	if _, err := parseFacts("", nil, ""); err == nil {
		t.Error("parseFacts(no mounts) = nil error; want ErrNoBase")
	}
}

func TestPlace(t *testing.T) {
	f, err := parseFacts(hybridMounts, map[string]string{"": "/a/b", "memory": "/docker/4f/m", "pids": "/"}, controllerTable)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ path, v2, memory, pids string }{
		{"", "/sys/fs/cgroup/unified/a/b/pinfold-0", "/sys/fs/cgroup/memory/m/pinfold-0", "/sys/fs/cgroup/pids x/pinfold-0"},
		{"x/y", "/sys/fs/cgroup/unified/a/b/x/y", "/sys/fs/cgroup/memory/m/x/y", "/sys/fs/cgroup/pids x/x/y"},
		{"/p", "/sys/fs/cgroup/unified/p", "/sys/fs/cgroup/memory/p", "/sys/fs/cgroup/pids x/p"},
		{"/sys/fs/cgroup/unified/p/q", "/sys/fs/cgroup/unified/p/q", "/sys/fs/cgroup/memory/p/q", "/sys/fs/cgroup/pids x/p/q"},
	}
	for _, tt := range tests {
		p, err := f.place(tt.path, "pinfold-0")
		if err != nil {
			t.Fatalf("place(%q) = %v; want nil", tt.path, err)
		}
		memory, err1 := p.v1(f, "memory", f.v1["memory"])
		pids, err2 := p.v1(f, "pids", f.v1["pids"])
		if p.v2 != tt.v2 || memory != tt.memory || pids != tt.pids || err1 != nil || err2 != nil {
			t.Errorf("place(%q) = %s, %s, %s; want %s, %s, %s", tt.path, p.v2, memory, pids, tt.v2, tt.memory, tt.pids)
		}
	}
	if _, err := f.place("../x", "pinfold-0"); err == nil {
		t.Error("place(../x) = nil error; want one")
	}
}

func TestFields(t *testing.T) {
	got := fields("low 0\noom_kill 3\nbroken\nnot a number x\n")
	if d := cmp.Diff(map[string]int64{"low": 0, "oom_kill": 3}, got); d != "" {
		t.Errorf("fields() differs (-want +got):\n%s", d)
	}
	if r, w := ioStat("8:0 rbytes=5 wbytes=7 rios=1\n8:16 rbytes=1 wbytes=x"); r != 6 || w != 7 {
		t.Errorf("ioStat() = %d, %d; want 6, 7", r, w)
	}
}

func FuzzParseFacts(f *testing.F) {
	f.Add(hybridMounts, "/a", controllerTable)
	f.Fuzz(func(t *testing.T, mounts, own, table string) {
		facts, err := parseFacts(mounts, map[string]string{"": own}, table)
		if err == nil && facts.v2.mount == "" {
			t.Errorf("parseFacts(%q) = no cgroup2 mount and no error; want one of them", mounts)
		}
	})
}
