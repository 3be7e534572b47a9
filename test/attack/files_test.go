package attack

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// setID: no set-id bit, capability or device ever comes to be.
func setID() []attack {
	const mode = unix.S_ISUID | 0o755
	file := func() string {
		_ = os.WriteFile("setid", nil, 0o600)
		return "setid"
	}
	fd := func() int {
		f, err := unix.Open(file(), unix.O_RDONLY, 0)
		if err != nil {
			return -1
		}
		return f
	}
	tries := []func() error{
		func() error { return unix.Fchmodat(unix.AT_FDCWD, file(), mode, 0) },
		func() error { return unix.Fchmod(fd(), mode) },
		func() error { return unix.Fchmod(fd(), unix.S_ISGID|0o755) },
		func() error {
			_, err := unix.Openat(unix.AT_FDCWD, "setid2", unix.O_CREAT|unix.O_WRONLY, mode)
			return err
		},
		func() error {
			_, err := unix.Openat(unix.AT_FDCWD, ".", unix.O_TMPFILE|unix.O_WRONLY, mode)
			return err
		},
		func() error { return unix.Mkdirat(unix.AT_FDCWD, "setid3", unix.S_ISGID|0o755) },
		func() error { return unix.Mknodat(unix.AT_FDCWD, "setid4", unix.S_IFREG|mode, 0) },
		calling(unix.SYS_FCHMODAT, ^uintptr(99), text(file()), high|mode),
	}
	return []attack{
		{name: "make a set-id file", layer: bySeccomp, want: []string{"EPERM"}, control: true, try: each(tries...)},
		{name: "give a file capabilities", layer: byIDs, want: []string{"EPERM"}, try: func() error {
			caps := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
			return unix.Setxattr(file(), "security.capability", caps, 0)
		}},
		{name: "make a device", layer: bySeccomp, want: []string{"EPERM"}, try: each(
			func() error { return unix.Mknod("device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) },
			func() error { return unix.Mknod("device", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))) },
		)},
		{name: "give a file away", layer: byIDs, want: []string{"EPERM", "EINVAL", "EOVERFLOW"}, try: each(
			func() error { return unix.Lchown(file(), 1, -1) }, func() error { return unix.Lchown(file(), -1, 1) })},
	}
}

// paths: nothing outside of the view, nothing of it written.
func paths() []attack {
	shut := []string{"EROFS", "EACCES", "EPERM", "ENOENT"}
	return []attack{
		{name: "write to the view", layer: byMount, want: shut, try: each(creates("/x"), creates("/usr/x"), creates("/etc/x"), creates("/dev/x"), creates("/run/x"), creates("/proc/x"))},
		{
			name: "find the host's secrets", layer: byView, want: []string{"ENOENT", "EACCES"},
			try: opening(os.O_RDONLY, "/etc/shadow", "/root", "/etc/ssh", "/var/lib/pinfold", "/run/systemd", "/boot", "/etc/sudoers"),
		},
		{name: "climb out of the root", layer: byView, want: []string{"inside"}, try: climb},
		{name: "run a set-id program of the host's", layer: byMount, want: []string{"nosuid"}, try: func() error {
			var st unix.Statfs_t
			for _, p := range []string{"/usr", ".", "/tmp", "/dev/shm", "/proc", "/dev/pts"} {
				if err := unix.Statfs(p, &st); err == nil && st.Flags&unix.MS_NOSUID == 0 {
					return nil
				}
			}
			return errors.New("nosuid")
		}},
		{
			name: "find a socket of a powerful daemon", layer: byView, want: []string{"ENOENT"},
			try: opening(unix.O_PATH, "/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket", "/run/containerd", "/run/user", "/run/nscd/socket", "/tmp/.X11-unix", "/run/pinfold"),
		},
	}
}

func creates(path string) func() error {
	return func() error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
}

// climb looks for a directory above the root.
func climb() error {
	root, err := os.Stat("/")
	if err != nil {
		return err
	}
	for _, p := range []string{"/..", "/proc/self/root/..", "/proc/self/cwd/../../../../../../..", "/proc/thread-self/root/../.."} {
		st, err := os.Stat(p)
		if err == nil && !os.SameFile(root, st) {
			return nil
		}
	}
	return errors.New("inside")
}

// denied: a denied path stays denied, whatever is done to what lies above it.
// The test makes keep/secret, tree/.git/config and the file link/.git.
func denied() []attack {
	var all []attack
	add := func(name string, want []string, tries ...func() error) {
		all = append(all, attack{name: name, layer: byMount, where: withDeny, want: want, control: true, try: each(tries...)})
	}
	shut := []string{"EACCES", "EROFS", "EBUSY", "EXDEV", "EEXIST", "ENOTDIR", "ENOENT", "empty", "ENOTEMPTY", "EPERM", "EINVAL"}
	rename := func(a, b string, flags uint) func() error {
		return func() error { return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, flags) }
	}
	add("read a denied file", shut, reads("keep/secret"), reads("./keep/../keep/secret"), reads("/proc/self/cwd/keep/secret"), reads("alias"))
	add("write a denied file", shut, creates("keep/secret"), creates("tree/.git/config"), func() error { return os.Truncate("keep/secret", 0) },
		func() error { return os.Chmod("keep/secret", 0o666) })
	add("link a denied file", shut, func() error { return os.Link("keep/secret", "linked") },
		func() error {
			return unix.Linkat(unix.AT_FDCWD, "keep/secret", unix.AT_FDCWD, "linked2", unix.AT_SYMLINK_FOLLOW)
		})
	add("move what lies above a denied file", shut, rename("keep", "moved", 0), rename("tree", "moved", 0), rename("tree/.git", "tree/moved", 0),
		rename("keep", "other", unix.RENAME_EXCHANGE), rename("other", "keep", 0), rename("other", "keep", unix.RENAME_NOREPLACE), rename("keep/secret", "taken", 0),
		func() error { return os.RemoveAll("keep") }, func() error { return unix.Rmdir("keep") }, func() error { return unix.Unlink("keep/secret") })
	add("make a denied path that is absent", shut, func() error { return os.Mkdir("tree/.git/hooks", 0o755) }, creates("tree/.git/hooks/x"),
		func() error { return unix.Rmdir("tree/.git/hooks") }, rename("other", "tree/.git/hooks", 0), rename("tree/.git/hooks", "gone", 0))
	add("make a directory of a file above a denied path", shut, func() error { return replaceByDir("link/.git") })
	return all
}

// replaceByDir removes a file and makes a directory with a file in its place.
func replaceByDir(path string) error {
	if err := unix.Unlink(path); err != nil {
		if err = os.Rename(path, path+".old"); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, "config"), []byte("x"), 0o600)
}

// executable: with exec: listed nothing runs that is not listed, by any way.
func executable(o order) []attack {
	var all []attack
	add := func(name, layer string, tries ...func() error) {
		all = append(all, attack{name: name, layer: layer, where: onlyListed, want: []string{"EACCES", "EPERM", "ENOENT"}, control: true, try: each(tries...)})
	}
	add("run a copy of a listed program", byMount, runsCopy(o.Self, "copy"), runsCopy(o.Self, "/tmp/copy"), runsCopy(o.Self, "/dev/shm/copy"))
	add("run a program from memory", bySeccomp, func() error { return runsMemory(o.Self) })
	add("map a written file as code", byMount, mapsCode("code"), mapsCode("/tmp/code"), mapsCode("/dev/shm/code"))
	add("run a program that is not listed", byView, runs("/usr/bin/python3", "--version"), runs("/usr/bin/env"), runs("/bin/sh", "-c", "true"))
	add("run the loader with a written program", byMount, func() error {
		if err := copyFile("/usr/bin/cat", "cat"); err != nil {
			return err
		}
		err := runs("/lib64/ld-linux-x86-64.so.2", "./cat", "/dev/null")()
		if _, ok := errors.AsType[*exitError](err); ok {
			return unix.EACCES // the loader says that it could not
		}
		return err
	})
	add("run a script whose interpreter is listed", byMount, func() error {
		if err := os.WriteFile("script", []byte("#!/usr/bin/cat\n"), 0o700); err != nil {
			return err
		}
		return runs("./script")()
	})
	return all
}

// exitError says that a program ran and failed.
type exitError struct{ status syscall.WaitStatus }

func (e *exitError) Error() string { return "ran, and failed" }

// runs starts a program and waits for it.
func runs(argv ...string) func() error {
	return func() error {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { _ = null.Close() }()
		n := null.Fd()
		pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: []string{"PATH=/usr/bin"}, Files: []uintptr{n, n, n}})
		if err != nil {
			return err
		}
		var st syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &st, 0, nil); err != nil {
			return err
		}
		if st.ExitStatus() != 0 {
			return &exitError{st}
		}
		return nil
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

const nothing = `{"names":["none of them"]}` // an order that the attacker obeys at once

func runsCopy(self, to string) func() error {
	return func() error {
		if err := copyFile(self, to); err != nil {
			return err
		}
		return runs(to, insideArg, nothing)()
	}
}

func runsMemory(self string) error {
	b, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	n, err := unix.MemfdCreate("program", 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(n), "program")
	defer func() { _ = f.Close() }()
	if _, err := f.Write(b); err != nil {
		return err
	}
	return runs("/proc/"+strconv.Itoa(os.Getpid())+"/fd/"+strconv.Itoa(n), insideArg, nothing)()
}

// mapsCode maps a file that it has written for execution.
func mapsCode(path string) func() error {
	return func() error {
		if err := os.WriteFile(path, make([]byte, 4096), 0o700); err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err == nil {
			return nil
		}
		m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		return unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC)
	}
}
