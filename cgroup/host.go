package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// delegateCure is what a user does who has no cgroup of their own.
const delegateCure = "start it with: systemd-run --user --scope -p Delegate=yes COMMAND (as root without --user)"

// controllersV1 are the only v1 hierarchies that are used; the kernel's name of io there is blkio.
func controllersV1() []string {
	return []string{ControllerMemory, ControllerPids, ControllerCPU}
}

// tree is one mounted cgroup hierarchy.
type tree struct {
	controllers []string // v1; empty for v2
	mount       string   // where it is mounted
	root        string   // which cgroup is mounted there (a container without cgroup namespace: not "/")
}

// facts is what /proc says about control groups.
type facts struct {
	v2     tree
	v1     map[string]tree   // controller → its tree
	own    map[string]string // controller → own cgroup, "" → v2
	kernel map[string]bool   // controller known to the kernel → enabled; from /proc/cgroups
}

// readFacts reads /proc/self/mountinfo, /proc/self/cgroup and /proc/cgroups.
func readFacts() (facts, error) {
	switch cgroups.Mode() {
	case cgroups.Hybrid, cgroups.Unified:
	case cgroups.Legacy:
		return facts{}, fmt.Errorf("cannot use control groups: %w: no cgroup2 tree at /sys/fs/cgroup or /sys/fs/cgroup/unified: "+
			"mount -t cgroup2 none /sys/fs/cgroup/unified", ErrNoBase)
	case cgroups.Unavailable:
		return facts{}, fmt.Errorf("cannot use control groups: %w: nothing is mounted at /sys/fs/cgroup", ErrNoBase)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return facts{}, err
	}
	named, v2, err := cgroups.ParseCgroupFileUnified("/proc/self/cgroup")
	if err != nil {
		return facts{}, fmt.Errorf("cannot read /proc/self/cgroup: %w", err)
	}
	table, err := os.ReadFile("/proc/cgroups")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return facts{}, err
	}
	named[""] = v2
	return parseFacts(string(mounts), named, string(table))
}

// parseFacts joins the three files; see proc(5) and cgroups(7).
func parseFacts(mountinfo string, own map[string]string, table string) (facts, error) {
	f := facts{v1: map[string]tree{}, own: own, kernel: map[string]bool{}}
	for line := range strings.Lines(mountinfo) {
		f.addMount(line)
	}
	for line := range strings.Lines(table) {
		col := strings.Fields(line)
		if len(col) == 4 && !strings.HasPrefix(col[0], "#") {
			f.kernel[col[0]] = col[3] == "1"
		}
	}
	if f.v2.mount == "" {
		return f, fmt.Errorf("cannot use control groups: %w: no cgroup2 mount in /proc/self/mountinfo", ErrNoBase)
	}
	return f, nil
}

// addMount takes one line of mountinfo; the first mount of a hierarchy counts.
func (f *facts) addMount(line string) {
	left, right, ok := strings.Cut(line, " - ")
	col, kind := strings.Fields(left), strings.Fields(right)
	if !ok || len(col) < 6 || len(kind) < 3 {
		return
	}
	t := tree{mount: unescape(col[4]), root: unescape(col[3])}
	switch kind[0] {
	case "cgroup2":
		if f.v2.mount == "" {
			f.v2 = t
		}
	case "cgroup":
		t.controllers = strings.Split(kind[2], ",")
		for _, c := range controllersV1() {
			if _, have := f.v1[c]; !have && slices.Contains(t.controllers, c) {
				f.v1[c] = t
			}
		}
	}
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// dirOf is the directory of a cgroup, named as /proc/<pid>/cgroup names it, below the mount of its tree.
func (t tree) dirOf(cgroup string) (string, error) {
	if strings.HasPrefix(cgroup, "/..") {
		return "", fmt.Errorf("cannot find cgroup %s: it lies outside of this cgroup namespace", cgroup)
	}
	rel := cgroup
	if t.root != "/" {
		below, ok := strings.CutPrefix(cgroup, t.root)
		if ok && (below == "" || below[0] == '/') {
			rel = below
		}
	}
	return filepath.Join(t.mount, rel), nil
}

// kernelLack says why the kernel itself lacks a controller, or nothing when it has it.
func (f facts) kernelLack(controller string) string {
	name := controller
	if controller == ControllerIO {
		name = "blkio"
	}
	on, known := f.kernel[name]
	switch {
	case len(f.kernel) == 0: // no /proc/cgroups: nothing to be said
		return ""
	case !known:
		return fmt.Sprintf("this kernel was built without the %s controller: use one with %s", controller, option(controller))
	case !on:
		return fmt.Sprintf("the kernel was started with cgroup_disable=%s: remove that from its command line and boot again", name)
	}
	return ""
}

// option names a controller's kernel option.
func option(controller string) string {
	switch controller {
	case ControllerMemory:
		return "CONFIG_MEMCG"
	case ControllerPids:
		return "CONFIG_CGROUP_PIDS"
	case ControllerCPU:
		return "CONFIG_CFS_BANDWIDTH"
	default:
		return "CONFIG_BLK_CGROUP"
	}
}

// refusedLack says why a directory could not be made in a v1 hierarchy.
func refusedLack(controller string, err error) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Sprintf("the %s hierarchy is mounted read-only (a container without delegation): %v: "+
			"run the container with a writable cgroup mount, or on a host with cgroup v2", controller, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Sprintf("the %s hierarchy is not ours to write: %v: run as root, or boot with systemd.unified_cgroup_hierarchy=1 and %s",
			controller, err, delegateCure)
	default:
		return fmt.Sprintf("cannot use the %s hierarchy: %v", controller, err)
	}
}
