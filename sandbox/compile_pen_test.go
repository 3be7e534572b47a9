package sandbox

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/filter"
	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/ruleset"
	"pinfold/test/testkit"
)

// penWait bounds every wait of a test for a pen.
const penWait = 3 * time.Minute

// needRoot skips a test that mounts and takes other ids, with the proof that it
// may not.
func needRoot(tb testing.TB) {
	tb.Helper()
	testkit.NeedRoot(tb)
}

// testProfile is a small profile with every layer.
func testProfile() Profile {
	return Profile{
		Name: "test", Hostname: "pen", Proc: ProcMasked, Net: NetNone, Exec: ExecAnything, Stdin: StdinPipe,
		Private: []Tmpfs{
			{Path: "/tmp", Size: 1 << 20, Inodes: 100, Mode: 0o1777},
			{Path: "/home/u", Size: 1 << 20, Inodes: 100, Mode: 0o700},
		},
		Attach:  []Attach{{Path: "/home/u/work", Writable: true}},
		Seccomp: Filter{Base: filter.Default},
		Landlock: Rules{Rules: []Rule{
			{Path: "/usr", Access: "rx"},
			{Path: "/probe", Access: "rx"},
			{Path: "/dev", Access: "rw"},
			{Path: "/etc", Access: "r"},
			{Path: "/proc", Access: "rw"},
			{Path: "/tmp", Access: "rw"},
			{Path: "/home/u", Access: "rw"},
			{Path: "/dev/pts", Access: "rw"},
			{Path: "/home/u/work", Access: "rwx"},
		}},
		Rlimits: []Rlimit{{Name: "core"}, {Name: "nofile", Value: 256}},
	}
}

// pen is a started PID 1 with the far ends of its descriptors.
type pen struct {
	prog         *image.Program
	pid          int
	pidfd        *os.File
	status       *os.File
	gate1, gate2 *os.File
	command      []byte // goes through gate1 once it is open
	stdin        *os.File
	stdout       *os.File
	stderr       *os.File
	ours         []*os.File
	reaped       bool
	work         string // host directory behind /home/u/work
}

// penConfig is what a test changes of a pen.
type penConfig struct {
	profile Profile
	build   func(*Build)
	argv    []string
	env     []string
	program string // empty: argv[0]
	dir     string // empty: /
	script  bool
	wrap    func(start *launch.Start)
	uid     uint32 // 0: 65533, but with root
	root    bool
	tree    *os.File // empty: a new one; with it a clone is used
	work    string   // host directory behind /home/u/work; empty: a new one
}

func testFilter(tb testing.TB) []unix.SockFilter {
	tb.Helper()
	f, err := filter.Compile(filter.Default, nil, nil, filter.Options{})
	if err != nil {
		tb.Fatalf("filter.Compile(default) = %v", err)
	}
	return f.Insns
}

func testBuild(tb testing.TB, c penConfig) Build {
	tb.Helper()
	b := Build{Groups: On, Announce: On, Filter: testFilter(tb)}
	abi, err := ruleset.ABI()
	if err == nil {
		b.LandlockABI = abi
	} else if !errors.Is(err, ruleset.ErrUnsupported) {
		tb.Fatalf("ruleset.ABI() = %v", err)
	}
	if b.Ignored, err = linux.IgnoredSignals(); err != nil {
		tb.Fatalf("linux.IgnoredSignals() = %v", err)
	}
	if c.build != nil {
		c.build(&b)
	}
	return b
}

// newPen starts PID 1, which waits at the first gate.
func newPen(tb testing.TB, c penConfig) *pen {
	tb.Helper()
	needRoot(tb)
	b := testBuild(tb, c)
	prog, err := Compile(c.profile, b)
	if err != nil {
		tb.Fatalf("Compile(%s) = %v", c.profile.Name, err)
	}
	return startPen(tb, c, b, prog, nil)
}

func startPen(tb testing.TB, c penConfig, b Build, prog *image.Program, im *os.File) *pen {
	tb.Helper()
	p := &pen{prog: prog, work: c.work}
	if p.work == "" {
		p.work = tb.TempDir()
	}
	must := func(f *os.File, err error) *os.File {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return f
	}
	var ours, theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	their := func(f *os.File) *os.File { theirs = append(theirs, f); return f }
	pair := func(name string) (r, w *os.File) {
		tb.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			tb.Fatalf("pipe %s: %v", name, err)
		}
		return r, w
	}
	if im == nil {
		im = their(must(prog.Memfd("test", tb.TempDir())))
	}
	sv, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	if err := unix.SetNonblock(sv[0], true); err != nil {
		tb.Fatal(err)
	}
	p.status = os.NewFile(uintptr(sv[0]), "status")
	st := their(os.NewFile(uintptr(sv[1]), "status of PID 1"))
	g1, w1 := pair("gate1")
	g2, w2 := pair("gate2")
	p.gate1, p.gate2 = w1, w2
	in, inw := pair("stdin")
	outr, out := pair("stdout")
	errr, errw := pair("stderr")
	p.stdin, p.stdout, p.stderr = inw, outr, errr
	ours = append(ours, p.status, w1, w2, inw, outr, errr)
	for _, f := range []*os.File{g1, g2, in, out, errw} {
		their(f)
	}
	files := map[int]int{
		0: linux.FD(in), 1: linux.FD(out), 2: linux.FD(errw), image.FDStatus: linux.FD(st), image.FDPeer: linux.FD(p.status),
		image.FDGate1: linux.FD(g1), image.FDGate2: linux.FD(g2), image.FDHeldIn: linux.FD(inw), image.FDHeldOut: linux.FD(outr), image.FDHeldErr: linux.FD(errr),
	}
	var tree *os.File
	if c.tree == nil {
		tree = their(testTree(tb))
	} else {
		tree = their(must(linux.CloneMount(c.tree, linux.Tree)))
	}
	files[image.FDTree] = linux.FD(tree)
	if err := os.Chmod(p.work, 0o777); err != nil {
		tb.Fatal(err)
	}
	wd := their(must(os.Open(p.work)))
	work := their(must(linux.CloneMount(wd, linux.One)))
	if err := linux.SetMount(work, linux.One, linux.Attr{Private: true}); err != nil { // as the stage does: the host's may be shared
		tb.Fatal(err)
	}
	files[image.FDAttach] = linux.FD(work)
	canary := their(testCanary(tb))
	files[image.FDCanary] = linux.FD(canary)
	if b.LandlockABI > 0 {
		files[image.FDRuleset] = linux.FD(their(testRuleset(tb, c.profile, tree, wd)))
	}
	cmd := launch.Command{Program: c.program, Dir: c.dir, Argv: c.argv, Env: c.env, Script: c.script}
	if cmd.Program == "" {
		cmd.Program = c.argv[0]
	}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	encoded, err := cmd.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	p.command = slices.Concat(encoded.Open, encoded.Exec)
	written := their(must(linux.AnonymousFile("command")))
	if _, err := written.Write(encoded.Area); err != nil {
		tb.Fatal(err)
	}
	files[image.FDCommand] = linux.FD(written)
	s := launch.Start{Image: im, Files: files, Flags: CloneFlags(c.profile), Argv: []string{"pinfold-init"}}
	if c.wrap != nil {
		c.wrap(&s)
	}
	uid := c.uid
	if uid == 0 && !c.root {
		uid = 65533
	}
	ids := launch.Registers{UID: uid, GID: uid, InitUID: 65532, InitGID: 65532, Rows: 24, Cols: 80}
	if _, err := p.status.Write(ids.Encode()); err != nil {
		tb.Fatal(err)
	}
	p.pid, p.pidfd, err = launch.Run(s)
	if err != nil {
		tb.Fatalf("launch.Run(%v) = %v", c.argv, err)
	}
	p.ours = append(ours, p.pidfd)
	tb.Cleanup(func() {
		p.end()
		p.closeAll()
	})
	return p
}

func (p *pen) closeAll() {
	for _, f := range p.ours {
		_ = f.Close() // some are closed already
	}
	p.ours = nil
}

// end kills PID 1, and with it the pen, and waits for it.
func (p *pen) end() syscall.WaitStatus {
	if p.reaped {
		return 0
	}
	_ = unix.PidfdSendSignal(int(p.pidfd.Fd()), unix.SIGKILL, nil, 0)
	return p.wait()
}

func (p *pen) wait() syscall.WaitStatus {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.pid, &ws, syscall.WALL, nil)
		if err != syscall.EINTR {
			break
		}
	}
	p.reaped = true
	return ws
}

// testTree builds a detached view: the host's /usr, its merged directories as
// symlinks, the device nodes, and this test's executable as /probe.
func testTree(tb testing.TB) *os.File {
	tb.Helper()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	root, err := linux.NewMount("tmpfs", 0, linux.Option{Key: "mode", Value: "0755"}, linux.Option{Key: "size", Value: "64k"})
	check(err)
	// Before Linux 6.15 nothing can be mounted on a detached tree. What is cloned at the
	// end must be private: a temporary directory may be on a shared mount.
	place, err := os.OpenFile(tb.TempDir(), unix.O_PATH|unix.O_DIRECTORY, 0)
	check(err)
	check(linux.MoveMount(root, place))
	check(linux.SetMount(root, linux.One, linux.Attr{Private: true}))
	defer func() {
		linux.CloseAll(root, place)
		check(linux.Detach(place.Name()))
	}()
	base := "/proc/self/fd/" + strconv.Itoa(linux.FD(root))
	for _, d := range []string{"usr", "proc", "dev/pts", "dev/shm", "tmp", "home/u", "etc"} {
		check(os.MkdirAll(filepath.Join(base, d), 0o755))
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + l); err == nil {
			check(os.Symlink(to, filepath.Join(base, l)))
		}
	}
	check(os.Symlink("pts/ptmx", base+"/dev/ptmx"))
	check(os.WriteFile(base+"/etc/passwd", []byte("u:x:65533:65533::/home/u:/bin/sh\n"), 0o644))
	self, err := os.Executable()
	check(err)
	binds := map[string]string{"/usr": "usr", self: "probe", "/dev/null": "dev/null", "/dev/zero": "dev/zero", "/dev/tty": "dev/tty"}
	for from, to := range binds {
		at := filepath.Join(base, to)
		if to != "usr" {
			check(os.WriteFile(at, nil, 0o644))
		}
		src, err := os.OpenFile(from, unix.O_PATH, 0)
		check(err)
		m, err := linux.CloneMount(src, linux.One)
		check(err)
		set := uint64(unix.MOUNT_ATTR_NOSUID)
		if !strings.HasPrefix(from, "/dev/") {
			set |= unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV
		}
		check(linux.SetMount(m, linux.One, linux.Attr{Set: set, Private: true}))
		dst, err := os.OpenFile(at, unix.O_PATH, 0)
		check(err)
		check(linux.MoveMount(m, dst))
		linux.CloseAll(src, m, dst)
	}
	tree, err := linux.CloneMount(root, linux.Tree)
	check(err)
	return tree
}

func testCanary(tb testing.TB) *os.File {
	tb.Helper()
	m, err := linux.NewMount("tmpfs", 0, linux.Option{Key: "mode", Value: "0755"})
	if err != nil {
		tb.Fatal(err)
	}
	if err := linux.MkfileAt(m, image.CanaryFile, 0o444); err != nil {
		tb.Fatal(err)
	}
	return m
}

func testRuleset(tb testing.TB, p Profile, tree, work *os.File) *os.File {
	tb.Helper()
	var rules []ruleset.Rule
	var files []*os.File
	for _, r := range StageRules(p) {
		f := work
		if r.Path != "/home/u/work" {
			var err error
			f, err = os.OpenFile("/proc/self/fd/"+strconv.Itoa(linux.FD(tree))+r.Path, unix.O_PATH, 0)
			if err != nil {
				tb.Fatal(err)
			}
			files = append(files, f)
		}
		rules = append(rules, ruleset.Rule{FD: linux.FD(f), File: r.Path == "/probe", Access: string(r.Access)})
	}
	fd, _, _, err := ruleset.New(rules)
	if err != nil {
		tb.Fatalf("ruleset.New(%v) = %v", rules, err)
	}
	linux.CloseAll(files...)
	return os.NewFile(uintptr(fd), "ruleset")
}

// open opens a gate.
func open(tb testing.TB, gate *os.File) {
	tb.Helper()
	if _, err := gate.Write([]byte{1}); err != nil {
		tb.Fatalf("open gate: %v", err)
	}
}

// begin opens the first gate and sends the command through it.
func (p *pen) begin(tb testing.TB) {
	tb.Helper()
	open(tb, p.gate1)
	if _, err := p.gate1.Write(p.command); err != nil {
		tb.Fatalf("send the command: %v", err)
	}
}

// next returns the next record.
func (p *pen) next(tb testing.TB) launch.Record {
	tb.Helper()
	r, err := p.read()
	if err != nil {
		tb.Fatalf("next record: %v", err)
	}
	return r
}

func (p *pen) read() (launch.Record, error) {
	if err := p.status.SetReadDeadline(time.Now().Add(penWait)); err != nil {
		return nil, err
	}
	b := make([]byte, launch.MaxRecord+1)
	n, err := p.status.Read(b)
	if errors.Is(err, unix.ECONNRESET) { // told once, when PID 1 ends with something unread
		n, err = p.status.Read(b)
	}
	if err != nil {
		return nil, err
	}
	return launch.DecodeRecord(b[:n])
}

// start opens both gates and wants the target to run.
func (p *pen) start(tb testing.TB) launch.Started {
	tb.Helper()
	p.begin(tb)
	open(tb, p.gate2)
	p.waiting(tb)
	r := p.next(tb)
	if f, ok := r.(launch.Failed); ok {
		tb.Fatalf("step %d %s of %s: %v", f.Step, p.prog.Step(f.Step), p.prog.Where(f.Step), f.Errno)
	}
	s, ok := r.(launch.Started)
	if !ok {
		tb.Fatalf("record = %#v; want Started", r)
	}
	return s
}

// waiting wants the target confined, and then at its last gate.
func (p *pen) waiting(tb testing.TB) {
	tb.Helper()
	r := p.next(tb)
	if _, ok := r.(launch.Confined); ok {
		r = p.next(tb)
	}
	switch r := r.(type) {
	case launch.Waiting:
	case launch.Failed:
		tb.Fatalf("step %d %s of %s: %v", r.Step, p.prog.Step(r.Step), p.prog.Where(r.Step), r.Errno)
	default:
		tb.Fatalf("record = %#v; want Waiting", r)
	}
}

// failed returns the failed step, behind what the target said on its way there.
func (p *pen) failed(tb testing.TB) launch.Failed {
	tb.Helper()
	r := p.next(tb)
	for {
		switch r.(type) {
		case launch.Confined, launch.Waiting:
			r = p.next(tb)
			continue
		}
		break
	}
	f, ok := r.(launch.Failed)
	if !ok {
		tb.Fatalf("record = %#v; want Failed", r)
	}
	return f
}

// ended wants the record of the target's end.
func (p *pen) ended(tb testing.TB) launch.Ended {
	tb.Helper()
	r := p.next(tb)
	e, ok := r.(launch.Ended)
	if !ok {
		tb.Fatalf("record after the start = %#v; want Ended", r)
	}
	return e
}

// release lets PID 1 go and wants it to exit with 0.
func (p *pen) release(tb testing.TB) {
	tb.Helper()
	if _, err := p.status.Write(launch.Release()); err != nil {
		tb.Fatalf("release: %v", err)
	}
	if ws := p.wait(); ws != 0 {
		tb.Errorf("PID 1 after release = %#x; want exit status 0", ws)
	}
}

// output runs a command to its end and returns what it wrote.
func output(tb testing.TB, c penConfig) (string, string, launch.Ended) {
	tb.Helper()
	p := newPen(tb, c)
	p.start(tb)
	e := p.ended(tb)
	p.release(tb)
	for _, f := range []*os.File{p.stdin} {
		_ = f.Close()
	}
	out, err := io.ReadAll(p.stdout)
	if err != nil {
		tb.Fatal(err)
	}
	errs, err := io.ReadAll(p.stderr)
	if err != nil {
		tb.Fatal(err)
	}
	return string(out), string(errs), e
}
