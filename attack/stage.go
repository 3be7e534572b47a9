package attack

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stage: PID 1 of the pen, and the program that made it. In a control run One is
// another process, which may be killed.
func stage() []Attack {
	perm, shut := []string{"EPERM"}, []string{"EACCES", "EPERM"}
	var all []Attack
	add := func(id string, layer Layer, tries string, want []string, c Control, t func(pid int) error) {
		all = append(all, Attack{ID: id, Layer: layer, Tries: tries, Want: want, Control: c, try: func(s *Scene) error { return t(s.One) }})
	}
	for _, f := range []string{"mem", "exe", "root/", "cwd/", "fd", "fd/0", "fd/10", "fdinfo", "environ", "maps", "smaps", "auxv", "io", "stack", "syscall", "personality", "pagemap", "map_files", "ns/mnt", "ns/pid", "ns/net", "ns/user"} {
		c := root()
		switch f {
		case "fd/10": // a victim does not have it
			c = past(AsRoot)
		case "stack": // root of a host that is locked down may not
			c = past(AsRoot)
		}
		all = append(all, Attack{ID: "proc-" + slug(f), Layer: IDs, Tries: "open /proc/1/" + f, Want: shut, Control: c, try: opensOf(f, unix.O_RDONLY)})
	}
	// Linux 6.1 and 6.12 let everybody read it. PID 1 has no timers that it could tell.
	all = append(all, Attack{ID: "proc-timers", Layer: IDs, Tries: "read the timers of PID 1", Want: []string{"EACCES", "EPERM", "empty"}, Control: no("the victim has no timers either"), try: readsTimers})
	for _, f := range []string{"oom_score_adj", "comm", "coredump_filter", "clear_refs", "uid_map", "mem"} {
		all = append(all, Attack{ID: "proc-write-" + slug(f), Layer: IDs, Tries: "open /proc/1/" + f + " for writing", Want: shut, Control: root(), try: opensOf(f, unix.O_WRONLY)})
	}
	add("kill", IDs, "SIGKILL to PID 1", perm, user(), func(p int) error { return unix.Kill(p, unix.SIGKILL) })
	add("stop", IDs, "SIGSTOP to PID 1", perm, user(), func(p int) error { return unix.Kill(p, unix.SIGSTOP) })
	add("tgkill", IDs, "tgkill of PID 1", perm, user(), func(p int) error { return unix.Tgkill(p, p, unix.SIGSEGV) })
	add("queue-signal", IDs, "rt_sigqueueinfo to PID 1", perm, user(), func(p int) error {
		info := &[16]uint64{0: 9, 1: ^uint64(0) >> 32} // siginfo_t with si_code SI_QUEUE
		return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(p), 9, pointer(info))
	})
	add("pidfd-signal", IDs, "pidfd_send_signal to PID 1", perm, user(), pidfdTo(func(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }))
	add("limit", IDs, "prlimit of PID 1", perm, user(), func(p int) error {
		return unix.Prlimit(p, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil)
	})
	add("priority", IDs, "setpriority of PID 1", shut, user(), func(p int) error { return unix.Setpriority(unix.PRIO_PROCESS, p, 19) })
	add("affinity", IDs, "sched_setaffinity of PID 1", perm, user(), func(p int) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(p, &set)
	})
	add("trace", Seccomp, "PTRACE_SEIZE of PID 1", perm, root(), func(p int) error { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(p), 0, 0) })
	add("attach", Seccomp, "PTRACE_ATTACH to PID 1", perm, root(), func(p int) error { return call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(p), 0, 0) })
	add("read-memory", Seccomp, "process_vm_readv of PID 1", perm, past(AsRoot), func(p int) error { return vectorOf(unix.SYS_PROCESS_VM_READV, p) })
	add("write-memory", Seccomp, "process_vm_writev of PID 1", perm, past(AsRoot), func(p int) error { return vectorOf(unix.SYS_PROCESS_VM_WRITEV, p) })
	add("take-descriptor", Seccomp, "pidfd_getfd of PID 1", perm, root(), pidfdTo(func(fd int) error {
		got, err := unix.PidfdGetfd(fd, 0, 0)
		if err == nil {
			err = unix.Close(got)
		}
		return err
	}))
	all = append(all,
		Attack{ID: "write-program", Layer: IDs, Tries: "open /proc/1/exe for writing", Want: shut, Control: past(AsRoot), try: opensOf("exe", unix.O_WRONLY)},
		Attack{ID: "write-stage", Layer: Mounts, Tries: "open pinfold-stage for writing", Want: []string{"ENOENT", "EROFS", "EACCES"}, Control: past(AsRoot), try: func(s *Scene) error { return open(s.Stage, unix.O_WRONLY) }},
		Attack{ID: "state", Layer: View, Tries: "open the directory of the daemon and its stage", Want: []string{"ENOENT", "EACCES"}, Control: root(), try: func(s *Scene) error { return open(s.State, unix.O_RDONLY) }},
		Attack{ID: "enter", Layer: IDs, Tries: "open the network namespace of PID 1 and enter it", Want: shut, Control: root(), try: enters},
	)
	return class(Stage, all...)
}

func opensOf(name string, flag int) try {
	return func(s *Scene) error { return open(s.ofOne(name), flag) }
}

func readsTimers(s *Scene) error {
	text, err := os.ReadFile(s.ofOne("timers"))
	if err == nil && len(text) == 0 {
		err = errors.New("empty")
	}
	return err
}

func enters(s *Scene) error {
	fd, err := unix.Open(s.ofOne("ns/net"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

func pidfdTo(t func(fd int) error) func(int) error {
	return func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return lacking("a pidfd: " + told(err))
		}
		defer func() { _ = unix.Close(fd) }()
		return t(fd)
	}
}

// vectorOf reads or writes eight bytes where nothing is mapped.
func vectorOf(nr uintptr, pid int) error {
	l, r := &[2]uintptr{pointer(new([8]byte)), 8}, &[2]uintptr{0x1000, 8}
	return call(nr, uintptr(pid), pointer(l), 1, pointer(r), 1, 0)
}

// seesSocket looks for the host's sockets in the kernel's list.
func seesSocket(s *Scene) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getpid()) + "/net/unix")
	if err != nil {
		return err
	}
	if strings.Contains(string(b), s.Word) {
		return nil
	}
	return errors.New("none")
}
