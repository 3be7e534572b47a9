package stage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
)

// namespaces reads the inodes of a process's namespaces: namespaces(7).
func namespaces(pid string) (map[string]uint64, error) {
	m := map[string]uint64{}
	for _, n := range []string{"mnt", "pid", "ipc", "uts", "net", "user", "cgroup"} {
		st, err := linux.StatPath("/proc/" + pid + "/ns/" + n)
		if err != nil {
			return nil, fmt.Errorf("cannot read namespace %s: %w", n, err)
		}
		m[n] = st.Ino
	}
	return m, nil
}

// verify reads from the kernel what is in force on the target before it gets its command.
// What a required control needs and is not proved fails the launch. Nothing of it can be
// taken back from then on but what holds looks at again.
func (l *launcher) verify() (sandbox.Enforcement, error) {
	f := &l.p.Profile
	e := sandbox.Enforcement{Denies: l.m.states, Landlock: sandbox.LandlockState{ABI: l.m.abi, Handled: l.m.handled}}
	st, err := readStatus(l.target)
	if err != nil {
		return e, failed("read the target's status", err)
	}
	if e.Namespaces, err = namespaces(strconv.Itoa(l.target)); err != nil {
		return e, failed("read the target's namespaces", err)
	}
	table, err := l.readMounts()
	if err != nil {
		return e, failed("read the target's mounts", err)
	}
	if e.Rlimits, err = l.readLimits(f.Rlimits); err != nil {
		return e, failed("read the target's limits", err)
	}
	e.UID, e.GID, e.Caps, e.NoNewPrivs, e.Seccomp.Mode = st.uid, st.gid, st.caps, st.noNewPrivs, st.seccomp
	e.MountsHash = table.hash
	if l.p.filter != nil && st.seccomp == unix.SECCOMP_MODE_FILTER && l.canaries.Filter {
		e.Seccomp.FilterHash = l.p.filter.Hash
	}
	if err := l.floor(st); err != nil {
		return e, failed("check the floors", err)
	}
	for _, n := range []string{"uts", "cgroup"} { // no control turns these off
		if e.Namespaces[n] == l.s.own[n] {
			return e, failed("check the floors", fmt.Errorf("it is in the host's %s namespace", n))
		}
	}
	e.Degraded = l.s.rootless.weaker()
	for _, n := range f.Controls {
		c, ok := l.control(n, &e, table)
		if !ok {
			continue
		}
		l.s.rootless.detail(&c)
		e.Controls = append(e.Controls, c)
		if c.State == sandbox.StateUnsupported {
			if n.Level == sandbox.LevelRequired {
				return e, failed("prove the required control "+string(n.Control), errors.New(c.Detail))
			}
			e.Degraded = append(e.Degraded, fmt.Sprintf("%s: %s", n.Control, c.Detail))
		}
	}
	return e, nil
}

// sameOpen checks that the program and the directory that the target opened inside its
// view are the files that were looked at. An identity of zero was not
// looked at: the directory is then one of the pen's own.
func (l *launcher) sameOpen() error {
	checks := []struct {
		what, file string
		number     int // of the descriptor that the file is; −1: none
		want       sandbox.Identity
	}{
		{"the program", "fd/" + strconv.Itoa(image.FDProgram), image.FDProgram, l.opening.ProgramID},
		{"the directory", "fd/" + strconv.Itoa(image.FDDir), image.FDDir, l.opening.DirID},
		{"the working directory", "cwd", -1, l.opening.DirID},
	}
	for _, c := range checks {
		st, err := l.statFile(c.file, c.number)
		if err != nil {
			return err
		}
		if c.want != (sandbox.Identity{}) && idOf(st) != c.want {
			return fmt.Errorf("%s is another file inside the view: device %d inode %d, looked at was device %d inode %d",
				c.what, st.Dev, st.Ino, c.want.Dev, c.want.Ino)
		}
		if c.want == (sandbox.Identity{}) && c.file == "fd/"+strconv.Itoa(image.FDProgram) {
			return errors.New("the program was not looked at")
		}
	}
	return nil
}

// holds looks again, once a pen that waited has got its command, at what could have been
// changed from outside meanwhile: by whoever moves processes, sets limits or mounts there.
func (l *launcher) holds() error {
	if err := errors.Join(l.awake(), l.inCgroups()); err != nil {
		return err
	}
	limits, err := l.readLimits(l.p.Rlimits)
	if err != nil {
		return failed("read the target's limits", err)
	}
	if !slices.Equal(limits, l.shown.Rlimits) {
		return failed("check the target's limits", fmt.Errorf("in force are %v", limits))
	}
	same, err := l.sameMounts()
	if same || err != nil {
		return err
	}
	e, err := l.verify()
	if err == nil && e.MountsHash != l.shown.MountsHash {
		err = errStale
	}
	return err
}

// keepOpen opens what holds reads, for a pen that is to wait: to find a file of a process
// takes longer than to read it.
func (l *launcher) keepOpen() error {
	base, err := l.s.cgroupBase("")
	if err != nil {
		return err
	}
	for _, path := range []string{procPath(l.pid, "stat"), procPath(l.target, "stat"), procPath(l.target, "cgroup"), procPath(l.target, "limits")} {
		if l.kept[path], err = linux.OpenNumber(nil, path, unix.O_RDONLY, linux.Plain); err != nil {
			return err
		}
	}
	for _, path := range l.eventFiles() {
		if l.kept[path], err = linux.OpenNumber(base, path, unix.O_RDONLY, linux.OneFS); err != nil {
			return err
		}
	}
	return nil
}

// eventFiles tell whether the cgroups of PID 1 and of the target are frozen, themselves or
// above: cgroups(7).
func (l *launcher) eventFiles() [2]string {
	return [2]string{l.site.Cgroup + "/init/cgroup.events", l.site.Cgroup + "/job/cgroup.events"}
}

// readProc reads a file of a process of the pen.
func (l *launcher) readProc(pid int, name string) ([]byte, error) {
	path := procPath(pid, name)
	if n, ok := l.kept[path]; ok {
		return linux.ReadNumber(n, path, maxProcFile)
	}
	return linux.ReadProc(path, maxProcFile)
}

// awake refuses a pen that waited and of which somebody has stopped or frozen a part since:
// it would not come to its exec, or not tell of that.
func (l *launcher) awake() error {
	for _, pid := range []int{l.pid, l.target} {
		stat, err := l.readProc(pid, "stat")
		if err != nil {
			return failed("look at the pen", err)
		}
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if len(state) > 0 && (state[0] == 'T' || state[0] == 't') { // stopped, or by a tracer
			return errStale
		}
	}
	for _, path := range l.eventFiles() {
		n, ok := l.kept[path]
		if !ok {
			return failed("look at the pen", errors.New(path+" is not open"))
		}
		events, err := linux.ReadNumber(n, path, maxProcFile)
		if err != nil {
			return failed("look at the pen", err)
		}
		if bytes.Contains(events, []byte("frozen 1")) {
			return errStale
		}
	}
	return nil
}

// readMounts reads the target's mount table, and begins to watch it.
func (l *launcher) readMounts() (*mountTable, error) {
	if l.table == nil {
		t, err := watchMounts(procPath(l.target, "mountinfo"))
		if err != nil {
			return nil, err
		}
		l.table = t
	}
	return readMounts(l.target)
}

// sameMounts reports whether the target's mounts are those that were read.
func (l *launcher) sameMounts() (bool, error) {
	n, err := l.table.now()
	return n == firstCount, err
}

// floor checks what holds for every pen, whatever its profile says.
func (l *launcher) floor(st *procStatus) error {
	if st.uid != l.site.UID || st.gid != l.site.GID || !st.sameIDs {
		return fmt.Errorf("it runs as %d:%d, not as %d:%d alone", st.uid, st.gid, l.site.UID, l.site.GID)
	}
	if err := l.groupsKept(st); err != nil {
		return err
	}
	if st.caps != (sandbox.CapSets{}) {
		return fmt.Errorf("it has capabilities: %+v", st.caps)
	}
	if !st.noNewPrivs {
		return errors.New("no_new_privs is not set")
	}
	if l.p.Exec == sandbox.ExecListed && !l.canaries.Memfd {
		return errors.New("no file in memory was refused that could be executed")
	}
	if st.ignored != 0 || st.blocked != 0 {
		return fmt.Errorf("it ignores or blocks signals: sets %#x and %#x", st.ignored, st.blocked)
	}
	if st.umask != "0022" || !st.leads {
		return fmt.Errorf("it has the umask %s, and a session of its own: %v", st.umask, st.leads)
	}
	if err := l.descriptors(); err != nil {
		return err
	}
	return l.inCgroups()
}

// descriptors checks that the target has none but its streams and those that close with
// its exec.
func (l *launcher) descriptors() error {
	known := map[string]bool{}
	for _, n := range []int{
		image.FDStdin, image.FDStdout, image.FDStderr, image.FDProgram, image.FDDir, image.FDAlive,
		image.FDStatus, image.FDRuleset, image.FDGate1, image.FDGate2, image.FDCanary,
	} {
		known[strconv.Itoa(n)] = true
	}
	if l.s.rootless != nil {
		return l.noneButKnown(known)
	}
	d, err := os.Open(procPath(l.target, "fd"))
	if err != nil {
		return err
	}
	defer linux.CloseAll(d)
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !known[n] {
			return fmt.Errorf("descriptor %s is open", n)
		}
	}
	// One step makes all but the streams close with the exec: one of them shows whether it was made.
	// Those that are opened after it say so themselves.
	return l.closing(image.FDGate2, image.FDAlive)
}

// closing checks that descriptors of the target close with its exec. Of another's they are
// shown to root alone.
func (l *launcher) closing(numbers ...int) error {
	if l.s.rootless != nil {
		return nil
	}
	for _, n := range numbers {
		b, err := linux.ReadProc(procPath(l.target, "fdinfo/"+strconv.Itoa(n)), maxProcFile)
		if err == nil && !closesOnExec(string(b)) {
			err = fmt.Errorf("descriptor %d stays open after the exec", n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// closesOnExec reads the flags of a descriptor from its fdinfo: proc(5).
func closesOnExec(info string) bool {
	_, rest, _ := strings.Cut("\n"+info, "\nflags:")
	word, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	n, err := strconv.ParseUint(word, 8, 64)
	return err == nil && n&unix.O_CLOEXEC != 0
}

// inCgroups checks that the target is in its cgroup in every hierarchy: proc_pid_cgroup(5).
func (l *launcher) inCgroups() error {
	b, err := l.readProc(l.target, "cgroup")
	if err != nil {
		return err
	}
	for _, j := range append(slices.Clip(l.site.Join), sandbox.JoinFile{Path: l.site.Cgroup + "/job/cgroup.procs"}) {
		in := slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
			p := strings.SplitN(line, ":", 3)
			return len(p) == 3 && slices.Contains(strings.Split(p[1], ","), j.Controller) && strings.HasSuffix(p[2], "/"+path.Dir(j.Path))
		})
		if !in {
			return fmt.Errorf("it is not in the cgroup %s of %q", path.Dir(j.Path), j.Controller)
		}
	}
	return nil
}

// control says what the kernel showed of one control; false for those of the
// cgroup, which whoever owns the cgroup reads back.
func (l *launcher) control(n sandbox.Need, e *sandbox.Enforcement, t *mountTable) (sandbox.ControlState, bool) {
	c := sandbox.ControlState{Control: n.Control, Level: n.Level, State: sandbox.StateEnforced}
	shown := func(ok bool, by sandbox.Proof, lack string) {
		c.ProvedBy = by
		if !ok {
			c.State, c.ProvedBy, c.Detail = sandbox.StateUnsupported, "", lack
		}
	}
	ns := func(name string) {
		shown(e.Namespaces[name] != l.s.own[name], sandbox.ProofProc, "the target is in the host's "+name+" namespace")
	}
	off := n.Level == sandbox.LevelOff
	switch n.Control {
	case sandbox.ControlMounts:
		err := errors.Join(l.ownMounts(e.Namespaces["mnt"]), t.check(l))
		shown(err == nil, sandbox.ProofMount, fmt.Sprint(err))
	case sandbox.ControlLandlock:
		off = off && l.m.ruleset == nil
		open := l.p.Net == sandbox.NetHost && sandbox.Unscoped(l.m.abi) != ""
		shown(l.m.ruleset != nil && l.canaries.Landlock && !open, sandbox.ProofCanary, l.landlockLack())
	case sandbox.ControlSeccomp:
		shown(e.Seccomp.FilterHash != "", sandbox.ProofCanary, "no filter is in force")
	case sandbox.ControlCaps:
		shown(true, sandbox.ProofProc, "") // floor has refused anything else
	case sandbox.ControlUserNS:
		off = !l.p.UserNS
		ns("user")
	case sandbox.ControlPidNS:
		ns("pid")
	case sandbox.ControlIPCNS:
		ns("ipc")
	case sandbox.ControlNetNS:
		off = off || l.p.Net == sandbox.NetHost
		shown(l.ownNet(e.Namespaces["net"]), sandbox.ProofProc, "the target is in the host's net namespace, or in another than was made for it")
	case sandbox.ControlRlimits:
		shown(slices.Equal(e.Rlimits, l.p.Rlimits), sandbox.ProofProc, fmt.Sprintf("in force are %v", e.Rlimits))
		if c.State == sandbox.StateEnforced {
			c.Detail = strings.Join(l.p.lower, "; ")
		}
	case sandbox.ControlMemory, sandbox.ControlPids, sandbox.ControlCPU, sandbox.ControlIO:
		return c, false
	}
	if off {
		c.State, c.ProvedBy, c.Detail = sandbox.StateOff, "", ""
	}
	return c, true
}

func (l *launcher) landlockLack() string {
	if l.m.ruleset == nil {
		return "this host has no Landlock"
	}
	if !l.canaries.Landlock {
		return "what it must refuse was not tried"
	}
	return sandbox.Unscoped(l.m.abi)
}

// ownMounts says why a mount namespace is not the pen's own.
func (l *launcher) ownMounts(inode uint64) error {
	if inode == l.s.own["mnt"] || inode == l.s.nursery.inode() {
		return errors.New("the target is in the host's mnt namespace, or in the stage's")
	}
	return nil
}

// ownNet reports whether a network namespace is the pen's own.
func (l *launcher) ownNet(inode uint64) bool {
	return inode != l.s.own["net"] && (l.net == 0 || inode == l.net)
}

// procStatus is what status in proc(5) shows of the target.
type procStatus struct {
	uid, gid   uint32
	sameIDs    bool // real, effective, saved and file-system ids are one
	groups     string
	innermost  string // pid in the innermost namespace
	caps       sandbox.CapSets
	noNewPrivs bool
	seccomp    int
	ignored    uint64 // set of signals
	blocked    uint64
	umask      string
	leads      bool // it leads a session of its own
}

func readStatus(pid int) (*procStatus, error) {
	b, err := linux.ReadProc(procPath(pid, "status"), maxProcFile)
	if err != nil {
		return nil, err
	}
	f := map[string]string{}
	for line := range strings.SplitSeq(string(b), "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok {
			f[k] = strings.TrimSpace(v)
		}
	}
	s := &procStatus{groups: f["Groups"], noNewPrivs: f["NoNewPrivs"] == "1", umask: f["Umask"], leads: f["NSsid"] != "" && f["NSsid"] == f["NSpid"]}
	uids, gids := strings.Fields(f["Uid"]), strings.Fields(f["Gid"])
	s.innermost = f["NSpid"][strings.LastIndexByte(f["NSpid"], '\t')+1:]
	if len(uids) != 4 || len(gids) != 4 {
		return nil, errors.New("no ids in the status")
	}
	s.sameIDs = len(slices.Compact(uids)) == 1 && len(slices.Compact(gids)) == 1
	var errs []error
	num := func(to *uint32, text string) {
		n, err := number(text)
		*to = n
		errs = append(errs, err)
	}
	num(&s.uid, uids[0])
	num(&s.gid, gids[0])
	set := func(to *uint64, name string) {
		n, err := strconv.ParseUint(f[name], 16, 64)
		*to = n
		errs = append(errs, err)
	}
	set(&s.caps.Inheritable, "CapInh")
	set(&s.caps.Permitted, "CapPrm")
	set(&s.caps.Effective, "CapEff")
	set(&s.caps.Bounding, "CapBnd")
	set(&s.caps.Ambient, "CapAmb")
	set(&s.ignored, "SigIgn")
	set(&s.blocked, "SigBlk")
	s.seccomp, err = strconv.Atoi(f["Seccomp"])
	return s, errors.Join(append(errs, err)...)
}

// readLimits returns those limits of a process that were asked for, in that
// order, where soft and hard are the same: limits in proc(5).
func (l *launcher) readLimits(asked []sandbox.Rlimit) ([]sandbox.Rlimit, error) {
	if len(asked) == 0 {
		return nil, nil
	}
	b, err := l.readProc(l.target, "limits")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(b), "\n")
	var out []sandbox.Rlimit
	for _, a := range asked {
		n, _ := sandbox.RlimitNumber(a.Name)
		if n+1 >= len(lines) || len(lines[n+1]) < limitsAt {
			return nil, fmt.Errorf("no limit %s in limits", a.Name)
		}
		v := strings.Fields(lines[n+1][limitsAt:]) // the lines stand in the order of the numbers
		if len(v) < 2 || v[0] != v[1] {
			continue
		}
		r := sandbox.Rlimit{Name: a.Name, Value: ^uint64(0)}
		if v[0] != "unlimited" {
			if r.Value, err = strconv.ParseUint(v[0], 10, 64); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

const limitsAt = 26 // column of the soft limit
