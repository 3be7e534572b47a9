package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
)

// Mount attributes that everything in a view has, and what is added to it.
const (
	attrView   = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrShut   = attrView | unix.MOUNT_ATTR_RDONLY
	attrSealed = attrShut | unix.MOUNT_ATTR_NOEXEC
	attrDevice = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC
)

// assembler makes trees the way this kernel can: since Linux 6.15 mounts are put
// onto a detached tree; before that the tree is attached below dir for as long as
// it lives.
type assembler struct {
	dir      string // private directory of the stage's
	detached bool
	owners   *owners
	events   *mountEvents // nil: nobody counts
	next     atomic.Uint64
}

// tree is a mount tree that is seen by nobody.
type tree struct {
	root *os.File
	at   string // where it is attached, or ""
}

// plant makes a tree of the detached mount root, which becomes the tree's.
func (a *assembler) plant(root *os.File) (*tree, error) {
	t := &tree{root: root}
	if a.detached {
		return t, nil
	}
	at := filepath.Join(a.dir, "tree-"+strconv.FormatUint(a.next.Add(1), 10))
	if err := os.Mkdir(at, 0o700); err != nil {
		linux.CloseAll(root)
		return nil, err
	}
	t.at = at
	d, err := linux.OpenAt(nil, at, unix.O_PATH|unix.O_DIRECTORY, linux.Strict)
	if err == nil {
		err = linux.MoveMount(root, d)
		linux.CloseAll(d)
	}
	if err == nil { // what is put below a shared mount is shared with all in it, and a shared root cannot be pivoted to
		err = linux.SetMount(root, linux.Tree, linux.Attr{Private: true})
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// clone returns a detached copy of the whole tree.
func (t *tree) clone() (*os.File, error) { return linux.CloneMount(t.root, linux.Tree) }

// close takes the tree down. A file system that others still use lives on there.
func (t *tree) close() error {
	err := t.root.Close()
	if t.at == "" {
		return err
	}
	if e := linux.Detach(t.at); e != nil && !errors.Is(e, unix.EINVAL) { // EINVAL: it was never attached
		err = errors.Join(err, e)
	}
	return errors.Join(err, os.Remove(t.at))
}

// bindOf returns a detached private mount of the file that src is open on.
func bindOf(src *os.File, attr uint64, userns *os.File) (*os.File, error) {
	if err := mountable(src, attr); err != nil {
		return nil, err
	}
	depth := linux.One
	m, err := linux.CloneMount(src, depth)
	if errors.Is(err, unix.EINVAL) {
		// In a user namespace what is mounted below cannot be left out, since that would
		// show what it covers: mount_namespaces(7). It comes along under the same rules.
		depth = linux.Tree
		m, err = linux.CloneMount(src, depth)
	}
	if err != nil {
		return nil, err
	}
	if err := linux.SetMount(m, depth, linux.Attr{Set: attr, Private: true, UserNS: userns}); err != nil {
		linux.CloseAll(m)
		if userns != nil {
			err = fmt.Errorf("idmap: %w", err)
		}
		return nil, err
	}
	return m, nil
}
