package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"pinfold/policy"
)

const (
	startLimit = 20 * time.Second // for a private daemon to say that it listens
	stopLimit  = 15 * time.Second // for a private daemon to end after SIGTERM
	keptLog    = 64 << 10         // bytes of its log that are kept for an error message
	readyFD    = 3                // descriptor on which it says READY: the first of ExtraFiles
	readyLine  = "READY\n"
)

// privateDaemon is a pinfoldd of this command alone: a convenience, not a boundary.
type privateDaemon struct {
	cmd    *exec.Cmd
	args   []string // of its command line, but for what only one start has
	ready  bool     // it came to listen: there may be something of it to end
	dir    string   // holds its socket and state; removed at the end
	socket string
	log    *tail
	policy []byte // used in place of the host's; nil: that
}

// startDaemon starts a private daemon and returns when it listens. The caller
// stops it.
func (c *cli) startDaemon(ctx context.Context) (*privateDaemon, error) {
	return c.startDaemonWith(ctx, nil)
}

// startDaemonWith is startDaemon with a policy of its own.
func (c *cli) startDaemonWith(ctx context.Context, source []byte) (*privateDaemon, error) {
	program, err := findDaemon()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(c.runtimeDir(), "pinfold-run-")
	if err != nil {
		return nil, fail(exitFailed, "XDG_RUNTIME_DIR=/some/writable/directory", errorf("cannot make a state directory in %s: %w", c.runtimeDir(), cause(err)))
	}
	d := &privateDaemon{dir: dir, socket: filepath.Join(dir, "s"), log: &tail{limit: keptLog}, policy: source}
	if err := d.start(ctx, c, program); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return d, nil
}

// start runs the daemon and waits for its READY.
func (d *privateDaemon) start(ctx context.Context, c *cli, program string) error {
	var err error
	if d.args, err = d.arguments(c, program); err != nil {
		return err
	}
	args := slices.Concat(d.args, []string{"--ready-fd", fmt.Sprint(readyFD)})
	ready, told, err := os.Pipe()
	if err != nil {
		return errorf("cannot make a pipe: %w", err)
	}
	defer func() { _ = ready.Close() }()
	// The daemon ends when the thread that started it does, so that thread must
	// be the one that lives as long as this command: prctl(2), PR_SET_PDEATHSIG.
	runtime.LockOSThread()
	d.cmd = exec.CommandContext(context.WithoutCancel(ctx), args[0], args[1:]...)
	d.cmd.Env = slices.DeleteFunc(os.Environ(), fromManager)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.ExtraFiles = []*os.File{told}
	// A group of its own: a terminal's ^C is for the command inside.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	err = d.cmd.Start()
	_ = told.Close()
	if err != nil {
		return fail(exitFailed, "make build", errorf("cannot start a private daemon %s: %w", args[0], cause(err)))
	}
	if err := waitReady(ready); err != nil {
		ended := d.end() //nolint:contextcheck // also after what ended ctx; its last words have come then
		return errors.Join(d.failed(err), ended)
	}
	d.ready = true
	return nil
}

// fromManager says whether a variable is what a service manager told this process
// alone: a private daemon neither takes its sockets nor speaks for it.
func fromManager(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "LISTEN_") || strings.HasPrefix(name, "WATCHDOG_")
}

// arguments are the daemon's command line, by way of systemd-run where this process
// shares its cgroup with others.
func (d *privateDaemon) arguments(c *cli, program string) ([]string, error) {
	args := []string{
		program, "--socket", d.socket, "--state", filepath.Join(d.dir, "state"),
	}
	source := d.policy
	if source == nil && !readable(policyFile) {
		// The embedded policy, said aloud: a file that cannot be read must not
		// stop the daemon, and must not be taken for one that is not there.
		source = policy.DefaultSource().Data
	}
	if source != nil {
		path := filepath.Join(d.dir, "policy.yaml")
		if err := os.WriteFile(path, source, 0o600); err != nil {
			return nil, errorf("cannot write policy %s: %w", path, cause(err))
		}
		args = append(args, "--policy", path)
	}
	scope, err := c.scopeCommand()
	if err != nil {
		return nil, err
	}
	return append(scope, args...), nil
}

// failed tells why the daemon did not get ready, by its own last words.
func (d *privateDaemon) failed(err error) error {
	text := strings.TrimSpace(d.log.String())
	if text == "" {
		text = err.Error()
	}
	return fail(exitFailed, "pinfold doctor", errorf("cannot start a private daemon: %s", text))
}

// stop ends the daemon, all that it runs, and its directory.
func (d *privateDaemon) stop() error {
	return errors.Join(d.end(), os.RemoveAll(d.dir))
}

// end sends SIGTERM and waits; a daemon that does not end in time is killed.
func (d *privateDaemon) end() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errorf("cannot end the private daemon %d: %w", d.cmd.Process.Pid, err)
	}
	killer := time.AfterFunc(stopLimit, func() { _ = d.cmd.Process.Kill() })
	err := d.cmd.Wait()
	if !killer.Stop() {
		return errors.Join(errorf("cannot end the private daemon %d: killed after %s", d.cmd.Process.Pid, stopLimit), d.sweep())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return errorf("cannot wait for the private daemon: %w", err)
	}
	if err != nil && d.ready {
		return d.sweep()
	}
	return nil
}

// sweep ends what a daemon that was killed, or lost its stage, has left: no other takes it
// over.
func (d *privateDaemon) sweep() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	args := slices.Concat(d.args, []string{"--sweep"})
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), fromManager)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errorf("cannot end what the private daemon has left: %w: %s", cause(err), strings.TrimSpace(string(out)))
	}
	return nil
}

func waitReady(ready *os.File) error {
	if err := ready.SetReadDeadline(time.Now().Add(startLimit)); err != nil {
		return errorf("cannot set a deadline: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(ready, int64(len(readyLine)))).ReadString('\n')
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errorf("it did not get ready in %s", startLimit)
	case err != nil:
		return errors.New("it ended before it was ready")
	case line != readyLine:
		return errorf("it said %q in place of READY", line)
	}
	return nil
}

// findDaemon finds pinfoldd beside this program, else where it is installed.
func findDaemon() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", errorf("cannot find this program: %w", err)
	}
	tried := []string{
		filepath.Join(filepath.Dir(self), "pinfoldd"),
		filepath.Join(filepath.Dir(self), "..", "sbin", "pinfoldd"),
		filepath.Join(filepath.Dir(self), "..", "libexec", "pinfold", "pinfoldd"),
	}
	for _, path := range tried {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fail(exitFailed, "make build", errorf("cannot find pinfoldd: not in %s", strings.Join(tried, ", ")))
}

// runtimeDir is where a private daemon keeps its socket and state.
func (c *cli) runtimeDir() string {
	for _, dir := range []string{c.getenv("XDG_RUNTIME_DIR"), "/run"} {
		if dir != "" && writable(dir) {
			return dir
		}
	}
	return os.TempDir()
}

// writable says whether a file can be made in dir, by making one.
func writable(dir string) bool {
	f, err := os.CreateTemp(dir, "pinfold-probe-")
	if err != nil {
		return false
	}
	return errors.Join(f.Close(), os.Remove(f.Name())) == nil
}

func readable(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// tail keeps the last bytes that are written to it.
type tail struct {
	buf   bytes.Buffer
	limit int
}

// Write never fails; what is older than the limit is forgotten.
func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if over := t.buf.Len() - t.limit; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string { return t.buf.String() }
