package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/filter"
	"pinfold/sandbox/internal/image"
	"pinfold/test/testkit"
)

// TestProbe holds on any host: every feature once, each refusal with a cause and
// a cure, nothing left behind, and the same answer twice.
func TestProbe(t *testing.T) {
	if _, err := Probe(t.Context()); err != nil { // the runtime opens what it keeps
		t.Fatalf("Probe() = %v; want features", err)
	}
	before := openFiles(t)
	f, err := Probe(t.Context())
	if err != nil {
		t.Fatalf("Probe() = %v; want features", err)
	}
	var got []Feature
	for _, g := range f.Findings {
		got = append(got, g.Feature)
		if g.OK != (g.Why == "") || g.OK != (g.Fix == "") {
			t.Errorf("Probe() found %+v; want a cause and a cure exactly where it is not OK", g)
		}
		t.Logf("%+v", g)
	}
	if d := cmp.Diff(AllFeatures(), got); d != "" {
		t.Errorf("Probe() findings (-want +got):\n%s", d)
	}
	if after := openFiles(t); after != before {
		t.Errorf("Probe() left %d open files; want %d", after, before)
	}
	again, err := Probe(t.Context())
	if d := cmp.Diff(f, again); err != nil || d != "" {
		t.Errorf("Probe() again = error %v (-first +second):\n%s", err, d)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestProbeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Probe(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Probe(cancelled) = %v; want context.Canceled", err)
	}
}

// TestTrialThatHangs is ended at its deadline, and no zombie is left.
func TestTrialThatHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	started := time.Now()
	c, b, err := trial{steps: func(p *image.Program) {
		p.Call("ppoll", []image.Arg{image.Null(), image.Int(0), image.Null(), image.Null(), image.Int(0)})
	}}.start()
	if err != nil || b != nil {
		t.Fatalf("start() = %v, %v; want a child", b, err)
	}
	b, err = c.finish(ctx)
	if err != nil || b == nil || b.note != "no answer in time" {
		t.Errorf("finish() = %v, %v; want no answer in time", b, err)
	}
	if d := time.Since(started); d > trialTime {
		t.Errorf("finish() took %v; want less than %v", d, trialTime)
	}
	if err := syscall.Kill(c.pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("kill(%d, 0) = %v; want ESRCH", c.pid, err)
	}
}

// TestTrialThatIsRefused tells the call and its errno.
func TestTrialThatIsRefused(t *testing.T) {
	for _, c := range []struct {
		steps func(*image.Program)
		want  string
	}{
		{func(p *image.Program) { p.Call("close", []image.Arg{image.Int(77)}) }, "close(77): EBADF"},
		{func(p *image.Program) {
			p.Call("dup3", []image.Arg{image.Int(image.FDStatus), image.Int(11), image.Int(0)}, image.Refused(unix.EBADF))
		}, "dup3(10, 11, 0): went through and should not have"},
		{func(p *image.Program) {
			noNewPrivsSteps(p)
			p.Seccomp(image.HolderFilter(), "holder")
			p.In("again") // the check of the steps against the filter ends here
			p.Call("getpid", nil)
		}, "the child: ended by SIGSYS"},
	} {
		b, err := trial{steps: c.steps}.run(t.Context())
		if err != nil || b == nil || b.String() != c.want {
			t.Errorf("run() = %v, %v; want %q", b, err, c.want)
		}
	}
}

// The tests below probe in a process of its own, in which something is taken
// away: this test's binary, started again with envInside.
const envInside = "PINFOLD_PROBE_INSIDE"

// TestProbeInside is that process: it takes away what the variable says, and
// writes what Probe finds to descriptor 3.
func TestProbeInside(t *testing.T) {
	what := os.Getenv(envInside)
	if what == "" {
		return // it is TestProbeWithout that runs it
	}
	if err := takeAway(what); err != nil {
		t.Fatal(err)
	}
	f, err := Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.NewFile(3, "answer").Write(b); err != nil {
		t.Fatal(err)
	}
}

func takeAway(what string) error {
	kind, name, _ := strings.Cut(what, " ")
	switch kind {
	case "sysctl":
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte("0"), 0o644)
	case "mask":
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return unix.Mount("tmpfs", "/proc/sys", "tmpfs", unix.MS_RDONLY, "")
	case "call":
		return refuseCalls(name)
	}
	return nil
}

// refuseCalls installs the default filter on all threads: it refuses namespaces
// and mounts, as a container's profile does.
func refuseCalls(name string) error {
	allow := []string{"unshare"}
	p, err := filter.Compile(filter.Default, allow, strings.Fields(name), filter.Options{})
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return installOnAllThreads(p.Insns)
}

func inside(t *testing.T, what string, attr *syscall.SysProcAttr) Features {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	exe := "/proc/self/exe"
	if attr.Credential != nil { // the binary lies where that user cannot look
		exe = copyForAll(t)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestProbeInside$")
	cmd.Env = append(os.Environ(), envInside+"="+what)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	_ = w.Close()
	if err != nil {
		t.Fatalf("probe without %s: %v\n%s", what, err, out)
	}
	var f Features
	if err := json.NewDecoder(r).Decode(&f); err != nil {
		t.Fatalf("probe without %s: %v\n%s", what, err, out)
	}
	return f
}

func copyForAll(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "pinfold-test-") //nolint:usetesting // other users cannot look into t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "probe.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

func newUserNS() *syscall.SysProcAttr {
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	gid := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: id, GidMappings: gid}
}

// TestProbeWithout takes something away and sees it missed, with the right
// cause and cure.
func TestProbeWithout(t *testing.T) {
	testkit.NeedRoot(t)
	const sysctl = "sysctl -w %s=15000"
	for _, c := range []struct {
		what     string
		attr     *syscall.SysProcAttr
		feature  Feature
		why, fix string
	}{
		{"sysctl user.max_net_namespaces", newUserNS(), FeatureNetNS, "user.max_net_namespaces is 0", fmt.Sprintf(sysctl, "user.max_net_namespaces")},
		{"sysctl user.max_user_namespaces", newUserNS(), FeatureUserNS, "user.max_user_namespaces is 0", fmt.Sprintf(sysctl, "user.max_user_namespaces")},
		{"sysctl user.max_user_namespaces", newUserNS(), FeatureIDMap, "user.max_user_namespaces is 0", fmt.Sprintf(sysctl, "user.max_user_namespaces")},
		{"mask", newUserNS(), FeatureProcUserNS, `mount("proc", "/proc", "proc", MS_NOSUID|MS_NODEV|MS_NOEXEC, NULL): EPERM: parts of /proc are masked outside, so that no new one can be mounted`, cureProc},
		{"nothing", newUserNS(), FeatureSetIDs, "setresgid(65534, 65534, 65534): EINVAL: only one uid is mapped into the user namespace", cureRoot},
		{"call prlimit64", &syscall.SysProcAttr{}, FeatureRlimits, "prlimit64(0, RLIMIT_NOFILE, {64, 64}, NULL): EPERM: a container's seccomp profile or a security module refuses it", cureContainer},
		{"call prlimit64", &syscall.SysProcAttr{}, FeatureMountAPI, "fsopen tmpfs: EPERM: a container's seccomp profile or a security module refuses it", cureRoot},
		{"call prlimit64", &syscall.SysProcAttr{}, FeatureMountNS, "clone(CLONE_NEWNS): EPERM: a container's seccomp profile or a security module refuses it", cureRoot},
		{"nothing", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, FeatureMountAPI, "fsopen tmpfs: EPERM: this process does not have the capability", cureRoot},
	} {
		t.Run(c.what+"/"+string(c.feature), func(t *testing.T) {
			f := inside(t, c.what, c.attr)
			want := Finding{Feature: c.feature, Why: c.why, Fix: c.fix}
			for _, g := range f.Findings {
				if g.Feature == c.feature && g != want {
					t.Errorf("Probe() without %s = %+v; want %+v", c.what, g, want)
				}
			}
			if f.Has(c.feature) {
				t.Errorf("Has(%s) without %s = true; want false", c.feature, c.what)
			}
		})
	}
}

// TestExplain pins the words for what other hosts refuse.
func TestExplain(t *testing.T) {
	clone := "clone(CLONE_NEWUSER)"
	for _, c := range []struct {
		feature  Feature
		b        *blocked
		h        host
		why, fix string
	}{
		{FeatureSeccomp, nil, host{}, "", ""},
		{
			FeatureUserNS, &blocked{call: clone, errno: unix.EPERM},
			host{sysctl: map[string]string{"kernel.unprivileged_userns_clone": "0"}},
			"kernel.unprivileged_userns_clone is 0: only root may make user namespaces", "sysctl -w kernel.unprivileged_userns_clone=1",
		},
		{
			FeatureMountNS, &blocked{call: `mount("none")`, errno: unix.EACCES},
			host{sysctl: map[string]string{"kernel.apparmor_restrict_unprivileged_userns": "1"}},
			"kernel.apparmor_restrict_unprivileged_userns is 1: only root and programs with an AppArmor profile may use user namespaces",
			"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
		},
		{ // inside the stage's own user namespace
			FeatureMountNS, &blocked{call: `mount("none")`, errno: unix.EPERM},
			host{privileged: true, mapped: true, sysctl: map[string]string{"kernel.apparmor_restrict_unprivileged_userns": "1"}},
			"kernel.apparmor_restrict_unprivileged_userns is 1: only root and programs with an AppArmor profile may use user namespaces",
			"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
		},
		{
			FeatureUserNS, &blocked{call: clone, errno: unix.EPERM},
			host{privileged: true, sysctl: map[string]string{"kernel.apparmor_restrict_unprivileged_userns": "1"}},
			"clone(CLONE_NEWUSER): EPERM: a container's seccomp profile or a security module refuses it", cureContainer,
		},
		{FeatureUserNS, &blocked{call: clone, errno: unix.EINVAL}, host{}, "clone(CLONE_NEWUSER): EINVAL: the kernel does not have it", "use a kernel that has it: CONFIG_USER_NS=y"},
		{FeatureUserNS, &blocked{call: clone, errno: unix.ENOSPC}, host{}, "clone(CLONE_NEWUSER): ENOSPC: a limit on namespaces is reached", "sysctl -w user.max_user_namespaces=15000"},
		{
			FeatureLandlock, &blocked{call: "landlock_create_ruleset", errno: unix.EOPNOTSUPP},
			host{privileged: true},
			"landlock_create_ruleset: ENOTSUP: it is not in the kernel's list of security modules", "add landlock to lsm= on the kernel's command line",
		},
		{
			FeatureLandlock, &blocked{call: "landlock_create_ruleset", errno: unix.ENOSYS},
			host{privileged: true},
			"landlock_create_ruleset: ENOSYS: the kernel does not have it, or a container's seccomp profile hides it",
			"use a kernel that has it: Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK=y",
		},
		{
			FeatureCgroupMemory, &blocked{call: "control groups", note: "no hierarchy has the memory controller"},
			host{cmdline: "quiet cgroup_disable=cpu,memory"},
			"cgroup_disable=memory on the kernel's command line disables the controller", "remove cgroup_disable=memory from the kernel's command line",
		},
		{
			FeatureCgroupIO, &blocked{call: "control groups", note: "no hierarchy has the io controller"},
			host{},
			"control groups: no hierarchy has the io controller", cureCgroup,
		},
		{
			FeatureMemfdExec, &blocked{call: "memfd_create(MFD_EXEC)", errno: unix.EACCES},
			host{privileged: true},
			"memfd_create(MFD_EXEC): EACCES: vm.memfd_noexec or a security module refuses executable anonymous files", "sysctl -w vm.memfd_noexec=0",
		},
		{FeatureTreeClone, &blocked{call: "open_tree tmpfs", errno: unix.EINVAL}, host{privileged: true}, "open_tree tmpfs: EINVAL: the kernel does not have it", "use a kernel that has it: Linux 6.15 or newer"},
	} {
		want := Finding{Feature: c.feature, OK: c.b == nil, Why: c.why, Fix: c.fix}
		if got := explain(c.feature, c.b, c.h); got != want {
			t.Errorf("explain(%s, %v) = %+v; want %+v", c.feature, c.b, got, want)
		}
	}
	for _, f := range AllFeatures() {
		if a := abouts()[f]; a.kernel == "" || a.allow == "" {
			t.Errorf("abouts()[%s] = %+v; want a kernel and a cure", f, a)
		}
	}
}

func TestLacks(t *testing.T) {
	all := Features{}
	for _, f := range AllFeatures() {
		all.Findings = append(all.Findings, Finding{Feature: f, OK: true})
	}
	if got := all.Lacks(); len(got) != 0 {
		t.Errorf("Lacks() with every feature = %+v; want none", got)
	}
	for _, c := range Controls() {
		for _, need := range needs(c) {
			one := Features{}
			for _, f := range AllFeatures() {
				g := Finding{Feature: f, OK: f != need}
				if !g.OK {
					g.Why, g.Fix = "w", "x"
				}
				one.Findings = append(one.Findings, g)
			}
			found := false
			for _, l := range one.Lacks() {
				found = found || l == Lack{Control: c, Why: "w", Fix: "x"}
			}
			if !found {
				t.Errorf("Lacks() without %s = %+v; want %s in it", need, one.Lacks(), c)
			}
		}
		if len(needs(c)) == 0 {
			t.Errorf("needs(%s) = none; want what it rests on", c)
		}
	}
	if got := (Features{}).Lacks(); len(got) != len(Controls()) {
		t.Errorf("Lacks() of nothing probed = %d; want all %d controls", len(got), len(Controls()))
	}
}

// TestLacksWith: in the host's network Landlock without scopes is a lack, and only there.
func TestLacksWith(t *testing.T) {
	f := Features{}
	for _, g := range AllFeatures() {
		f.Findings = append(f.Findings, Finding{Feature: g, OK: true})
	}
	for _, c := range []struct {
		abi  int
		net  NetMode
		want bool
	}{{2, NetHost, true}, {5, NetHost, true}, {6, NetHost, false}, {11, NetHost, false}, {2, NetNone, false}} {
		f.LandlockABI = c.abi
		got := f.LacksWith(c.net)
		if lacks := len(got) == 1 && got[0].Control == ControlLandlock; lacks != c.want || len(got) > 1 {
			t.Errorf("LacksWith(%s) under ABI %d = %+v; want landlock in it: %v", c.net, c.abi, got, c.want)
		}
	}
	if got := (Features{}).LacksWith(NetHost); len(got) != len(Controls()) {
		t.Errorf("LacksWith(host) of nothing probed = %d; want each of the %d controls once", len(got), len(Controls()))
	}
}

func TestParseCgroupMounts(t *testing.T) {
	in := `24 1 0:22 / /proc rw - proc none rw
30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs none ro
31 30 0:27 /a\040b /sys/fs/cgroup/un\040ified rw shared:10 - cgroup2 none rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup none rw,cpu,cpuacct
broken
`
	want := []cgroupMount{
		{dir: "/sys/fs/cgroup/un ified", root: "/a b", unified: true},
		{dir: "/sys/fs/cgroup/cpu,cpuacct", root: "/", controllers: []string{"rw", "cpu", "cpuacct"}},
	}
	got := parseCgroupMounts([]byte(in))
	if d := cmp.Diff(want, got, cmp.AllowUnexported(cgroupMount{})); d != "" {
		t.Errorf("parseCgroupMounts (-want +got):\n%s", d)
	}
}
