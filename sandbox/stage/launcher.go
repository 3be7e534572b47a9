package stage

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
)

// launcher is one launch under way.
type launcher struct {
	s    *server
	key  string // of the profile
	raw  []byte // its JSON, where it was sent
	p    *profile
	site sandbox.Site
	c    *sandbox.Command // nil: not known yet
	sent []byte           // its JSON
	m    *mounts
	seen *view // the profile's view that the pen's is a copy of

	laps    *sandbox.Laps // nil: nobody asked
	build   sandbox.Build
	v       *variant
	files   map[int]int // number in PID 1 to descriptor; all are closed at the end
	lent    map[int]int // the same of descriptors that have another owner
	init    *os.File    // v2 cgroup that PID 1 begins in
	job     int         // cgroup.procs of the job
	gate1   int         // write ends
	gate2   *os.File
	area    *os.File // the file that the command is written to
	status  *os.File // our end
	out     []int    // of the answer, which owns them
	names   []string
	clones  []*os.File // of trees that are attached somewhere
	pen     *pen
	pid     int    // PID 1
	net     uint64 // inode of the network namespace that was made for it beforehand; 0: it made its own
	target  int
	started bool

	opening  *sandbox.Opening    // what the target has open, or is to open next; nil: nothing
	opened   bool                // it was seen to have
	canaries launch.Confined     // what the target saw refused
	shown    sandbox.Enforcement // what was read back before the command
	table    *mountEvents        // of the target's mount table
	kept     map[string]int      // files of proc(5) that are read again, by their path
	peer     linux.Peer          // who asked for the pen
	before   *sandbox.Seen       // what its command may rest on; nil: nothing
	ahead    ahead
}

func newLauncher(s *server) *launcher {
	return &launcher{s: s, m: &mounts{}, files: map[int]int{}, lent: map[int]int{}, kept: map[string]int{}, job: -1, gate1: -1}
}

// wipe forgets the command, which may hold secrets.
func (l *launcher) wipe() { clear(l.sent) }

// release gives up what no look needs.
func (l *launcher) release() {
	for _, n := range l.files {
		linux.CloseNumbers(n)
	}
	for _, n := range l.kept {
		linux.CloseNumbers(n)
	}
	linux.CloseNumbers(append(l.out, l.job, l.gate1)...)
	linux.CloseAll(append(l.clones, l.init, l.status, l.area)...)
	if !l.started {
		linux.CloseAll(l.gate2)
	}
	l.table.close()
}

// free gives up the rest.
func (l *launcher) free() error {
	_ = l.m.close() // a tree that could not be taken down is swept at the next start
	return l.s.profiles.put(l.p)
}

// raise builds the pen and starts its PID 1. With a command, or what to open for one, its
// target comes to its last gate by itself.
func (l *launcher) raise(peer linux.Peer, attach []*os.File) error {
	f := &l.p.Profile
	if err := (sandbox.Spec{Profile: *f, Site: l.site}).ValidateSite(); err != nil {
		return refused("%w", err)
	}
	if len(attach) != len(f.Attach) {
		return refused("cannot launch: %d descriptors for %d attaches", len(attach), len(f.Attach))
	}
	if err := l.s.floors(&l.site, f, peer); err != nil {
		return err
	}
	if err := l.s.lacks(f); err != nil {
		return err
	}
	l.timed()
	if err := l.mount(peer, attach); err != nil {
		return err
	}
	l.laps.Lap("launch.mounts")
	err := l.prepare()
	l.laps.Lap("launch.descriptors")
	if err == nil {
		err = l.start()
	}
	l.laps.Lap("launch.fork")
	if err != nil {
		return errors.Join(err, l.s.giveBack(l.m))
	}
	return nil
}

// timed begins to take times where they were asked for.
func (l *launcher) timed() {
	if l.c != nil && l.c.Timed {
		l.laps = sandbox.NewLaps(time.Now())
	}
}

// reach brings the target, whose command is known, to its last gate and answers with what
// is in force there.
func (l *launcher) reach(ctx context.Context) (any, []int, error) {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	e, err := l.confined(ctx)
	if err == nil {
		err = l.gate(ctx)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.end())
	}
	a, err := l.describe(e)
	if err == nil {
		err = l.handOver(&a)
	}
	return l.answer(a, err)
}

// prepare opens everything that PID 1 is to find on its fixed numbers.
func (l *launcher) prepare() error {
	if err := l.cgroups(); err != nil {
		return err
	}
	l.build.AttachFiles = l.m.files
	l.build.LandlockABI = l.m.abi
	l.build.Announce = sandbox.On
	l.build.Ignored, l.build.LastCap, l.build.Closed = l.s.host.ignored, l.s.host.lastCap, l.s.host.closed
	if l.s.memfdNoexec(&l.p.Profile) {
		l.build.MemfdNoexec = sandbox.On
	}
	if os.Geteuid() == 0 {
		l.build.Groups = sandbox.On
	}
	v, err := l.s.programOf(l.p, l.build)
	if err != nil {
		return err
	}
	l.v = v
	if err := l.streams(); err != nil {
		return failed("make the standard streams", err)
	}
	if err := l.gates(); err != nil {
		return failed("make the gates", err)
	}
	ours, theirs, err := linux.StatusPair("status")
	if err != nil {
		return failed("make the status socket", err)
	}
	l.status = ours
	l.files[image.FDStatus], l.lent[image.FDPeer] = theirs, linux.FD(ours)
	if err := linux.PassCred(ours); err != nil { // before anything can be sent
		return failed("make the status socket", err)
	}
	if l.area, err = linux.AnonymousFile("command"); err != nil {
		return failed("make the file of the command", err)
	}
	l.lent[image.FDCommand] = linux.FD(l.area)
	return l.mounted()
}

func (l *launcher) gates() error {
	r, w, err := linux.GatePipe()
	if err != nil {
		return err
	}
	l.files[image.FDGate1], l.gate1 = r, w
	if r, w, err = linux.GatePipe(); err != nil {
		return err
	}
	l.files[image.FDGate2], l.gate2 = r, os.NewFile(uintptr(w), "gate")
	return nil
}

// mounted hands over the trees, the ruleset and the canary.
func (l *launcher) mounted() error {
	trees := map[int]*os.File{image.FDTree: l.m.view.tree.root, image.FDCanary: l.s.masks.canary}
	for i, h := range l.m.attach {
		trees[image.FDAttach+i] = h.tree.root
	}
	for n, f := range trees {
		if l.s.trees.detached || n == image.FDCanary {
			l.lent[n] = linux.FD(f)
			continue
		}
		c, err := linux.CloneMount(f, linux.Tree) // what is attached somewhere cannot be moved from under it
		if err != nil {
			return failed("hand over a mount", err)
		}
		l.clones = append(l.clones, c)
		l.lent[n] = linux.FD(c)
	}
	if l.m.ruleset != nil {
		l.lent[image.FDRuleset] = linux.FD(l.m.ruleset)
	}
	return nil
}

// cgroups opens the cgroups of this launch, each strictly below our own base.
func (l *launcher) cgroups() error {
	base, err := l.s.cgroupBase("")
	if err != nil {
		return err
	}
	if l.init, err = linux.OpenAt(base, l.site.Cgroup+"/init", unix.O_RDONLY|unix.O_DIRECTORY, linux.OneFS); err != nil {
		return failed("open the cgroup "+l.site.Cgroup+"/init", err)
	}
	if l.job, err = linux.OpenNumber(base, l.site.Cgroup+"/job/cgroup.procs", unix.O_RDONLY, linux.OneFS); err != nil {
		return failed("open the cgroup "+l.site.Cgroup+"/job", err)
	}
	if !l.p.UserNS && os.Geteuid() == 0 && l.s.features.Has(sandbox.FeatureIntoCgroup) {
		l.build.IntoCgroup = sandbox.On
		n, err := linux.OpenNumber(base, l.site.Cgroup+"/job", unix.O_RDONLY|unix.O_DIRECTORY, linux.OneFS)
		if err != nil {
			return failed("open the cgroup "+l.site.Cgroup+"/job", err)
		}
		l.files[image.FDJob] = n
	} else if err := l.join(base, sandbox.JoinFile{Path: l.site.Cgroup + "/job/cgroup.procs"}); err != nil {
		return err
	}
	for _, j := range l.site.Join {
		base, err := l.s.cgroupBase(j.Controller)
		if err == nil {
			err = l.join(base, j)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *launcher) join(base *os.File, j sandbox.JoinFile) error {
	n := image.FDJoin + len(l.build.Join)
	if len(l.build.Join) == image.MaxJoin {
		return refused("cannot join more than %d cgroups", image.MaxJoin)
	}
	f, err := linux.OpenNumber(base, j.Path, unix.O_WRONLY, linux.OneFS)
	if err != nil {
		return failed("open the cgroup file "+j.Controller+" "+j.Path, err)
	}
	l.files[n] = f
	l.build.Join = append(l.build.Join, sandbox.Join(path.Base(j.Path)))
	return nil
}

// give adds a descriptor to the answer, which owns it from now on.
func (l *launcher) give(name string, n int) {
	l.names = append(l.names, name)
	l.out = append(l.out, n)
}

// streams makes the standard streams. PID 1 holds the far ends, the daemon gets a
// second descriptor of each.
func (l *launcher) streams() error {
	if l.p.PTY {
		r, w, err := linux.StreamPipe()
		if err != nil {
			return err
		}
		l.hold(image.FDHeldOut, r, sandbox.FileStdout)
		l.hold(image.FDHeldErr, w, sandbox.FileRelay)
		for n := image.FDStdin; n <= image.FDStderr; n++ {
			l.lent[n] = linux.FD(l.s.null)
		}
		return nil
	}
	if l.p.Stdin == sandbox.StdinNull {
		l.lent[image.FDStdin] = linux.FD(l.s.null)
	} else {
		r, w, err := linux.StreamPipe()
		if err != nil {
			return err
		}
		l.files[image.FDStdin] = r
		l.hold(image.FDHeldIn, w, sandbox.FileStdin)
	}
	for n, held := range map[int]int{image.FDStdout: image.FDHeldOut, image.FDStderr: image.FDHeldErr} {
		r, w, err := linux.StreamPipe()
		if err != nil {
			return err
		}
		l.files[n] = w
		l.hold(held, r, map[int]string{image.FDStdout: sandbox.FileStdout, image.FDStderr: sandbox.FileStderr}[n])
	}
	return nil
}

// hold lends PID 1 a far end and gives it to the daemon. None of these keeps the
// target from its end of file.
func (l *launcher) hold(n, fd int, name string) {
	l.lent[n] = fd
	l.give(name, fd)
}

// start starts PID 1 and lets it through the first gate with its registers.
func (l *launcher) start() error {
	fds := maps.Clone(l.files)
	maps.Copy(fds, l.lent)
	s := launch.Start{
		Image: l.v.image, Files: fds, Flags: sandbox.CloneFlags(l.p.Profile), Cgroup: l.init, Argv: []string{"pinfold-init"},
	}
	regs := launch.Registers{
		UID: l.site.UID, GID: l.site.GID, InitUID: l.s.initUID(), InitGID: l.s.initGID(), Rows: l.site.Rows, Cols: l.site.Cols,
	}
	switch {
	case l.p.UserNS && l.s.rootless != nil:
		l.s.rootless.userNS(&s, &regs, l.p.RootMap)
	case l.p.UserNS:
		l.s.userNS(&s, &regs, l.p.RootMap)
	}
	// The first gate is open before PID 1 is there: its ids are mapped before its exec, and it needs to wait for nobody.
	err := linux.Send(l.status, regs.Encode())
	if err == nil {
		err = linux.WriteNumber(l.gate1, []byte{1})
	}
	switch {
	case err != nil:
	case l.c != nil:
		err = l.command()
	case l.opening != nil:
		err = l.open()
	}
	if err != nil {
		return failed("open the first gate", err)
	}
	pid, pidfd, net, err := l.s.nursery.start(s)
	if err != nil {
		if pid > 0 {
			err = errors.Join(err, reapPid(pid))
		}
		return failed("start PID 1", err)
	}
	poll, err := linux.Pollable(pidfd)
	if err != nil {
		return errors.Join(failed("watch PID 1", err), syscall.Kill(pid, syscall.SIGKILL), reapPid(pid))
	}
	l.pid, l.net = pid, net
	l.pen = &pen{pidfd: poll, prog: l.v.prog, made: l.m.made, watches: l.m.watches, gate: l.gate2, image: l.v.id, gone: make(chan struct{})}
	l.m.made, l.m.watches = nil, nil
	l.started = true
	l.s.pens.add(l.pen)
	go l.s.reap(l.pen)
	for n, f := range l.files { // from here on PID 1 alone has them
		linux.CloseNumbers(f)
		delete(l.files, n)
	}
	return nil
}

// reapPid takes the status of a child that has no pidfd.
func reapPid(pid int) error {
	for {
		_, err := syscall.Wait4(pid, nil, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// initUID is the uid that PID 1 takes for good.
func (s *server) initUID() uint32 {
	if s.rootless != nil {
		return s.rootless.uid
	}
	if s.config.DynamicCount > 0 {
		return s.config.DynamicFirst
	}
	return overflowID
}

// initGID is the gid that PID 1 takes for good.
func (s *server) initGID() uint32 {
	if s.rootless != nil {
		return s.rootless.gid
	}
	return s.initUID()
}

const overflowID = 65534 // nobody: owns nothing on a sane host

// end kills PID 1 and waits until it is gone and cleaned up after.
func (l *launcher) end() error {
	err := l.pen.kill()
	<-l.pen.gone
	l.s.pens.remove(l.pen)
	linux.CloseNumbers(l.out...)
	l.out = nil
	return errors.Join(err, l.pen.err)
}

// describe says what was built, and adds the descriptors of the processes.
func (l *launcher) describe(e sandbox.Enforcement) (sandbox.Launched, error) {
	a := sandbox.Launched{Pen: l.pen.id, InitPid: l.pid, Pid: l.target, Enforcement: e}
	if l.s.rootless == nil {
		a.InitUID = l.s.initUID()
	}
	err := l.processes()
	if err == nil {
		a.Mark, err = l.mark()
	}
	var n int
	if err == nil {
		if n, err = linux.DupNumber(l.status); err == nil {
			l.give(sandbox.FileStatus, n)
		}
	}
	return a, err
}

// handOver adds the last gate, for what has been proved.
func (l *launcher) handOver(a *sandbox.Launched) error {
	a.Laps = l.laps.All()
	n, err := l.pen.hand(l.target)
	if err == nil {
		l.give(sandbox.FileGate, n)
	}
	return err
}

// answer gives away what has been given to the answer; after an error the pen ends.
func (l *launcher) answer(a sandbox.Launched, err error) (any, []int, error) {
	if err != nil {
		return nil, nil, errors.Join(failed("take the pen's descriptors", err), l.end())
	}
	a.Files = l.names
	out := l.out
	l.names, l.out = nil, nil // the answer's now
	return a, out, nil
}

// processes adds the pidfds, and the terminal that PID 1 made.
func (l *launcher) processes() error {
	init, err := linux.PidfdNumber(l.pid)
	if err != nil {
		return err
	}
	l.give(sandbox.FileInit, init)
	target, err := linux.PidfdNumber(l.target)
	if err != nil {
		return err
	}
	l.give(sandbox.FileTarget, target)
	if !l.p.PTY {
		return nil
	}
	master, err := linux.TakeNumber(init, image.FDHeldIn)
	if err == nil {
		l.give(sandbox.FilePTY, master)
	}
	return err
}

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
