package sandbox

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
)

// Where PID 1 mounts file systems of the kernel's; the view has both directories.
const (
	procDir = "/proc"
	ptsDir  = "/dev/pts"
)

// enter makes the detached tree of the view the root: pivot_root(2). The old root
// stays below it until proc is mounted, for which a user namespace must see one.
func (c *compiler) enter() {
	c.mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "MS_REC|MS_PRIVATE", "")
	c.Call("move_mount", []image.Arg{image.Int(image.FDTree), image.Text(""), atCWD, image.Text("/"), fromEmpty})
	c.Call("fchdir", []image.Arg{image.Int(image.FDTree)})
	c.Call("pivot_root", []image.Arg{image.Text("."), image.Text(".")})
	c.Call("close", []image.Arg{image.Int(image.FDTree)})
	subset := ""
	if c.p.Proc == ProcPids {
		subset = "subset=pid" // Linux 5.8
	}
	c.mount("proc", procDir, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "MS_NOSUID|MS_NODEV|MS_NOEXEC", subset)
	c.Call("umount2", []image.Arg{image.Text("."), image.Named(unix.MNT_DETACH, "MNT_DETACH")})
	c.Call("chdir", []image.Arg{image.Text("/")})
	attr, text := uint64(unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV), "RDONLY|NOSUID|NODEV"
	if c.p.Exec == ExecListed {
		attr, text = attr|unix.MOUNT_ATTR_NOEXEC, text+"|NOEXEC"
	}
	c.Call("mount_setattr", []image.Arg{atCWD, image.Text("/"), image.Int(0), image.Quads("{"+text+"}", attr, 0, 0, 0), image.Int(32)})
}

// memfdNoexec makes memfd_create(2) refuse executable files in the pen's pid
// namespace, through the host's /proc: the knob is the reader's namespace's.
// sysctl vm.memfd_noexec, Linux 6.3.
func (c *compiler) memfdNoexec() {
	if c.p.Exec != ExecListed || c.b.MemfdNoexec != On {
		return
	}
	c.Call("openat", []image.Arg{
		atCWD, image.Text("/proc/sys/vm/memfd_noexec"), image.Named(unix.O_WRONLY|unix.O_CLOEXEC, "O_WRONLY|O_CLOEXEC"), image.Int(0),
	}, image.Want(image.FDProgram))
	c.Call("write", []image.Arg{image.Int(image.FDProgram), image.Text("2"), image.Int(1)}, image.Want(1))
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
}

// maskProc hides what /proc shows of the host. Files are covered by /dev/null,
// directories by /dev/pts, which is empty and read-only at that point; what is
// left can be read alone. The list is longer than what a kernel has. A file that
// root alone may open needs no cover: no pen has root's rights.
func (c *compiler) maskProc() {
	if c.p.Proc == ProcPids {
		return
	}
	bind := func(from, name string) {
		c.mount(from, procDir+"/"+name, "", unix.MS_BIND, "MS_BIND", "", image.Or(unix.ENOENT))
	}
	for _, name := range MaskedFiles() {
		if !slices.Contains(c.b.Closed, name) {
			bind("/dev/null", name)
		}
	}
	for _, name := range MaskedDirs() {
		bind(ptsDir, name)
	}
	const (
		ro     = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		roText = "MS_REMOUNT|MS_BIND|MS_RDONLY|MS_NOSUID|MS_NODEV|MS_NOEXEC"
	)
	for _, name := range ReadOnlyDirs() {
		bind(procDir+"/"+name, name)
		c.mount("none", procDir+"/"+name, "", ro, roText, "", image.Or(unix.ENOENT))
	}
}

// MaskedFiles are the files of /proc that a pen sees empty. All are made by the
// kernel itself, none by a module: one that is absent stays so until the next boot.
func MaskedFiles() []string {
	return []string{
		"kcore", "keys", "key-users", "kmsg", "kpagecgroup", "kpagecount", "kpageflags",
		"latency_stats", "sched_debug", "sysrq-trigger", "timer_list", "timer_stats",
	}
}

// MaskedDirs are directories of /proc that a pen sees empty.
func MaskedDirs() []string { return []string{"acpi", "asound", "firmware", "scsi"} }

// ReadOnlyDirs are directories of /proc that a pen can only read.
func ReadOnlyDirs() []string { return []string{"bus", "fs", "irq", "sys"} }

// mounts adds what this pen alone has, parents before children: private memory
// file systems, and attaches from their descriptors.
func (c *compiler) mounts() {
	c.mount("devpts", ptsDir, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "MS_NOSUID|MS_NOEXEC",
		fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,max=%d", maxPTYs))
	type mount struct {
		path string
		add  func()
	}
	var all []mount
	for _, t := range c.p.Private {
		all = append(all, mount{t.Path, func() { c.private(t) }})
	}
	for i, a := range c.p.Attach {
		all = append(all, mount{a.Path, func() { c.attach(i, a) }})
	}
	slices.SortStableFunc(all, func(a, b mount) int {
		return cmp.Compare(strings.Count(a.path, "/"), strings.Count(b.path, "/"))
	})
	for _, m := range all {
		m.add()
	}
	for i, d := range c.b.DenyMounts {
		c.deny(image.FDAttach+len(c.p.Attach)+i, d)
	}
	if len(c.p.Attach)+len(c.b.DenyMounts) > 0 {
		c.closeRange(image.FDAttach, all32)
	}
}

// maxPTYs bounds the terminals of one pen; the host has kernel.pty.max for all.
const maxPTYs = 64

// private mounts a tmpfs: tmpfs(5). The run uid owns it unless all may write to it.
func (c *compiler) private(t Tmpfs) {
	flags, text := uint(unix.MS_NOSUID|unix.MS_NODEV), "MS_NOSUID|MS_NODEV"
	if t.NoExec {
		flags, text = flags|unix.MS_NOEXEC, text+"|MS_NOEXEC"
	}
	options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=%04o", t.Size, t.Inodes, t.Mode)
	c.makeParents(t.Path)
	if c.shared(t.Path) {
		c.openPlain(t.Path)
		c.Call("fchdir", []image.Arg{image.Int(image.FDProgram)})
		c.mount("tmpfs", ".", "tmpfs", flags, text, options)
		c.Call("close", []image.Arg{image.Int(image.FDProgram)})
		c.Call("chdir", []image.Arg{image.Text("/")})
	} else {
		c.mount("tmpfs", t.Path, "tmpfs", flags, text, options)
	}
	if t.Mode&unix.S_ISVTX != 0 {
		return
	}
	c.openPlain(t.Path)
	c.Call("fchownat", []image.Arg{
		image.Int(image.FDProgram), image.Text(""), image.Value(image.RegUID), image.Value(image.RegGID),
		image.Named(unix.AT_EMPTY_PATH, "AT_EMPTY_PATH"),
	})
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
}

func (c *compiler) attach(i int, a Attach) {
	c.makeParents(a.Path)
	c.moveTo(image.FDAttach+i, a.Path)
}

func (c *compiler) deny(fd int, d DenyMount) {
	if d.From == FromView {
		c.moveTo(fd, d.Path)
		return
	}
	c.Call("move_mount", []image.Arg{image.Int(fd), image.Text(""), image.Int(image.FDAttach + d.From), image.Text(d.Path), fromEmpty})
}

// moveTo mounts a descriptor on a path. Below an attach others may swap names at
// any time, so that no symlink is followed there.
func (c *compiler) moveTo(fd int, name string) {
	if !c.shared(name) {
		c.Call("move_mount", []image.Arg{image.Int(fd), image.Text(""), atCWD, image.Text(name), fromEmpty})
		return
	}
	c.openPlain(name)
	c.Call("move_mount", []image.Arg{
		image.Int(fd), image.Text(""), image.Int(image.FDProgram), image.Text(""),
		image.Named(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH, "MOVE_MOUNT_F_EMPTY_PATH|MOVE_MOUNT_T_EMPTY_PATH"),
	})
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
}

// openPlain opens a path without a symlink in it: openat2(2), Linux 5.6.
func (c *compiler) openPlain(name string) {
	how := image.Quads("{O_PATH|O_NOFOLLOW|O_CLOEXEC, RESOLVE_NO_SYMLINKS}",
		unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, unix.RESOLVE_NO_SYMLINKS)
	c.Call("openat2", []image.Arg{atCWD, image.Text(name), how, image.Int(24)}, image.Want(image.FDProgram))
}

// shared says whether a path lies below an attach.
func (c *compiler) shared(name string) bool {
	return slices.ContainsFunc(c.p.Attach, func(a Attach) bool { return name != a.Path && within(name, a.Path) })
}

// makeParents makes the mount point and what is missing above it where these lie
// in a private file system; the view itself has all of its mount points.
func (c *compiler) makeParents(name string) {
	base := ""
	for _, t := range c.p.Private {
		if t.Path != name && within(name, t.Path) && len(t.Path) > len(base) {
			base = t.Path
		}
	}
	for _, a := range c.p.Attach {
		if a.Path != name && within(name, a.Path) && len(a.Path) > len(base) {
			return
		}
	}
	if base == "" {
		return
	}
	var missing []string
	for dir := name; dir != base && !c.made[dir]; dir = path.Dir(dir) {
		missing = append(missing, dir)
		c.made[dir] = true
	}
	file := slices.ContainsFunc(c.b.AttachFiles, func(i int) bool { return c.p.Attach[i].Path == name })
	for _, dir := range slices.Backward(missing) {
		if dir == name && file {
			c.Call("mknodat", []image.Arg{atCWD, image.Text(dir), image.Named(unix.S_IFREG|0o600, "S_IFREG|0600"), image.Int(0)})
		} else {
			c.Call("mkdirat", []image.Arg{atCWD, image.Text(dir), image.Named(0o755, "0755")})
		}
		c.Call("fchownat", []image.Arg{atCWD, image.Text(dir), image.Value(image.RegUID), image.Value(image.RegGID), image.Int(0)})
	}
}

// mount is mount(2); empty strings are null pointers, but not as a source.
func (c *compiler) mount(from, to, fstype string, flags uint, flagText, data string, opts ...image.Opt) {
	orNull := func(s string) image.Arg {
		if s == "" {
			return image.Null()
		}
		return image.Text(s)
	}
	c.Call("mount", []image.Arg{
		image.Text(from), image.Text(to), orNull(fstype), image.Named(int(flags), flagText), orNull(data),
	}, opts...)
}

// loopback brings lo up; where the kernel refuses that the pen is without:
// netdevice(7).
func (c *compiler) loopback() {
	if c.p.Net != NetNone {
		return
	}
	ifreq := make([]byte, 40)
	copy(ifreq, "lo")
	binary.LittleEndian.PutUint16(ifreq[16:], unix.IFF_UP|unix.IFF_RUNNING)
	c.Call("socket", []image.Arg{
		image.Named(unix.AF_INET, "AF_INET"), image.Named(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, "SOCK_DGRAM|SOCK_CLOEXEC"), image.Int(0),
	}, image.Want(image.FDProgram))
	c.Call("ioctl", []image.Arg{
		image.Int(image.FDProgram), image.Named(unix.SIOCSIFFLAGS, "SIOCSIFFLAGS"), image.Data(ifreq, "{lo, IFF_UP|IFF_RUNNING}"),
	}, image.Or(unix.EPERM))
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
}
