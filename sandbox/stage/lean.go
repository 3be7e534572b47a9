package stage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// maxCopy bounds a file of the host that is copied into a view; a larger one is bound.
const maxCopy = 256 << 10

// settled is how long a file must have been left alone before its times tell of the
// next change: the kernel's clock for them is coarse.
const settled = time.Second

// fileState is what changes when a file's content does: nobody can set ctime.
type fileState struct {
	size         int64
	mtime, ctime int64 // nanoseconds
	mode         uint32
}

func stateOf(st unix.Stat_t) fileState {
	return fileState{st.Size, unix.TimespecToNsec(st.Mtim), unix.TimespecToNsec(st.Ctim), st.Mode}
}

// restless reports whether the file may change again without a change of s.
func (s fileState) restless(now time.Time) bool {
	return now.Sub(time.Unix(0, max(s.ctime, s.mtime))) < settled
}

// copied puts a copy of the host's file into the view where a mount would show no more:
// the kernel copies and takes down each mount for each pen. false: it is to be bound.
func (b *viewBuilder) copied(e sandbox.Entry, src *os.File, st unix.Stat_t) (bool, error) {
	const all = unix.S_IRUSR | unix.S_IRGRP | unix.S_IROTH
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&all != all || st.Size > maxCopy {
		return false, nil
	}
	d, err := b.ours(path.Dir(e.Path))
	if errors.Is(err, unix.EROFS) {
		return false, nil // over the host's own
	}
	if err != nil {
		return false, err
	}
	defer linux.CloseAll(d)
	data, ok := content(src, st)
	if !ok {
		return false, nil
	}
	if err := writeFile(d, path.Base(e.Path), data); err != nil {
		return false, err
	}
	s := source{path: e.Source, follow: e.Follow, id: idOf(st), mode: st.Mode & unix.S_IFMT, copied: true, state: stateOf(st)}
	if s.state.restless(time.Now()) {
		s.state = fileState{} // the next pen gets a new view
	}
	b.v.sources = append(b.v.sources, s)
	return true, nil
}

// content reads a file that nobody changes meanwhile.
func content(src *os.File, st unix.Stat_t) (string, bool) {
	r, err := linux.Reopen(src, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return "", false
	}
	defer linux.CloseAll(r)
	data, err := io.ReadAll(io.NewSectionReader(r, 0, maxCopy+1))
	if err != nil || int64(len(data)) != st.Size {
		return "", false
	}
	after, err := linux.Stat(r)
	return string(data), err == nil && stateOf(after) == stateOf(st)
}

// deviceDir makes a memory file system for /dev with all device nodes of the view,
// where the stage may make nodes and the view shows nothing of the host's there: one
// mount in place of one a device. Else devices are bound.
func (b *viewBuilder) deviceDir(f *sandbox.Profile) error {
	var devices []sandbox.Entry
	for _, e := range f.View {
		switch {
		case e.Kind == sandbox.EntryDevice && path.Dir(e.Path) == "/dev":
			devices = append(devices, e)
		case e.Kind == sandbox.EntryDevice, e.Kind == sandbox.EntryBind && sandbox.Below(e.Path, "/dev"), e.Path == "/dev" && e.Kind != sandbox.EntryDir:
			return nil
		}
	}
	if len(devices) == 0 || b.a.owners != nil || os.Geteuid() != 0 {
		return nil
	}
	m, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, linux.Option{Key: "source", Value: "dev"},
		linux.Option{Key: "mode", Value: "755"}, linux.Option{Key: "size", Value: "64k"}, linux.Option{Key: "nr_inodes", Value: "1024"})
	if err != nil {
		return err
	}
	for _, e := range devices {
		number, ok := deviceNumbers()[e.Source]
		if !ok || linux.MkdevAt(m, path.Base(e.Path), number) != nil {
			linux.CloseAll(m)
			return nil // some containers may make no nodes; what is no device of ours is refused when it is bound
		}
	}
	st, err := linux.Stat(m)
	if err != nil {
		linux.CloseAll(m)
		return err
	}
	b.devices, b.deviceDev = m, st.Dev
	return nil
}

// mountDevices puts /dev into the view once everything is in it.
func (b *viewBuilder) mountDevices() error {
	m := b.devices
	if m == nil {
		return nil
	}
	b.devices = nil
	defer linux.CloseAll(m)
	if err := linux.SetMount(m, linux.One, linux.Attr{Set: attrDevice, Private: true}); err != nil {
		return err
	}
	at, err := b.dir("/dev")
	if err != nil {
		return err
	}
	defer linux.CloseAll(at)
	return linux.MoveMount(m, at)
}

// deviceNumbers are the devices that a view may have.
func deviceNumbers() map[string]uint64 {
	return map[string]uint64{
		"/dev/null": unix.Mkdev(1, 3), "/dev/zero": unix.Mkdev(1, 5), "/dev/full": unix.Mkdev(1, 7),
		"/dev/random": unix.Mkdev(1, 8), "/dev/urandom": unix.Mkdev(1, 9), "/dev/tty": unix.Mkdev(5, 0),
	}
}

// isDevice keeps the floor under devices: the node must be the one of that name.
func isDevice(name string, st unix.Stat_t) error {
	want, ok := deviceNumbers()[name]
	if !ok || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != want {
		return fmt.Errorf("%s is not the device of that name", name)
	}
	return nil
}
