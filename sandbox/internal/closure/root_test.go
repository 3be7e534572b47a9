package closure

import (
	"os/exec"
	"syscall"
)

// inRoot makes a command run with root as its root directory.
func inRoot(cmd *exec.Cmd, root string) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	return cmd
}
