package linux

import (
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// FirstThread reports whether the calling thread is the process's first, which
// /proc/PID shows.
func FirstThread() bool { return unix.Gettid() == unix.Getpid() }

// LeaveMounts moves the calling thread alone into a new mount namespace that has
// nothing but an empty read-only root and keep, a directory right below it, with all
// that is mounted there. It returns the namespace's inode. The caller has locked the
// thread and never unlocks it, also where this fails: unshare(2) with CLONE_FS and
// CLONE_NEWNS, pivot_root(2). Nothing of it is seen in other namespaces.
func LeaveMounts(keep string, mode os.FileMode) (uint64, error) {
	k, err := OpenAt(nil, keep, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, Strict)
	if err != nil {
		return 0, err
	}
	defer CloseAll(k)
	kept, err := CloneMount(k, Tree)
	if err != nil {
		return 0, err
	}
	defer CloseAll(kept)
	if err := SetMount(kept, Tree, Attr{Private: true}); err != nil {
		return 0, err
	}
	const sealed = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	root, err := NewMount("tmpfs", sealed, Option{Key: "source", Value: "nursery"}, Option{Key: "mode", Value: "555"}, Option{Key: "nr_inodes", Value: "8"})
	if err != nil {
		return 0, err
	}
	defer CloseAll(root)
	if err := MkdirAt(root, path.Base(keep), uint32(mode.Perm())); err != nil {
		return 0, err
	}
	if err := retry("unshare", func() error { return unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS) }); err != nil {
		return 0, err
	}
	// From here on this thread sees a copy. Not before it is private is anything taken down.
	if err := retry("mount MS_PRIVATE", func() error { return unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }); err != nil {
		return 0, err
	}
	st, err := StatPath("/proc/thread-self/ns/mnt")
	if err != nil {
		return 0, err
	}
	return st.Ino, settle(root, kept, path.Base(keep), sealed|unix.MOUNT_ATTR_RDONLY)
}

// LeaveNetwork moves the calling thread alone into a new network namespace and returns
// its inode. The caller has locked the thread and never unlocks it: unshare(2).
func LeaveNetwork() (uint64, error) {
	if err := retry("unshare", func() error { return unix.Unshare(unix.CLONE_NEWNET) }); err != nil {
		return 0, err
	}
	st, err := StatPath("/proc/thread-self/ns/net")
	return st.Ino, err
}

// settle makes root the calling thread's root, with kept at name, and takes the old one
// down.
func settle(root, kept *os.File, name string, attr uint64) error {
	top, err := OpenAt(nil, "/", unix.O_PATH|unix.O_DIRECTORY, Plain)
	if err != nil {
		return err
	}
	defer CloseAll(top)
	if err := MoveMount(root, top); err != nil {
		return err
	}
	at, err := OpenAt(root, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, Strict)
	if err != nil {
		return err
	}
	defer CloseAll(at)
	if err := MoveMount(kept, at); err != nil {
		return err
	}
	for _, step := range []struct {
		call string
		f    func() error
	}{
		{"fchdir", func() error { return unix.Fchdir(fd(root)) }},
		{"pivot_root", func() error { return unix.PivotRoot(".", ".") }},
		{"umount2", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
		{"chdir", func() error { return unix.Chdir("/") }},
	} {
		if err := retry(step.call, step.f); err != nil {
			return err
		}
	}
	return SetMount(root, One, Attr{Set: attr})
}
