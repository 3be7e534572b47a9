package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Option is one fsconfig(2) string; an empty Value sets a flag.
type Option struct{ Key, Value string }

// NewMount makes a detached mount of a new file system of the given type:
// fsopen(2), fsconfig(2), fsmount(2), Linux 5.2. attr holds MOUNT_ATTR bits. The
// caller closes the result; unless it was moved somewhere the mount goes with it.
func NewMount(fstype string, attr int, options ...Option) (*os.File, error) {
	var fs int
	if err := retry("fsopen "+fstype, func() (err error) { fs, err = unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC); return }); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fs) }()
	for _, o := range options {
		err := retry("fsconfig "+o.Key, func() error {
			if o.Value == "" {
				return unix.FsconfigSetFlag(fs, o.Key)
			}
			return unix.FsconfigSetString(fs, o.Key, o.Value)
		})
		if err != nil {
			return nil, err
		}
	}
	if err := retry("fsconfig create "+fstype, func() error { return unix.FsconfigCreate(fs) }); err != nil {
		return nil, err
	}
	var m int
	if err := retry("fsmount "+fstype, func() (err error) { m, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr); return }); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(m), fstype), nil
}

// Depth says how much of a mount tree a call takes.
type Depth int

// Depths.
const (
	One  Depth = iota // this mount alone
	Tree              // and everything mounted below it
)

// CloneMount returns a detached bind mount of the file that at is open on:
// open_tree(2) with OPEN_TREE_CLONE, Linux 5.2. Cloning from a detached tree
// needs Linux 6.15 where at is not its root.
func CloneMount(at *os.File, d Depth) (*os.File, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if d == Tree {
		flags |= unix.AT_RECURSIVE
	}
	var m int
	err := retry("open_tree "+at.Name(), func() (err error) { m, err = unix.OpenTree(fd(at), "", flags); return })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(m), at.Name()), nil
}

// MoveMount attaches the detached mount m on the file that at is open on:
// move_mount(2), Linux 5.2; at inside a detached tree needs Linux 6.15.
func MoveMount(m, at *os.File) error {
	return retry("move_mount "+m.Name(), func() error {
		return unix.MoveMount(fd(m), "", fd(at), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
}

// Attr is what SetMount changes of a mount.
type Attr struct {
	Set     uint64 // MOUNT_ATTR bits
	Private bool   // make it private: nothing mounted on it is seen elsewhere
	UserNS  *os.File
}

// SetMount changes the attributes of the mount m: mount_setattr(2), Linux 5.12.
// With UserNS the mount is idmapped by that user namespace.
func SetMount(m *os.File, d Depth, a Attr) error {
	attr := unix.MountAttr{Attr_set: a.Set}
	if a.Private {
		attr.Propagation = unix.MS_PRIVATE
	}
	if a.UserNS != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(fd(a.UserNS))
	}
	flags := uint(unix.AT_EMPTY_PATH)
	if d == Tree {
		flags |= unix.AT_RECURSIVE
	}
	return retry("mount_setattr "+m.Name(), func() error { return unix.MountSetattr(fd(m), "", flags, &attr) })
}

// Detach unmounts path and what is below it at once: umount2(2) with MNT_DETACH
// and UMOUNT_NOFOLLOW.
func Detach(path string) error {
	return retry("umount2 "+path, func() error { return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}
