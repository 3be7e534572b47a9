package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// daemonCaps are the capabilities that docs/security.md writes down for the daemon:
// CAP_DAC_READ_SEARCH and CAP_KILL.
const daemonCaps = "0000000000000024"

// TestTheDaemonHasNoMoreThanItNeeds reads back what every thread of a daemon at work
// may do.
func TestTheDaemonHasNoMoreThanItNeeds(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
	const none = "0000000000000000"
	want := map[string]string{
		"CapInh:": none, "CapPrm:": daemonCaps, "CapEff:": daemonCaps, "CapBnd:": none, "CapAmb:": none, "NoNewPrivs:": "1", "Seccomp:": "2",
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", d.cmd.Process.Pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads of the daemon = %q, %v; want several", threads, err)
	}
	for _, file := range threads {
		status := readFile(t, file)
		for name, value := range want {
			if got := statusField(status, name); got != value {
				t.Errorf("%s: %s %s; want %s", file, name, got, value)
			}
		}
	}
	if strings.Contains(d.log.String(), "no Landlock") {
		testkit.NeedLandlock(t, 1)
		t.Error("the daemon says that this host has no Landlock, and it has")
	}
}

// ours are the processes of a running daemon with one pen.
func (d *daemon) ours(target int) map[string]int {
	d.t.Helper()
	pid := func(of int) int {
		n, err := strconv.Atoi(statusField(readFile(d.t, fmt.Sprintf("/proc/%d/status", of)), "PPid:"))
		if err != nil {
			d.t.Fatal(err)
		}
		return n
	}
	init := pid(target)
	return map[string]int{"the daemon": d.cmd.Process.Pid, "the stage": pid(init), "PID 1": init}
}

// TestACallersUidReachesNoneOfOurParts has a process of the caller's uid, outside of
// any pen, try to trace, read, signal and take from the daemon, the stage and PID 1 of
// its pen. Against a process of its own each of it works.
func TestACallersUidReachesNoneOfOurParts(t *testing.T) {
	t.Parallel()
	for _, runAs := range []string{"caller", "dynamic"} {
		t.Run(runAs, func(t *testing.T) {
			under, project := agents(t)
			d := start(t, forCaller(under, plainFS+"    run_as: "+runAs+"\n"))
			p := spawn(t, d.caller(), in(project, "echo ready; sleep 600"))
			await(t, p, "ready\n")
			for who, pid := range d.ours(p.PID) {
				told := reach(t, callerUID, pid)
				if len(told) < 30 {
					t.Errorf("%d ways were tried at %s; want more: %q", len(told), who, told)
				}
				for _, way := range told {
					if name, answer, _ := strings.Cut(way, ": "); answer != "operation not permitted" && answer != "permission denied" {
						t.Errorf("%s of %s by the caller's uid = %s; want it refused", name, who, answer)
					}
				}
			}
			for _, way := range reach(t, callerUID, 0) {
				if name, answer, _ := strings.Cut(way, ": "); answer != "done" {
					t.Errorf("%s of a process of its own = %s; want done, or the way proves nothing", name, answer)
				}
			}
			if s := procState(p.PID); s != "S" {
				t.Errorf("the process is in state %q after it; want it well", s)
			}
		})
	}
}

// reach runs the helper of that name as uid; pid 0 is a process of its own.
func reach(t *testing.T, uid uint32, pid int) []string {
	t.Helper()
	cmd := exec.Command(program(t, "helper"))
	cmd.Env = []string{helperVar + "=reach", helperArg + "=" + strconv.Itoa(pid)}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helper reach = %v\n%s", err, errs.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// reachOut is that helper: it tries every way at a process and tells what came of it.
func reachOut(arg string) error {
	runtime.LockOSThread()
	pid, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	if pid == 0 {
		cmd := exec.Command("/bin/sleep", "60")
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}()
		pid = cmd.Process.Pid
	}
	for _, name := range []string{
		"mem", "environ", "maps", "smaps", "numa_maps", "auxv", "syscall", "personality", "pagemap", "io", "map_files/.", "fd/.", "fdinfo/.", "fd/0", "root/.", "cwd/.", "exe",
		fmt.Sprintf("task/%d/mem", pid), fmt.Sprintf("task/%d/environ", pid), fmt.Sprintf("task/%d/fd/.", pid), "ns/mnt", "ns/pid", "ns/user", "ns/net",
	} {
		tell("reading "+name, readProc(fmt.Sprintf("/proc/%d/%s", pid, name)))
	}
	for _, name := range []string{"mem", "clear_refs", "coredump_filter", "oom_score_adj", "comm"} {
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, name), os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		tell("writing "+name, err)
	}
	for _, name := range []string{"exe", "cwd", "root", "ns/mnt", "fd/0"} {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		tell("the link "+name, err)
	}
	reachByCall(pid)
	return nil
}

func tell(name string, err error) {
	var errno syscall.Errno
	switch {
	case err == nil:
		fmt.Printf("%s: done\n", name)
	case errors.As(err, &errno):
		fmt.Printf("%s: %v\n", name, errno)
	default:
		fmt.Printf("%s: %v\n", name, err)
	}
}

// readProc opens a file and reads of it, or lists it.
func readProc(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if filepath.Base(path) == "." || strings.Contains(path, "/ns/") || strings.HasSuffix(path, "/mem") {
		return nil
	}
	if _, err := f.Read(make([]byte, 16)); err != nil && !errors.Is(err, fs.ErrClosed) && err.Error() != "EOF" {
		return err
	}
	return nil
}

// reachByCall tries the system calls that take a process.
func reachByCall(pid int) {
	one := make([]byte, 8)
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		n, gerr := unix.PidfdGetfd(fd, 0, 0)
		if gerr == nil {
			gerr = unix.Close(n)
		}
		tell("taking descriptor 0", gerr)
		tell("a signal by pidfd", unix.PidfdSendSignal(fd, unix.SIGWINCH, nil, 0))
		err = unix.Close(fd)
	}
	if err != nil {
		tell("a pidfd", err)
	}
	tell("a signal", unix.Kill(pid, unix.SIGWINCH))
	tell("a signal to a thread", unix.Tgkill(pid, pid, unix.SIGWINCH))
	tell("its priority", unix.Setpriority(unix.PRIO_PROCESS, pid, 19))
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		tell("the own processors", err)
	}
	tell("its processors", unix.SchedSetaffinity(pid, &set))
	var lim unix.Rlimit
	tell("its limits", unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &lim))
	addr := readAddress(pid)
	iov := []unix.Iovec{{Base: &one[0]}}
	iov[0].SetLen(len(one))
	_, err = unix.ProcessVMReadv(pid, iov, []unix.RemoteIovec{{Base: addr, Len: len(one)}}, 0)
	tell("reading memory", err)
	_, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), 0, 0, 0, 0)
	tell("comparing descriptors", orNil(errno))
	_, _, errno = unix.Syscall6(unix.SYS_MOVE_PAGES, uintptr(pid), 1, uintptr(unsafe.Pointer(&addr)), 0, uintptr(unsafe.Pointer(&one[0])), 0)
	tell("asking for pages", orNil(errno))
	_, _, errno = unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
	tell("seizing", orNil(errno))
	if errno == 0 {
		return // a process has one tracer; attaching is the same check
	}
	tell("attaching", unix.PtraceAttach(pid))
}

func orNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// readAddress is an address that a process has, where its maps can be read; else one
// that it has not, which is refused before that matters.
func readAddress(pid int) uintptr {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 4096
	}
	first, _, _ := strings.Cut(string(b), "-")
	n, err := strconv.ParseUint(first, 16, 64)
	if err != nil {
		return 4096
	}
	return uintptr(n)
}

// TestNothingSetIDIsShipped installs as a distribution does and looks at every file.
func TestNothingSetIDIsShipped(t *testing.T) {
	t.Parallel()
	testkit.NeedProgram(t, "make")
	dest := t.TempDir()
	cmd := exec.Command("make", "-C", filepath.Join("..", ".."), "install", "DESTDIR="+dest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make install = %v\n%s", err, out)
	}
	var names []string
	err := filepath.WalkDir(dest, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		names = append(names, strings.TrimPrefix(path, dest))
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 || info.Mode().Type()&^fs.ModeDir != 0 || info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s has mode %v; want no set-id bit, plain files, and none that others write", path, info.Mode())
		}
		if n, err := unix.Lgetxattr(path, "security.capability", nil); err == nil {
			t.Errorf("%s has file capabilities of %d bytes; want none", path, n)
		}
		return nil
	})
	if err != nil || !slices.Contains(names, "/usr/sbin/pinfoldd") || !slices.Contains(names, "/usr/libexec/pinfold/pinfold-stage") || !slices.Contains(names, "/usr/bin/pinfold") {
		t.Errorf("installed = %q, %v; want the three programs among it", names, err)
	}
}

// TestTheUnitsCapabilitiesSuffice runs the daemon with the bounding set of its unit and
// with no_new_privs, as systemd starts it, and then all that takes privileges: an own
// user namespace, root in it, kept homes, dynamic uids. Nothing may be degraded.
func TestTheUnitsCapabilitiesSuffice(t *testing.T) {
	t.Parallel()
	under, project := agents(t)
	put(t, project, ".git/config", "[core]\n")
	d := prepare(t, forCaller(under, strings.Replace(plainFS, "      missing:", "      deny: [ \"${workspace}/.git/config\" ]\n      missing:", 1)+"      home: cache(tools)\n    run_as: dynamic\n")+
		strings.ReplaceAll(`  own:
    commands: [sh, id, sleep, cat]
    workspace: { under: ["`+under+`"] }
    userns: "on"
    allow_root: true
`+plainFS, "\t", "  "))
	text := strings.ReplaceAll(readFile(t, d.policy), "profiles: [work]", "profiles: [work, own]")
	d.writePolicy(text)
	d.command = withCapabilities(t, unitCapabilities(t))
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	t.Cleanup(d.stop)
	c := d.caller()
	for _, profile := range []string{"work", "own"} {
		s := in(project, "echo x > y && cat y && sleep 0.1")
		s.Profile = profile
		if out := runOK(t, c, s); out != "x\n" {
			t.Errorf("run under %s = %q; want it well", profile, out)
		}
	}
	started := 0
	for line := range strings.Lines(readFile(t, filepath.Join(d.state, "audit.log"))) {
		if strings.Contains(line, `"degraded":`) {
			started++
			if !strings.Contains(line, `"degraded":[]`) {
				t.Errorf("record = %s; want nothing degraded", clip(line))
			}
		}
	}
	if started != 2 {
		t.Errorf("%d records of starts; want 2", started)
	}
}

// unitCapabilities are those of CapabilityBoundingSet= in the unit.
func unitCapabilities(t *testing.T) []string {
	t.Helper()
	for line := range strings.Lines(readFile(t, filepath.Join("..", "..", "systemd", "pinfoldd.service"))) {
		if rest, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatal("the unit has no CapabilityBoundingSet=")
	return nil
}

// withCapabilities makes commands whose bounding set holds caps alone: setpriv(1).
func withCapabilities(t *testing.T, caps []string) func(string, ...string) *exec.Cmd {
	t.Helper()
	setpriv := testkit.NeedProgram(t, "setpriv")
	set := "-all"
	for _, c := range caps {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	return func(name string, args ...string) *exec.Cmd {
		return exec.Command(setpriv, append([]string{"--no-new-privs", "--bounding-set", set, "--inh-caps", "-all", program(t, name)}, args...)...)
	}
}
