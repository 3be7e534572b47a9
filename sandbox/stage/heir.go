package stage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// The daemon, which has given up its privileges, can start nothing. So it is its stage
// that starts the daemon that is to come after it: the program, arguments and environment
// that this stage was started with, and nothing that a message names.

// successorFD is where the daemon puts what it tells of its successor.
const successorFD = connFD + 1

// readSuccessor takes what the daemon tells of its successor. The stage in a user
// namespace can start none: that is for the one outside.
func (c *Config) readSuccessor() error {
	if !c.Succeeds || c.Entered || c.Probe {
		return nil
	}
	f := os.NewFile(successorFD, "successor")
	defer linux.CloseAll(f)
	var err error
	if c.Successor, err = sandbox.ReadSuccessor(f); err != nil {
		return fmt.Errorf("cannot read how to start the daemon's successor: %w", err)
	}
	return nil
}

// heirs are the successors of a daemon: one at a time.
type heirs struct {
	mu   sync.Mutex
	runs bool
}

// succeed starts the daemon's successor.
func (s *server) succeed(raw []byte, passed []int) (any, []*os.File, error) {
	if err := stagewire.Unmarshal(raw, &struct{}{}); err != nil {
		return nil, nil, refused("cannot start a successor: what it is was said when this stage was started: %w", err)
	}
	if s.rootless != nil {
		return s.trees.owners.succeed(passed)
	}
	return s.heirs.start(s.config.Successor, passed)
}

// succeed asks the stage outside, where a daemon belongs.
func (o *owners) succeed(passed []int) (any, []*os.File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := linux.SendNumbers(o.conn, []byte{askHeir}, passed...); err != nil {
		return nil, nil, fmt.Errorf("cannot ask for a successor: %w", err)
	}
	return succeeded(o.conn)
}

// succeeded takes the answer to a request for a successor.
func succeeded(conn *os.File) (any, []*os.File, error) {
	a, fds, err := stagewire.Receive(conn, make([]byte, stagewire.MaxInline))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start a successor: no answer from who was to start it: %w", err)
	}
	files := linux.Files(fds)
	var r stagewire.Succeeded
	if a.Error != nil {
		err = refused("%s", a.Error.Say)
	} else {
		err = stagewire.Unmarshal(a.Body, &r)
	}
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("cannot take a successor: %d descriptors came, not one", len(files))
	}
	if err != nil {
		unwanted(files)
		return nil, nil, err
	}
	return r, files, nil
}

// answer is the other side of owners.succeed.
func (h *heirs) answer(conn *os.File, c *sandbox.Successor, passed []int) error {
	r, files, err := h.start(c, passed)
	return tell(conn, r, files, err)
}

// tell answers a request for a successor. One that cannot be told of is ended.
func tell(conn *os.File, r any, files []*os.File, err error) error {
	var m stagewire.Message
	if err == nil {
		m.Body, err = stagewire.Marshal(r)
	}
	if err != nil {
		unwanted(files)
		return stagewire.Send(conn, stagewire.Message{Error: answerOf(err)})
	}
	if err = stagewire.Send(conn, m, files...); err != nil {
		unwanted(files)
		return err
	}
	linux.CloseAll(files...)
	return nil
}

// start has a successor started, which gets the descriptors that were passed from
// sandbox.SuccessorSocket on, and returns its pid and pidfd.
func (h *heirs) start(c *sandbox.Successor, passed []int) (any, []*os.File, error) {
	switch {
	case c == nil:
		return nil, nil, refused("cannot start a successor: this stage was not told how")
	case len(passed) != sandbox.SuccessorSays-sandbox.SuccessorSocket+1:
		return nil, nil, refused("cannot start a successor with %d descriptors: it gets the socket and a pipe", len(passed))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs {
		return nil, nil, refused("cannot start a successor: there is one that has not ended")
	}
	r, files, err := between(c, passed)
	if err != nil {
		return nil, nil, err
	}
	d, err := linux.Dup(files[0])
	var end *os.File
	if err == nil {
		end, err = linux.Pollable(d)
	}
	if err != nil {
		unwanted(files)
		return nil, nil, err
	}
	h.runs = true
	go func() {
		_ = linux.WaitGone(end) // what it says, it says to the daemon
		linux.CloseAll(end)
		h.mu.Lock()
		h.runs = false
		h.mu.Unlock()
	}()
	return r, files, nil
}

// heirTime is how long the process in between may take to start a successor.
const heirTime = 20 * time.Second

// heirFlag makes a stage the process in between.
const heirFlag = "--heir"

// between starts a successor by a process in between, which ends at once. The successor is
// then no child of ours but of whoever takes orphans: a service manager waits for no main
// process that is not its own child.
func between(c *sandbox.Successor, passed []int) (any, []*os.File, error) {
	how, err := c.File()
	if err != nil {
		return nil, nil, err
	}
	defer linux.CloseAll(how)
	raw, theirs, err := linux.SocketPair("heir")
	if err != nil {
		return nil, nil, err
	}
	ours, err := linux.Pollable(raw)
	if err != nil {
		linux.CloseAll(theirs)
		return nil, nil, err
	}
	defer linux.CloseAll(ours)
	given := []*os.File{theirs, how}
	defer func() { linux.CloseAll(given[2:]...) }()
	for _, n := range passed {
		f, err := linux.DupFile(n, "successor's")
		if err != nil {
			linux.CloseAll(theirs)
			return nil, nil, err
		}
		given = append(given, f)
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"pinfold-stage", heirFlag}, Env: []string{}, Dir: "/",
		Stdout: os.Stderr, Stderr: os.Stderr, ExtraFiles: given,
	}
	err = cmd.Start()
	linux.CloseAll(theirs)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot start the daemon's successor: %w", err)
	}
	err = ours.SetReadDeadline(time.Now().Add(heirTime))
	var r any
	var files []*os.File
	if err == nil {
		r, files, err = succeeded(ours)
	}
	_ = cmd.Process.Kill() // it has answered, or is not to answer any more
	if err != nil {
		go func() { _ = cmd.Wait() }() // what hangs in the kernel does not end at once
		return nil, nil, err
	}
	_ = cmd.Wait() // killed or not: now it is nobody's parent
	return r, files, nil
}

// unwanted ends successors that nobody takes. One that nobody has a pidfd of ends once it
// tells its daemon that it could take over, and that listens no more.
func unwanted(pidfds []*os.File) {
	for _, f := range pidfds {
		_ = linux.Kill(f, syscall.SIGKILL) // or it has ended by itself
	}
	linux.CloseAll(pidfds...)
}

// heir is the process in between: it starts the successor of which descriptor successorFD
// tells, and answers on connFD.
func heir(stderr io.Writer) int {
	for n := connFD; n <= successorFD+2; n++ {
		unix.CloseOnExec(n)
	}
	conn, err := linux.Pollable(os.NewFile(connFD, "stage"))
	if err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	var r any
	var files []*os.File
	if err = sandbox.KeepSecrets(); err == nil {
		r, files, err = startHeir(os.NewFile(successorFD, "successor"), os.NewFile(successorFD+1, "socket"), os.NewFile(successorFD+2, "pipe"))
	}
	if err := tell(conn, r, files, err); err != nil {
		fmt.Fprintln(stderr, "pinfold-stage:", err)
		return 1
	}
	return 0
}

// startHeir starts what a sealed file says, with the descriptors of a successor.
func startHeir(how, socket, pipe *os.File) (any, []*os.File, error) {
	c, err := sandbox.ReadSuccessor(how)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read how to start the daemon's successor: %w", err)
	}
	program, err := unspoiled(c.Path)
	if err != nil {
		return nil, nil, refused("cannot start %s as the daemon's successor: %w", c.Path, err)
	}
	pidfd := -1
	cmd := &exec.Cmd{
		Path: program, Args: c.Args, Env: append([]string{}, c.Env...), Dir: c.Dir,
		Stdout: os.Stderr, Stderr: os.Stderr, ExtraFiles: []*os.File{socket, pipe}, // the stage has the daemon's
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	unix.Umask(c.Umask)
	if err := cmd.Start(); err != nil {
		return nil, nil, refused("cannot start %s as the daemon's successor: %w", c.Path, err)
	}
	return stagewire.Succeeded{Pid: cmd.Process.Pid}, []*os.File{os.NewFile(uintptr(pidfd), "successor")}, nil
}

// unspoiled follows a path and returns the program that is there, where nobody but root
// and the user of this stage can have put it: no file, directory or symlink on the way is
// another's or may be written to by others. A sticky directory will do above others: what
// is in it, its owner alone can take away.
func unspoiled(path string) (string, error) {
	if !cleanAbs(path) {
		return "", errors.New("not an absolute clean path")
	}
	at, links := "/", 0
	err := ownAlone("/", true)
	for todo := strings.Split(path[1:], "/"); err == nil && len(todo) > 0; {
		next := filepath.Join(at, todo[0])
		todo = todo[1:]
		var info os.FileInfo
		if info, err = os.Lstat(next); err != nil {
			return "", err
		}
		if info.Mode().Type() != os.ModeSymlink {
			at, err = next, ownAlone(next, len(todo) > 1)
			continue
		}
		to, lerr := os.Readlink(next)
		if links++; links > maxLinks {
			lerr = &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
		}
		if err = errors.Join(ownAlone(next, false), lerr); filepath.IsAbs(to) {
			at = "/"
		}
		todo = append(strings.Split(strings.Trim(filepath.Clean(to), "/"), "/"), todo...)
	}
	if err != nil {
		return "", err
	}
	return at, isProgram(at)
}

// ownAlone refuses what others may write to, or own. sticky: a sticky directory will do.
func ownAlone(path string, sticky bool) error {
	st, err := linux.LstatAt(nil, path)
	if err != nil {
		return err
	}
	kind, mode := st.Mode&unix.S_IFMT, st.Mode&0o7777
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, who could have put another there; chown it", path, st.Uid)
	case kind == unix.S_IFLNK || mode&0o022 == 0 || kind == unix.S_IFDIR && sticky && mode&unix.S_ISVTX != 0:
		return nil
	}
	return fmt.Errorf("others may write to %s (mode %#o); chmod go-w it", path, mode)
}

// isProgram refuses what cannot be executed.
func isProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s may not be executed; chmod +x it", path)
	}
	return nil
}
