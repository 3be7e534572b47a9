package attack

import (
	"errors"

	"golang.org/x/sys/unix"
)

// oldSetID are the calls that newer machines do not have.
func oldSetID() []Attack {
	const suid = unix.S_ISUID | 0o755
	var all []Attack
	add := func(id, tries string, t try) {
		all = append(all, Attack{ID: id, Layer: Seccomp, Tries: tries, Want: []string{"EPERM"}, Control: user(), try: t})
	}
	add("set-uid-old-chmod", "chmod with a set-uid bit", named(func(f string) error { return call(unix.SYS_CHMOD, text(f), suid) }))
	add("set-uid-old-open", "open with O_CREAT and a set-uid mode", func(*Scene) error {
		return removing("setid-open", call(unix.SYS_OPEN, text("setid-open"), unix.O_CREAT|unix.O_WRONLY, suid))
	})
	add("set-uid-old-creat", "creat with a set-uid mode", func(*Scene) error { return removing("setid-creat", call(unix.SYS_CREAT, text("setid-creat"), suid)) })
	add("set-gid-old-mkdir", "mkdir with a set-gid mode", func(*Scene) error {
		return removing("setid-mkdir", call(unix.SYS_MKDIR, text("setid-mkdir"), unix.S_ISGID|0o755))
	})
	add("set-uid-old-mknod", "mknod with a set-uid mode", func(*Scene) error {
		return removing("setid-mknod", call(unix.SYS_MKNOD, text("setid-mknod"), unix.S_IFREG|suid, 0))
	})
	return all
}

// x32 are calls of the third ABI of this machine.
func x32() []Attack {
	const bit = 0x40000000
	var all []Attack
	for _, c := range []numbered{{"getpid", bit + 39}, {"openat", bit + unix.SYS_OPENAT}, {"execve", bit + 520}, {"mount", bit | unix.SYS_MOUNT}, {"ptrace", bit + 521}} {
		all = append(all, Attack{
			ID: "x32-" + c.name, Layer: Seccomp, Tries: c.name + " of the x32 ABI", Want: []string{"ENOSYS"},
			Control: no("a kernel without x32 answers the same"), try: calling(c.value),
		})
	}
	return append(all, Attack{
		ID: "foreign-architecture", Layer: Seccomp, Tries: "a 32-bit system call", Want: []string{"SIGSYS"}, Control: user(), try: foreign,
	}, Attack{
		ID: "local-descriptors", Layer: Seccomp, Tries: "modify_ldt", Want: []string{"EPERM"}, Control: past(AsUser),
		try: func(*Scene) error { return call(unix.SYS_MODIFY_LDT, 0, pointer(new([64]byte)), 64) },
	}, Attack{
		ID: "io-ports", Layer: Seccomp, Tries: "ioperm", Want: []string{"EPERM"}, Control: past(AsRoot), try: calling(unix.SYS_IOPERM, 0x80, 1, 1),
	}, Attack{
		ID: "io-privilege", Layer: Seccomp, Tries: "iopl", Want: []string{"EPERM"}, Control: past(AsRoot), try: calling(unix.SYS_IOPL, 3),
	})
}

// foreign makes the call getpid of i386, in a child that it may end: mov eax, 20;
// int 0x80; ret. A kernel without such calls takes it for a fault.
func foreign(*Scene) error {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return lacking("memory to write and execute: " + told(err))
	}
	copy(page, []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3})
	plain, run := pointer(new([4]uintptr)), code(page) // SIG_DFL
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		for _, sig := range [...]unix.Signal{unix.SIGSEGV, unix.SIGSYS} {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), plain, 0, 8, 0, 0)
		}
		run()
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	var st unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &st, 0, nil); err != nil {
		return err
	}
	switch {
	case st.Signaled() && st.Signal() == unix.SIGSEGV:
		return lacking("32-bit system calls in this kernel")
	case st.Signaled():
		return errors.New(unix.SignalName(st.Signal()))
	}
	return nil
}
