package sandbox

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
)

// compiler builds one Program.
type compiler struct {
	*image.Program
	p    Profile
	b    Build
	made map[string]bool // directories that PID 1 made
}

// Arguments that many steps share.
var (
	atCWD     = image.Named(unix.AT_FDCWD, "AT_FDCWD")
	fromEmpty = image.Named(unix.MOVE_MOUNT_F_EMPTY_PATH, "MOVE_MOUNT_F_EMPTY_PATH")
	openPath  = image.Named(unix.O_PATH|unix.O_CLOEXEC, "O_PATH|O_CLOEXEC")
)

const (
	all32  = 0xffffffff // every descriptor
	maxCap = 63         // the kernel's sets have 64 bits: capabilities(7)

	timerSlack = 50 * time.Microsecond // what a process begins with
)

// compile adds all steps in the order in which they are made.
func (c *compiler) compile() {
	c.made = map[string]bool{}
	c.In(WhereInit)
	c.begin()
	c.memfdNoexec()
	c.enter()
	c.maskProc()
	c.mounts()
	c.Call("sethostname", []image.Arg{image.Text(c.p.Hostname), image.Int(len(c.p.Hostname))})
	c.loopback()
	c.rules()
	c.terminal()
	c.boundCaps()
	c.clone()
	c.hold()
	c.In(WhereTarget)
	c.Label("target")
	c.target()
}

// begin closes what was not meant for PID 1, waits at the first gate and reads
// what this launch alone has. PID 1 blocks every signal for good: a signalfd tells
// it of its children.
func (c *compiler) begin() {
	c.Call("rt_sigprocmask", []image.Arg{image.Named(unix.SIG_SETMASK, "SIG_SETMASK"), image.Quads("~[]", ^uint64(0)), image.Null(), image.Int(8)})
	c.closeRange(image.FDProgram, image.FDStatus-1)
	c.closeRange(image.FDCommand+1, image.FDAttach-1)
	c.closeRange(image.FDAttach+len(c.p.Attach)+len(c.b.DenyMounts), all32)
	c.prctl(unix.PR_SET_NAME, "PR_SET_NAME", image.Text("pinfold-init"))
	c.prctl(unix.PR_SET_DUMPABLE, "PR_SET_DUMPABLE", image.Int(0))
	c.Call("fcntl", []image.Arg{image.Int(image.FDPeer), image.Named(unix.F_GETFD, "F_GETFD"), image.Int(0)})
	// Others may have made them nonblocking; neither PID 1 nor the target expects that.
	for _, fd := range []int{image.FDStdin, image.FDStdout, image.FDStderr, image.FDStatus, image.FDGate1, image.FDGate2} {
		c.Call("fcntl", []image.Arg{image.Int(fd), image.Named(unix.F_SETFL, "F_SETFL"), image.Int(0)})
	}
	c.gate(image.FDGate1)
	size := 8 * image.Received
	c.Call("read", []image.Arg{image.Int(image.FDStatus), image.Address(image.RegUID), image.Int(size)}, image.Want(size))
	c.mapCommand()
	c.Call("umask", []image.Arg{image.Named(0o022, "022")})
	// Handlers ended with the exec; the stage may wait long for its timers, the target not: PR_SET_TIMERSLACK(2const).
	for _, n := range c.b.Ignored {
		c.Call("rt_sigaction", []image.Arg{image.Int(n), image.Quads("{SIG_DFL}", 0, 0, 0, 0), image.Null(), image.Int(8)})
	}
	c.prctl(unix.PR_SET_TIMERSLACK, "PR_SET_TIMERSLACK", image.Int(int(timerSlack)))
}

// mapCommand maps the file that the stage writes the command to: mmap(2).
// MAP_FIXED_NOREPLACE: Linux 4.17.
func (c *compiler) mapCommand() {
	c.Call("mmap", []image.Arg{
		image.CommandArea(), image.Int(image.MaxCommand), image.Named(unix.PROT_READ, "PROT_READ"),
		image.Named(unix.MAP_SHARED|unix.MAP_FIXED_NOREPLACE, "MAP_SHARED|MAP_FIXED_NOREPLACE"), image.Int(image.FDCommand), image.Int(0),
	}, image.Want(image.CommandAt))
	c.Call("close", []image.Arg{image.Int(image.FDCommand)})
}

// gate reads one byte; when the writer is gone instead, the step fails.
func (c *compiler) gate(fd int) {
	c.Call("read", []image.Arg{image.Int(fd), image.Spare(), image.Int(1)}, image.Want(1))
}

// terminal opens the pen's own terminal: pts(4), ioctl_tty(2). TIOCGPTPEER: Linux
// 4.13.
func (c *compiler) terminal() {
	if !c.p.PTY {
		return
	}
	c.Call("openat", []image.Arg{
		atCWD, image.Text("/dev/ptmx"), image.Named(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, "O_RDWR|O_NOCTTY|O_CLOEXEC"), image.Int(0),
	}, image.Want(image.FDProgram))
	master := image.Int(image.FDHeldIn)
	c.Call("dup3", []image.Arg{image.Int(image.FDProgram), master, image.Named(unix.O_CLOEXEC, "O_CLOEXEC")})
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
	c.Call("ioctl", []image.Arg{master, image.Named(unix.TIOCSPTLCK, "TIOCSPTLCK"), image.Quads("[0]", 0)})
	c.Call("ioctl", []image.Arg{master, image.Named(unix.TIOCSWINSZ, "TIOCSWINSZ"), image.Address(image.RegWinsize)})
	c.Call("ioctl", []image.Arg{master, image.Named(unix.TIOCGPTPEER, "TIOCGPTPEER"), image.Named(unix.O_RDWR|unix.O_NOCTTY, "O_RDWR|O_NOCTTY")},
		image.Want(image.FDProgram))
	c.Call("fchownat", []image.Arg{
		image.Int(image.FDProgram), image.Text(""), image.Value(image.RegUID), image.Int(-1), image.Named(unix.AT_EMPTY_PATH, "AT_EMPTY_PATH"),
	})
	for fd := image.FDStdin; fd <= image.FDStderr; fd++ {
		c.Call("dup3", []image.Arg{image.Int(image.FDProgram), image.Int(fd), image.Int(0)})
	}
	c.Call("close", []image.Arg{image.Int(image.FDProgram)})
}

// boundCaps empties the bounding set of PID 1 and so of all that it starts:
// capabilities(7). Numbers that the kernel does not have are EINVAL.
func (c *compiler) boundCaps() {
	last := c.b.LastCap
	if last <= 0 {
		last = maxCap
	}
	c.Fold(fmt.Sprintf("prctl(PR_CAPBSET_DROP, each of 0 to %d, 0, 0, 0) or EINVAL", last), func() {
		for n := range last + 1 {
			c.prctl(unix.PR_CAPBSET_DROP, "PR_CAPBSET_DROP", image.Int(n), image.Or(unix.EINVAL))
		}
	})
}

// clone starts the target, which shares PID 1's memory until its exec. The kernel
// writes its pid before it makes a step: both run from here on. A pipe that ends with
// the exec tells PID 1 of it: a parent in vfork(2) would count as busy in the host's
// load for as long as the target waits at its gates. clone(2).
func (c *compiler) clone() {
	c.Call("pipe2", []image.Arg{image.Spare(), image.Named(unix.O_CLOEXEC, "O_CLOEXEC")})
	flags := uint64(unix.CLONE_VM | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_SETTID)
	const text = "CLONE_VM|CLONE_PARENT_SETTID|CLONE_CHILD_SETTID"
	pid := image.Address(image.RegPid)
	if c.b.IntoCgroup != On {
		// Where a thread's storage is asked for differs by architecture, and nobody asks.
		c.Call("clone", []image.Arg{image.Named(int(flags)|int(unix.SIGCHLD), text+"|SIGCHLD"), image.Int(0), image.StartedPid(), pid, pid}, image.If(0, "target"))
		return
	}
	args := image.Quads(fmt.Sprintf("{%s|CLONE_INTO_CGROUP, SIGCHLD, &started.pid, &%s, cgroup %d}", text, image.RegPid, image.FDJob),
		flags|unix.CLONE_INTO_CGROUP, 0, image.PidAddress, image.StartedAddress, uint64(unix.SIGCHLD), 0, 0, 0, 0, 0, image.FDJob)
	c.Call("clone3", []image.Arg{args, image.Int(88)}, image.If(0, "target"))
}

// hold is PID 1 beside the target and after it. Nothing that it still has to do needs a
// right: it gives up its ids, its capabilities, the files of its job and nearly every
// system call at once, whatever time passes until the target's exec; then all but the far
// ends of the streams and the status socket. It reports, and reaps until released.
func (c *compiler) hold() {
	c.Call("close", []image.Arg{image.Int(image.FDAliveWrite)})
	c.closeRange(image.FDRuleset, image.FDGate2)
	c.closeRange(image.FDCanary, image.FDPeer-1)
	c.ids(image.RegInitUID, image.RegInitGID)
	c.closeRange(0, image.FDStderr)
	c.Call("signalfd4", []image.Arg{
		image.Int(-1), image.Quads("[SIGCHLD]", 1<<(unix.SIGCHLD-1)), image.Int(8),
		image.Named(unix.SFD_CLOEXEC|unix.SFD_NONBLOCK, "SFD_CLOEXEC|SFD_NONBLOCK"),
	}, image.Want(image.FDSignals))
	c.Seccomp(image.HolderFilter(), "PID 1")
	c.Call("read", []image.Arg{image.Int(image.FDAliveRead), image.Spare(), image.Int(1)}, image.Want(0))
	c.Test(image.RegFail, image.Unless(0, "failed"))
	c.Test(image.RegReady, image.Unless(1, "failed"))
	c.Call("close", []image.Arg{image.Int(image.FDAliveRead)})
	c.Call("munmap", []image.Arg{image.CommandArea(), image.Int(image.MaxCommand)})
	c.report(image.StartedRecord(), image.StartedSize)
	c.loop()
	c.Label("failed")
	c.Call("exit_group", []image.Arg{image.Int(image.ExitFailed)})
}

// loop reaps whatever ends, so that no zombie stays, reports the target's end and
// obeys commands.
func (c *compiler) loop() {
	c.Label("loop")
	c.Call("ppoll", []image.Arg{image.Polled(), image.Int(2), image.Null(), image.Null(), image.Int(8)}, image.Or(unix.EINTR))
	c.Call("read", []image.Arg{image.Int(image.FDSignals), image.Spare(), image.Int(128)}, image.Or(unix.EAGAIN))
	c.Label("reap")
	c.Call("wait4", []image.Arg{
		image.Int(-1), image.EndedStatus(), image.Named(unix.WNOHANG|unix.WALL, "WNOHANG|__WALL"), image.EndedUsage(),
	}, image.Save(image.RegReaped), image.Or(unix.ECHILD), image.If(0, "commands"))
	c.Test(image.RegReaped, image.UnlessValue(image.RegPid, "reap"))
	c.report(image.EndedRecord(), image.EndedSize)
	c.Set(image.RegPid, image.Int(0)) // the number may come again
	c.Goto("reap")
	c.Label("commands")
	c.Call("recvfrom", []image.Arg{
		image.Int(image.FDStatus), image.Address(image.RegCommand), image.Int(image.CommandSize),
		image.Named(unix.MSG_DONTWAIT, "MSG_DONTWAIT"), image.Null(), image.Null(),
	}, image.Or(unix.EAGAIN), image.Unless(image.CommandSize, "loop"))
	c.Test(image.RegCommand, image.If(image.CommandRelease, "release"))
	c.Test(image.RegCommand, image.Unless(image.CommandClose, "commands"))
	c.Call("close", []image.Arg{image.Value(image.RegOperand)}, image.Or(unix.EBADF))
	c.Goto("commands")
	c.Label("release")
	c.Call("exit_group", []image.Arg{image.Int(0)})
}

func (c *compiler) report(record image.Arg, size int) {
	c.Call("write", []image.Arg{image.Int(image.FDStatus), record, image.Int(size)}, image.Want(size))
}

func (c *compiler) closeRange(first, last int) {
	end := image.Int(last)
	if last == all32 {
		end = image.Named(all32, "~0")
	}
	c.Call("close_range", []image.Arg{image.Int(first), end, image.Int(0)}) // Linux 5.9
}

// prctl is prctl(2) with one argument.
func (c *compiler) prctl(option int, name string, arg image.Arg, opts ...image.Opt) {
	z := image.Int(0)
	c.Call("prctl", []image.Arg{image.Named(option, name), arg, z, z, z}, opts...)
}
