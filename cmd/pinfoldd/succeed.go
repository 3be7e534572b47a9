package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"pinfold/sandbox"
	"pinfold/supervisor"
	"pinfold/systemd"
)

// Where the listening socket of a daemon that takes over is from: its file is systemd's
// or the daemons' own to remove.
const (
	fromSystemd = "systemd"
	fromDaemon  = "own"
)

const takeOverFlag = "--take-over="

// successor is how the daemon that takes over from this one is started: as this one was,
// from the same path, which by then may be another program.
func successor(c supervisor.Config, args, env []string) (*sandbox.Successor, error) {
	path, err := ownPath(args[0])
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("cannot find the working directory: %w", err)
	}
	from := fromDaemon
	if c.Listener != nil && !c.OwnFile {
		from = fromSystemd
	}
	rest := slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return strings.HasPrefix(a, takeOverFlag) })
	umask := syscall.Umask(0)
	syscall.Umask(umask)
	return &sandbox.Successor{
		Path: path, Args: append([]string{args[0], takeOverFlag + from}, rest...), Env: systemd.Heritage(env), Dir: dir, Umask: umask,
	}, nil
}

// ownPath is the path of this program by which it was started, so that a symlink that
// leads to the version of the day is followed anew; else the one that the kernel knows.
func ownPath(started string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find this program: %w", err)
	}
	self = strings.TrimSuffix(self, " (deleted)") // proc_pid_exe(5): a file that was replaced
	a, err := os.Stat(started)
	if !filepath.IsAbs(started) || err != nil {
		return self, nil
	}
	b, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("cannot find this program: %w", err)
	}
	if !os.SameFile(a, b) {
		return self, nil
	}
	return filepath.Clean(started), nil
}

// inherited takes a descriptor that the daemon before has passed.
func inherited(n int, name string) *os.File {
	syscall.CloseOnExec(n)
	return os.NewFile(uintptr(n), name)
}

// predecessor is the daemon that is to be taken over from.
type predecessor struct{ pipe *os.File }

func newPredecessor() *predecessor {
	return &predecessor{inherited(sandbox.SuccessorSays, "daemon before")}
}

// tell says whether this process can take over, and returns why not. Once it is told, the
// other daemon leaves.
func (p *predecessor) tell(cannot error) error {
	text := supervisor.Says
	if cannot != nil {
		text = cannot.Error()
		text = text[:min(len(text), supervisor.MaxSaid)]
	}
	_, err := p.pipe.WriteString(text)
	if err = errors.Join(err, p.pipe.Close()); err != nil {
		err = fmt.Errorf("cannot tell the daemon before: %w", err) // it has given up
	}
	return errors.Join(cannot, err)
}

// replaced tells the service manager which process takes over.
func replaced(manager *systemd.Manager, pid int) error {
	state, err := systemd.Replacing(pid)
	if err != nil {
		return err
	}
	return manager.Notify(state)
}
