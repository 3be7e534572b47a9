package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pinfold/test/testkit"
)

const (
	readyLimit = 30 * time.Second
	// stopLimit is the default grace of 5 s and the 2 s that the daemon may take
	// beside; the rest is for a loaded host.
	stopLimit = 5*time.Second + 2*time.Second + 3*time.Second
)

// daemon is one pinfoldd of a test, with a directory for its socket and state that
// every uid can look into.
type daemon struct {
	t      *testing.T
	dir    string
	sock   string
	state  string
	policy string // path of the policy file; empty: the embedded one
	cgroup string // name of its base
	// command makes the command of a program; nil: run as this test is.
	command func(name string, args ...string) *exec.Cmd
	cmd     *exec.Cmd
	log     *lockedBuffer
	over    bool
	users   bool // the daemon is an ordinary user's
}

type lockedBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	file string // of a daemon that has successors, which write to it too; empty: none
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// forget drops what was written so far.
func (b *lockedBuffer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != "" {
		text, err := os.ReadFile(b.file)
		return string(text) + b.buf.String() + errorText(err)
	}
	return b.buf.String()
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// prepare makes the directory of a daemon that is not started yet. policy is the
// text of its policy file; empty: the embedded one.
func prepare(t *testing.T, policy string) *daemon {
	t.Helper()
	testkit.NeedRoot(t)
	testkit.NeedCgroup(t)
	dir, err := os.MkdirTemp("", "pinfold-test-") //nolint:usetesting // short enough for a socket, and open to other uids
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	policy = patient(t, policy)
	d := &daemon{t: t, dir: dir, sock: filepath.Join(dir, "s"), state: filepath.Join(dir, "state"), cgroup: filepath.Base(dir)}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("RemoveAll(%s) = %v; want none", dir, err)
		}
	})
	if policy != "" {
		d.policy = filepath.Join(dir, "policy.yaml")
		d.writePolicy(policy)
	}
	return d
}

// startVar names the environment variable with the time that a start may take where
// the host is an emulated one: test/vm.
const startVar = "PINFOLD_TEST_START"

// stopWithin is stopLimit, and what a start may take where the host is such.
func stopWithin() time.Duration {
	more, err := time.ParseDuration(os.Getenv(startVar))
	if err != nil {
		return stopLimit // it is no emulated host
	}
	return stopLimit + more
}

// patient gives the profiles of a policy that time, unless they name one.
func patient(t *testing.T, policy string) string {
	t.Helper()
	limit, ok := os.LookupEnv(startVar)
	if !ok {
		return policy
	}
	if policy == "" {
		policy = readFile(t, filepath.Join("..", "..", "policy", "default.yaml"))
	}
	if !strings.Contains(policy, "timeout: {") {
		return strings.Replace(policy, "\n  default:\n", "\n  default:\n    timeout: { start: "+limit+" }\n", 1)
	}
	if strings.Contains(policy, "start: ") {
		return policy
	}
	return strings.ReplaceAll(policy, "timeout: {", "timeout: { start: "+limit+",")
}

func (d *daemon) writePolicy(text string) {
	d.t.Helper()
	if err := os.WriteFile(d.policy, []byte(patient(d.t, text)), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// start starts a daemon and waits until it takes requests. It is stopped, and the
// host is looked over, when the test ends.
func start(t *testing.T, policy string) *daemon {
	t.Helper()
	d := prepare(t, policy)
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	t.Cleanup(func() {
		if !d.over {
			d.stop()
		}
		if t.Failed() {
			t.Logf("log of pinfoldd:\n%s", d.log)
		}
	})
	return d
}

func (d *daemon) args() []string {
	args := []string{"--socket", d.sock, "--state", d.state, "--cgroup", d.cgroup}
	if d.policy != "" {
		args = append(args, "--policy", d.policy)
	}
	return args
}

// launch runs pinfoldd up to its readiness, or returns why it has ended.
func (d *daemon) launch() error {
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = ready.Close() }()
	d.log = &lockedBuffer{}
	if d.command == nil {
		d.command = func(name string, args ...string) *exec.Cmd { return exec.Command(program(d.t, name), args...) }
	}
	d.cmd = d.command("pinfoldd", append(d.args(), "--ready-fd", "3")...)
	if f, ok := d.cmd.Stderr.(*os.File); ok {
		d.log.file = f.Name()
		defer func() { _ = f.Close() }()
	} else {
		d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	}
	d.cmd.ExtraFiles = []*os.File{told}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(d.cmd.Start(), told.Close(), ready.SetReadDeadline(time.Now().Add(readyLimit))); err != nil {
		return err
	}
	line, err := bufio.NewReader(ready).ReadString('\n')
	if err == nil && line == "READY\n" {
		return nil
	}
	killer := time.AfterFunc(readyLimit, func() { _ = d.cmd.Process.Kill() })
	defer killer.Stop()
	return errors.Join(fmt.Errorf("not ready: %q: %w", line, err), d.cmd.Wait())
}

// stop ends the daemon by SIGTERM: it must exit 0 within its grace and leave
// nothing.
func (d *daemon) stop() {
	d.t.Helper()
	d.over = true
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Errorf("SIGTERM to pinfoldd = %v; want none", err)
	}
	killer := time.AfterFunc(stopWithin(), func() { _ = d.cmd.Process.Signal(syscall.SIGQUIT) }) // with all stacks in its log
	err := d.cmd.Wait()
	if !killer.Stop() {
		d.t.Errorf("pinfoldd ran for %s after SIGTERM; want it ended", stopWithin())
	}
	if err != nil {
		d.t.Errorf("pinfoldd = %v; want exit 0", err)
	}
	d.checkNothingLeft()
	if d.t.Failed() {
		d.scrub()
	}
}

// scrub takes away what a daemon that failed its test has left, so that the next
// test finds the host as it was.
func (d *daemon) scrub() {
	d.t.Helper()
	groups, err := d.cgroups()
	if err != nil {
		d.t.Errorf("cgroups() = %v; want none", err)
	}
	for _, g := range groups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.kill"), []byte("1"), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.t.Logf("cgroup.kill: %v", err)
		}
	}
	for range 50 { // the kernel needs a moment to empty them
		for _, g := range groups {
			removeTree(g)
		}
		if left, err := d.cgroups(); err == nil && len(left) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		d.t.Errorf("mountinfo: %v", err)
	}
	lines := strings.Split(string(table), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			if err := syscall.Unmount(f[4], syscall.MNT_DETACH); err != nil {
				d.t.Logf("umount %s: %v", f[4], err)
			}
		}
	}
}

// removeTree removes directories from the bottom up; a cgroup's files go with it.
func removeTree(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	_ = syscall.Rmdir(dir)
}

// checkNothingLeft looks for what the daemon or its pens may have left.
func (d *daemon) checkNothingLeft() {
	d.t.Helper()
	left, err := d.leftovers()
	if err != nil {
		d.t.Errorf("leftovers() = %v; want none", err)
	}
	for _, l := range left {
		d.t.Errorf("left behind: %s; want nothing", l)
	}
	for _, level := range []string{"level=ERROR", "panic:", "DATA RACE"} {
		for line := range strings.Lines(d.log.String()) {
			if strings.Contains(line, level) && !strings.Contains(line, "policy not reloaded") && !strings.Contains(line, "not upgraded") && !strings.Contains(line, "audit record") {
				d.t.Errorf("the daemon's log has %q; want no such line", strings.TrimSpace(line))
			}
		}
	}
}

// leftovers lists processes, cgroups, mounts and files of this daemon.
func (d *daemon) leftovers() ([]string, error) {
	var out []string
	procs, err := d.processes()
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		out = append(out, "process "+p)
	}
	groups, err := d.cgroups()
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		out = append(out, "cgroup "+g)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, d.dir+"/") {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	for _, sub := range []string{"run", "stage"} {
		err := filepath.WalkDir(filepath.Join(d.state, sub), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !e.IsDir() {
				out = append(out, "file "+path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// processes lists what runs in the daemon's cgroups, or was started with its paths.
func (d *daemon) processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dir := range dirs {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		line, cerr := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || cerr != nil {
			continue // it has just ended
		}
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) || awaitsInit(dir) {
			continue
		}
		if strings.Contains(string(groups), "/"+d.cgroup+"/") || strings.Contains(string(line), d.state) {
			out = append(out, filepath.Base(dir)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return out, nil
}

// awaitsInit reports whether a process has ended and only the host's init has not
// reaped it yet: a killed stage leaves its dead children to it.
func awaitsInit(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return true // reaped in this moment
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return len(f) > 1 && f[0] == "Z" && f[1] == "1"
}

// cgroups lists the directories of the daemon's base in every hierarchy.
func (d *daemon) cgroups() ([]string, error) {
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil // removed by another test in this moment
		}
		if err != nil {
			return err
		}
		if e.IsDir() && e.Name() == d.cgroup {
			out = append(out, path)
		}
		return nil
	})
	return out, err
}

// below lists the cgroups that callers have now: what must be gone when their
// sessions are.
func (d *daemon) below() []string {
	d.t.Helper()
	bases, err := d.cgroups()
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, b := range bases {
		found, err := filepath.Glob(filepath.Join(b, "callers", "*"))
		if err != nil {
			d.t.Fatal(err)
		}
		for _, f := range found {
			if info, err := os.Stat(f); err == nil && info.IsDir() {
				out = append(out, f)
			}
		}
	}
	return out
}

// eventually asks again until ok holds; what it waits for comes soon on any host,
// the limit is for a loaded one.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const limit = 20 * time.Second
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s = false; want true", limit, what)
		}
	}
}

// eventuallyOrNot is eventually for what may not come; it then only waits for a
// while.
func eventuallyOrNot(ok func() bool) {
	const limit = 5 * time.Second
	for deadline := time.Now().Add(limit); !ok() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// basic is a policy for root as the caller, with a key of its own for the caller
// and for the profile, each one line or more with the right indent.
func basic(callerKeys, profileKeys string) string {
	return fmt.Sprintf(`version: 1
callers:
  - name: root
    match: { uid: 0 }
    profiles: [default]
    run_as: dynamic
%s
profiles:
  default:
    commands: [python3, bash, sh, ls, cat, echo, env, head, tail, mkdir, rm, mv, touch, ln, cp, stat, sleep, "true", "false", seq, tee, id, whoami, pwd, yes, dd, find, grep, setsid, nohup, wc, tr]
    fs:
      read: [ /usr, /bin, /sbin, /lib, /lib32, /lib64, /etc/ssl, /etc/alternatives ]
      write: [ "${workspace}" ]
      missing: skip
%s
`, callerKeys, profileKeys)
}

func itoa(n int) string { return strconv.Itoa(n) }

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func readLink(t *testing.T, path string) string {
	t.Helper()
	to, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return to
}
