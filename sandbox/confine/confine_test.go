package confine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/filter"
	"pinfold/test/testkit"
)

const (
	modeVar = "PINFOLD_TEST_CONFINE" // "": the test; else what the child does before it tries
	dirVar  = "PINFOLD_TEST_CONFINE_DIR"
)

// TestMain is also the process that confines itself.
func TestMain(m *testing.M) {
	mode := os.Getenv(modeVar)
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := child(mode, os.Getenv(dirVar)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// attempt is something that a confined process tries. want is the only answer that is
// right for it; 0: it works, as before.
type attempt struct {
	name string
	want syscall.Errno
	try  func(dir string) error
}

const atCWD = ^uintptr(99) // AT_FDCWD

func str(s string) uintptr {
	b := append([]byte(s), 0)
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// raw makes a system call on this thread alone.
func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// attempts by which a process would get at the host, and what it must be able to do.
func attempts() []attempt {
	parent := uintptr(os.Getppid())
	return append(files(), []attempt{
		{"start a program", unix.EPERM, func(string) error {
			p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
			if err == nil {
				_, err = p.Wait()
			}
			return err
		}},
		{"execve", unix.EPERM, func(string) error { return notFound(raw(unix.SYS_EXECVE, str("/none"), 0, 0)) }},
		{"make a socket", unix.EPERM, func(string) error { return made(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)) }},
		{"make a network socket", unix.EPERM, func(string) error { return made(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)) }},
		{"make a socket pair", unix.EPERM, func(string) error {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil {
				err = errors.Join(unix.Close(p[0]), unix.Close(p[1]))
			}
			return err
		}},
		{"mount", unix.EPERM, func(dir string) error {
			err := unix.Mount("none", dir+"/mnt", "tmpfs", 0, "")
			if err == nil {
				err = unix.Unmount(dir+"/mnt", 0)
			}
			return err
		}},
		{"make a namespace", unix.EPERM, func(string) error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUTS) }},
		{"become another user", unix.EPERM, func(string) error { return raw(unix.SYS_SETRESUID, 4242, ^uintptr(0), ^uintptr(0)) }},
		{"trace the parent", unix.EPERM, func(string) error { return raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, parent, 0, 0) }}, // until the thread ends
		{"take a descriptor of the parent", unix.EPERM, func(string) error {
			fd, err := unix.PidfdOpen(int(parent), 0)
			if err != nil {
				return fmt.Errorf("pidfd_open: %w", err)
			}
			defer func() { _ = unix.Close(fd) }()
			return made(unix.PidfdGetfd(fd, 2, 0))
		}},
		{"read the memory of the parent", unix.EACCES, func(string) error { return open(fmt.Sprintf("/proc/%d/mem", parent), unix.O_RDONLY) }},
		{"read the environment of the parent", unix.EACCES, func(string) error { return open(fmt.Sprintf("/proc/%d/environ", parent), unix.O_RDONLY) }},
		{"limit the parent", unix.EPERM, func(string) error {
			var l unix.Rlimit
			return raw(unix.SYS_PRLIMIT64, parent, unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&l)))
		}},
		{"be dumpable", unix.EPERM, func(string) error { return raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1) }},
		{"join a keyring", unix.EPERM, func(string) error { return raw(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(0), 1) }},
		{"signal the parent", 0, func(string) error {
			fd, err := unix.PidfdOpen(int(parent), 0)
			if err == nil {
				err = errors.Join(unix.PidfdSendSignal(fd, 0, nil, 0), unix.Close(fd))
			}
			return err
		}},
	}...)
}

// files are the attempts at the file system.
func files() []attempt {
	return []attempt{
		{"read anywhere", 0, func(string) error { return open("/etc/passwd", unix.O_RDONLY) }},
		{"read another user's file", 0, func(dir string) error { return open(dir+"/others", unix.O_RDONLY) }},
		{"make a file in its tree", 0, func(dir string) error { return open(dir+"/tree/new", unix.O_CREAT|unix.O_RDWR|unix.O_TRUNC) }},
		{"make a directory in its tree", 0, func(dir string) error {
			return errors.Join(unix.Mkdir(dir+"/tree/d", 0o700), unix.Rmdir(dir+"/tree/d"))
		}},
		{"write its file", 0, func(dir string) error { return open(dir+"/file", unix.O_WRONLY|unix.O_TRUNC) }},
		{"write beside", unix.EACCES, func(dir string) error { return open(dir+"/beside", unix.O_WRONLY) }},
		{"truncate beside", unix.EPERM, func(dir string) error { return open(dir+"/beside", unix.O_TRUNC) }},
		{"make beside", unix.EACCES, func(dir string) error { return open(dir+"/made", unix.O_CREAT|unix.O_RDWR) }},
		{"remove beside", unix.EACCES, func(dir string) error { return unix.Unlink(dir + "/away") }},
		{"write where it removes", unix.EACCES, func(dir string) error { return open(dir+"/remove/x", unix.O_WRONLY) }},
		{"remove where it removes", 0, func(dir string) error { return unix.Unlink(dir + "/remove/x") }},
		{"remove a directory there", unix.EACCES, func(dir string) error { return unix.Rmdir(dir + "/remove/d") }},
		{"remove a directory where it removes those", 0, func(dir string) error { return unix.Rmdir(dir + "/dirs/d") }},
		{"execute", unix.EPERM, func(string) error { return executable() }},
		{"change a mode", unix.EPERM, func(dir string) error { return raw(unix.SYS_FCHMODAT, atCWD, str(dir+"/beside"), 0o4755) }},
		{"change an owner", unix.EPERM, func(dir string) error { return raw(unix.SYS_FCHOWNAT, atCWD, str(dir+"/beside"), 4242, 4242, 0) }},
		{"change times", unix.EPERM, func(dir string) error { return raw(unix.SYS_UTIMENSAT, atCWD, str(dir+"/beside"), 0, 0) }},
		{"set an attribute", unix.EPERM, func(dir string) error {
			return raw(unix.SYS_SETXATTR, str(dir+"/beside"), str("trusted.pinfold"), str("1"), 1, 0)
		}},
		{"link", unix.EPERM, func(dir string) error {
			return raw(unix.SYS_LINKAT, atCWD, str(dir+"/beside"), atCWD, str(dir+"/tree/link"), 0)
		}},
		{"make a device", unix.EPERM, func(dir string) error {
			return raw(unix.SYS_MKNODAT, atCWD, str(dir+"/tree/device"), unix.S_IFCHR|0o600, 0x103)
		}},
	}
}

// executable asks whether a program could be executed at all, without doing so.
func executable() error {
	err := raw(unix.SYS_EXECVEAT, atCWD, str("/bin/true"), 0, 0, 0x10000) // AT_EXECVE_CHECK, Linux 6.14
	if errors.Is(err, unix.EINVAL) {
		return nil // a kernel without the flag, which nothing refused before it
	}
	return err
}

func made(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func notFound(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// busy keeps threads in and out of system calls until stop is closed.
func busy(n int, stop chan struct{}) *sync.WaitGroup {
	var wg, up sync.WaitGroup
	up.Add(n)
	defer up.Wait()
	for range n {
		wg.Go(func() {
			runtime.LockOSThread()
			up.Done()
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil)
				}
			}
		})
	}
	return &wg
}

// child confines itself, if it is to, and tells what became of each attempt.
func child(mode, dir string) error {
	stop := make(chan struct{})
	wg := busy(16, stop)
	if mode != "off" {
		n := Needs{Caps: []int{unix.CAP_KILL, unix.CAP_DAC_READ_SEARCH}, Trees: []string{dir + "/tree"}, Remove: []string{dir + "/dirs"}, Unlink: []string{dir + "/remove"}, Files: []string{dir + "/file"}}
		if _, err := Self(n); err != nil {
			return err
		}
	}
	if mode == "start" {
		close(stop)
		wg.Wait()
		return nil
	}
	if err := threads(); err != nil {
		return err
	}
	for _, a := range attempts() {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread goes with what the attempt made of it
			done <- a.try(dir)
		}()
		errno := syscall.Errno(0)
		if err := <-done; err != nil && !errors.As(err, &errno) {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		fmt.Printf("%s\t%d\n", a.name, errno)
	}
	close(stop)
	wg.Wait()
	return nil
}

// threads tells the privileges of every thread.
func threads() error {
	list, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return err
	}
	for _, file := range list {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var got []string
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if strings.HasPrefix(name, "Cap") || name == "NoNewPrivs" || name == "Seccomp" {
				got = append(got, name+"="+strings.TrimSpace(value))
			}
		}
		fmt.Printf("thread\t%s\n", strings.Join(got, " "))
	}
	return nil
}

// ground is a directory with what the attempts are aimed at.
func ground(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t)
	testkit.NeedLandlock(t, 2)
	dir := t.TempDir()
	for _, d := range []string{"tree", "remove", "remove/d", "dirs", "dirs/d", "mnt"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"file", "beside", "away", "others", "remove/x"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "others"), 4242, 4242); err != nil {
		t.Fatal(err)
	}
	return dir
}

func runChild(t *testing.T, mode, dir string) []byte {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), modeVar+"="+mode, dirVar+"="+dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child %q = %v\n%s\n%s", mode, err, out, errs.String())
	}
	return out
}

// TestSelf has a process with many threads try what must fail, and what must go on
// working, on a thread that came after; then the same without, where nothing may fail.
func TestSelf(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		dir := ground(t)
		got := map[string]syscall.Errno{}
		threads := 0
		for lines := bufio.NewScanner(bytes.NewReader(runChild(t, mode, dir))); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), "\t")
			if name == "thread" {
				threads++
				const want = "CapInh=0000000000000000 CapPrm=0000000000000024 CapEff=0000000000000024 CapBnd=0000000000000000 CapAmb=0000000000000000 NoNewPrivs=1 Seccomp=2"
				if (value == want) != (mode == "on") {
					t.Errorf("%s: a thread has %s; want %s", mode, value, want)
				}
				continue
			}
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			got[name] = syscall.Errno(n)
		}
		if threads < 17 {
			t.Errorf("%s: %d threads were seen; want all 17", mode, threads)
		}
		for _, a := range attempts() {
			errno, ok := got[a.name]
			switch {
			case !ok:
				t.Errorf("%s: %s: no answer", mode, a.name)
			case mode == "on" && errno != a.want:
				t.Errorf("confined: %s = %v (%d); want %v", a.name, errno, errno, a.want)
			case mode == "off" && errno != 0:
				t.Errorf("not confined: %s = %v (%d); want it to work, or it proves nothing", a.name, errno, errno)
			}
		}
	}
}

// TestSelfManyTimes: no process is ended by the runtime because its threads answered
// differently, nor by its own filter.
func TestSelfManyTimes(t *testing.T) {
	dir := ground(t)
	for range 20 {
		runChild(t, "start", dir)
	}
}

// TestCalls: every name is a call of one of the machines, none stands twice, and none
// of those by which a process gets out of its confinement is among them.
func TestCalls(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range calls() {
		_, amd := filter.Number(filter.AMD64, c.name)
		_, arm := filter.Number(filter.ARM64, c.name)
		if !amd && !arm || seen[c.name] {
			t.Errorf("call %q: known %v, twice %v; want a known one, once", c.name, amd || arm, seen[c.name])
		}
		seen[c.name] = true
	}
	for _, name := range []string{
		"execve", "execveat", "fork", "vfork", "socket", "socketpair", "connect", "bind", "listen", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd",
		"kill", "tkill", "mount", "umount2", "move_mount", "open_tree", "fsopen", "mount_setattr", "pivot_root", "chroot", "unshare", "setns",
		"setuid", "setgid", "setresuid", "setresgid", "setgroups", "setfsuid", "capset", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat",
		"link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "setxattr", "lsetxattr", "fsetxattr", "open_by_handle_at", "name_to_handle_at",
		"bpf", "io_uring_setup", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module",
		"kexec_load", "reboot", "swapon", "seccomp", "landlock_restrict_self", "personality", "sethostname", "settimeofday", "clock_settime", "quotactl", "iopl", "ioperm",
	} {
		if seen[name] && !slices.ContainsFunc(calls(), func(c call) bool { return c.name == name && len(c.words) > 0 }) {
			t.Errorf("call %q is let through; want it refused", name)
		}
	}
}
