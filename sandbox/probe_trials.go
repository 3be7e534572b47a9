package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/filter"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/ruleset"
)

// prober tries features on this host.
type prober struct {
	host host
}

// try tries one feature. To add a Feature, touch: 1 its constant and AllFeatures,
// 2 the trial here, 3 cures in probe_explain.go, 4 needs where a control rests on it.
func (p *prober) try(ctx context.Context, f Feature) (*blocked, error) {
	switch f { //nolint:exhaustive // the others are in childTrial
	case FeatureLandlock:
		return tryLandlock(ctx)
	case FeatureMountAPI, FeatureMountSetattr, FeatureTreeAttach, FeatureTreeClone:
		return blockedBy(tryMounts(f))
	case FeatureIDMap:
		return tryIDMap(ctx)
	case FeaturePidfd, FeaturePidfdGroup, FeaturePidfdGetfd:
		return blockedBy(tryPidfd(f))
	case FeatureMemfdExec:
		return tryMemfdExec(ctx)
	case FeatureIntoCgroup:
		return tryIntoCgroup(ctx)
	case FeatureCgroupMemory, FeatureCgroupPids, FeatureCgroupCPU, FeatureCgroupIO:
		return tryController(controllerOf(f))
	case FeatureSeccomp:
		prog, err := filter.Compile(filter.Default, nil, nil, filter.Options{})
		if err != nil {
			return nil, err
		}
		return trial{steps: func(g *image.Program) { seccompSteps(g, prog.Insns) }}.run(ctx)
	}
	flags, steps := childTrial(f)
	if steps == nil {
		return nil, fmt.Errorf("%q has no trial; this is a bug in pinfold, please report", f)
	}
	if !p.host.privileged && flags != 0 {
		flags |= unix.CLONE_NEWUSER
	}
	return trial{flags: flags, steps: steps}.run(ctx)
}

// childTrial returns namespaces and steps of the features that a child tries
// with nothing else.
func childTrial(f Feature) (uintptr, func(*image.Program)) {
	switch f { //nolint:exhaustive // the others are in try
	case FeatureNoNewPrivs:
		return 0, noNewPrivsSteps
	case FeatureUserNS:
		return unix.CLONE_NEWUSER, func(*image.Program) {}
	case FeatureMountNS:
		return unix.CLONE_NEWNS, func(p *image.Program) {
			privateSteps(p)
			mountStep(p, "tmpfs", "/")
		}
	case FeaturePidNS:
		return unix.CLONE_NEWPID, func(p *image.Program) { p.Call("getpid", nil, image.Want(1)) }
	case FeatureIPCNS:
		return unix.CLONE_NEWIPC, func(*image.Program) {}
	case FeatureUTSNS:
		return unix.CLONE_NEWUTS, func(p *image.Program) { hostnameStep(p) }
	case FeatureNetNS:
		return unix.CLONE_NEWNET, func(*image.Program) {}
	case FeatureCgroupNS:
		return unix.CLONE_NEWUTS, unshareSteps(unix.CLONE_NEWCGROUP, "CLONE_NEWCGROUP")
	case FeatureTimeNS:
		return unix.CLONE_NEWUTS, unshareSteps(unix.CLONE_NEWTIME, "CLONE_NEWTIME")
	case FeatureProcMount:
		return unix.CLONE_NEWNS | unix.CLONE_NEWPID, procSteps
	case FeatureProcUserNS:
		return unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUSER, procSteps
	case FeatureMemfdNoexec:
		return unix.CLONE_NEWNS | unix.CLONE_NEWPID, memfdNoexecSteps
	case FeatureCapsDrop:
		return unix.CLONE_NEWUTS, capsSteps
	case FeatureRlimits:
		return 0, rlimitSteps
	case FeatureSetIDs:
		return unix.CLONE_NEWUTS, setIDSteps
	default:
		return 0, nil
	}
}

func noNewPrivsSteps(p *image.Program) {
	set := []image.Arg{image.Named(unix.PR_SET_NO_NEW_PRIVS, "PR_SET_NO_NEW_PRIVS"), image.Int(1), image.Int(0), image.Int(0), image.Int(0)}
	get := []image.Arg{image.Named(unix.PR_GET_NO_NEW_PRIVS, "PR_GET_NO_NEW_PRIVS"), image.Int(0), image.Int(0), image.Int(0), image.Int(0)}
	p.Call("prctl", set)
	p.Call("prctl", get, image.Want(1))
}

func seccompSteps(p *image.Program, insns []unix.SockFilter) {
	noNewPrivsSteps(p)
	p.Seccomp(insns, "default")
	p.Call("add_key", []image.Arg{image.Int(0), image.Int(0), image.Int(0), image.Int(0), image.Int(0)}, image.Refused(unix.EPERM))
}

func privateSteps(p *image.Program) {
	p.Call("mount", []image.Arg{
		image.Text("none"), image.Text("/"), image.Null(), image.Named(unix.MS_REC|unix.MS_PRIVATE, "MS_REC|MS_PRIVATE"), image.Null(),
	})
}

func mountStep(p *image.Program, fstype, at string) {
	flags := image.Named(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "MS_NOSUID|MS_NODEV|MS_NOEXEC")
	p.Call("mount", []image.Arg{image.Text(fstype), image.Text(at), image.Text(fstype), flags, image.Null()})
}

func procSteps(p *image.Program) {
	privateSteps(p)
	mountStep(p, "proc", "/proc")
}

func hostnameStep(p *image.Program, o ...image.Opt) {
	p.Call("sethostname", []image.Arg{image.Text("pen"), image.Int(3)}, o...)
}

func unshareSteps(flag int, name string) func(*image.Program) {
	return func(p *image.Program) { p.Call("unshare", []image.Arg{image.Named(flag, name)}) }
}

// memfdNoexecSteps set the knob of an own pid namespace and see an executable
// memfd refused.
func memfdNoexecSteps(p *image.Program) {
	procSteps(p)
	knob := []image.Arg{image.Named(unix.AT_FDCWD, "AT_FDCWD"), image.Text("/proc/sys/vm/memfd_noexec"), image.Named(unix.O_WRONLY, "O_WRONLY"), image.Int(0)}
	p.Call("openat", knob, image.Save(image.RegTemp))
	p.Call("write", []image.Arg{image.Value(image.RegTemp), image.Text("2"), image.Int(1)})
	p.Call("memfd_create", []image.Arg{image.Text("x"), image.Named(unix.MFD_EXEC, "MFD_EXEC")}, image.Refused(unix.EACCES))
}

// capsSteps empty all sets and see that the uid alone gives nothing.
func capsSteps(p *image.Program) {
	hostnameStep(p)
	drop := []image.Arg{image.Named(unix.PR_CAPBSET_DROP, "PR_CAPBSET_DROP"), image.Int(0), image.Int(0), image.Int(0), image.Int(0)}
	p.Call("prctl", drop)
	clearAll := []image.Arg{
		image.Named(unix.PR_CAP_AMBIENT, "PR_CAP_AMBIENT"), image.Named(unix.PR_CAP_AMBIENT_CLEAR_ALL, "PR_CAP_AMBIENT_CLEAR_ALL"),
		image.Int(0), image.Int(0), image.Int(0),
	}
	p.Call("prctl", clearAll)
	p.Call("capset", []image.Arg{image.Words("{v3, 0}", unix.LINUX_CAPABILITY_VERSION_3, 0), image.Words("{0, 0, 0}", 0, 0, 0, 0, 0, 0)})
	hostnameStep(p, image.Refused(unix.EPERM))
}

// rlimitSteps lower a limit and run into it.
func rlimitSteps(p *image.Program) {
	nofile := []image.Arg{image.Int(0), image.Named(unix.RLIMIT_NOFILE, "RLIMIT_NOFILE"), image.Quads("{64, 64}", 64, 64), image.Null()}
	p.Call("prlimit64", nofile)
	p.Call("dup3", []image.Arg{image.Int(image.FDStatus), image.Int(100), image.Int(0)}, image.Refused(unix.EBADF))
}

// setIDSteps become another user for good.
func setIDSteps(p *image.Program) {
	const other = 65534
	ids := func(v int) []image.Arg { return []image.Arg{image.Int(v), image.Int(v), image.Int(v)} }
	p.Call("setresgid", ids(other))
	p.Call("setresuid", ids(other))
	p.Call("setresuid", ids(0), image.Refused(unix.EPERM))
}

// tryLandlock enforces a ruleset that allows /proc alone.
func tryLandlock(ctx context.Context) (*blocked, error) {
	proc, err := linux.OpenAt(nil, "/proc", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		proc, err = os.OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(proc)
	fd, _, _, err := ruleset.New([]ruleset.Rule{{FD: linux.FD(proc), Access: AccessRead}})
	if errors.Is(err, ruleset.ErrUnsupported) {
		errno := unix.ENOSYS
		if strings.Contains(err.Error(), "lsm=") {
			errno = unix.EOPNOTSUPP
		}
		return &blocked{call: "landlock_create_ruleset", errno: errno}, nil
	}
	if err != nil {
		return blockedBy(err)
	}
	f := os.NewFile(uintptr(fd), "landlock ruleset")
	defer linux.CloseAll(f)
	open := func(path string) []image.Arg {
		return []image.Arg{image.Named(unix.AT_FDCWD, "AT_FDCWD"), image.Text(path), image.Named(unix.O_RDONLY, "O_RDONLY"), image.Int(0)}
	}
	return trial{files: map[int]*os.File{image.FDRuleset: f}, steps: func(p *image.Program) {
		noNewPrivsSteps(p)
		p.Call("landlock_restrict_self", []image.Arg{image.Int(image.FDRuleset), image.Int(0)})
		p.Call("openat", open("/proc"))
		p.Call("openat", open("/"), image.Refused(unix.EACCES))
	}}.run(ctx)
}

// tryMounts works on trees that are attached nowhere and go with their
// descriptors.
func tryMounts(f Feature) error {
	tree, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	defer linux.CloseAll(tree)
	switch f { //nolint:exhaustive // the others are tried elsewhere
	case FeatureMountSetattr:
		return linux.SetMount(tree, linux.Tree, linux.Attr{Set: unix.MOUNT_ATTR_RDONLY})
	case FeatureTreeClone:
		c, err := linux.CloneMount(tree, linux.Tree)
		linux.CloseAll(c)
		return err
	case FeatureTreeAttach:
		return attach(tree)
	default:
		return nil
	}
}

func attach(tree *os.File) error {
	if err := linux.MkdirAt(tree, "d", 0o700); err != nil {
		return err
	}
	n, err := unix.Openat(linux.FD(tree), "d", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	at := os.NewFile(uintptr(n), "d")
	defer linux.CloseAll(at)
	second, err := linux.NewMount("tmpfs", 0)
	if err != nil {
		return err
	}
	defer linux.CloseAll(second)
	return linux.MoveMount(second, at)
}

// tryIDMap maps a memory file system by the user namespace of a waiting child.
func tryIDMap(ctx context.Context) (*blocked, error) {
	r, w, err := linux.Pipe("gate")
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(r, w)
	t := trial{flags: unix.CLONE_NEWUSER, files: map[int]*os.File{image.FDGate1: r}, steps: func(p *image.Program) {
		p.Call("read", []image.Arg{image.Int(image.FDGate1), image.Spare(), image.Int(1)})
	}}
	c, b, err := t.start()
	if err != nil || b != nil {
		return b, err
	}
	mapped, err := blockedBy(idMap(c.pid))
	linux.CloseAll(w) // the child's read ends
	ended, finishErr := c.finish(ctx)
	if mapped == nil {
		mapped = ended
	}
	return mapped, errors.Join(err, finishErr)
}

func idMap(pid int) error {
	n, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open /proc/PID/ns/user", err)
	}
	userns := os.NewFile(uintptr(n), "user namespace")
	defer linux.CloseAll(userns)
	m, err := linux.NewMount("tmpfs", 0)
	if err != nil {
		return err
	}
	defer linux.CloseAll(m)
	return linux.SetMount(m, linux.One, linux.Attr{UserNS: userns})
}

// tryPidfd works on this process itself; signal 0 is none.
func tryPidfd(f Feature) error {
	self, err := linux.PidfdOpen(os.Getpid())
	if err != nil {
		return err
	}
	defer linux.CloseAll(self)
	switch f { //nolint:exhaustive // the others are tried elsewhere
	case FeaturePidfdGroup:
		err := linux.KillGroup(self, 0)
		if errors.Is(err, unix.ESRCH) { // known to the kernel: this process leads no group
			return nil
		}
		return err
	case FeaturePidfdGetfd:
		got, err := linux.TakeFile(self, linux.FD(self), "pidfd")
		linux.CloseAll(got)
		return err
	default:
		return linux.Kill(self, 0)
	}
}

// tryMemfdExec sees whether an image that runs is a memfd.
func tryMemfdExec(ctx context.Context) (*blocked, error) {
	p := image.New()
	p.In("trial")
	p.Call("exit_group", []image.Arg{image.Int(0)})
	p, err := p.Link()
	if err != nil {
		return nil, err
	}
	f, err := writeImage(p)
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(f)
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", linux.FD(f)))
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(name, "/memfd:") {
		return &blocked{call: "memfd_create(MFD_EXEC)", errno: unix.EACCES}, nil
	}
	c, b, err := trial{steps: func(*image.Program) {}}.startImage(p, f)
	if err != nil {
		return nil, err
	}
	if b != nil {
		return &blocked{call: "execve of a memfd", errno: b.errno}, nil
	}
	return c.finish(ctx)
}

// tryIntoCgroup clones a child into the control group that this process is in.
// A refusal that depends on the group shows that the kernel knows the call.
func tryIntoCgroup(ctx context.Context) (*blocked, error) {
	dir, b, err := ownCgroup()
	if err != nil || b != nil {
		return b, err
	}
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return blockedBy(err)
	}
	defer linux.CloseAll(f)
	b, err = trial{cgroup: f, steps: func(*image.Program) {}}.run(ctx)
	if b != nil {
		b.call = "clone3(CLONE_INTO_CGROUP)"
		if b.errno == unix.EACCES || b.errno == unix.EBUSY {
			return nil, err
		}
	}
	runtime.KeepAlive(f)
	return b, err
}
