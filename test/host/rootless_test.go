package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/test/testkit"
)

// groupsVar has the ordinary user be in two groups.
const groupsVar = "PINFOLD_TEST_HOST_GROUPS"

// ordinary is a host as an ordinary user has it: programs and a directory of the
// user's, and cgroups in every hierarchy that were given to them, as a delegation
// does: cgroups(7), "Cgroups delegation".
type ordinary struct {
	t       *testing.T
	dir     string // of the user's; holds run/ for XDG_RUNTIME_DIR
	cgroups []string
}

// newOrdinary leaves the test out where the user cannot have a user namespace,
// proved by starting one.
func newOrdinary(t *testing.T, dir string) *ordinary {
	t.Helper()
	testkit.NeedRoot(t)
	testkit.NeedCgroup(t)
	if out, err := ordinaryCommand(t, dir, nil, "unshare", "--user", "--mount", "true").CombinedOutput(); err != nil {
		testkit.LeaveOut(t, fmt.Sprintf("needs user namespaces for ordinary users: unshare --user --mount as uid %d: %v: %s", callerUID, err, out))
	}
	o := &ordinary{t: t, dir: dir}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "run"), 0o700), os.Chown(filepath.Join(dir, "run"), callerUID, callerUID)); err != nil {
		t.Fatal(err)
	}
	o.delegate()
	return o
}

// delegate makes a cgroup below the own one in each hierarchy that carries limits
// and gives it to the user with its files.
func (o *ordinary) delegate() {
	o.t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		o.t.Fatal(err)
	}
	name := filepath.Base(o.dir) + "-user"
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		tops := []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
		if f[1] != "" {
			if !slices.Contains([]string{"memory", "pids", "cpu", "cpu,cpuacct"}, f[1]) {
				continue
			}
			tops = []string{"/sys/fs/cgroup/" + f[1]}
		}
		for _, top := range tops {
			own := filepath.Join(top, f[2])
			if f[1] == "" && holds(filepath.Join(top, "cgroup.controllers"), "memory") {
				own = top // where members of the own cgroup are in nobody's way
			}
			if _, err := os.Stat(filepath.Join(own, "cgroup.procs")); err == nil {
				o.give(filepath.Join(own, name))
				break
			}
		}
	}
	for _, dir := range o.cgroups {
		if holds(filepath.Join(dir, "cgroup.controllers"), "memory") || holds(filepath.Join(dir, "memory.limit_in_bytes"), "") {
			return
		}
	}
	testkit.LeaveOut(o.t, fmt.Sprintf("needs a cgroup with the memory controller to give away: %v have none", o.cgroups))
}

// holds says whether a file can be read and has a word in it.
func holds(path, word string) bool {
	b, err := os.ReadFile(path)
	return err == nil && (word == "" || slices.Contains(strings.Fields(string(b)), word))
}

func (o *ordinary) give(dir string) {
	o.t.Helper()
	if up := filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"); holds(up, "") {
		for _, c := range []string{"+memory", "+pids", "+cpu"} {
			_ = os.WriteFile(up, []byte(c), 0) // a hybrid host has them elsewhere
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		o.t.Fatal(err)
	}
	o.cgroups = append(o.cgroups, dir)
	o.t.Cleanup(func() {
		removeTree(dir)
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			o.t.Errorf("cgroup %s is left; want it removed", dir)
		}
	})
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, callerUID, callerUID))
	})
	if err != nil {
		o.t.Fatal(err)
	}
}

// command is a program run by the user inside the given cgroups.
func (o *ordinary) command(name string, args ...string) *exec.Cmd {
	return ordinaryCommand(o.t, o.dir, o.cgroups, name, args...)
}

// stray is a program run by the user in the cgroup of this test.
func (o *ordinary) stray(name string, args ...string) *exec.Cmd {
	return ordinaryCommand(o.t, o.dir, nil, name, args...)
}

func ordinaryCommand(t *testing.T, dir string, cgroups []string, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program(t, "helper"), append([]string{name}, args...)...)
	bin := filepath.Dir(program(t, "pinfold"))
	cmd.Env = []string{
		helperVar + "=ordinary", helperArg + "=" + strings.Join(cgroups, "\n"),
		"PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"),
	}
	cmd.Dir = "/"
	return cmd
}

// becomeOrdinary is the helper: it moves itself into cgroups, becomes the user for
// good, and executes its arguments.
func becomeOrdinary(cgroups string) error {
	for dir := range strings.FieldsSeq(cgroups) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
		if errors.Is(err, syscall.EBUSY) { // what a killed daemon left has its controllers below
			err = enterBelow(dir)
		}
		if err != nil {
			return err
		}
	}
	path, err := exec.LookPath(os.Args[1])
	if err != nil {
		return err
	}
	var groups []int
	if _, ok := os.LookupEnv(groupsVar); ok {
		groups = []int{callerUID, callerUID + 1}
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(callerUID), syscall.Setuid(callerUID)); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "PINFOLD_TEST_HOST_") })
	return syscall.Exec(path, os.Args[1:], env)
}

// enterBelow enters a cgroup of its own below one that was given to the user, as a service
// manager starts what it delegates to.
func enterBelow(dir string) error {
	below := filepath.Join(dir, "again-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(below, 0o755); err != nil {
		return err
	}
	procs := filepath.Join(below, "cgroup.procs")
	return errors.Join(os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0), os.Chown(below, callerUID, callerUID), os.Chown(procs, callerUID, callerUID))
}

// startOrdinary starts a daemon of the user's.
func startOrdinary(t *testing.T, policy string) *daemon {
	t.Helper()
	d := prepare(t, policy)
	o := newOrdinary(t, d.dir)
	if err := os.Chown(d.dir, callerUID, callerUID); err != nil {
		t.Fatal(err)
	}
	d.command, d.users = o.command, true
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd as uid %d = %v; want it ready\n%s", callerUID, err, d.log)
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

// result runs a command and returns what it wrote and its exit code.
func result(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

const ordinaryPolicy = `version: 1
callers:
  - name: everybody
    match: { users: ["*"] }
    profiles: [work, inside, root-inside, listed, dynamic, named, strict, kept, shut, by-root, by-other]
profiles:
  work:
    commands: [python3, bash, sh, ls, cat, echo, env, mkdir, rm, touch, stat, sleep, "true", id, whoami, pwd, grep, tr]
    workspace: { under: ["%[1]s"], else: scratch }
    fs:
      read: [ /usr, /bin, /sbin, /lib, /lib32, /lib64, /etc/ssl, /etc/alternatives ]
      write: [ "${workspace}" ]
      deny: [ "${workspace}/.git/hooks", "${workspace}/closed/secret" ]
      missing: skip
    cgroup: { memory: 64MiB, pids: 32 }
    controls: { cgroup.memory: required, cgroup.pids: required }
  inside: { extends: work, userns: on }
  root-inside: { extends: work, userns: on, allow_root: true }
  listed: { extends: work, exec: listed }
  dynamic: { extends: work, run_as: dynamic }
  named: { extends: work, run_as: nobody }
  strict: { extends: work, seccomp: strict }
  kept: { extends: work, fs: { home: cache(tools) } }
  by-root: { extends: work, fs: { read: ["%[1]s/by-root/sub"] } }
  by-other: { extends: work, fs: { read: ["%[1]s/by-other/sub"] } }
  shut: { extends: work, fs: { read: ["%[1]s"], deny: ["%[1]s/shut/in/it"] } }
`

// TestRootless: a daemon of an ordinary user confines as root's does, says in the
// record what is weaker, and refuses what it cannot give.
func TestRootless(t *testing.T) {
	t.Parallel()
	under, project := agents(t)
	d := startOrdinary(t, fmt.Sprintf(ordinaryPolicy, under))
	c := d.caller()
	put(t, project, ".git/hooks/pre-commit", "secret")
	t.Run("confined", func(t *testing.T) {
		out := runOK(t, c, shell(`id -u; id -g; grep -E "^(CapEff|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status | tr -d "\t"; ls / | tr "\n" " "; cat /proc/net/dev | grep -vc -e face -e Inter`))
		for _, want := range []string{"54321\n54321\n", "CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2", "\n1\n"} {
			if !strings.Contains(out+"\n", want) && !strings.HasSuffix(out, strings.TrimPrefix(want, "\n")) {
				t.Errorf("run = %q; want %q in it", out, want)
			}
		}
	})
	t.Run("workspace and its denies", func(t *testing.T) {
		s := shell(`cat .git/hooks/pre-commit 2>/dev/null; ls .git/hooks; touch made && pwd; mkdir closed/secret 2>/dev/null && echo "made a denied path"; rm -r .git 2>/dev/null; ls -a .git | tr "\n" " "`)
		s.Cwd = project
		out, _, v := run(t, c, s)
		if v.Code != 0 || strings.Contains(out, "secret") || strings.Contains(out, "denied") || !strings.HasPrefix(out, project+"\n") || !strings.Contains(out, "hooks") {
			t.Errorf("run in a workspace = %q, %+v; want the denied paths held", out, v)
		}
		eventually(t, "the placeholder is gone", func() bool {
			_, err := os.Stat(filepath.Join(project, "closed"))
			return errors.Is(err, fs.ErrNotExist)
		})
	})
	t.Run("terminal", func(t *testing.T) {
		s := python("import os; print(os.isatty(0), os.get_terminal_size().columns, os.stat(0).st_uid)")
		s.PTY = &proto.PTY{Rows: 24, Cols: 91}
		if out, _, _ := run(t, c, s); out != "True 91 54321\r\n" {
			t.Errorf("run with a terminal = %q; want one of 91 columns and of the user's own", out)
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		out, _, v := run(t, c, python("x = bytearray(200 << 20)"))
		if v.Cause != proto.CauseOOM || v.Scope != "process" {
			t.Errorf("verdict = %+v, output %q; want oom of the process", v, out)
		}
	})
	t.Run("too many processes", func(t *testing.T) {
		out, _, _ := run(t, c, python(`
import os
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            os.pause() if hasattr(os, "pause") else __import__("time").sleep(60)
        n += 1
except OSError:
    print("held at", n)
`))
		if !strings.HasPrefix(out, "held at ") {
			t.Errorf("forking = %q; want it held by pids.max", out)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		s := shell("sleep 60 & sleep 60")
		s.Timeout = 1
		if _, _, v := run(t, c, s); v.Cause != proto.CauseTimeoutWall {
			t.Errorf("verdict = %+v; want a wall timeout", v)
		}
	})
	t.Run("user namespace", func(t *testing.T) {
		s := shell("id -u; cat /proc/self/uid_map | tr -s ' '")
		s.Profile = "inside"
		if out := runOK(t, c, s); out != "54321\n 54321 54321 1\n" {
			t.Errorf("run with userns: on = %q; want the one uid", out)
		}
	})
	t.Run("root inside", func(t *testing.T) {
		s := shell("id -u; id -un; touch f && ls -n f | tr -s ' '")
		s.Profile = "root-inside"
		if out := runOK(t, c, s); !strings.HasPrefix(out, "0\nroot\n") || !strings.Contains(out, " 0 0 ") {
			t.Errorf("run with allow_root = %q; want uid 0 inside", out)
		}
	})
	t.Run("listed", func(t *testing.T) {
		s := python("import errno, os\ntry:\n    os.memfd_create('x')\n    print('made')\nexcept OSError as e:\n    print(errno.errorcode[e.errno])")
		s.Profile = "listed"
		if out := runOK(t, c, s); out != "EPERM\n" {
			t.Errorf("memfd_create with exec: listed = %q; want EPERM by the filter", out)
		}
	})
	t.Run("strict", func(t *testing.T) {
		s := shell("echo yes")
		s.Profile = "strict"
		if out := runOK(t, c, s); out != "yes\n" {
			t.Errorf("run with seccomp: strict = %q; want yes", out)
		}
	})
	t.Run("kept home", func(t *testing.T) {
		for i, want := range []string{"none\n", "kept\n"} {
			s := shell(`cat ~/note 2>/dev/null || echo none; echo kept > ~/note`)
			s.Profile = "kept"
			if out := runOK(t, c, s); out != want {
				t.Errorf("run %d = %q; want %q", i, out, want)
			}
		}
	})
	t.Run("a denied path that the user cannot reach", func(t *testing.T) {
		if err := os.MkdirAll(filepath.Join(under, "shut", "in"), 0o700); err != nil {
			t.Fatal(err)
		}
		s := shell("ls -A " + filepath.Join(under, "shut") + "; ls " + under + " | tr '\n' ' '")
		s.Profile = "shut"
		if out := runOK(t, c, s); out != "project shut " {
			t.Errorf("run = %q; want the directory above the denied path covered", out)
		}
	})
	t.Run("symlinks on the way to a source", func(t *testing.T) {
		const other = callerUID + 1
		for name, uid := range map[string]int{"by-root": 0, "by-other": other} {
			link := filepath.Join(under, name)
			if err := errors.Join(os.Symlink(project, link), os.Lchown(link, uid, uid)); err != nil {
				t.Fatal(err)
			}
		}
		s := shell("ls -d " + under + "/*/sub")
		s.Profile = "by-root"
		if out := runOK(t, c, s); !strings.HasSuffix(out, "/by-root/sub\n") {
			t.Errorf("run through root's symlink = %q; want the source in the view", out)
		}
		s.Profile = "by-other"
		_, err := c.Spawn(soon(t), s)
		if e := refused(t, "Spawn(by-other)", err, proto.CodeStartFailed); !strings.Contains(e.Message, "follow the symlink of uid 54322") {
			t.Errorf("Spawn through another user's symlink = %q; want it named", e.Message)
		}
	})
	t.Run("other uids are refused", func(t *testing.T) {
		for _, profile := range []string{"dynamic", "named"} {
			s := shell("id")
			s.Profile = profile
			_, err := c.Spawn(soon(t), s)
			e := refused(t, "Spawn("+profile+")", err, proto.CodeUnsupported)
			if !strings.Contains(e.Message, "run_as") || !strings.Contains(e.Hint, "run pinfoldd as root") {
				t.Errorf("Spawn(%s) = %q, hint %q; want run_as and its cure", profile, e.Message, e.Hint)
			}
		}
	})
	d.checkOthersRefused()
	d.checkRecord()
}

// checkOthersRefused connects as root.
func (d *daemon) checkOthersRefused() {
	d.t.Helper()
	w := d.connect()
	w.send(`{"type":"handshake/req","id":"1","version":"1.0","ts":1}`)
	f := w.next()
	if text := f.raw; !strings.Contains(text, "unauthorized") || !strings.Contains(text, "run pinfoldd as root") {
		d.t.Errorf("handshake of uid 0 = %s; want it refused with the cure", text)
	}
}

// checkRecord looks at the enforcement record of one spawn.
func (d *daemon) checkRecord() {
	d.t.Helper()
	p := spawn(d.t, d.caller(), shell("exec sleep 60"))
	var e struct {
		UID        uint32            `json:"uid"`
		GID        uint32            `json:"gid"`
		Degraded   []string          `json:"degraded"`
		Namespaces map[string]uint64 `json:"namespaces"`
		Controls   []struct {
			Control, State, Detail string
		} `json:"controls"`
	}
	if err := json.Unmarshal(p.Spawned.Enforcement, &e); err != nil {
		d.t.Fatal(err)
	}
	for name, inode := range e.Namespaces {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.Spawned.PID, name))
		if err != nil || link != fmt.Sprintf("%s:[%d]", name, inode) {
			d.t.Errorf("namespace %s of the record = %d; the kernel shows %s, %v", name, inode, link, err)
		}
		if own, err := os.Readlink("/proc/self/ns/" + name); err != nil || own == link {
			d.t.Errorf("namespace %s = %s; want another than the host's, %v", name, link, err)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Spawned.PID))
	if err != nil || e.UID != callerUID || e.GID != callerUID || !strings.Contains(string(status), "\nUid:\t54321\t54321\t54321\t54321\n") {
		d.t.Errorf("ids of the record = %d:%d, %v; the kernel shows %s", e.UID, e.GID, err, status)
	}
	if len(e.Degraded) == 0 || !strings.Contains(e.Degraded[0], "PID 1 of the pen has the target's own uid") {
		d.t.Errorf("degraded = %q; want PID 1's uid told", e.Degraded)
	}
	for _, k := range e.Controls {
		if k.State != "enforced" && !slices.Contains([]string{"userns", "cgroup.cpu", "cgroup.io"}, k.Control) {
			d.t.Errorf("control %s = %s %s; want it enforced", k.Control, k.State, k.Detail)
		}
	}
	if _, err := p.Kill(soon(d.t), proto.SigKill); err != nil {
		d.t.Errorf("Kill() = %v; want none", err)
	}
	output(d.t, p)
}

// TestRootlessLeavesNothing spawns many at once and looks at what is left.
func TestRootlessLeavesNothing(t *testing.T) {
	t.Parallel()
	d := startOrdinary(t, fmt.Sprintf(ordinaryPolicy, "/srv"))
	c := d.caller()
	const rounds, parallel = 20, 10
	for range rounds {
		done := make(chan error, parallel)
		for i := range parallel {
			go func() {
				p, err := c.Spawn(soon(t), shell("(sleep 60 &) ; exit "+strconv.Itoa(i)))
				if err == nil {
					var v *proto.Verdict
					if v, err = p.Copy(soon(t), new(bytes.Buffer), new(bytes.Buffer)); err == nil && v.Code != i {
						err = fmt.Errorf("verdict = %+v; want exit %d", v, i)
					}
				}
				done <- err
			}()
		}
		for range parallel {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

// TestRootlessPrograms: the command line and the demo of an ordinary user, with a
// delegated cgroup and without.
func TestRootlessPrograms(t *testing.T) {
	t.Parallel()
	d := prepare(t, "")
	o := newOrdinary(t, d.dir)
	none := filepath.Join(d.dir, "none")
	demo := o.demo()
	if out, errs, code := result(t, o.command("pinfold", "doctor")); code != 0 || !strings.Contains(out, "ok  mounts") {
		t.Errorf("doctor with a cgroup = %d\n%s%s; want exit 0", code, out, errs)
	}
	if out, errs, code := result(t, o.command("pinfold", "run", "--socket", none, "--", "id", "-u")); code != 0 || out != "54321\n" {
		t.Errorf("run with a cgroup = %q, %q, %d; want the uid", out, errs, code)
	}
	if out, errs, code := result(t, o.command("bash", demo)); code != 0 || !strings.Contains(out, "Nothing is left") {
		t.Errorf("demo with a cgroup = %d\n%s%s; want exit 0", code, out, errs)
	}
	o.checkGroups(none)
	if ownerCanMake(t) {
		testkit.LeaveOut(t, "needs a cgroup that ordinary users cannot write to: this one lets them")
	}
	out, _, code := result(t, o.stray("pinfold", "doctor"))
	if code != 1 || !strings.Contains(out, "no  cgroup.memory") || !strings.Contains(out, "fix: systemd-run --user --scope -p Delegate=yes") {
		t.Errorf("doctor without a cgroup = %d\n%s; want exit 1 and the cure", code, out)
	}
	out, _, code = result(t, o.stray("bash", demo))
	for _, want := range []string{"no  cgroup.memory", "no  cgroup.pids", "no  cgroup.cpu", "fix: systemd-run --user --scope -p Delegate=yes"} {
		if code != 4 || !strings.Contains(out, want) {
			t.Errorf("demo without a cgroup = %d\n%s; want exit 4 and %q", code, out, want)
		}
	}
	_, errs, code := result(t, o.stray("pinfold", "run", "--socket", none, "--", "true"))
	if code != 125 || !strings.Contains(errs, "systemd-run --user --scope -p Delegate=yes") {
		t.Errorf("run without a cgroup = %d, %q; want 125 and the cure", code, errs)
	}
	o.checkScope(none)
	o.checkNoUserNS(none)
	o.checkMaskedProc(none)
}

// checkGroups runs as a user with supplementary groups, which cannot be dropped: the
// record says so.
func (o *ordinary) checkGroups(none string) {
	o.t.Helper()
	cmd := o.command("pinfold", "run", "--json", "--socket", none, "--", "id")
	cmd.Env = append(cmd.Env, groupsVar+"=")
	out, errs, code := result(o.t, cmd)
	if code != 0 || !strings.Contains(out, "keeps the user's supplementary groups") || !strings.Contains(out, "groups=54321(u54321),65534(nogroup)") {
		o.t.Errorf("run with groups = %d, %q, %q; want them kept and told", code, out, errs)
	}
}

// ownerCanMake says whether anybody may make cgroups where this test runs.
func ownerCanMake(t *testing.T) bool {
	t.Helper()
	return ordinaryCommand(t, os.TempDir(), nil, "sh", "-c", `own=$(sed -n 's/^0:://p' /proc/self/cgroup); for t in /sys/fs/cgroup /sys/fs/cgroup/unified; do [ -w "$t$own/cgroup.procs" ] && exit 0; done; exit 1`).Run() == nil
}

// demo copies what test/demo needs to where the user can read it.
func (o *ordinary) demo() string {
	o.t.Helper()
	tree := filepath.Join(o.dir, "tree")
	for from, to := range map[string]string{
		"../demo": "test/demo", "../../policy/default.yaml": "policy/default.yaml",
		program(o.t, "pinfold"): "bin/pinfold", program(o.t, "pinfoldd"): "bin/pinfoldd", program(o.t, "pinfold-stage"): "bin/pinfold-stage",
	} {
		b, err := os.ReadFile(from)
		if err != nil {
			o.t.Fatal(err)
		}
		to = filepath.Join(tree, to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o755)); err != nil {
			o.t.Fatal(err)
		}
	}
	return filepath.Join(tree, "test", "demo")
}

// checkScope puts a systemd-run in the path that moves into the cgroup which was
// made for the user, as the user manager would: the daemon is started by way of
// it, and is the only member.
func (o *ordinary) checkScope(none string) {
	o.t.Helper()
	bin, log := filepath.Join(o.dir, "fake"), filepath.Join(o.dir, "run", "asked")
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >%s\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n", log)
	err := errors.Join(
		os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "systemd-run"), []byte(script), 0o755),
		os.Mkdir(filepath.Join(o.dir, "run", "systemd"), 0o755),
	)
	if err != nil {
		o.t.Fatal(err)
	}
	cmd := o.stray("pinfold", "run", "--socket", none, "--", "true")
	for i, e := range cmd.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			cmd.Env[i] = "PATH=" + bin + ":" + path
		}
	}
	_, errs, code := result(o.t, cmd)
	asked, err := os.ReadFile(log)
	if err != nil || !strings.HasPrefix(string(asked), "--user --quiet --collect --scope -p Delegate=yes -- ") || !strings.Contains(string(asked), "/pinfoldd --socket ") {
		o.t.Errorf("systemd-run was asked %q, %v; want a delegated scope with pinfoldd alone", asked, err)
	}
	if code != 125 || !strings.Contains(errs, "systemd-run --user --scope -p Delegate=yes") { // it gave no cgroup
		o.t.Errorf("run by way of a systemd-run that gives no cgroup = %d, %q; want 125 and the cure", code, errs)
	}
	if err := os.Remove(filepath.Join(o.dir, "run", "systemd")); err != nil {
		o.t.Error(err)
	}
}

// checkMaskedProc covers a file of /proc, as containers do.
func (o *ordinary) checkMaskedProc(none string) {
	o.t.Helper()
	for _, args := range [][]string{{"doctor"}, {"run", "--socket", none, "--", "true"}} {
		cmd := o.command("pinfold", args...)
		cmd.Args = slices.Insert(cmd.Args, 0, "unshare", "--mount", "sh", "-c", `mount --bind /dev/null /proc/keys && exec "$@"`, "sh")
		cmd.Args[6] = cmd.Path
		cmd.Path = testkit.NeedProgram(o.t, "unshare")
		out, errs, code := result(o.t, cmd)
		if code == 0 || !strings.Contains(out+errs, "parts of /proc are masked outside") || !strings.Contains(out+errs, "systempaths=unconfined") {
			o.t.Errorf("pinfold %s with a masked /proc = %d, %q, %q; want it named with its cure", args[0], code, out, errs)
		}
	}
}

// checkNoUserNS takes user namespaces away: within a user namespace of its own the
// user may set the limit to 0, and then drops the right to.
func (o *ordinary) checkNoUserNS(none string) {
	o.t.Helper()
	for _, name := range []string{"unshare", "setpriv"} {
		testkit.NeedProgram(o.t, name)
	}
	without := func(argv ...string) *exec.Cmd {
		return o.command("unshare", append([]string{
			"--user", "--map-user=54321", "--map-group=54321", "--keep-caps", "sh", "-c",
			`echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$@"`, "sh",
		}, argv...)...)
	}
	const cure = "sysctl -w user.max_user_namespaces=15000"
	out, _, code := result(o.t, without("pinfold", "doctor"))
	if code != 1 || !strings.Contains(out, "no  mounts         blocked by user.max_user_namespaces is 0\n      fix: "+cure) {
		o.t.Errorf("doctor without user namespaces = %d\n%s; want exit 1 and the cure", code, out)
	}
	started := time.Now()
	_, errs, code := result(o.t, without("pinfold", "run", "--socket", none, "--", "true"))
	if code != 125 || !strings.Contains(errs, "user.max_user_namespaces is 0; to cure it: "+cure) {
		o.t.Errorf("run without user namespaces = %d, %q; want 125 and the cure", code, errs)
	}
	if took := time.Since(started); took > patience/2 {
		o.t.Errorf("run without user namespaces took %s; want a quick answer", took)
	}
	out, _, code = result(o.t, without("bash", o.demo()))
	if code != 4 || !strings.Contains(out, "fix: "+cure) {
		o.t.Errorf("demo without user namespaces = %d\n%s; want exit 4 and the cure", code, out)
	}
}
