package attack

import (
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// allowlist: with exec: listed nothing runs that is not listed, by any way.
func allowlist() []Attack {
	var all []Attack
	add := func(id string, layer Layer, tries string, t try) {
		all = append(all, Attack{ID: id, Layer: layer, Tries: tries, Want: []string{"EACCES", "EPERM", "ENOENT"}, Needs: []Need{ExecListed}, Control: user(), try: t})
	}
	for _, dir := range []string{".", "/tmp", "/dev/shm"} {
		add("copy-in-"+slug(dir), Mounts, "run a copy of a listed program in "+dir, runsCopy(dir))
		add("map-code-in-"+slug(dir), Mounts, "map a written file in "+dir+" for execution", mapsCode(dir))
	}
	add("memfd", Seccomp, "run a program from memory by /proc/self/fd", runsMemory(false))
	add("memfd-execveat", Seccomp, "run a program from memory by execveat", runsMemory(true))
	add("unlisted-env", View, "run /usr/bin/env", func(*Scene) error { return starts("/usr/bin/env") })
	add("unlisted-sh", View, "run /bin/sh", func(*Scene) error { return starts("/bin/sh", "-c", "true") })
	add("unlisted-by-proc-root", View, "run /proc/self/root/usr/bin/env", func(*Scene) error { return starts("/proc/self/root/usr/bin/env") })
	add("unlisted-by-symlink", View, "run a symlink to /usr/bin/env", func(*Scene) error {
		if err := os.Symlink("/usr/bin/env", "link-env"); err != nil {
			return lacking("a symlink: " + told(err))
		}
		defer func() { _ = os.Remove("link-env") }()
		return starts("./link-env")
	})
	add("hard-link", Mounts, "link a listed program into the workspace and run it", hardLinks)
	all[len(all)-1].Control = root() // fs.protected_hardlinks keeps others from it
	add("loader", Mounts, "have the loader run a written program", loads)
	add("script", Mounts, "run a script", func(s *Scene) error {
		if err := os.WriteFile("script", []byte("#!"+s.Self+" "+Harmless+"\n"), 0o700); err != nil {
			return lacking("a file of its own: " + told(err))
		}
		defer func() { _ = os.Remove("script") }()
		return starts("./script")
	})
	return class(Allowlist, all...)
}

// Harmless is the argument with which this program does nothing and ends well.
const Harmless = "attack-nothing"

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

func runsCopy(dir string) try {
	return func(s *Scene) error {
		to := dir + "/copy-" + s.Word
		defer func() { _ = os.Remove(to) }()
		if err := copyFile(s.Self, to); err != nil {
			return lacking("a copy: " + told(err))
		}
		return starts(to, Harmless)
	}
}

func hardLinks(s *Scene) error {
	if err := unix.Link(s.Self, "hard"); err != nil {
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EROFS) {
			return unix.EACCES // no link, nothing to run
		}
		return err
	}
	defer func() { _ = os.Remove("hard") }()
	return starts("./hard", Harmless)
}

// loads has ld.so map a copy of a program; where it may not, it says so and fails.
func loads(*Scene) error {
	const loader = "/lib64/ld-linux-x86-64.so.2"
	if err := copyFile("/usr/bin/cat", "cat"); err != nil {
		return lacking("a copy of a program with a loader: " + told(err))
	}
	defer func() { _ = os.Remove("cat") }()
	err := starts(loader, "./cat", "/dev/null")
	if err != nil && err.Error() == "ran and failed" {
		return unix.EACCES
	}
	return err
}

func runsMemory(byDescriptor bool) try {
	return func(s *Scene) error {
		b, err := os.ReadFile(s.Self)
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
		if byDescriptor {
			return executes(n)
		}
		return starts("/proc/"+strconv.Itoa(os.Getpid())+"/fd/"+strconv.Itoa(n), Harmless)
	}
}

// executes forks and executes a descriptor; the child's errno is its exit status.
func executes(fd int) error {
	empty, argv, envp := text(""), pointer(&[3]uintptr{text("program"), text(Harmless)}), pointer(new(uintptr))
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		_, _, e := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd), empty, argv, envp, unix.AT_EMPTY_PATH, 0)
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0)
		}
	}
	return exitErrno(int(pid))
}

// mapsCode maps a file that it has written for execution.
func mapsCode(dir string) try {
	return func(s *Scene) error {
		path := dir + "/code-" + s.Word
		if err := os.WriteFile(path, make([]byte, 4096), 0o700); err != nil {
			return lacking("a file of its own: " + told(err))
		}
		defer func() { _ = os.Remove(path) }()
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err == nil {
			return nil
		}
		m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		return unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC)
	}
}
