package stage

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/linux"
)

// masks are what covers denied paths, made once: an empty directory, an empty
// file, both of a read-only file system; and the canary of Landlock, which lies
// in a file system of its own that no rule ever covers.
type masks struct {
	tree      *tree    // their file system, attached where the kernel clones no detached one
	dir, file *os.File // O_PATH
	dev       uint64   // of their file system
	canary    *os.File // directory
}

func newMasks(a *assembler) (*masks, error) {
	m := &masks{}
	err := m.make(a)
	if err != nil {
		return nil, failed("make the masks", errors.Join(err, m.close()))
	}
	return m, nil
}

func (m *masks) make(a *assembler) error {
	err := m.fill(a)
	if err != nil {
		return err
	}
	if m.canary, err = linux.NewMount("tmpfs", attrView|unix.MOUNT_ATTR_NOEXEC, linux.Option{Key: "source", Value: "canary"},
		linux.Option{Key: "mode", Value: "755"}, linux.Option{Key: "size", Value: "4k"}, linux.Option{Key: "nr_inodes", Value: "16"}); err != nil {
		return err
	}
	if err := linux.MkfileAt(m.canary, image.CanaryFile, 0o444); err != nil {
		return err
	}
	return linux.SetMount(m.canary, linux.One, linux.Attr{Set: attrSealed, Private: true})
}

// fill makes the two masks, then their file system is read-only.
func (m *masks) fill(a *assembler) error {
	rw, err := linux.NewMount("tmpfs", attrView|unix.MOUNT_ATTR_NOEXEC, linux.Option{Key: "source", Value: "mask"},
		linux.Option{Key: "mode", Value: "755"}, linux.Option{Key: "size", Value: "4k"}, linux.Option{Key: "nr_inodes", Value: "16"})
	if err != nil {
		return err
	}
	if m.tree, err = a.plant(rw); err != nil {
		return err
	}
	if err := linux.MkdirAt(rw, "dir", 0o555); err != nil {
		return err
	}
	if err := linux.MkfileAt(rw, "file", 0o444); err != nil {
		return err
	}
	if err := linux.SetMount(rw, linux.One, linux.Attr{Set: attrSealed, Private: true}); err != nil {
		return err
	}
	if m.dir, err = linux.OpenAt(rw, "dir", unix.O_PATH|unix.O_DIRECTORY, linux.OneFS); err != nil {
		return err
	}
	if m.file, err = linux.OpenAt(rw, "file", unix.O_PATH, linux.OneFS); err != nil {
		return err
	}
	st, err := linux.Stat(m.file)
	m.dev = st.Dev
	return err
}

func (m *masks) close() error {
	linux.CloseAll(m.dir, m.file, m.canary)
	if m.tree == nil {
		return nil
	}
	return m.tree.close()
}

// cover mounts the fitting mask on the file that at is open on.
func (m *masks) cover(at *os.File, mode uint32) error {
	src := m.file
	if mode&unix.S_IFMT == unix.S_IFDIR {
		src = m.dir
	}
	c, err := linux.CloneMount(src, linux.One)
	if err != nil {
		return err
	}
	defer linux.CloseAll(c)
	err = linux.MoveMount(c, at)
	if errors.Is(err, unix.EINVAL) && mode&unix.S_IFMT == unix.S_IFLNK {
		return errors.Join(errors.New("this kernel mounts nothing on a symlink"), err)
	}
	return err
}
