package ruleset

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// needLandlock skips only where the kernel itself says that it has none.
func needLandlock(t *testing.T) int {
	t.Helper()
	abi, err := ABI()
	if errors.Is(err, ErrUnsupported) {
		testkit.LeaveOut(t, fmt.Sprintf("the host has no Landlock: %v", err))
	}
	if err != nil {
		t.Fatalf("ABI() = %v; want a number", err)
	}
	return abi
}

func TestHandledIsWhatTheABIHas(t *testing.T) {
	configs := []landlock.Config{
		{}, landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7, landlock.V8, landlock.V9, landlock.V10, landlock.V11,
	}
	if len(configs) != maxABI+1 {
		t.Fatalf("go-landlock knows %d ABIs here; want %d", len(configs)-1, maxABI)
	}
	for abi, c := range configs {
		if got, want := Handled(abi), uint64(c.HandledAccessFS); got != want {
			t.Errorf("Handled(%d) = %#x; want %#x", abi, got, want)
		}
		if got, want := Scoped(abi), uint64(c.Scoped); got != want {
			t.Errorf("Scoped(%d) = %#x; want %#x", abi, got, want)
		}
	}
}

func TestAccessBits(t *testing.T) {
	const w1 = ll.AccessFSWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg |
		ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym
	for _, c := range []struct {
		access string
		dir    bool
		abi    int
		want   uint64
	}{
		{"", true, 7, 0},
		{"r", true, 1, ll.AccessFSReadFile | ll.AccessFSReadDir},
		{"r", false, 1, ll.AccessFSReadFile},
		{"x", true, 1, ll.AccessFSExecute},
		{"x", false, 11, ll.AccessFSExecute},
		{"w", true, 1, w1},
		{"w", true, 2, w1 | ll.AccessFSRefer},
		{"w", true, 3, w1 | ll.AccessFSRefer | ll.AccessFSTruncate},
		{"w", true, 5, w1 | ll.AccessFSRefer | ll.AccessFSTruncate | ll.AccessFSIoctlDev},
		{"w", true, 9, w1 | ll.AccessFSRefer | ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix},
		{"w", false, 1, ll.AccessFSWriteFile},
		{"w", false, 7, ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev},
		{"rwx", false, 3, ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSExecute},
		{"rwx", true, 0, 0},
	} {
		if got := AccessBits(c.access, c.dir, c.abi); got != c.want {
			t.Errorf("AccessBits(%q, %v, %d) = %#x; want %#x", c.access, c.dir, c.abi, got, c.want)
		}
	}
	for abi := range maxABI + 1 {
		for _, dir := range []bool{true, false} {
			bits := AccessBits("rwx", dir, abi)
			if bits&^Handled(abi) != 0 {
				t.Errorf("AccessBits(rwx, %v, %d) = %#x; want nothing beyond %#x", dir, abi, bits, Handled(abi))
			}
			if bits&(ll.AccessFSMakeChar|ll.AccessFSMakeBlock) != 0 {
				t.Errorf("AccessBits(rwx, %v, %d) = %#x; want no device nodes", dir, abi, bits)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	needLandlock(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	fd := int(dir.Fd())
	for _, c := range []struct {
		rules []Rule
		text  string
	}{
		{nil, "it has no rules"},
		{[]Rule{}, "it has no rules"},
		{[]Rule{{FD: fd, Access: ""}}, "rule 0: it allows nothing"},
		{[]Rule{{FD: fd, Access: "r"}, {FD: fd, Access: "rq"}}, `rule 1: access "rq"`},
		{[]Rule{{FD: fd, Access: "rqw"}}, `rule 0: access "rqw"`},
		{[]Rule{{FD: -1, Access: "r"}}, "rule 0: descriptor -1 is not open"},
		{[]Rule{{FD: 9999, Access: "r"}}, "cannot make a landlock ruleset"},
	} {
		got, _, _, err := New(c.rules)
		if err == nil || !strings.Contains(err.Error(), c.text) || got != -1 {
			t.Errorf("New(%v) = %d, %v; want -1 and an error with %q", c.rules, got, err, c.text)
		}
	}
}

func TestNewIsCloseOnExec(t *testing.T) {
	want := needLandlock(t)
	fd, abi, handled, err := New([]Rule{rule(t, t.TempDir(), "rx")})
	if err != nil {
		t.Fatalf("New() = %v; want a descriptor", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if abi != want || handled != Handled(want) {
		t.Errorf("New() = abi %d, handled %#x; want %d, %#x", abi, handled, want, Handled(want))
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("F_GETFD = %#x, %v; want FD_CLOEXEC", flags, err)
	}
}

func rule(t *testing.T, path, access string) Rule {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return Rule{FD: fd, File: !info.IsDir(), Access: access}
}

// The acts below are done by this test's binary, started again under a ruleset
// that it finds at descriptor 3.
const envAct = "PINFOLD_RULESET_ACT" // "ACT ARGUMENT"

func TestMain(m *testing.M) {
	if act := os.Getenv(envAct); act != "" {
		os.Exit(actChild(act))
	}
	os.Exit(m.Run())
}

func actChild(act string) int {
	runtime.LockOSThread()
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = ll.LandlockRestrictSelf(3, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	kind, arg, _ := strings.Cut(act, " ")
	var errno syscall.Errno
	if err := do(kind, arg); err != nil && !errors.As(err, &errno) {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	os.Stdout.WriteString(strconv.Itoa(int(errno)))
	return 0
}

func do(kind, arg string) error {
	switch kind {
	case "read":
		return openClose(arg, unix.O_RDONLY)
	case "write":
		return openClose(arg, unix.O_WRONLY)
	case "create":
		return openClose(arg, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	case "truncate":
		return unix.Truncate(arg, 0)
	case "mkdir":
		return unix.Mkdir(arg, 0o755)
	case "unlink":
		return unix.Unlink(arg)
	case "mknod":
		return unix.Mknod(arg, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	case "rename":
		from, to, _ := strings.Cut(arg, " ")
		return unix.Rename(from, to)
	case "exec":
		return unix.Exec(arg, []string{arg}, []string{})
	case "abstract":
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.Connect(fd, &unix.SockaddrUnix{Name: arg})
	case "signal":
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		return unix.Kill(pid, 0)
	case "ioctl":
		fd, err := unix.Open(arg, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}
	return fmt.Errorf("no act %q", kind)
}

func openClose(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func act(t *testing.T, rules []Rule, what string) syscall.Errno {
	t.Helper()
	fd, _, _, err := New(rules)
	if err != nil {
		t.Fatalf("New(%v) = %v; want a descriptor", rules, err)
	}
	f := os.NewFile(uintptr(fd), "ruleset")
	defer func() { _ = f.Close() }()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{envAct + "=" + what}
	cmd.ExtraFiles = []*os.File{f}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v, %s; want an errno", what, err, stderr.String())
	}
	if len(out) == 0 {
		return 0 // executed
	}
	n, err := strconv.Atoi(string(out))
	if err != nil {
		t.Fatalf("%s printed %q; want a number", what, out)
	}
	return syscall.Errno(n)
}

// TestEnforced does each act under the rules: the kernel must answer as the
// letters say.
func TestEnforced(t *testing.T) {
	abi := needLandlock(t)
	top := t.TempDir()
	ro, rw, other := filepath.Join(top, "ro"), filepath.Join(top, "rw"), filepath.Join(top, "other")
	for _, d := range []string{ro, rw, other} {
		if err := os.MkdirAll(filepath.Join(d, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"f", "g"} {
			if err := os.WriteFile(filepath.Join(d, f), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	single := filepath.Join(other, "g")
	rules := []Rule{rule(t, ro, "r"), rule(t, rw, "rw"), rule(t, single, "rw"), rule(t, "/usr", "rx"), rule(t, "/dev/null", "rw"), rule(t, "/dev/zero", "r")}
	abstract, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", fmt.Sprintf("@pinfold-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = abstract.Close() }()
	truncated, ioctl, scoped := syscall.Errno(0), unix.ENOTTY, syscall.Errno(0)
	if abi >= 3 {
		truncated = unix.EACCES
	}
	if abi >= 6 {
		scoped = unix.EPERM
	}
	for _, c := range []struct {
		act  string
		want syscall.Errno
	}{
		{"read " + ro + "/f", 0},
		{"read " + ro, 0},
		{"write " + ro + "/f", unix.EACCES},
		{"create " + ro + "/n", unix.EACCES},
		{"truncate " + ro + "/f", truncated},
		{"mkdir " + ro + "/d", unix.EACCES},
		{"unlink " + ro + "/f", unix.EACCES},
		{"read " + other + "/f", unix.EACCES},
		{"read " + other, unix.EACCES},
		{"read " + single, 0},
		{"write " + single, 0},
		{"unlink " + single, unix.EACCES},
		{"write " + rw + "/f", 0},
		{"create " + rw + "/n", 0},
		{"mkdir " + rw + "/d", 0},
		{"truncate " + rw + "/f", 0},
		{"rename " + rw + "/f " + rw + "/sub/f", map[bool]syscall.Errno{true: 0, false: unix.EXDEV}[abi >= 2]},
		{"rename " + rw + "/g " + ro + "/moved", map[bool]syscall.Errno{true: unix.EACCES, false: unix.EXDEV}[abi >= 2]},
		{"mknod " + rw + "/dev", unix.EACCES},
		{"exec " + rw + "/g", unix.EACCES},
		{"exec /usr/bin/true", 0},
		{"ioctl /dev/null", ioctl},
		{"abstract " + abstract.Addr().String(), scoped},
		{"signal " + strconv.Itoa(os.Getpid()), scoped},
	} {
		if got := act(t, rules, c.act); got != c.want {
			t.Errorf("%s = %v; want %v", c.act, got, c.want)
		}
	}
}
