package attack

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// slug makes a part of a name from a path.
func slug(path string) string {
	switch path {
	case "/":
		return "root"
	case ".":
		return "workspace"
	}
	return strings.Trim(strings.NewReplacer("/", "-", ".", "", "_", "-").Replace(path), "-")
}

// paths: nothing outside of the view is seen, nothing of the view is written.
func paths() []Attack {
	gone, shut := []string{"ENOENT", "EACCES"}, []string{"EROFS", "EACCES", "ENOENT"}
	var all []Attack
	for _, p := range []string{
		"/etc/shadow", "/etc/gshadow", "/root", "/boot", "/var/log", "/var/lib", "/var/spool", "/etc/pam.d", "/etc/ssh", "/etc/sudoers", "/opt", "/mnt",
		"/etc/krb5.keytab", "/etc/wireguard", "/etc/kubernetes", "/var/lib/docker", "/var/spool/cron",
	} {
		all = append(all, Attack{ID: "read-" + slug(p), Layer: View, Tries: "open " + p, Want: gone, Reads: p, Control: root(), try: opens(p, unix.O_RDONLY)})
	}
	for _, p := range []string{"/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/etc/ssl", "/var", "/home"} {
		all = append(all, Attack{ID: "plant-in-" + slug(p), Layer: Mounts, Tries: "make a file in " + p, Want: shut, Writes: p, Control: root(), try: plants(p)})
	}
	all = append(all,
		Attack{ID: "climb-dot-dot", Layer: View, Tries: "find a directory above /", Want: []string{"inside"}, Control: no("the host's root has nothing above it"), try: climbs("/..", "/../../..")},
		Attack{ID: "climb-proc-root", Layer: View, Tries: "climb by /proc/self/root", Want: []string{"inside"}, Control: no("the host's root has nothing above it"), try: climbs("/proc/self/root/..", "/proc/thread-self/root/../..")},
		Attack{ID: "climb-proc-cwd", Layer: View, Tries: "climb by /proc/self/cwd", Want: []string{"inside"}, Control: no("the host's root has nothing above it"), try: climbs("/proc/self/cwd/../../../../../../../..")},
		Attack{ID: "chroot-and-climb", Layer: Seccomp, Tries: "chroot below an open directory", Want: []string{"EPERM"}, Control: root(), try: calling(unix.SYS_CHROOT, text("."))},
		Attack{ID: "symlink-out", Layer: View, Tries: "read a symlink to /etc/shadow", Want: gone, Reads: "/etc/shadow", Control: root(), try: bySymlink("/etc/shadow")},
		Attack{ID: "symlink-through-proc", Layer: IDs, Tries: "read a symlink to /proc/1/root", Want: []string{"EACCES", "ENOENT"}, Control: root(), try: func(s *Scene) error {
			return bySymlink(s.ofOne("root/etc/passwd"))(s)
		}},
		Attack{ID: "proc-root-secret", Layer: View, Tries: "read /proc/self/root/etc/shadow", Want: gone, Reads: "/etc/shadow", Control: root(), try: opens("/proc/self/root/etc/shadow", unix.O_RDONLY)},
		Attack{ID: "hard-link-out", Layer: View, Tries: "link /etc/shadow into the workspace", Want: []string{"ENOENT", "EXDEV", "EACCES"}, Reads: "/etc/shadow", Control: no("a link to a secret must not be made, not even by a test"), try: func(*Scene) error {
			return unix.Link("/etc/shadow", "linked-shadow")
		}},
		Attack{ID: "open-by-handle", Layer: Seccomp, Tries: "name_to_handle_at, then open_by_handle_at", Want: []string{"EPERM"}, Control: root(), try: byHandle},
		Attack{ID: "host-tmp", Layer: View, Tries: "read a file in the host's /tmp", Want: gone, Control: user(), try: func(s *Scene) error { return open(s.Tmp, unix.O_RDONLY) }},
	)
	return class(Paths, all...)
}

// climbs looks for a directory that is not the root above it.
func climbs(paths ...string) try {
	return func(*Scene) error {
		top, err := os.Stat("/")
		if err != nil {
			return err
		}
		for _, p := range paths {
			if st, err := os.Stat(p); err == nil && !os.SameFile(top, st) {
				return nil
			}
		}
		return errors.New("inside")
	}
}

func bySymlink(target string) try {
	return func(*Scene) error {
		name := "link-" + slug(target)
		if err := os.Symlink(target, name); err != nil {
			return lacking("a symlink: " + told(err))
		}
		defer func() { _ = os.Remove(name) }()
		return open(name, unix.O_RDONLY)
	}
}

// byHandle opens the working directory by its handle; where it cannot have one (a
// stricter filter) it makes one up.
func byHandle(*Scene) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, ".", 0)
	if err != nil {
		handle = unix.NewFileHandle(1, make([]byte, 8))
	}
	dir, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.OpenByHandleAt(dir, handle, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// setID: no set-id bit, capability, device or foreign owner ever comes to be.
func setID() []Attack {
	const suid, sgid = unix.S_ISUID | 0o755, unix.S_ISGID | 0o755
	perm := []string{"EPERM"}
	var all []Attack
	add := func(id, tries string, c Control, t try) {
		all = append(all, Attack{ID: id, Layer: Seccomp, Tries: tries, Want: perm, Control: c, try: t})
	}
	add("set-uid-chmod", "fchmodat with a set-uid bit", user(), named(func(f string) error { return unix.Fchmodat(unix.AT_FDCWD, f, suid, 0) }))
	add("set-gid-chmod", "fchmodat with a set-gid bit", user(), named(func(f string) error { return unix.Fchmodat(unix.AT_FDCWD, f, sgid, 0) }))
	add("set-uid-fchmod", "fchmod with a set-uid bit", user(), opened(func(fd int) error { return unix.Fchmod(fd, suid) }))
	add("set-gid-fchmod", "fchmod with a set-gid bit", user(), opened(func(fd int) error { return unix.Fchmod(fd, sgid) }))
	add("set-uid-high-bits", "fchmodat with high bits in the mode", user(), named(func(f string) error { return call(unix.SYS_FCHMODAT, ^uintptr(99), text(f), high|suid) }))
	add("set-uid-create", "openat with O_CREAT and a set-uid mode", user(), creates("setid-made", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, suid))
	add("set-uid-tmpfile", "openat with O_TMPFILE and a set-uid mode", user(), creates(".", unix.O_TMPFILE|unix.O_WRONLY, suid))
	add("set-gid-mkdir", "mkdirat with a set-gid mode", user(), func(*Scene) error { return removing("setid-dir", unix.Mkdirat(unix.AT_FDCWD, "setid-dir", sgid)) })
	add("set-uid-mknod", "mknodat with a set-uid mode", user(), func(*Scene) error {
		return removing("setid-node", unix.Mknodat(unix.AT_FDCWD, "setid-node", unix.S_IFREG|suid, 0))
	})
	all = append(all, oldSetID()...)
	add("device-char", "mknod of a character device", root(), node(unix.S_IFCHR|0o600, 1, 1))
	add("device-block", "mknod of a block device", root(), node(unix.S_IFBLK|0o600, 254, 0))
	add("device-null", "mknod of a second /dev/null", root(), node(unix.S_IFCHR|0o666, 1, 3))
	add("device-whiteout", "mknod of a whiteout", user(), node(unix.S_IFCHR|0o600, 0, 0))
	ids := []string{"EPERM", "EINVAL", "EOVERFLOW"}
	all = append(all,
		Attack{ID: "file-capability", Layer: IDs, Tries: "set security.capability", Want: perm, Control: root(), try: named(func(f string) error {
			caps := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
			return unix.Setxattr(f, "security.capability", caps, 0)
		})},
		Attack{ID: "trusted-attribute", Layer: IDs, Tries: "set a trusted attribute", Want: perm, Control: past(AsRoot), try: named(func(f string) error {
			return unix.Setxattr(f, "trusted.overlay.opaque", []byte("y"), 0)
		})},
		Attack{ID: "give-file-away", Layer: IDs, Tries: "chown to another user", Want: ids, Control: root(), try: named(func(f string) error { return unix.Lchown(f, 1, -1) })},
		Attack{ID: "give-file-to-group", Layer: IDs, Tries: "chown to another group", Want: ids, Control: root(), try: named(func(f string) error { return unix.Lchown(f, -1, 1) })},
	)
	return class(Paths, all...)
}

// named makes a file for a try and removes it.
func named(t func(string) error) try {
	return func(*Scene) error {
		f, err := file("setid")
		if err != nil {
			return lacking("a file of its own: " + told(err))
		}
		defer func() { _ = os.Remove(f) }()
		return t(f)
	}
}

// opened opens a file for a try.
func opened(t func(int) error) try {
	return named(func(f string) error {
		fd, err := unix.Open(f, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return t(fd)
	})
}

// removing takes away what an attack that got through has made.
func removing(name string, err error) error {
	if err == nil {
		return os.Remove(name)
	}
	return err
}

func creates(path string, flag int, mode uint32) try {
	return func(*Scene) error {
		fd, err := unix.Openat(unix.AT_FDCWD, path, flag, mode)
		if err != nil {
			return err
		}
		err = unix.Close(fd)
		if flag&unix.O_EXCL != 0 {
			err = removing(path, err)
		}
		return err
	}
}

func node(mode, major, minor uint32) try {
	const name = "device"
	return func(*Scene) error {
		return removing(name, unix.Mknodat(unix.AT_FDCWD, name, mode, int(unix.Mkdev(major, minor))))
	}
}
