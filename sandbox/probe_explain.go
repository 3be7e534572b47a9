package sandbox

import (
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
)

// about is what is known of a feature when it is refused.
type about struct {
	limit  string // sysctl that can be 0
	kernel string // what a kernel must be or have
	allow  string // cure when something refuses what the kernel has
}

// Cures that several features share.
const (
	cureRoot      = "run pinfoldd as root, in a container with --privileged"
	cureContainer = "run the container with --security-opt seccomp=unconfined"
	cureProc      = "run the container with --security-opt systempaths=unconfined"
	cureCgroup    = "set Delegate=yes on the unit that runs pinfoldd, or mount the hierarchy that has the controller"
)

func abouts() map[Feature]about {
	return map[Feature]about{
		FeatureNoNewPrivs:   {"", "Linux 3.5 or newer", cureContainer},
		FeatureSeccomp:      {"", "CONFIG_SECCOMP_FILTER=y", cureContainer},
		FeatureLandlock:     {"", "Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK=y", cureContainer},
		FeatureUserNS:       {"user.max_user_namespaces", "CONFIG_USER_NS=y", cureContainer},
		FeatureMountNS:      {"user.max_mnt_namespaces", "CONFIG_NAMESPACES=y", cureRoot},
		FeaturePidNS:        {"user.max_pid_namespaces", "CONFIG_PID_NS=y", cureRoot},
		FeatureIPCNS:        {"user.max_ipc_namespaces", "CONFIG_IPC_NS=y", cureRoot},
		FeatureUTSNS:        {"user.max_uts_namespaces", "CONFIG_UTS_NS=y", cureRoot},
		FeatureNetNS:        {"user.max_net_namespaces", "CONFIG_NET_NS=y", cureRoot},
		FeatureCgroupNS:     {"user.max_cgroup_namespaces", "Linux 4.6 or newer with CONFIG_CGROUPS=y", cureRoot},
		FeatureTimeNS:       {"user.max_time_namespaces", "Linux 5.6 or newer with CONFIG_TIME_NS=y", cureRoot},
		FeatureProcMount:    {"user.max_pid_namespaces", "CONFIG_PROC_FS=y", cureProc},
		FeatureProcUserNS:   {"user.max_user_namespaces", "CONFIG_PROC_FS=y", cureProc},
		FeatureMountAPI:     {"", "Linux 5.2 or newer with CONFIG_TMPFS=y", cureRoot},
		FeatureMountSetattr: {"", "Linux 5.12 or newer", cureRoot},
		FeatureIDMap:        {"user.max_user_namespaces", "Linux 6.3 or newer", cureRoot},
		FeatureTreeAttach:   {"", "Linux 6.15 or newer", cureRoot},
		FeatureTreeClone:    {"", "Linux 6.15 or newer", cureRoot},
		FeaturePidfd:        {"", "Linux 5.3 or newer", cureContainer},
		FeaturePidfdGroup:   {"", "Linux 6.9 or newer", cureContainer},
		FeaturePidfdGetfd:   {"", "Linux 5.6 or newer", "run the container with --cap-add SYS_PTRACE"},
		FeatureIntoCgroup:   {"", "Linux 5.7 or newer", cureContainer},
		FeatureMemfdExec:    {"", "Linux 3.17 or newer", "sysctl -w vm.memfd_noexec=0"},
		FeatureMemfdNoexec:  {"user.max_pid_namespaces", "Linux 6.3 or newer", cureRoot},
		FeatureCapsDrop:     {"", "Linux 2.6.25 or newer", cureRoot},
		FeatureRlimits:      {"", "Linux 2.6.36 or newer", cureContainer},
		FeatureSetIDs:       {"", "CONFIG_MULTIUSER=y", cureRoot},
		FeatureCgroupMemory: {"", "CONFIG_MEMCG=y", cureCgroup},
		FeatureCgroupPids:   {"", "CONFIG_CGROUP_PIDS=y", cureCgroup},
		FeatureCgroupCPU:    {"", "CONFIG_CGROUP_SCHED=y", cureCgroup},
		FeatureCgroupIO:     {"", "CONFIG_BLK_CGROUP=y", cureCgroup},
	}
}

// explain turns a refusal into words: what blocks the feature, and one command
// or setting that cures it. It is pure, and its texts are stable.
func explain(f Feature, b *blocked, h host) Finding {
	if b == nil {
		return Finding{Feature: f, OK: true}
	}
	a := abouts()[f]
	out := Finding{Feature: f, Why: b.String(), Fix: "use a kernel that has it: " + a.kernel}
	if why, fix, ok := knob(f, a, b, h); ok {
		out.Why, out.Fix = why, fix
		return out
	}
	if f == FeatureSetIDs && b.errno == unix.EINVAL {
		out.Why, out.Fix = out.Why+": only one uid is mapped into the user namespace", cureRoot
		return out
	}
	switch b.errno { //nolint:exhaustive // every other errno means that the kernel has it and something is in the way
	case unix.ENOSYS:
		out.Why += ": the kernel does not have it, or a container's seccomp profile hides it"
	case unix.EINVAL, unix.ENOENT, unix.ENODEV:
		out.Why += ": the kernel does not have it"
	case unix.EOPNOTSUPP:
		out.Why += ": it is not in the kernel's list of security modules"
		out.Fix = "add landlock to lsm= on the kernel's command line"
	case unix.ENOSPC, unix.EUSERS:
		out.Why += ": a limit on namespaces is reached"
		out.Fix = "sysctl -w " + a.limit + "=15000"
	case 0:
		out.Fix = a.allow
	default:
		out.Why, out.Fix = out.Why+refusedBy(f, h), a.allow
	}
	return out
}

// ExplainUserNS says why a process could not be started in a user namespace: what
// refused it, as the settings of this host show, and one cure.
func ExplainUserNS(err error) Finding {
	b := &blocked{call: "clone(CLONE_NEWUSER|CLONE_NEWNS)", errno: linux.Errno(err)}
	if b.errno == 0 {
		b.note = err.Error()
	}
	return explain(FeatureUserNS, b, readHost())
}

// refusedBy names who says no to what the kernel has.
func refusedBy(f Feature, h host) string {
	switch {
	case f == FeatureProcMount || f == FeatureProcUserNS:
		return ": parts of /proc are masked outside, so that no new one can be mounted"
	case f == FeatureMemfdExec:
		return ": vm.memfd_noexec or a security module refuses executable anonymous files"
	case !h.privileged:
		return ": this process does not have the capability"
	}
	return ": a container's seccomp profile or a security module refuses it"
}

// knob finds the setting that explains a refusal.
func knob(f Feature, a about, b *blocked, h host) (why, fix string, ok bool) {
	if name, off := disabled(f, h); off {
		return name + " on the kernel's command line disables the controller", "remove " + name + " from the kernel's command line", true
	}
	limits := []string{a.limit}
	inUserNS := strings.Contains(b.call, "CLONE_NEWUSER")
	if inUserNS {
		limits = append(limits, "user.max_user_namespaces")
	}
	for _, name := range limits {
		if name != "" && h.sysctl[name] == "0" {
			return name + " is 0", "sysctl -w " + name + "=15000", true
		}
	}
	if h.privileged && !h.mapped {
		return "", "", false
	}
	if inUserNS && h.sysctl["kernel.unprivileged_userns_clone"] == "0" {
		return "kernel.unprivileged_userns_clone is 0: only root may make user namespaces", "sysctl -w kernel.unprivileged_userns_clone=1", true
	}
	// AppArmor lets the namespace be made and takes the capabilities in it.
	restricted := h.sysctl["kernel.apparmor_restrict_unprivileged_userns"] == "1"
	if restricted && (b.errno == unix.EPERM || b.errno == unix.EACCES) {
		return "kernel.apparmor_restrict_unprivileged_userns is 1: only root and programs with an AppArmor profile may use user namespaces",
			"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0", true
	}
	return "", "", false
}

// disabled finds cgroup_disable= of a feature's controller.
func disabled(f Feature, h host) (string, bool) {
	name, ok := strings.CutPrefix(string(f), "cgroup_")
	if !ok {
		return "", false
	}
	for word := range strings.FieldsSeq(h.cmdline) {
		list, ok := strings.CutPrefix(word, "cgroup_disable=")
		if !ok {
			continue
		}
		for one := range strings.SplitSeq(list, ",") {
			if one == name || name == "io" && one == "blkio" {
				return "cgroup_disable=" + one, true
			}
		}
	}
	return "", false
}
