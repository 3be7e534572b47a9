package stage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// view is the template of a profile's root file system. It is built once and
// cloned for each pen; fresh tells when the host has changed under it.
type view struct {
	*tree
	sources []source
	events  *mountEvents
	seen    uint64 // of events, when the mounts of the sources were looked at
}

// source is what a Source of the host was when the view was built.
type source struct {
	path   string
	follow bool             // a symlink at the end was followed
	id     sandbox.Identity // zero: it was absent
	mount  linux.Mount
	mode   uint32
	copied bool // and its content must still be that of then
	state  fileState
}

// viewBuilder assembles a view: a tmpfs that holds directories, small files,
// symlinks and empty files to mount on, and mounts on those.
type viewBuilder struct {
	v   *view
	a   *assembler
	dev uint64 // of the tmpfs: only there may anything be made

	devices   *os.File // not yet mounted tmpfs of /dev, which has the nodes; nil: there is none
	deviceDev uint64
}

// buildView assembles the template of f: parents before children, in the order of
// its entries, then everything that PID 1 mounts on, then the root is read-only.
func buildView(a *assembler, f *sandbox.Profile) (*view, error) {
	size := 1 << 20
	for _, e := range f.View {
		size += len(e.Data) + 4096
		if e.Copy {
			size += maxCopy
		}
	}
	root, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, linux.Option{Key: "source", Value: "view"},
		linux.Option{Key: "mode", Value: "755"}, linux.Option{Key: "size", Value: strconv.Itoa(size)})
	if err != nil {
		return nil, failed("make the view", err)
	}
	t, err := a.plant(root)
	if err != nil {
		return nil, failed("place the view", err)
	}
	b := &viewBuilder{v: &view{tree: t, events: a.events}, a: a}
	if b.v.seen, err = a.events.now(); err == nil { // before anything is looked at
		err = b.build(f)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return b.v, nil
}

func (b *viewBuilder) build(f *sandbox.Profile) error {
	st, err := linux.Stat(b.v.root)
	if err != nil {
		return failed("look at the view", err)
	}
	b.dev = st.Dev
	if err := b.deviceDir(f); err != nil {
		return failed("make /dev", err)
	}
	defer func() { linux.CloseAll(b.devices) }()
	for _, e := range f.View {
		if err := b.entry(e); err != nil {
			return failed("put "+string(e.Kind)+" "+e.Path+" into the view", err)
		}
	}
	for _, p := range mountPoints(f) {
		if err := b.mountPoint(p); err != nil {
			return failed("make the mount point "+p, err)
		}
	}
	if err := b.ptmx(); err != nil {
		return failed("make /dev/ptmx", err)
	}
	if err := b.mountDevices(); err != nil {
		return failed("mount /dev", err)
	}
	if err := linux.SetMount(b.v.root, linux.One, linux.Attr{Set: attrShut, Private: true}); err != nil {
		return failed("make the view read-only", err)
	}
	return nil
}

// ptmx is how programs and PID 1 reach the pen's own terminals: pts(4).
func (b *viewBuilder) ptmx() error {
	d, err := b.ours("/dev")
	if err != nil {
		return err
	}
	defer linux.CloseAll(d)
	if err := linux.SymlinkAt("pts/ptmx", d, "ptmx"); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// mountPoints are the directories on which PID 1 mounts, but for those that lie
// in one of its own memory file systems: it makes these itself.
func mountPoints(f *sandbox.Profile) []string {
	points := []string{"/proc", "/dev/pts"}
	for _, t := range f.Private {
		points = append(points, t.Path)
	}
	for _, a := range f.Attach {
		points = append(points, a.Path)
	}
	var out []string
	for _, p := range points {
		in := false
		for _, t := range f.Private {
			in = in || p != t.Path && sandbox.Below(p, t.Path)
		}
		for _, a := range f.Attach {
			in = in || p != a.Path && sandbox.Below(p, a.Path)
		}
		if !in {
			out = append(out, p)
		}
	}
	return out
}

// dir opens a directory of the view, made with its parents where they are ours to
// make.
func (b *viewBuilder) dir(p string) (*os.File, error) {
	if p == "/" {
		return linux.OpenAt(b.v.root, ".", unix.O_PATH|unix.O_DIRECTORY, linux.Beneath)
	}
	root, rel := b.v.root, strings.TrimPrefix(p, "/")
	if b.devices != nil && sandbox.Below(p, "/dev") {
		root, rel = b.devices, path.Join(".", strings.TrimPrefix(p, "/dev"))
	}
	d, err := linux.OpenAt(root, rel, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, linux.Beneath)
	if !errors.Is(err, unix.ENOENT) {
		return d, err
	}
	parent, err := b.ours(path.Dir(p))
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(parent)
	if err := linux.MkdirAt(parent, path.Base(p), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return linux.OpenAt(parent, path.Base(p), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, linux.Beneath)
}

// ours opens a directory in which something is to be made, and refuses one of the
// host's.
func (b *viewBuilder) ours(p string) (*os.File, error) {
	d, err := b.dir(p)
	if err != nil {
		return nil, err
	}
	st, err := linux.Stat(d)
	if err == nil && st.Dev != b.dev && (b.devices == nil || st.Dev != b.deviceDev) {
		err = fmt.Errorf("%s is a directory of the host, where nothing is made: %w", p, unix.EROFS)
	}
	if err != nil {
		linux.CloseAll(d)
		return nil, err
	}
	return d, nil
}

func (b *viewBuilder) mountPoint(p string) error {
	d, err := b.dir(p)
	linux.CloseAll(d)
	return err
}

func (b *viewBuilder) entry(e sandbox.Entry) error {
	switch e.Kind {
	case sandbox.EntryDir:
		return b.mountPoint(e.Path)
	case sandbox.EntrySymlink:
		return b.symlink(e.Source, e.Path)
	case sandbox.EntryFile:
		return b.file(e)
	case sandbox.EntryDevice:
		if b.devices != nil {
			return nil // it is there already
		}
		return b.bind(e)
	case sandbox.EntryBind:
		return b.bind(e)
	}
	return fmt.Errorf("unknown kind %q", e.Kind)
}

func (b *viewBuilder) symlink(to, at string) error {
	d, err := b.ours(path.Dir(at))
	if err != nil {
		return b.hasLink(to, at, err)
	}
	defer linux.CloseAll(d)
	err = linux.SymlinkAt(to, d, path.Base(at))
	if errors.Is(err, unix.EEXIST) {
		return b.hasLink(to, at, err)
	}
	return err
}

// hasLink forgives err when the very symlink is there already, as below a bound
// directory of the host.
func (b *viewBuilder) hasLink(to, at string, err error) error {
	d, e := b.dir(path.Dir(at))
	if e != nil {
		return err
	}
	defer linux.CloseAll(d)
	if got, e := linux.ReadLinkAt(d, path.Base(at)); e != nil || got != to {
		return err
	}
	return nil
}

func (b *viewBuilder) file(e sandbox.Entry) error {
	d, err := b.ours(path.Dir(e.Path))
	if errors.Is(err, unix.EROFS) {
		return b.fileOver(e, err)
	}
	if err != nil {
		return err
	}
	defer linux.CloseAll(d)
	return writeFile(d, path.Base(e.Path), e.Data)
}

// fileOver puts a file over the host's own where the view shows the host's
// directory. Where the host has none there is no place for it: cause, or with
// missing: skip it is left out.
func (b *viewBuilder) fileOver(e sandbox.Entry, cause error) error {
	d, err := b.dir(path.Dir(e.Path))
	if err != nil {
		return err
	}
	defer linux.CloseAll(d)
	at, err := linux.OpenAt(d, path.Base(e.Path), unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
	if errors.Is(err, unix.ENOENT) {
		if e.Missing == sandbox.MissingSkip {
			return nil
		}
		return cause
	}
	if err != nil {
		return err
	}
	defer linux.CloseAll(at)
	mem, err := linux.NewMount("tmpfs", attrView|unix.MOUNT_ATTR_NOEXEC, linux.Option{Key: "source", Value: "view"})
	if err != nil {
		return err
	}
	t, err := b.a.plant(mem)
	if err != nil {
		return err
	}
	err = putFile(mem, e.Data, at)
	return errors.Join(err, t.close())
}

// putFile makes a file in mem and mounts it at a place in the view.
func putFile(mem *os.File, data string, at *os.File) error {
	const name = "file"
	if err := writeFile(mem, name, data); err != nil {
		return err
	}
	src, err := linux.OpenAt(mem, name, unix.O_PATH|unix.O_NOFOLLOW, linux.OneFS)
	if err != nil {
		return err
	}
	defer linux.CloseAll(src)
	m, err := bindOf(src, attrShut|unix.MOUNT_ATTR_NOEXEC, nil)
	if err != nil {
		return err
	}
	defer linux.CloseAll(m)
	return linux.MoveMount(m, at)
}

// writeFile makes a file that everybody can read and nobody write.
func writeFile(dir *os.File, name, data string) error {
	if err := linux.MkfileAt(dir, name, 0o600); err != nil {
		return err
	}
	// Nothing is forked while the file is open for writing: a child holds copies of
	// our descriptors until it executes, and the view could not be made read-only
	// (EBUSY) as long as one of them can write.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := linux.OpenAt(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW, linux.OneFS)
	if err != nil {
		return err
	}
	_, err = f.WriteString(data)
	return errors.Join(err, f.Chmod(0o444), f.Close())
}

// bind mounts a file or directory of the host, or repeats its symlink.
func (b *viewBuilder) bind(e sandbox.Entry) error {
	src, err := b.a.openSource(e)
	if err != nil && gone(err) {
		src, err = b.missing(e, err)
	}
	if src == nil || err != nil {
		return err
	}
	defer linux.CloseAll(src)
	st, err := linux.Stat(src)
	if err != nil {
		return err
	}
	if e.Copy {
		if done, err := b.copied(e, src, st); done || err != nil {
			return err
		}
	}
	by, err := linux.MountOf(src)
	if err != nil {
		return err
	}
	b.v.sources = append(b.v.sources, source{path: e.Source, follow: e.Follow, id: idOf(st), mode: st.Mode & unix.S_IFMT, mount: by})
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if err := mountable(src, unix.MOUNT_ATTR_RDONLY); err != nil { // what a link of proc tells is the host's
			return err
		}
		to, err := linux.ReadLinkAt(src, "")
		if err != nil {
			return err
		}
		return b.symlink(to, e.Path)
	}
	attr := uint64(attrView)
	if e.Kind == sandbox.EntryDevice {
		attr = attrDevice
		if err := isDevice(e.Source, st); err != nil {
			return err
		}
	} else if !e.Writable {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	if e.NoExec {
		attr |= unix.MOUNT_ATTR_NOEXEC
	}
	at, err := b.target(e.Path, st.Mode)
	if err != nil {
		return err
	}
	defer linux.CloseAll(at)
	m, err := bindOf(src, attr, nil)
	if err != nil {
		return err
	}
	defer linux.CloseAll(m)
	return linux.MoveMount(m, at)
}

// openSource opens what an entry names; with Follow where a symlink leads.
func (a *assembler) openSource(e sandbox.Entry) (*os.File, error) {
	if e.Follow {
		return a.owners.openFollowed(e.Source)
	}
	return a.owners.openTrusted(e.Source)
}

// target opens what is mounted on, made to be of the same kind.
func (b *viewBuilder) target(p string, mode uint32) (*os.File, error) {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return b.dir(p)
	}
	d, err := b.dir(path.Dir(p))
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(d)
	f, err := linux.OpenAt(d, path.Base(p), unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
	if !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	o, err := b.ours(path.Dir(p))
	if err != nil {
		return nil, err
	}
	defer linux.CloseAll(o)
	if err := linux.MkfileAt(o, path.Base(p), 0o444); err != nil {
		return nil, err
	}
	return linux.OpenAt(o, path.Base(p), unix.O_PATH|unix.O_NOFOLLOW, linux.Beneath)
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// missing does what the entry says about an absent source: nil and nil to skip it.
func (b *viewBuilder) missing(e sandbox.Entry, cause error) (*os.File, error) {
	switch e.Missing {
	case sandbox.MissingSkip:
		b.v.sources = append(b.v.sources, source{path: e.Source, follow: e.Follow})
		return nil, nil
	case sandbox.MissingCreate:
		d, err := b.a.owners.openTrusted(path.Dir(e.Source))
		if err != nil {
			return nil, err
		}
		defer linux.CloseAll(d)
		if err := makeAsOwner(d, path.Base(e.Source)); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		return b.a.owners.openTrusted(e.Source)
	case sandbox.MissingFail, "":
	}
	return nil, cause
}

// makeAsOwner makes a directory that belongs to whoever owns the one it is made
// in, with that owner's rights.
func makeAsOwner(d *os.File, name string) error {
	st, err := linux.Stat(d)
	if err != nil {
		return err
	}
	return linux.AsPeer(linux.Peer{UID: st.Uid, GID: st.Gid}, func() error { return linux.MkdirAt(d, name, 0o755) })
}

// fresh reports whether every source is still the file that the view shows, by the same
// mount, and what was absent still is.
func (v *view) fresh() bool {
	if !v.sameMounts() {
		return false
	}
	for _, s := range v.sources {
		st, err := s.stat()
		if s.id == (sandbox.Identity{}) {
			if err == nil || !gone(err) {
				return false
			}
			continue
		}
		if err != nil || idOf(st) != s.id || st.Mode&unix.S_IFMT != s.mode || s.copied && stateOf(st) != s.state {
			return false
		}
	}
	return true
}

func (s source) stat() (unix.Stat_t, error) {
	if s.follow {
		return linux.StatPath(s.path)
	}
	return linux.LstatAt(nil, s.path)
}
