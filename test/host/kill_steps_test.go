package host

import "golang.org/x/sys/unix"

// step is what begins with the next call of that number after the step before it.
type step struct {
	name string
	nr   int
}

// steps of a start, as the system calls of the stage or the daemon show them.
func (k killed) steps() []step {
	switch {
	case k.stage && k.ready:
		return stageReady()
	case k.stage:
		return stageNew()
	case k.ready:
		return daemonReady()
	}
	return daemonNew()
}

func stageNew() []step {
	return []step{
		{"look", unix.SYS_OPENAT2},
		{"scratch", unix.SYS_FSOPEN},
		{"view", unix.SYS_FSOPEN},
		{"record of a placeholder", unix.SYS_RENAMEAT},
		{"placeholder", unix.SYS_MKDIRAT},
		{"its identity", unix.SYS_RENAMEAT},
		{"mask", unix.SYS_MOVE_MOUNT},
		{"Landlock", unix.SYS_LANDLOCK_CREATE_RULESET},
		{"image", unix.SYS_MEMFD_CREATE},
		{"gates", unix.SYS_PIPE2},
		{"PID 1's ids", unix.SYS_SENDMSG},
		{"first gate and command", unix.SYS_WRITE},
		{"PID 1", unix.SYS_CLONE3},
		{"proof", unix.SYS_GETDENTS64},
		{"pidfds", unix.SYS_PIDFD_OPEN},
		{"answer", unix.SYS_SENDMSG},
	}
}

// stageReady leaves out the command, which comes before the look that is made ahead of it,
// within it, or after it.
func stageReady() []step {
	return []step{
		{"look", unix.SYS_OPENAT2},
		{"compare", unix.SYS_NEWFSTATAT},
		{"proof", unix.SYS_LSEEK},
		{"answer", unix.SYS_SENDMSG},
		{"attaches of the next", unix.SYS_OPEN_TREE},
		{"masks of the next", unix.SYS_MOVE_MOUNT},
		{"Landlock of the next", unix.SYS_LANDLOCK_CREATE_RULESET},
		{"gates of the next", unix.SYS_PIPE2},
		{"PID 1 of the next", unix.SYS_CLONE3},
		{"proof of the next", unix.SYS_GETDENTS64},
		{"pidfds of the next", unix.SYS_PIDFD_OPEN},
		{"prepared", unix.SYS_SENDMSG},
	}
}

func daemonNew() []step {
	return []step{
		{"look", unix.SYS_SENDMSG},
		{"scratch", unix.SYS_SENDMSG},
		{"cgroups", unix.SYS_MKDIRAT},
		{"limits", unix.SYS_OPENAT},
		{"launch", unix.SYS_SENDMSG},
		{"spool", unix.SYS_MKDIRAT},
		{"record", unix.SYS_RENAMEAT},
		{"audit record and last gate", unix.SYS_WRITE},
		{"relay", unix.SYS_OPENAT},
		{"exec", unix.SYS_RECVMSG},
		{"answer", unix.SYS_WRITE},
	}
}

func daemonReady() []step {
	return []step{
		{"look ahead", unix.SYS_SENDMSG},
		{"command", unix.SYS_SENDMSG},
		{"spool", unix.SYS_MKDIRAT},
		{"record", unix.SYS_RENAMEAT},
		{"audit records and last gate", unix.SYS_WRITE},
		{"relay", unix.SYS_OPENAT},
		{"exec", unix.SYS_RECVMSG},
		{"cgroup of the next", unix.SYS_MKDIRAT},
		{"prepare", unix.SYS_SENDMSG},
		{"prepared", unix.SYS_RECVMSG},
	}
}
