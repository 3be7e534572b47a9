package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// NeedRoot leaves the test out unless it runs with uid 0 and CAP_SYS_ADMIN.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if uid := os.Getuid(); uid != 0 {
		LeaveOut(tb, fmt.Sprintf("needs root: getuid is %d", uid))
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		tb.Fatalf("capget: %v", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		LeaveOut(tb, fmt.Sprintf("needs CAP_SYS_ADMIN: effective set is %#x", data[0].Effective))
	}
}

// NeedUserNS leaves the test out where the host refuses a user namespace, proved
// by starting `true` in one.
func NeedUserNS(tb testing.TB) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		LeaveOut(tb, "needs user namespaces: clone(CLONE_NEWUSER): "+err.Error())
	}
}

// NeedLandlock leaves the test out where the kernel's Landlock ABI is below abi.
// landlock_create_ruleset(2): Linux 5.13.
func NeedLandlock(tb testing.TB, abi int) {
	tb.Helper()
	got, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		LeaveOut(tb, fmt.Sprintf("needs Landlock ABI %d: landlock_create_ruleset: %v", abi, errno))
	}
	if int(got) < abi {
		LeaveOut(tb, fmt.Sprintf("needs Landlock ABI %d: the kernel has %d", abi, got))
	}
}

// NeedCgroup leaves the test out where no cgroup can be made: in a cgroup2 mount,
// below the own cgroup or at the root of the mount. Proved by making one.
func NeedCgroup(tb testing.TB) {
	tb.Helper()
	own, tried := ownCgroup()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", own} {
		if dir == "" {
			continue
		}
		err := probeCgroup(tb, dir)
		if err == nil {
			return
		}
		tried = errors.Join(tried, err)
	}
	LeaveOut(tb, "needs a cgroup of its own: "+tried.Error())
}

// probeCgroup makes a cgroup of v2 in dir and removes it. Without v1 the kernel gives it
// its files; in the tmpfs of a hybrid host it is only a directory.
func probeCgroup(tb testing.TB, dir string) error {
	tb.Helper()
	probe, err := os.MkdirTemp(dir, "pinfold-test-probe-") //nolint:usetesting // a cgroup, not a directory of files
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(probe, "cgroup.controllers"))
	if err := os.Remove(probe); err != nil {
		tb.Fatal(err)
	}
	return err
}

// NeedProgram leaves the test out where a program is not installed, and returns
// its path.
func NeedProgram(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		LeaveOut(tb, fmt.Sprintf("needs %s, which is not installed: %v", name, err))
	}
	return path
}

// NeedDetached leaves the test out where DetachedMounts fails.
func NeedDetached(tb testing.TB) {
	tb.Helper()
	if err := DetachedMounts(); err != nil {
		LeaveOut(tb, "needs mounts on detached trees, without which no pen is made ready: "+err.Error())
	}
}

// DetachedMounts puts a mount onto a tree that is attached nowhere, and says what keeps it
// from that: before Linux 6.15 move_mount(2) answers EINVAL.
func DetachedMounts() error {
	tree, err := memory()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }()
	second, err := memory()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(second) }()
	if err := unix.Mkdirat(tree, "d", 0o700); err != nil {
		return os.NewSyscallError("mkdirat", err)
	}
	at, err := unix.Openat(tree, "d", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer func() { _ = unix.Close(at) }()
	return os.NewSyscallError("move_mount", unix.MoveMount(second, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// memory makes a tmpfs that is attached nowhere.
func memory() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	return fd, os.NewSyscallError("fsmount", err)
}
