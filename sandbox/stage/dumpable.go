package stage

import (
	"bytes"
	"os"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

// suidDumpable is the knob that says who may trace a process that has changed its
// ids: proc_sys_fs(5).
const suidDumpable = "/proc/sys/fs/suid_dumpable"

// untraceable refuses to start anything while the knob is 1. The target shares its
// memory with PID 1 until its exec; with 1 the kernel makes it traceable by the
// caller's other processes in the moment in which it takes the caller's uid, while
// PID 1 is still root.
func untraceable(knob *os.File) error {
	b := make([]byte, 8)
	n, err := knob.ReadAt(b, 0)
	if n == 0 {
		return failed("read "+suidDumpable, err)
	}
	if v := string(bytes.TrimSpace(b[:n])); v != "0" && v != "2" {
		return &sandbox.StepError{
			Step: -1, Where: sandbox.WhereStage, Text: "start a target that nobody can trace: fs.suid_dumpable is " + v,
			Hint: "sysctl fs.suid_dumpable=0, which is the kernel's default, or 2",
		}
	}
	return nil
}

func openSuidDumpable() (*os.File, error) {
	return linux.OpenAt(nil, suidDumpable, os.O_RDONLY, linux.Strict)
}
