package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// puppet is a thread of another process that makes the system calls it is told to:
// what an attacker would who runs code in that process. It is held by ptrace(2), and
// goes on as it was once it is let go.
type puppet struct {
	t    *testing.T
	tid  int
	was  syscall.PtraceRegs
	page uintptr // of ours, in its memory
	used uintptr
}

// hold takes a thread that sleeps in a system call. The caller has locked its thread.
func hold(t *testing.T, pid int) *puppet {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range threads {
		tid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		p := &puppet{t: t, tid: tid}
		if err := p.take(); err == nil {
			return p
		}
	}
	t.Fatalf("no thread of %d can be held", pid)
	return nil
}

func (p *puppet) take() error {
	if err := syscall.PtraceAttach(p.tid); err != nil {
		return err
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(p.tid, &ws, syscall.WALL, nil); err != nil {
		return err
	}
	err := syscall.PtraceGetRegs(p.tid, &p.was)
	insn := make([]byte, 2)
	if err == nil {
		_, err = syscall.PtracePeekText(p.tid, uintptr(p.was.Rip-2), insn)
	}
	if err == nil && (ws.StopSignal() != syscall.SIGSTOP || insn[0] != 0x0f || insn[1] != 0x05) {
		err = errors.New("it is not in a system call")
	}
	if err != nil {
		return errors.Join(err, syscall.PtraceDetach(p.tid))
	}
	n, errno := p.call(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	p.page = n
	if errno != 0 {
		p.letGo()
		return errno
	}
	return nil
}

// letGo gives the thread back its registers: a call that it was in goes on.
func (p *puppet) letGo() {
	p.t.Helper()
	if p.page != 0 {
		_, _ = p.call(unix.SYS_MUNMAP, p.page, 4096)
	}
	if err := errors.Join(syscall.PtraceSetRegs(p.tid, &p.was), syscall.PtraceDetach(p.tid)); err != nil {
		p.t.Errorf("cannot let thread %d go: %v", p.tid, err)
	}
}

// call makes one system call in the thread.
func (p *puppet) call(nr uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	p.t.Helper()
	var a [6]uintptr
	copy(a[:], args)
	r := p.was
	r.Rip, r.Rax, r.Orig_rax = p.was.Rip-2, uint64(nr), ^uint64(0)
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9 = uint64(a[0]), uint64(a[1]), uint64(a[2]), uint64(a[3]), uint64(a[4]), uint64(a[5])
	if err := syscall.PtraceSetRegs(p.tid, &r); err != nil {
		p.t.Fatal(err)
	}
	for {
		if err := syscall.PtraceSingleStep(p.tid); err != nil {
			p.t.Fatal(err)
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(p.tid, &ws, syscall.WALL, nil); err != nil || !ws.Stopped() {
			p.t.Fatalf("thread %d = %v, %v; want it stopped", p.tid, ws, err)
		}
		if ws.StopSignal() == syscall.SIGTRAP {
			break // other signals, as the runtime sends them, are left out
		}
	}
	if err := syscall.PtraceGetRegs(p.tid, &r); err != nil {
		p.t.Fatal(err)
	}
	if n := int64(r.Rax); n < 0 && n > -4096 {
		return 0, syscall.Errno(-n)
	}
	return uintptr(r.Rax), 0
}

// text puts a string into the memory of the thread.
func (p *puppet) text(s string) uintptr {
	p.t.Helper()
	return p.bytes(append([]byte(s), 0))
}

func (p *puppet) bytes(b []byte) uintptr {
	p.t.Helper()
	at := p.page + p.used
	if _, err := syscall.PtracePokeData(p.tid, at, b); err != nil {
		p.t.Fatal(err)
	}
	p.used += uintptr(len(b)+15) &^ 15
	return at
}

const atFDCWD = ^uintptr(99)

// TestAnAttackerInTheDaemonReachesNothingAboveIt makes system calls as the daemon, with
// all that it has, as one would whose code runs in it.
func TestAnAttackerInTheDaemonReachesNothingAboveIt(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	s := spawn(t, d.agent(), shell("echo ready; sleep 600"))
	await(t, s, "ready\n")
	bait := filepath.Join(t.TempDir(), "bait")
	if err := os.WriteFile(bait, []byte("root's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stage := d.ours(s.PID)["the stage"]
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := hold(t, d.cmd.Process.Pid)
	for _, a := range p.intrusions(d, bait, stage) {
		if n, errno := p.call(a.nr, a.args...); errno != a.want {
			t.Errorf("the daemon: %s = %d, %v (%d); want %v", a.name, n, errno, errno, a.want)
		}
	}
	p.letGo()
	if got := readFile(t, bait); got != "root's\n" {
		t.Errorf("a file of root's = %q after it; want it as it was", got)
	}
	if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
		t.Errorf("run after it = %q; want the daemon well", out)
	}
}

// intrusion is one call and the only right answer.
type intrusion struct {
	name string
	want syscall.Errno
	nr   uintptr
	args []uintptr
}

func (p *puppet) intrusions(d *daemon, bait string, stage int) []intrusion {
	file := p.text(bait)
	denied := func(name, path string, flags uintptr) intrusion {
		return intrusion{name, unix.EACCES, unix.SYS_OPENAT, []uintptr{atFDCWD, p.text(path), flags, 0o600}}
	}
	proc := fmt.Sprintf("/proc/%d/", stage)
	iov := make([]byte, 16)
	binary.LittleEndian.PutUint64(iov, uint64(p.page))
	iov[8] = 8
	vec := p.bytes(iov)
	return []intrusion{
		denied("writing a file of root's", bait, unix.O_WRONLY),
		denied("making a file", bait+"2", unix.O_CREAT|unix.O_WRONLY),
		denied("making a file in the stage's directory", filepath.Join(d.state, "stage", "x"), unix.O_CREAT|unix.O_WRONLY),
		denied("making a file among kept homes", filepath.Join(d.state, "x"), unix.O_CREAT|unix.O_WRONLY),
		denied("a knob of the kernel", "/proc/sys/kernel/core_pattern", unix.O_WRONLY),
		denied("moving processes to the root of the cgroups", filepath.Join(filepath.Dir(d.base()), "cgroup.procs"), unix.O_WRONLY),
		denied("the memory of the stage", proc+"mem", unix.O_RDONLY),
		denied("the environment of the stage", proc+"environ", unix.O_RDONLY),
		denied("a descriptor of the stage", proc+"fd/0", unix.O_RDONLY),
		denied("the memory of the host's init", "/proc/1/mem", unix.O_RDONLY),
		{"removing a file", unix.EACCES, unix.SYS_UNLINKAT, []uintptr{atFDCWD, file, 0}},
		{"removing a directory of its own", unix.EACCES, unix.SYS_UNLINKAT, []uintptr{atFDCWD, p.text(filepath.Join(d.state, "stage")), unix.AT_REMOVEDIR}},
		{"set-id on a file", unix.EPERM, unix.SYS_FCHMODAT, []uintptr{atFDCWD, file, 0o4755}},
		{"giving a file away", unix.EPERM, unix.SYS_FCHOWNAT, []uintptr{atFDCWD, file, 4242, 4242, 0}},
		{"an attribute", unix.EPERM, unix.SYS_SETXATTR, []uintptr{file, p.text("trusted.x"), file, 1, 0}},
		{"executing a program", unix.EPERM, unix.SYS_EXECVE, []uintptr{p.text("/none"), 0, 0}},
		{"a socket", unix.EPERM, unix.SYS_SOCKET, []uintptr{unix.AF_UNIX, unix.SOCK_STREAM, 0}},
		{"a mount", unix.EPERM, unix.SYS_MOUNT, []uintptr{file, file, 0, unix.MS_BIND, 0}},
		{"an unmount", unix.EPERM, unix.SYS_UMOUNT2, []uintptr{p.text(filepath.Join(d.state, "run")), 0}},
		{"a user namespace", unix.EPERM, unix.SYS_UNSHARE, []uintptr{unix.CLONE_NEWUSER}},
		{"another uid", unix.EPERM, unix.SYS_SETRESUID, []uintptr{4242, ^uintptr(0), ^uintptr(0)}},
		{"tracing the stage", unix.EPERM, unix.SYS_PTRACE, []uintptr{unix.PTRACE_SEIZE, uintptr(stage), 0, 0}},
		{"the stage's memory by a call", unix.EPERM, unix.SYS_PROCESS_VM_READV, []uintptr{uintptr(stage), vec, 1, vec, 1, 0}},
		{"being dumpable", unix.EPERM, unix.SYS_PRCTL, []uintptr{unix.PR_SET_DUMPABLE, 1}},
		{"reading a file", 0, unix.SYS_OPENAT, []uintptr{atFDCWD, file, unix.O_RDONLY}},
	}
}

// TestNothingOfOursIsDumpable asks the daemon and its stage themselves.
func TestNothingOfOursIsDumpable(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	s := spawn(t, d.agent(), shell("echo ready; sleep 600"))
	await(t, s, "ready\n")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	plain := exec.Command("sleep", "600")
	if err := plain.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = plain.Process.Kill()
		_ = plain.Wait() // it was killed
	}()
	eventually(t, "sleep sleeps", func() bool { return procState(plain.Process.Pid) == "S" })
	if n, errno := dumpable(t, plain.Process.Pid); errno != 0 || n != 1 {
		t.Errorf("sleep: PR_GET_DUMPABLE = %d, %v; want 1, or it proves nothing", n, errno)
	}
	for who, pid := range d.ours(s.PID) {
		if who == "PID 1" { // its filter has no prctl; another uid than root owns it, so that /proc tells
			var st syscall.Stat_t
			if err := syscall.Stat(fmt.Sprintf("/proc/%d/environ", pid), &st); err != nil || st.Uid != 0 {
				t.Errorf("/proc/PID/environ of %s belongs to uid %d, %v; want root, as of what is not dumpable", who, st.Uid, err)
			}
			if err := syscall.Stat(fmt.Sprintf("/proc/%d", s.PID), &st); err != nil || st.Uid == 0 {
				t.Errorf("/proc/PID of the program belongs to uid %d, %v; want its own, or the owner tells nothing", st.Uid, err)
			}
			continue
		}
		n, errno := dumpable(t, pid)
		if errno != 0 || n != 0 {
			t.Errorf("%s: PR_GET_DUMPABLE = %d, %v; want 0", who, n, errno)
		}
	}
}

func dumpable(t *testing.T, pid int) (uintptr, syscall.Errno) {
	t.Helper()
	p := hold(t, pid)
	defer p.letGo()
	return p.call(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE)
}
