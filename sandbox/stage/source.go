package stage

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/linux"
)

// mountable keeps the kernel's own file systems out of every pen, whoever asks: a
// proc of the host leads through /proc/PID/root and /proc/PID/mem into processes
// outside, a cgroup tree to the limits, the others to the whole host's kernel. sysfs may be
// shown, but not be written.
func mountable(src *os.File, attr uint64) error {
	st, err := linux.StatFS(src)
	if err != nil {
		return err
	}
	switch uint32(st.Type) { // magic numbers have 32 bits
	case unix.PROC_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.NSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.EFIVARFS_MAGIC, unix.SELINUX_MAGIC,
		unix.BINFMTFS_MAGIC, unix.PSTOREFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, configfsMagic, fusectlMagic:
	case unix.SYSFS_MAGIC:
		if attr&unix.MOUNT_ATTR_RDONLY != 0 {
			return nil
		}
	default:
		return nil
	}
	return fmt.Errorf("%s is of a file system of the kernel's, which no pen is shown: %w", src.Name(), unix.EPERM)
}

// Magic numbers that golang.org/x/sys/unix lacks: statfs(2), linux/magic.h.
const (
	configfsMagic = 0x62656570
	fusectlMagic  = 0x65735543
)
