package attack

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelFiles: knobs and secrets of the host's kernel. Nothing is ever written to them.
func kernelFiles() []Attack {
	shut, gone := []string{"EACCES", "EPERM", "ENOENT", "EROFS"}, []string{"ENOENT"}
	var all []Attack
	for _, p := range []string{
		"kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "kernel/hostname", "kernel/sysrq", "kernel/kptr_restrict", "kernel/ns_last_pid", "kernel/panic",
		"vm/overcommit_memory", "vm/drop_caches", "vm/panic_on_oom", "fs/binfmt_misc/register", "fs/suid_dumpable", "fs/file-max", "net/ipv4/ip_forward",
	} {
		all = append(all, Attack{ID: "write-" + slug(p), Layer: Mounts, Tries: "open /proc/sys/" + p + " for writing", Want: shut, Reads: "/proc/sys/" + p, Control: root(), try: opens("/proc/sys/"+p, unix.O_WRONLY)})
	}
	const affinity = "/proc/irq/default_smp_affinity"
	all = append(all, Attack{ID: "write-smp-affinity", Layer: Mounts, Tries: "open " + affinity + " for writing", Want: shut, Reads: affinity, Control: root(), try: opens(affinity, unix.O_WRONLY)})
	for _, p := range []string{"kcore", "kmsg", "keys", "key-users", "timer_list", "kpageflags", "kpagecount", "kpagecgroup", "sched_debug"} {
		all = append(all, Attack{ID: "read-" + slug(p), Layer: Mounts, Tries: "read /proc/" + p, Want: append([]string{"empty"}, shut...), Reads: "/proc/" + p, Control: past(AsRoot), try: reads("/proc/" + p)})
	}
	for _, p := range []string{"/dev/mem", "/dev/kmsg", "/dev/port", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop-control", "/dev/uinput", "/dev/snapshot", "/dev/mapper/control", "/dev/hwrng", "/dev/vhost-net", "/dev/userfaultfd"} {
		all = append(all, Attack{ID: "device-" + slug(strings.TrimPrefix(p, "/dev/")), Layer: View, Tries: "find " + p, Want: gone, Reads: p, Control: root(), try: stats(p)})
	}
	for _, p := range []string{"/sys/kernel", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/sys/firmware/efi/efivars", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/class/net", "/sys/devices", "/sys/kernel/security"} {
		all = append(all, Attack{ID: "sys-" + slug(strings.TrimPrefix(p, "/sys/")), Layer: View, Tries: "find " + p, Want: gone, Reads: p, Control: root(), try: stats(p)})
	}
	all = append(all,
		Attack{ID: "sysrq", Layer: Mounts, Tries: "open /proc/sysrq-trigger for writing", Want: shut, Reads: "/proc/sysrq-trigger", Control: root(), try: sysrq},
		Attack{ID: "write-uid-map", Layer: IDs, Tries: "write its own uid_map", Want: shut, Control: no("a process writes it once, in a new namespace"), try: writes("/proc/self/uid_map", "0 0 4294967295")},
		Attack{ID: "allow-setgroups", Layer: IDs, Tries: "write its own setgroups", Want: shut, Control: no("only a new user namespace has it open"), try: writes("/proc/self/setgroups", "allow")},
		Attack{ID: "be-spared", Layer: IDs, Tries: "lower its oom_score_adj", Want: shut, Control: resource(), try: writes("/proc/self/oom_score_adj", "-1000")},
	)
	return class(KernelFiles, all...)
}

func writes(path, data string) try {
	return func(*Scene) error {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		_, err = unix.Write(fd, []byte(data))
		return err
	}
}

// sysrq opens the trigger and writes nothing to it; the mask over it is a device.
func sysrq(*Scene) error {
	fd, err := unix.Open("/proc/sysrq-trigger", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return unix.EACCES
	}
	return nil
}

// cgroups: no limit is lifted, no group is left, none is seen.
func cgroups() []Attack {
	shut := []string{"ENOENT", "EACCES", "EROFS", "EPERM"}
	var all []Attack
	for _, p := range []string{
		"cgroup.procs", "unified/cgroup.procs", "cgroup.subtree_control", "unified/cgroup.subtree_control", "memory/tasks", "memory/cgroup.procs", "memory/release_agent", "pids/cgroup.procs", "devices/devices.allow",
		"init.scope/cgroup.procs", "init.scope/cgroup.freeze", "init.scope/cgroup.kill", "system.slice/memory.max", "cpu/tasks",
	} {
		path := "/sys/fs/cgroup/" + p
		all = append(all, Attack{ID: "write-" + slug(p), Layer: View, Tries: "open " + path + " for writing", Want: shut, Reads: path, Control: root(), try: opens(path, unix.O_WRONLY)})
	}
	all = append(all,
		Attack{ID: "find-tree", Layer: View, Tries: "find /sys/fs/cgroup", Want: []string{"ENOENT"}, Reads: "/sys/fs/cgroup", Control: user(), try: stats("/sys/fs/cgroup")},
		Attack{ID: "own-path", Layer: Cgroup, Tries: "learn in which cgroup of the host it is", Want: []string{"none"}, Control: user(), try: cgroupPath("/proc/self/cgroup")},
		Attack{ID: "mountinfo", Layer: View, Tries: "find a cgroup tree among its mounts", Want: []string{"none"}, Control: user(), try: treeAmongMounts},
		refused("mount-v2", "mount a cgroup2 tree", past(InBox), calling(unix.SYS_MOUNT, text("none"), text("/tmp"), text("cgroup2"), 0, 0)),
		refused("mount-v1", "mount a cgroup tree of version 1", past(InBox), calling(unix.SYS_MOUNT, text("none"), text("/tmp"), text("cgroup"), 0, text("none,name=pinfold-attack"))),
		refused("leave-namespace", "unshare the cgroup namespace", root(), calling(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)),
		Attack{ID: "clone-into", Layer: Seccomp, Tries: "clone3 with CLONE_INTO_CGROUP", Want: []string{"ENOSYS"}, Control: past(AsUser), try: func(*Scene) error {
			return forking(unix.SYS_CLONE3, pointer(&[11]uint64{0: unix.CLONE_INTO_CGROUP, 4: uint64(unix.SIGCHLD), 10: ^uint64(0) >> 1}), 88)(nil)
		}},
	)
	return class(Cgroups, all...)
}

func cgroupPath(file string) try {
	return func(*Scene) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[2] != "/" {
				return nil
			}
		}
		return errors.New("none")
	}
}

func treeAmongMounts(*Scene) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(b), " - cgroup") {
		return nil
	}
	return errors.New("none")
}
