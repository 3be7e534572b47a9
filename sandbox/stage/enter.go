package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// A stage that is not root has no right to mount anything. It starts itself again
// in a user namespace and a mount namespace of its own, in which it has: that one
// is the stage. The first stays outside, says who owns a file there where the
// other sees none but its own uid, finds pens of an earlier stage, and ends with it.

// ownersFD is where the stage in the user namespace finds the one outside.
const ownersFD = connFD + 1

// ordinary reports whether this process has to enter a user namespace first.
func (c *Config) ordinary() bool { return os.Geteuid() != 0 && !c.Entered }

// enter runs the stage in a user namespace and returns its exit status. What keeps
// it from that is told to the daemon.
func enter(ctx context.Context, c *Config, args []string, stderr io.Writer) int {
	conn, err := linux.Pollable(os.NewFile(connFD, "daemon"))
	if err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	defer linux.CloseAll(conn)
	ours, theirs, err := linux.SocketPair("owners")
	if err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	cmd := inside(ctx, args, stderr)
	cmd.ExtraFiles = []*os.File{conn, theirs}
	err = cmd.Start()
	linux.CloseAll(theirs)
	if err != nil {
		linux.CloseAll(ours)
		if err := stagewire.Send(conn, stagewire.Message{Error: answerOf(refusedEntry(err))}); err != nil {
			fmt.Fprintln(stderr, "pinfold-stage:", err)
			return 1
		}
		return 0 // the daemon knows
	}
	linux.CloseAll(conn) // the other end is to close when the inner stage ends
	go serveOutside(ctx, ours, c)
	return status(cmd.Wait(), stderr)
}

// inside is the stage's own program in a user namespace that maps the uid and gid
// to themselves, so that ids read the same on both sides: user_namespaces(7). Its
// capabilities are ambient, since its uid there is not 0. It dies with this one.
func inside(ctx context.Context, args []string, stderr io.Writer) *exec.Cmd {
	runtime.LockOSThread() // prctl(2), PR_SET_PDEATHSIG: the thread that starts it must live as long
	uid, gid := os.Geteuid(), os.Getegid()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/proc/self/exe", append([]string{"--entered"}, args...)...)
	cmd.Args[0] = "pinfold-stage"
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
		AmbientCaps: []uintptr{
			unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SETPCAP, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_NET_ADMIN,
		},
		Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// status is the exit status of the stage inside.
func status(err error, stderr io.Writer) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	}
	fmt.Fprintln(stderr, "pinfold-stage: the stage in the user namespace ended:", err)
	return 1
}

// refusedEntry says what keeps an ordinary user from a user namespace, and the cure.
func refusedEntry(err error) error {
	f := sandbox.ExplainUserNS(err)
	return refused("cannot confine anything as uid %d without a user namespace: %s; to cure it: %s, or run pinfoldd as root", os.Geteuid(), f.Why, f.Fix)
}

// cannotConfine names every control that no profile can do without and that this
// host lacks, each with its cure; nil when there is none.
func cannotConfine(f sandbox.Features) error {
	var lacks []error
	for _, l := range f.Lacks() {
		switch l.Control { //nolint:exhaustive // the others can be off, or are refused spawn by spawn
		case sandbox.ControlMounts, sandbox.ControlSeccomp, sandbox.ControlCaps, sandbox.ControlPidNS, sandbox.ControlIPCNS:
			lacks = append(lacks, fmt.Errorf("%s is blocked by %s; to cure it: %s", l.Control, l.Why, l.Fix))
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return refused("cannot confine anything on this host: %w", errors.Join(lacks...))
}

// probe writes what this host can do to w, as the stage would find it: in a user
// namespace where it is not root. Where there is none to be had, what is missing
// then is found out without.
func probe(ctx context.Context, c Config, stdout, stderr io.Writer) int {
	if c.ordinary() {
		cmd := inside(ctx, []string{"--probe"}, stderr)
		cmd.Stdout = stdout
		err := cmd.Start()
		if err == nil {
			return status(cmd.Wait(), stderr)
		}
	}
	f, err := sandbox.Probe(ctx)
	if err == nil {
		f.Rootless = c.Entered
		err = json.MarshalWrite(stdout, f)
	}
	if err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	return 0
}
