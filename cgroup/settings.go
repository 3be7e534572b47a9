package cgroup

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// cpuPeriod is the period of a cpu quota in microseconds: the kernel's default, sched-bwc.
const cpuPeriod = 100_000

// minQuota is the smallest quota that the kernel takes, in microseconds.
const minQuota = 1_000

// home says which kind of hierarchy carries a controller.
type home int

// Homes of a controller.
const (
	homeNone home = iota
	homeV1
	homeV2
)

// host is what of a host decides about settings: where each controller is, and why one is not there.
type host struct {
	home map[string]home   // controller → home
	lack map[string]string // controller → why and cure
}

// part says for which kind of directory settings are made.
type part int

// Parts of the tree.
const (
	partGroup part = iota // a caller or a session
	partJob               // the job of a process
)

// settings turns limits into files and values, in the order in which they are to be written. It is pure: a
// limit that this host cannot hold comes back as StateUnsupported with its cause.
func (h host) settings(l Limits, p part) []Setting {
	var out []Setting
	if l.Memory > 0 {
		out = append(out, h.memory(l, p)...)
	}
	if l.Swap >= 0 {
		out = append(out, h.swap(l))
	}
	if l.Memory > 0 && h.home[ControllerMemory] == homeV1 {
		out = append(out, sockets(l))
	}
	if l.Pids > 0 {
		out = append(out, h.one(ControllerPids, "pids.max", "pids.max", strconv.FormatInt(l.Pids, 10)))
	}
	if l.CPU > 0 {
		out = append(out, h.cpu(l)...)
	}
	if l.IOWeight > 0 {
		out = append(out, h.one(ControllerIO, "", "io.weight", "default "+strconv.Itoa(l.IOWeight)))
	}
	return out
}

// change lists what to write to go from one set of limits to another. Limits that are no longer set are lifted. On v1 memory with swap
// must never be below memory: it is written first on the way up and last on the way down.
func (h host) change(old, l Limits, p part) []Setting {
	list := h.settings(l, p)
	lift := Limits{Memory: -1, Swap: -1}
	if old.Memory > 0 && l.Memory <= 0 {
		lift.Memory = old.Memory
	}
	if old.Swap >= 0 && l.Swap < 0 {
		lift.Swap = old.Swap
	}
	if old.Pids > 0 && l.Pids <= 0 {
		lift.Pids = old.Pids
	}
	if old.CPU > 0 && l.CPU <= 0 {
		lift.CPU = old.CPU
	}
	if old.IOWeight > 0 && l.IOWeight <= 0 {
		lift.IOWeight = old.IOWeight
	}
	var out []Setting
	for _, s := range h.settings(lift, partGroup) {
		if value, ok := none(s.File); ok {
			s.Value = value
			out = append(out, s)
		}
	}
	up := old.Memory > 0 && (l.Memory <= 0 || l.Memory > old.Memory)
	out = append(out, list...)
	if up {
		slices.SortStableFunc(out, func(a, b Setting) int { return swapFirst(a) - swapFirst(b) })
	}
	return out
}

// swapFirst orders the v1 limit of memory with swap before all others.
func swapFirst(s Setting) int {
	if s.File == "memory.memsw.limit_in_bytes" {
		return 0
	}
	return 1
}

// none is the value of a file that sets no limit.
func none(file string) (string, bool) {
	switch file {
	case "memory.max", "memory.swap.max", "pids.max":
		return "max", true
	case "cpu.max":
		return "max " + strconv.Itoa(cpuPeriod), true
	case "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes", "cpu.cfs_quota_us":
		return "-1", true
	case "io.weight":
		return "default 100", true
	}
	return "", false
}

// lifted says whether a setting takes a limit away.
func (s Setting) lifted() bool {
	value, ok := none(s.File)
	return ok && s.Value == value && s.File != "io.weight"
}

// one is a setting of a single file, whose name differs between v1 and v2.
func (h host) one(controller, v1, v2, value string) Setting {
	s := Setting{Controller: controller, Value: value}
	switch h.home[controller] {
	case homeV1:
		s.File = v1
	case homeV2:
		s.File = v2
	case homeNone:
	}
	if s.File == "" {
		s.State, s.Why = StateUnsupported, h.why(controller)
	}
	return s
}

func (h host) why(controller string) string {
	if why := h.lack[controller]; why != "" {
		return why
	}
	return controller + " controller is not available"
}

func (h host) memory(l Limits, p part) []Setting {
	out := []Setting{h.one(ControllerMemory, "memory.limit_in_bytes", "memory.max", decimal(l.Memory))}
	if p == partJob && h.home[ControllerMemory] == homeV2 {
		// memory.oom.group: Linux 4.19, Documentation/admin-guide/cgroup-v2.rst. Left to itself the kernel ends one task.
		out = append(out, Setting{Controller: ControllerMemory, File: "memory.oom.group", Value: "1"})
	}
	return out
}

func (h host) swap(l Limits) Setting {
	s := Setting{Controller: ControllerSwap, Value: decimal(l.Swap)}
	switch {
	case h.lack[ControllerSwap] != "" || h.home[ControllerMemory] == homeNone:
		s.State, s.Why = StateUnsupported, h.why(ControllerSwap)
	case h.home[ControllerMemory] == homeV2:
		s.File = "memory.swap.max"
	case l.Memory <= 0:
		s.State, s.Why = StateUnsupported, "on cgroup v1 swap is limited together with memory: set a memory limit too"
	default: // v1 counts memory and swap together
		s.File, s.Value = "memory.memsw.limit_in_bytes", decimal(l.Memory+l.Swap)
	}
	return s
}

// socketShare is the part of a memory limit that buffers of sockets may have on v1: an eighth.
const socketShare = 8

// sockets limits what the buffers of internet sockets take. On v1 they are not part of the memory limit, and count against what the
// host has for everybody's sockets (udp_mem, tcp_mem): udp(7), Documentation/admin-guide/cgroup-v1/memory.rst. On v2 they are.
func sockets(l Limits) Setting {
	return Setting{Controller: ControllerSockets, File: "memory.kmem.tcp.limit_in_bytes", Value: decimal(max(l.Memory/socketShare, 1))}
}

func (h host) cpu(l Limits) []Setting {
	quota := strconv.FormatInt(max(int64(l.CPU*cpuPeriod+0.5), minQuota), 10)
	period := strconv.Itoa(cpuPeriod)
	if h.home[ControllerCPU] != homeV1 {
		return []Setting{h.one(ControllerCPU, "", "cpu.max", quota+" "+period)}
	}
	return []Setting{
		{Controller: ControllerCPU, File: "cpu.cfs_period_us", Value: period},
		{Controller: ControllerCPU, File: "cpu.cfs_quota_us", Value: quota},
	}
}

// accepted says whether what a file shows is what was written to it. Memory is counted in pages, rounded down.
func accepted(file, want, got string) bool {
	if want == got {
		return true
	}
	if !strings.HasPrefix(file, "memory.") {
		return false
	}
	if want == "-1" { // v1 shows no limit as the largest number of pages
		return len(got) >= len("9223372036854771712")
	}
	w, err1 := strconv.ParseInt(want, 10, 64)
	g, err2 := strconv.ParseInt(got, 10, 64)
	page := int64(os.Getpagesize())
	return err1 == nil && err2 == nil && w/page == g/page
}

// hierarchy names the hierarchy of a setting's controller: swap and sockets are memory's.
func (s Setting) hierarchy() string {
	if s.Controller == ControllerSwap || s.Controller == ControllerSockets {
		return ControllerMemory
	}
	return s.Controller
}

// limited says whether a controller has a limit.
func (l Limits) limited(controller string) bool {
	switch controller {
	case ControllerMemory:
		return l.Memory > 0 || l.Swap >= 0
	case ControllerPids:
		return l.Pids > 0
	case ControllerCPU:
		return l.CPU > 0
	case ControllerIO:
		return l.IOWeight > 0
	default:
		return false
	}
}

// check refuses limits that no kernel takes.
func (l Limits) check() error {
	if l.IOWeight > 10_000 {
		return fmt.Errorf("cannot set io weight %d: the highest is 10000", l.IOWeight)
	}
	if l.Memory > 1<<60 || l.Swap > 1<<60 {
		return fmt.Errorf("cannot set memory limit %d with swap %d: beyond 1 EiB", l.Memory, l.Swap)
	}
	if math.IsNaN(l.CPU) || l.CPU > 1<<20 {
		return fmt.Errorf("cannot set cpu limit %g: not a number of cores", l.CPU)
	}
	return nil
}

func decimal(b Bytes) string {
	return strconv.FormatInt(int64(b), 10)
}
