package filter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// The tests below install filters in processes of their own: this test's
// binary, started again with one of these variables.
const (
	envTry  = "PINFOLD_FILTER_TRY"  // "NAME ARG...;…": make the calls and print their errnos
	envBase = "PINFOLD_FILTER_BASE" // base of the filter; "none" installs none
	envRun  = "PINFOLD_FILTER_RUN"  // any value: execute the arguments under the filter
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envTry) != "":
		os.Exit(tryChild(os.Getenv(envTry)))
	case os.Getenv(envRun) != "":
		os.Exit(runChild(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// confine installs the filter on every thread.
func confine(base string) error {
	if base == "none" {
		return nil
	}
	opt := Options{}
	if b, ok := strings.CutSuffix(base, "-nomemfd"); ok {
		base, opt.Memfd = b, MemfdRefused
	}
	p, err := Compile(base, nil, nil, opt)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	prog := unix.SockFprog{Len: uint16(len(p.Insns)), Filter: &p.Insns[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

func tryChild(what string) int {
	var calls [][7]uintptr
	for call := range strings.SplitSeq(what, ";") {
		c, err := parseCall(call)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		calls = append(calls, c)
	}
	if err := confine(os.Getenv(envBase)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	for _, c := range calls {
		_, _, errno := unix.RawSyscall6(c[0], c[1], c[2], c[3], c[4], c[5], c[6])
		os.Stdout.WriteString(strconv.Itoa(int(errno)) + "\n")
	}
	return 0
}

func parseCall(call string) (c [7]uintptr, err error) {
	words := strings.Fields(call)
	if nr, ok := Number(Arch(runtime.GOARCH), words[0]); ok {
		words[0] = strconv.Itoa(int(nr))
	}
	for i, w := range words {
		v, err := strconv.ParseUint(w, 0, 64)
		if err != nil {
			return c, err
		}
		c[i] = uintptr(v)
	}
	return c, nil
}

func runChild(argv []string) int {
	path, err := exec.LookPath(argv[0])
	if err == nil {
		err = confine(os.Getenv(envBase))
	}
	if err == nil {
		err = unix.Exec(path, argv, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	return 126
}

// try makes calls under base, one after the other in one process, and returns
// their errnos.
func try(t *testing.T, base string, calls ...string) []syscall.Errno {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), envTry+"="+strings.Join(calls, ";"), envBase+"="+base)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q under %s: %v, %s; want errnos", calls, base, err, stderr.String())
	}
	var got []syscall.Errno
	for w := range strings.FieldsSeq(string(out)) {
		n, err := strconv.Atoi(w)
		if err != nil {
			t.Fatalf("%q under %s printed %q; want numbers", calls, base, out)
		}
		got = append(got, syscall.Errno(n))
	}
	if len(got) != len(calls) {
		t.Fatalf("%q under %s printed %d numbers; want %d", calls, base, len(got), len(calls))
	}
	return got
}

// attack is one call that must be refused by the filter. Its arguments are such
// that the kernel without a filter answers something else and changes nothing.
type attack struct {
	call string
	want syscall.Errno
}

func attacks() []attack {
	list := []attack{
		{"clone3 1 0", unix.ENOSYS}, {"openat2 99 1 1 99", unix.ENOSYS}, {"fchmodat2 0 1", unix.ENOSYS},
	}
	for _, call := range []string{
		"mount 1 1 1 0 1", "umount2 1 0", "pivot_root 1 1", "chroot 1", "fsopen 1 0", "fsmount 99 0 0", "fsconfig 99 0 0 0 0", "fspick 99 1 0",
		"open_tree 99 1 0", "move_mount 99 1 99 1 0", "mount_setattr 99 1 0 1 32", "setns 99 0",
		"unshare 0x10000000", "unshare 0x20000", "clone 0x10000200 0 0 0 0", "clone 0x110000200 0 0 0 0", "clone 0x20200 0 0 0 0",
		"ptrace 99 99999999 0 0", "process_vm_readv 99999999 1 1 1 1 0", "process_vm_writev 99999999 1 1 1 1 0", "kcmp 99999999 1 0 0 0",
		"pidfd_getfd 99 0 0", "userfaultfd 0xffff", "io_uring_setup 1 1", "io_uring_enter 99 0 0 0 0 0", "io_uring_register 99 0 0 0",
		"add_key 0 0 0 0 0", "request_key 0 0 0 0", "keyctl 9999", "bpf 9999 0 0", "perf_event_open 1 0 0 0 0",
		"open_by_handle_at 99 1 0", "fanotify_init 0xffffffff 0", "fanotify_mark 99 0 0 0 0", "quotactl 0 1 0 1", "swapon 1 0", "swapoff 1",
		"reboot 0 0 0 0", "acct 1", "kexec_load 0 0xfffff 0 0", "init_module 1 1 1", "finit_module 99 1 0", "delete_module 1 0",
		"settimeofday 1 0", "clock_settime 0 1", "clock_adjtime 0 1", "adjtimex 1", "sethostname 1 0xffffffff", "setdomainname 1 0xffffffff",
		"personality 0x0040000", "prctl 35 99 0 0 0",
		"socket 38 5 0", "socket 40 1 0", "socket 17 3 0", "socket 16 3 9", "socket 16 3 16", "socket 2 3 1", "socket 2 1 132", "socket 2 1 262",
		"socketpair 30 1 0 1",
		"ioctl 99 0x5412 1", "ioctl 99 0x100005412 1", "ioctl 99 0x541c 1", "ioctl 99 0x10000541c 1", "ioctl 99 0x5423 1",
		"fchmod 99 04755", "fchmod 99 02755", "fchmodat 99 1 04755", "openat 99 1 0100 04755", "openat 99 1 020200000 04755",
		"mkdirat 99 1 02755", "mknodat 99 1 0104755 0", "mknodat 99 1 020666 0x103", "mknodat 99 1 060666 0x700",
		"mq_open 1 0100 04755 0", "io_setup 0 0", "io_submit 99 0 0",
	} {
		list = append(list, attack{call, unix.EPERM})
	}
	if runtime.GOARCH == "amd64" {
		list = append(list, attack{"0x40000027", unix.ENOSYS}) // getpid of the x32 ABI
		for _, call := range []string{"open 1 0100 04755", "creat 1 04755", "chmod 1 04755", "mkdir 1 02755", "mknod 1 020666 0x103", "modify_ldt 9 0 0", "iopl 9"} {
			list = append(list, attack{call, unix.EPERM})
		}
	}
	return list
}

// TestKernelRefuses makes each call under the filter and, as root, without it:
// the answers must differ, so that it is the filter that refuses.
func TestKernelRefuses(t *testing.T) {
	list := attacks()
	var calls []string
	for _, a := range list {
		calls = append(calls, a.call)
	}
	filtered, plain := try(t, Default, calls...), try(t, "none", calls...)
	for i, a := range list {
		if filtered[i] != a.want {
			t.Errorf("%s = %v; want %v", a.call, filtered[i], a.want)
		}
		if plain[i] == unix.EPERM && os.Geteuid() == 0 && !hostRefuses(a.call) {
			t.Errorf("%s without a filter = %v; want another answer", a.call, plain[i])
		}
	}
}

// hostRefuses says of which calls the kernel itself may say EPERM to root here.
func hostRefuses(call string) bool {
	return strings.HasPrefix(call, "prctl 35") // wants CAP_SYS_RESOURCE
}

func TestKernelAllows(t *testing.T) {
	calls := []string{
		"getpid", "socket 1 1 0", "socket 2 1 6", "socket 10 2 0", "socket 16 3 0", "personality 0xffffffff", "prctl 3 0 0 0 0",
		"memfd_create 0", "fchmod 99 0755", "openat 99 1 0100 0644", "mkdirat 99 1 0755", "mknodat 99 1 010644 0", "ioctl 99 0x5401 1",
	}
	for i, got := range try(t, Default, calls...) {
		if got == unix.EPERM || got == unix.ENOSYS {
			t.Errorf("%s = %v; want the kernel's own answer", calls[i], got)
		}
	}
	if got := try(t, Default+"-nomemfd", "memfd_create 0"); got[0] != unix.EPERM {
		t.Errorf("memfd_create where it is refused = %v; want EPERM", got[0])
	}
	if got := try(t, Strict, "msgget 0 0"); got[0] != unix.EPERM {
		t.Errorf("msgget under strict = %v; want EPERM", got[0])
	}
}

// image32 is a program of amd64 that makes one call, i386's getpid by int 0x80,
// and exits with 0.
func image32() []byte {
	code := []byte{
		0xb8, 20, 0, 0, 0, 0xcd, 0x80, // mov eax, 20; int 0x80
		0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05, // mov eax, 60; xor edi, edi; syscall
	}
	const base, header = 0x400000, 64 + 56
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 62)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+header)
	b = le.AppendUint64(b, 64)
	b = append(b, make([]byte, 8+4)...)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1)
	b = le.AppendUint32(b, 5)
	for _, v := range []uint64{0, base, base, header + 32, header + 32, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(append(b, code...), make([]byte, 32-len(code))...)
}

func TestKernelKillsForeignArchitecture(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		testkit.LeaveOut(t, fmt.Sprintf("the program is for amd64; this is %s", runtime.GOARCH))
	}
	path := filepath.Join(t.TempDir(), "int80")
	if err := os.WriteFile(path, image32(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.CommandContext(t.Context(), path).Run(); err != nil {
		if endedBy(err) == unix.SIGSEGV {
			testkit.LeaveOut(t, "int 0x80 alone is SIGSEGV: the kernel has no IA32 emulation")
		}
		t.Fatalf("int 0x80 without a filter: %v; want exit 0", err)
	}
	if err := under(t, Default, path).Run(); endedBy(err) != unix.SIGSYS {
		t.Errorf("int 0x80 under the filter = %v; want SIGSYS", err)
	}
}

// endedBy returns the signal that ended a command, or -1.
func endedBy(err error) syscall.Signal {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return -1
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok {
		return -1
	}
	return status.Signal()
}

func under(t *testing.T, base string, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", argv...)
	cmd.Env = append(os.Environ(), envRun+"=1", envBase+"="+base)
	cmd.Dir = t.TempDir()
	return cmd
}

// TestProgramsWork runs what agents run. A program may be absent only if the
// host does not have it.
func TestProgramsWork(t *testing.T) {
	hello := filepath.Join(t.TempDir(), "hello.go")
	source := "package main\n\nfunc main() { c := make(chan string); go func() { c <- \"ok\" }(); println(<-c) }\n"
	if err := os.WriteFile(hello, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	threads := "import threading, subprocess, socket, tempfile, os\n" +
		"l=[]\nt=[threading.Thread(target=lambda: l.append(1)) for _ in range(8)]\n[x.start() for x in t]\n[x.join() for x in t]\nassert len(l)==8\n" +
		"assert subprocess.run(['true']).returncode==0\nsocket.socket(socket.AF_INET6).close()\ntempfile.TemporaryFile().write(b'x')\n" +
		"import multiprocessing as m\nm.get_context('fork').Lock()\nsocket.getaddrinfo('127.0.0.1', 80)\nprint('ok')"
	for _, c := range []struct {
		name string
		argv []string
	}{
		{"bash", []string{"bash", "-c", "x=$(echo a | tr a b); for i in 1 2 3; do (true) & done; wait; cat <(echo $x); mkfifo p; trap : EXIT; echo ok"}},
		{"python3", []string{"python3", "-c", threads}},
		{"git", []string{"bash", "-ec", "git init -q . && git config user.email a@b && git config user.name a && echo x > f && git add f && git commit -qm x && git log --oneline && git gc -q && git status && echo ok"}},
		{"go", []string{"go", "run", hello}},
		{"gcc", []string{"bash", "-ec", "echo 'int main(){return 0;}' > a.c && gcc -o a a.c && ./a && echo ok"}},
		{"tar", []string{"bash", "-ec", "mkdir d && echo x > d/f && tar czf d.tgz d && tar xzf d.tgz && cp -a d e && echo ok"}},
	} {
		for _, base := range []string{Default, Strict} {
			t.Run(c.name+"/"+base, func(t *testing.T) {
				t.Parallel()
				testkit.NeedProgram(t, c.name)
				out, err := under(t, base, c.argv...).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "ok\n") {
					t.Errorf("%s under %s = %v, %s; want ok", c.name, base, err, out)
				}
			})
		}
	}
}
