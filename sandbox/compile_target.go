package sandbox

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
)

// target is what the target does before its exec.
func (c *compiler) target() {
	// 1. Into its cgroup, whose root it then takes for the root: cgroup_namespaces(7).
	for i := range c.b.Join {
		c.Call("write", []image.Arg{image.Int(image.FDJoin + i), image.Text("0"), image.Int(1)}, image.Want(1))
	}
	c.Call("unshare", []image.Arg{image.Named(unix.CLONE_NEWCGROUP, "CLONE_NEWCGROUP")})

	// 2. A session of its own, and the terminal.
	c.Call("setsid", nil)
	if c.p.PTY {
		c.Call("ioctl", []image.Arg{image.Int(0), image.Named(unix.TIOCSCTTY, "TIOCSCTTY"), image.Int(0)})
	}

	// 3. Close everything else before the exec: CVE-2024-21626.
	c.Call("dup3", []image.Arg{image.Int(image.FDAliveWrite), image.Int(image.FDAlive), image.Named(unix.O_CLOEXEC, "O_CLOEXEC")})
	c.closeRange(image.FDAliveRead, image.FDAliveWrite)
	c.closeRange(image.FDHeldIn, image.FDHeldErr)
	c.closeRange(image.FDJob, all32)
	c.Call("close_range", []image.Arg{
		image.Int(image.FDProgram), image.Named(all32, "~0"), image.Named(unix.CLOSE_RANGE_CLOEXEC, "CLOSE_RANGE_CLOEXEC"),
	}) // Linux 5.11

	// 4. Limits, ids, capabilities.
	for _, l := range c.p.Rlimits {
		n, _ := rlimitNumber(l.Name)
		limit := image.Quads(fmt.Sprintf("{%d, %d}", l.Value, l.Value), l.Value, l.Value)
		c.Call("prlimit64", []image.Arg{image.Int(0), image.Named(n, "RLIMIT_"+strings.ToUpper(l.Name)), limit, image.Null()})
	}
	c.ids(image.RegUID, image.RegGID)

	// 5. Landlock, seccomp, and an act for each that must be refused.
	c.restrict()
	c.seccomp()

	// 6. Signals. From here on nothing that confines it changes any more.
	c.Call("rt_sigprocmask", []image.Arg{image.Named(unix.SIG_SETMASK, "SIG_SETMASK"), image.Quads("[]", 0), image.Null(), image.Int(8)})
	c.announce(image.RecordConfined, image.ConfinedSize)

	c.execute()
}

// execute is what the target does once all that confines it is in force.
func (c *compiler) execute() {
	// 7. Program and directory as this user reaches them inside the view.
	c.words()
	c.Label("open")
	c.Call("openat", []image.Arg{atCWD, image.Value(image.RegPath), openPath, image.Int(0)}, image.Want(image.FDProgram))
	c.Call("openat", []image.Arg{
		atCWD, image.Value(image.RegDir), image.Named(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, "O_PATH|O_DIRECTORY|O_CLOEXEC"), image.Int(0),
	}, image.Want(image.FDDir))
	c.Call("fchdir", []image.Arg{image.Int(image.FDDir)})

	// 8. The last gate; the exec, unless others are to be opened.
	c.announce(image.RecordWaiting, image.WaitingSize)
	c.gate(image.FDGate2)
	c.words()
	c.Test(image.RegAct, image.If(image.ActOpen, "others"))
	c.Set(image.RegReady, image.Int(1))
	c.Test(image.RegAct, image.If(image.ActScript, "script"))
	c.Call("execveat", []image.Arg{
		image.Int(image.FDProgram), image.Text(""), image.Value(image.RegArgv), image.Value(image.RegEnvp),
		image.Named(unix.AT_EMPTY_PATH, "AT_EMPTY_PATH"),
	}) // Linux 3.19
	c.Label("script")
	c.Call("execve", []image.Arg{image.Value(image.RegPath), image.Value(image.RegArgv), image.Value(image.RegEnvp)})
	c.Label("others")
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
	c.Call("close", []image.Arg{image.Int(image.FDDir)})
	c.Goto("open")
}

// words reads what the stage has to say of a command.
func (c *compiler) words() {
	size := 8 * image.Commanded
	c.Call("read", []image.Arg{image.Int(image.FDGate1), image.Address(image.RegPath), image.Int(size)}, image.Want(size))
}

// announce says how far the target has come, to whoever looks at it there.
func (c *compiler) announce(kind, size int) {
	if c.b.Announce == On {
		c.Set(image.RegWaiting, image.Int(kind))
		c.report(image.Address(image.RegWaiting), size)
	}
}

// ids takes the ids in two registers for good: no other groups, no capability in
// any set, nothing to be gained by an exec, and nobody may trace or read the
// process. credentials(7), capabilities(7).
func (c *compiler) ids(uid, gid image.Reg) {
	if c.b.Groups == On {
		c.Call("setgroups", []image.Arg{image.Int(0), image.Null()})
	}
	g, u := image.Value(gid), image.Value(uid)
	c.Call("setresgid", []image.Arg{g, g, g})
	c.Call("setresuid", []image.Arg{u, u, u})
	c.prctl(unix.PR_CAP_AMBIENT, "PR_CAP_AMBIENT", image.Named(unix.PR_CAP_AMBIENT_CLEAR_ALL, "PR_CAP_AMBIENT_CLEAR_ALL"))
	c.Call("capset", []image.Arg{
		image.Words("{v3, 0}", unix.LINUX_CAPABILITY_VERSION_3, 0), image.Words("{0, 0, 0}", 0, 0, 0, 0, 0, 0),
	})
	c.prctl(unix.PR_SET_DUMPABLE, "PR_SET_DUMPABLE", image.Int(0)) // a change of ids may have set it
	c.prctl(unix.PR_SET_NO_NEW_PRIVS, "PR_SET_NO_NEW_PRIVS", image.Int(1))
}

// seccomp installs the target's filter and proves it: without one, add_key(2) with
// null pointers is EFAULT. With exec: listed an executable memfd must be refused
// too, by the pen's sysctl or by the filter.
func (c *compiler) seccomp() {
	listed := c.p.Exec == ExecListed
	if listed && c.b.MemfdNoexec == On {
		c.memfdCanary(unix.EACCES)
	}
	if c.b.Filter == nil {
		return
	}
	c.Seccomp(c.b.Filter, c.p.Seccomp.Base)
	z := image.Int(0)
	c.Call("add_key", []image.Arg{z, z, z, z, z}, image.Refused(unix.EPERM))
	c.Set(image.RegFilter, image.Int(1))
	if listed && c.b.MemfdNoexec != On {
		c.memfdCanary(unix.EPERM)
	}
}

func (c *compiler) memfdCanary(e syscall.Errno) {
	c.Call("memfd_create", []image.Arg{
		image.Text(image.CanaryFile), image.Named(unix.MFD_CLOEXEC|unix.MFD_EXEC, "MFD_CLOEXEC|MFD_EXEC"),
	}, image.Refused(e))
	c.Set(image.RegMemfd, image.Int(1))
}
