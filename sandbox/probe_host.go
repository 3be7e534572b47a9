package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// host is what explains a refusal: settings that are read, never acted upon.
type host struct {
	privileged bool              // this process may make namespaces without a user namespace: CAP_SYS_ADMIN
	mapped     bool              // this process is in a user namespace of few ids: its capabilities are good for that one alone
	sysctl     map[string]string // by name; those that do not exist are missing
	cmdline    string            // /proc/cmdline
}

// knobs are the settings that block features; sysctl(8).
func knobs() []string {
	return []string{
		"user.max_user_namespaces", "user.max_mnt_namespaces", "user.max_pid_namespaces", "user.max_ipc_namespaces",
		"user.max_uts_namespaces", "user.max_net_namespaces", "user.max_cgroup_namespaces", "user.max_time_namespaces",
		"kernel.unprivileged_userns_clone",             // Debian
		"kernel.apparmor_restrict_unprivileged_userns", // Ubuntu 23.10
		"vm.memfd_noexec",                              // Linux 6.3
	}
}

func readHost() host {
	h := host{privileged: haveCap(unix.CAP_SYS_ADMIN), sysctl: map[string]string{}}
	for _, name := range knobs() {
		b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		if err == nil { // one that cannot be read explains nothing
			h.sysctl[name] = strings.TrimSpace(string(b))
		}
	}
	if b, err := os.ReadFile("/proc/self/uid_map"); err == nil { // user_namespaces(7); the host's maps all ids
		h.mapped = !strings.HasSuffix(strings.TrimSpace(string(b)), " 4294967295")
	}
	if b, err := os.ReadFile("/proc/cmdline"); err == nil {
		h.cmdline = strings.TrimSpace(string(b))
	}
	return h
}

// haveCap reports whether this process has a capability in its effective set:
// capget(2).
func haveCap(number int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[number/32].Effective&(1<<(number%32)) != 0
}

func controllerOf(f Feature) string { return strings.TrimPrefix(string(f), "cgroup_") }

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	dir         string
	root        string   // what of the hierarchy is mounted there
	unified     bool     // cgroup2
	controllers []string // of a v1 hierarchy
}

// cgroupMounts reads /proc/self/mountinfo: proc_pid_mountinfo(5).
func cgroupMounts() ([]cgroupMount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseCgroupMounts(b), nil
}

func parseCgroupMounts(b []byte) []cgroupMount {
	var out []cgroupMount
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		where, what := strings.Fields(left), strings.Fields(right)
		if !ok || len(where) < 6 || len(what) < 3 {
			continue
		}
		m := cgroupMount{dir: unescape(where[4]), root: unescape(where[3])}
		switch what[0] {
		case "cgroup2":
			m.unified = true
		case "cgroup":
			m.controllers = strings.Split(what[2], ",")
		default:
			continue
		}
		out = append(out, m)
	}
	return out
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// tryController looks for a hierarchy that has a controller.
func tryController(name string) (*blocked, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if !m.unified {
			v1 := name
			if name == "io" {
				v1 = "blkio"
			}
			if slices.Contains(m.controllers, v1) {
				return nil, nil //nolint:nilnil // went through
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.dir, "cgroup.controllers"))
		if err != nil {
			return blockedBy(err)
		}
		if slices.Contains(strings.Fields(string(b)), name) {
			return nil, nil //nolint:nilnil // went through
		}
	}
	return &blocked{call: "control groups", note: fmt.Sprintf("no hierarchy has the %s controller", name)}, nil
}

// ownCgroup returns the directory of this process's v2 control group.
func ownCgroup() (string, *blocked, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return "", nil, err
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", nil, err
	}
	i := slices.IndexFunc(mounts, func(m cgroupMount) bool { return m.unified })
	own := ""
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			own = strings.TrimSuffix(rest, "\n")
		}
	}
	if i < 0 || own == "" {
		return "", &blocked{call: "control groups", note: "no cgroup2 hierarchy is mounted"}, nil
	}
	rel, ok := strings.CutPrefix(own, strings.TrimSuffix(mounts[i].root, "/"))
	if !ok {
		rel = own
	}
	return filepath.Join(mounts[i].dir, rel), nil, nil
}
