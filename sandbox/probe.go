package sandbox

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/ruleset"
)

// Feature names one thing that a host may or may not be able to do. The list is
// closed: AllFeatures.
type Feature string

// The features that Probe tries.
const (
	FeatureNoNewPrivs   Feature = "no_new_privs"  // prctl(2) PR_SET_NO_NEW_PRIVS, Linux 3.5
	FeatureSeccomp      Feature = "seccomp"       // a filter is installed and answers; seccomp(2), Linux 3.17
	FeatureLandlock     Feature = "landlock"      // a ruleset is enforced and denies; landlock(7), Linux 5.13
	FeatureUserNS       Feature = "userns"        // user_namespaces(7), Linux 3.8
	FeatureMountNS      Feature = "mountns"       // own mount namespace in which / is made private; mount_namespaces(7)
	FeaturePidNS        Feature = "pidns"         // pid_namespaces(7)
	FeatureIPCNS        Feature = "ipcns"         // ipc_namespaces(7)
	FeatureUTSNS        Feature = "utsns"         // uts_namespaces(7)
	FeatureNetNS        Feature = "netns"         // network_namespaces(7)
	FeatureCgroupNS     Feature = "cgroupns"      // cgroup_namespaces(7), Linux 4.6
	FeatureTimeNS       Feature = "timens"        // time_namespaces(7), Linux 5.6
	FeatureProcMount    Feature = "proc_mount"    // /proc of an own pid namespace can be mounted (not where the host's is masked)
	FeatureProcUserNS   Feature = "proc_userns"   // the same in an own user namespace
	FeatureMountAPI     Feature = "mount_api"     // fsopen(2), fsmount(2), open_tree(2), move_mount(2), Linux 5.2
	FeatureMountSetattr Feature = "mount_setattr" // mount_setattr(2), Linux 5.12
	FeatureIDMap        Feature = "idmap"         // idmapped mounts of a memory file system; mount_setattr(2), tmpfs from Linux 6.3
	FeatureTreeAttach   Feature = "tree_attach"   // a mount can be moved onto a detached tree, Linux 6.15
	FeatureTreeClone    Feature = "tree_clone"    // a detached tree can be cloned by open_tree(2), Linux 6.15
	FeaturePidfd        Feature = "pidfd"         // pidfd_open(2), pidfd_send_signal(2), Linux 5.3
	FeaturePidfdGroup   Feature = "pidfd_group"   // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
	FeaturePidfdGetfd   Feature = "pidfd_getfd"   // pidfd_getfd(2), Linux 5.6
	FeatureIntoCgroup   Feature = "into_cgroup"   // clone3(2) CLONE_INTO_CGROUP, Linux 5.7
	FeatureMemfdExec    Feature = "memfd_exec"    // a sealed memfd can be executed (vm.memfd_noexec)
	FeatureMemfdNoexec  Feature = "memfd_noexec"  // vm.memfd_noexec of an own pid namespace can be set to 2, Linux 6.3
	FeatureCapsDrop     Feature = "caps"          // the bounding set and all other sets can be emptied; capabilities(7)
	FeatureRlimits      Feature = "rlimits"       // limits can be lowered; prlimit(2)
	FeatureSetIDs       Feature = "setids"        // setresuid(2) to another uid
	FeatureCgroupMemory Feature = "cgroup_memory" // a memory controller, in either hierarchy; cgroups(7)
	FeatureCgroupPids   Feature = "cgroup_pids"   // a pids controller
	FeatureCgroupCPU    Feature = "cgroup_cpu"    // a cpu controller
	FeatureCgroupIO     Feature = "cgroup_io"     // an io controller (v1: blkio)
)

// Finding is what Probe found about one Feature.
type Finding struct {
	Feature Feature `json:"feature"`
	OK      bool    `json:"ok"`
	Why     string  `json:"why,omitzero"` // what refused, when not OK
	Fix     string  `json:"fix,omitzero"` // one command or setting, when not OK
}

// Features is what this host can do, each found out by doing it.
type Features struct {
	Kernel      string    `json:"kernel"`            // release, uname(2)
	Machine     string    `json:"machine"`           // uname(2)
	LandlockABI int       `json:"landlock_abi"`      // 0: none
	Rootless    bool      `json:"rootless,omitzero"` // found in a user namespace of one uid, that of an ordinary user's stage
	Findings    []Finding `json:"findings"`          // every Feature once, in a fixed order
}

// Has reports whether the host can do feature.
func (f Features) Has(feature Feature) bool {
	return slices.ContainsFunc(f.Findings, func(g Finding) bool { return g.Feature == feature && g.OK })
}

// Lack is a control that this host cannot give.
type Lack struct {
	Control Control `json:"control"`
	Why     string  `json:"why"` // what blocks it
	Fix     string  `json:"fix"` // one command or setting
}

// AllFeatures lists every Feature in the order of Features.Findings.
func AllFeatures() []Feature {
	return []Feature{
		FeatureNoNewPrivs, FeatureSeccomp, FeatureLandlock, FeatureUserNS, FeatureMountNS, FeaturePidNS, FeatureIPCNS, FeatureUTSNS,
		FeatureNetNS, FeatureCgroupNS, FeatureTimeNS, FeatureProcMount, FeatureProcUserNS, FeatureMountAPI, FeatureMountSetattr, FeatureIDMap,
		FeatureTreeAttach, FeatureTreeClone, FeaturePidfd, FeaturePidfdGroup, FeaturePidfdGetfd, FeatureIntoCgroup, FeatureMemfdExec,
		FeatureMemfdNoexec, FeatureCapsDrop, FeatureRlimits, FeatureSetIDs, FeatureCgroupMemory, FeatureCgroupPids, FeatureCgroupCPU,
		FeatureCgroupIO,
	}
}

// needs lists the features that a control rests on: without one of them the
// control is not available.
func needs(c Control) []Feature {
	switch c {
	case ControlMounts:
		return []Feature{FeatureMountNS, FeatureMountAPI, FeatureMountSetattr, FeatureProcMount}
	case ControlLandlock:
		return []Feature{FeatureNoNewPrivs, FeatureLandlock}
	case ControlSeccomp:
		return []Feature{FeatureNoNewPrivs, FeatureSeccomp}
	case ControlCaps:
		return []Feature{FeatureNoNewPrivs, FeatureCapsDrop}
	case ControlUserNS:
		return []Feature{FeatureUserNS, FeatureProcUserNS}
	case ControlPidNS:
		return []Feature{FeaturePidNS}
	case ControlIPCNS:
		return []Feature{FeatureIPCNS}
	case ControlNetNS:
		return []Feature{FeatureNetNS}
	case ControlMemory:
		return []Feature{FeatureCgroupMemory}
	case ControlPids:
		return []Feature{FeatureCgroupPids}
	case ControlCPU:
		return []Feature{FeatureCgroupCPU}
	case ControlIO:
		return []Feature{FeatureCgroupIO}
	case ControlRlimits:
		return []Feature{FeatureRlimits}
	}
	return nil
}

// Lacks lists the controls that this host cannot give, in the order of
// Controls, each with the first thing that blocks it and one cure. Whether the
// daemon's own control group lets it set limits is package cgroup's to say.
func (f Features) Lacks() []Lack {
	var out []Lack
	for _, c := range Controls() {
		for _, need := range needs(c) {
			i := slices.IndexFunc(f.Findings, func(g Finding) bool { return g.Feature == need })
			if i < 0 {
				out = append(out, Lack{Control: c, Why: fmt.Sprintf("%s was not probed", need), Fix: "run pinfold doctor again"})
				break
			}
			if g := f.Findings[i]; !g.OK {
				out = append(out, Lack{Control: c, Why: g.Why, Fix: g.Fix})
				break
			}
		}
	}
	return out
}

// LacksWith lists the controls that this host cannot give to a pen in this network,
// Lacks and one more: in the host's network nothing but Landlock's scope keeps abstract
// UNIX sockets of the host shut, which Linux 6.12 brings; landlock(7), ABI 6.
func (f Features) LacksWith(n NetMode) []Lack {
	out := f.Lacks()
	if why := Unscoped(f.LandlockABI); n == NetHost && f.Has(FeatureLandlock) && why != "" {
		out = append(out, Lack{Control: ControlLandlock, Why: why, Fix: "Linux 6.12 or newer, or net: none, or controls: { landlock: best_effort } in the profile"})
	}
	return out
}

// Unscoped says what is open in the host's network under an ABI of Landlock without
// scopes; empty: it has them, or there is no Landlock.
func Unscoped(abi int) string {
	if abi == 0 || ruleset.Scoped(abi) != 0 {
		return ""
	}
	return fmt.Sprintf("Landlock ABI %d, which has no scopes: with net: host abstract sockets of the host can be reached", abi)
}

// Probe finds out what this host can do by doing it: in short-lived children,
// each ended after trialTime at the latest, and with mounts that are never
// attached anywhere. It leaves nothing behind. It fails when ctx ends before it
// is done, or when no child can be started at all.
func Probe(ctx context.Context) (Features, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Features{}, fmt.Errorf("cannot probe the host: uname: %w", err)
	}
	p := &prober{host: readHost()}
	f := Features{Kernel: unix.ByteSliceToString(u.Release[:]), Machine: unix.ByteSliceToString(u.Machine[:])}
	if abi, err := ruleset.ABI(); err == nil { // the landlock trial says why there is none
		f.LandlockABI = abi
	}
	for _, feature := range AllFeatures() {
		if err := ctx.Err(); err != nil {
			return Features{}, fmt.Errorf("cannot probe the host: %w", err)
		}
		b, err := p.try(ctx, feature)
		if err != nil {
			return Features{}, fmt.Errorf("cannot probe %s: %w", feature, err)
		}
		f.Findings = append(f.Findings, explain(feature, b, p.host))
	}
	return f, nil
}
