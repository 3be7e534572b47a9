package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pinfold/proto"
	"pinfold/proto/client"
)

// callerUID is a user that no host knows, with its own agents' directory.
const callerUID = 54321

// joined is a connection that a process of another uid holds.
type joined struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	io.Reader
}

func (j *joined) Write(b []byte) (int, error) { return j.in.Write(b) }

func (j *joined) Close() error {
	err := j.in.Close()
	_ = j.cmd.Process.Kill()
	_ = j.cmd.Wait() // it was killed
	return err
}

// joinAsCaller is a connection of the made-up user.
func (d *daemon) joinAsCaller() *joined {
	d.t.Helper()
	if err := os.Chmod(d.sock, 0o666); err != nil {
		d.t.Fatal(err)
	}
	j := &joined{cmd: exec.Command(program(d.t, "helper"))}
	j.cmd.Env = []string{helperVar + "=join", helperArg + "=" + d.sock}
	j.cmd.Dir = "/"
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: callerUID, Gid: callerUID}}
	j.cmd.Stderr = d.log
	in, err1 := j.cmd.StdinPipe()
	out, err2 := j.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, j.cmd.Start()); err != nil {
		d.t.Fatal(err)
	}
	j.in, j.Reader = in, out
	return j
}

// caller is a session of the made-up user.
func (d *daemon) caller() *client.Client {
	d.t.Helper()
	c := client.New(d.joinAsCaller())
	d.t.Cleanup(func() { _ = c.Close() })
	if r, err := c.Handshake(soon(d.t), &proto.Handshake{}); err != nil || !r.OK {
		d.t.Fatalf("Handshake() as uid %d = %+v, %v; want a session", callerUID, r, err)
	}
	return c
}

// agents makes a directory outside of /tmp with a project in it that belongs to the
// caller.
func agents(t *testing.T) (under, project string) {
	t.Helper()
	under, err := os.MkdirTemp("/srv", "pinfold-test-agents-") //nolint:usetesting // not below /tmp, which a pen has of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(under); err != nil {
			t.Errorf("RemoveAll(%s) = %v; want none", under, err)
		}
	})
	project = filepath.Join(under, "project")
	for _, dir := range []string{under, project, filepath.Join(project, "sub")} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755), os.Lchown(dir, callerUID, callerUID)); err != nil {
			t.Fatal(err)
		}
	}
	return under, project
}

// put makes a file of the caller's with its directories.
func put(t *testing.T, root, name, content string) {
	t.Helper()
	path := root
	for part := range strings.SplitSeq(filepath.Dir(name), "/") {
		path = filepath.Join(path, part)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if err := os.Lchown(path, callerUID, callerUID); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(root, name)
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o644), os.Lchown(path, callerUID, callerUID)); err != nil {
		t.Fatal(err)
	}
}

// forCaller is a policy for the made-up uid, with keys of its profile.
func forCaller(under, keys string) string {
	return fmt.Sprintf(`version: 1
callers:
  - name: agents
    match: { uid: %d }
    profiles: [work]
  - name: root
    match: { uid: 0 }
    profiles: [work]
    run_as: dynamic
profiles:
  work:
    commands: [python3, bash, sh, ls, cat, echo, env, mkdir, rm, mv, touch, ln, cp, stat, sleep, "true", id, whoami, pwd, find, rmdir, chmod, grep]
    workspace: { under: ["%s"] }
%s
`, callerUID, under, keys)
}

const plainFS = `    fs:
      read: [ /usr, /bin, /sbin, /lib, /lib32, /lib64, /etc/ssl, /etc/alternatives ]
      write: [ "${workspace}" ]
      missing: skip
`

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

// in is a shell script in a directory.
func in(dir, script string) proto.Spawn {
	s := shell(script)
	s.Cwd = dir
	return s
}

// TestAnOrdinaryCallerInItsWorkspace: cwd, relative writes, owners, names.
func TestAnOrdinaryCallerInItsWorkspace(t *testing.T) {
	t.Parallel()
	for _, runAs := range []string{"caller", "dynamic"} {
		t.Run(runAs, func(t *testing.T) {
			under, project := agents(t)
			put(t, project, "given", "from outside\n")
			d := start(t, forCaller(under, plainFS+"    run_as: "+runAs+"\n"))
			c := d.caller()
			out := runOK(t, c, in(project, `pwd; cd "$(pwd)" && cat given && echo made > made && mkdir -p sub/deep && echo x > sub/deep/x && mv made moved && chmod 600 moved && ls -d "$HOME" >/dev/null && echo h > "$HOME/h" && mktemp -d >/dev/null && whoami >/dev/null && id -u`))
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 3 || lines[0] != project || lines[1] != "from outside" {
				t.Fatalf("run in %s = %q; want pwd, what was given, and an id", project, out)
			}
			uid, err := strconv.Atoi(lines[2])
			if err != nil || (uid == callerUID) != (runAs == "caller") || uid == 0 {
				t.Errorf("id -u = %s; want the caller's: %v, and never 0", lines[2], runAs == "caller")
			}
			for _, name := range []string{"moved", "sub/deep", "sub/deep/x"} {
				if got := owner(t, filepath.Join(project, name)); got != callerUID {
					t.Errorf("owner of %s on the host = %d; want the caller, %d", name, got, callerUID)
				}
			}
			inside := runOK(t, c, in(project, `stat -c %u given moved`))
			if want := fmt.Sprintf("%d\n%d\n", uid, uid); inside != want {
				t.Errorf("owner seen inside = %q; want the run uid, %q", inside, want)
			}
			// Below the subtree that the cwd named, nothing else is there.
			out = runOK(t, c, in(filepath.Join(project, "sub"), `pwd; ls; ls ../given 2>/dev/null || echo hidden`))
			if want := filepath.Join(project, "sub") + "\ndeep\nhidden\n"; out != want {
				t.Errorf("run in sub = %q; want %q", out, want)
			}
		})
	}
}

// TestCwdRules: only strictly below an entry, its own, and by no trick.
func TestCwdRules(t *testing.T) {
	t.Parallel()
	under, project := agents(t)
	if err := errors.Join(
		os.Symlink("/etc", filepath.Join(project, "link")),
		os.Mkdir(filepath.Join(under, "roots"), 0o755),
		os.Mkdir(under+"-evil", 0o777), os.Lchown(under+"-evil", callerUID, callerUID),
		os.Mkdir(filepath.Join(project, "closed"), 0o700), // root's
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(under + "-evil") })
	d := start(t, forCaller(under, plainFS))
	c := d.caller()
	for _, tt := range []struct {
		cwd  string
		code proto.Code
	}{
		{under, proto.CodeDenied},
		{under + "-evil", proto.CodeDenied},
		{filepath.Join(under, "roots"), proto.CodeDenied},
		{filepath.Join(project, "link"), proto.CodeDenied},
		{filepath.Join(project, "closed"), proto.CodeDenied},
		{filepath.Join(project, "closed", "x"), proto.CodeDenied},
		{project + "/../../../etc", proto.CodeDenied},
		{"/proc/self/cwd", ""},
		{"/etc", proto.CodeDenied},
		{"/", proto.CodeDenied},
		{filepath.Join(project, "given"), ""},
		{filepath.Join(project, "nothing"), proto.CodeNotFound},
	} {
		_, err := c.Spawn(soon(t), in(tt.cwd, "pwd"))
		var e *client.Error
		if !errors.As(err, &e) || (tt.code != "" && e.Code != tt.code) || !strings.Contains(e.Message, filepath.Base(tt.cwd)) {
			t.Errorf("Spawn(cwd %s) = %v; want a refusal that names it, code %s", tt.cwd, err, tt.code)
		}
	}
	if out := runOK(t, c, shell("pwd; echo x > y; cat y")); !strings.HasSuffix(out, "\nx\n") {
		t.Errorf("run without cwd = %q; want a scratch workspace", out)
	}
}

// TestADenyInsideAnAllowHolds: against writing, replacing, and moving what is above.
func TestADenyInsideAnAllowHolds(t *testing.T) {
	t.Parallel()
	for _, runAs := range []string{"caller", "dynamic"} {
		t.Run(runAs, func(t *testing.T) {
			under, project := agents(t)
			put(t, project, ".git/config", "[core]\n")
			put(t, project, ".git/hooks/pre-commit", "#!/bin/sh\n")
			put(t, project, ".git/index", "index\n")
			fs := strings.Replace(plainFS, "      missing:", "      deny: [ \"${workspace}/.git/hooks\", \"${workspace}/.git/config\" ]\n      missing:", 1)
			d := start(t, forCaller(under, fs+"    run_as: "+runAs+"\n"))
			c := d.caller()
			script := `
import errno, os
def attempt(name, f, *args):
    try:
        f(*args)
        print(name, "done")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
def write(p):
    with open(p, "w") as f:
        f.write("evil")
attempt("write config", write, ".git/config")
attempt("write hook", write, ".git/hooks/pre-commit")
attempt("new hook", write, ".git/hooks/post-commit")
attempt("read config", lambda: open(".git/config").read() == "" or print("read config leaked"))
attempt("remove config", os.unlink, ".git/config")
attempt("replace config", os.rename, ".git/index", ".git/config")
attempt("move hooks", os.rename, ".git/hooks", ".git/hooks2")
attempt("move parent", os.rename, ".git", ".git2")
attempt("remove parent", os.rmdir, ".git")
attempt("link config", os.link, ".git/config", "copy")
attempt("write beside", write, ".git/COMMIT_EDITMSG")
attempt("write index", write, ".git/index")
attempt("write file", write, "file")
`
			s := python(script)
			s.Cwd = project
			out := runOK(t, c, s)
			got := map[string]string{}
			for line := range strings.Lines(out) {
				i := strings.LastIndex(line, " ")
				got[line[:i]] = strings.TrimSpace(line[i+1:])
			}
			if strings.Contains(out, "leaked") {
				t.Errorf("output = %q; want nothing read of a denied file", out)
			}
			for name, want := range map[string]string{
				"write config": "no", "write hook": "no", "new hook": "no", "remove config": "no", "replace config": "no",
				"move hooks": "no", "move parent": "EBUSY", "remove parent": "no", "link config": "no",
				"write beside": "done", "write index": "done", "write file": "done",
			} {
				if g := got[name]; g == "" || (want == "no" && g == "done") || (want != "no" && g != want) {
					t.Errorf("%s = %q; want %s", name, g, want)
				}
			}
			for name, want := range map[string]string{".git/config": "[core]\n", ".git/hooks/pre-commit": "#!/bin/sh\n", ".git/index": "evil"} {
				if data, err := os.ReadFile(filepath.Join(project, name)); err != nil || string(data) != want {
					t.Errorf("%s on the host = %q, %v; want %q", name, data, err, want)
				}
			}
		})
	}
}

// TestAnAbsentDenyHasAPlaceholderForAWhile: made for the pen, removed after.
func TestAnAbsentDenyHasAPlaceholderForAWhile(t *testing.T) {
	t.Parallel()
	under, project := agents(t)
	fs := strings.Replace(plainFS, "      missing:", "      deny: [ \"${workspace}/.git/hooks\" ]\n      absent: placeholder\n      missing:", 1)
	d := start(t, forCaller(under, fs))
	c := d.caller()
	var procs []*client.Process
	for range 2 {
		s := proto.Spawn{Cmd: []string{"sh", "-c", `mkdir -p .git/hooks 2>/dev/null && echo evil > .git/hooks/x 2>/dev/null && echo broken; mv .git .git2 2>/dev/null && echo moved; echo ready; cat`}, Cwd: project}
		p := spawn(t, c, s)
		if out := await(t, p, "ready\n"); out != "ready\n" {
			t.Errorf("in the pen: %q; want nothing broken", out)
		}
		procs = append(procs, p)
	}
	if info, err := os.Lstat(filepath.Join(project, ".git")); err != nil || info.Mode().Perm() != 0o555 || owner(t, filepath.Join(project, ".git")) != callerUID {
		t.Errorf("placeholder = %v, %v; want an empty 0555 directory of the caller", info, err)
	}
	for i, p := range procs {
		if err := p.CloseStdin(soon(t)); err != nil {
			t.Errorf("CloseStdin() = %v; want none", err)
		}
		output(t, p)
		gone := func() bool {
			_, err := os.Lstat(filepath.Join(project, ".git"))
			return errors.Is(err, os.ErrNotExist)
		}
		if i == 0 && gone() {
			t.Errorf("the placeholder went with the first pen; want it there for the second")
		}
		if i == 1 {
			eventually(t, "the placeholder has gone", gone)
		}
	}
	if entries, err := os.ReadDir(project); err != nil || len(entries) != 1 {
		t.Errorf("the project = %v, %v; want it as it was", entries, err)
	}
}

// TestSecretsAreHidden even where the policy shows the tree they are in.
func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	under, project := agents(t)
	d := start(t, forCaller(under, strings.Replace(plainFS, "/etc/ssl", "/etc, /root, /var", 1)))
	c := d.caller()
	out := runOK(t, c, in(project, `for f in /etc/shadow /etc/gshadow /etc/ssh /root /var/lib/pinfold; do cat $f 2>/dev/null | grep -q . && echo "read $f"; ls $f/* >/dev/null 2>&1 && echo "listed $f"; done; cat /etc/hostname; whoami; cat /etc/os-release >/dev/null && echo rest`))
	if want := fmt.Sprintf("pinfold\nu%d\nrest\n", callerUID); out != want {
		t.Errorf("secrets = %q; want none readable, the rest there: %q", out, want)
	}
}

// TestOthersAreRefused: no rule of the policy matches, so there is no session.
func TestOthersAreRefused(t *testing.T) {
	t.Parallel()
	under, _ := agents(t)
	d := start(t, strings.Replace(forCaller(under, plainFS), "uid: 0 ", "uid: 77777 ", 1))
	w := d.connect()
	w.send(`{"type":"handshake/req","id":"h","version":"1.0","ts":1,"agent_caps":["proc"]}`)
	if f := w.next(); f.OK || f.Reason != string(proto.ReasonAuthFailed) || f.Code != proto.CodeUnauthorized {
		t.Errorf("handshake of root = %s; want auth_failed", f.raw)
	}
	w.closed()
}

// TestAPenIsNoCaller: the socket shown inside a pen by a careless policy refuses it.
func TestAPenIsNoCaller(t *testing.T) {
	t.Parallel()
	under, project := agents(t)
	d := prepare(t, forCaller(under, strings.Replace(plainFS, "/etc/ssl", "/etc/ssl, "+under+"-sock", 1)))
	dir := under + "-sock"
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d.sock = filepath.Join(dir, "s")
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	t.Cleanup(d.stop)
	c := d.caller()
	s := python(`
import socket
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("` + d.sock + `")
    s.sendall(b'{"type":"handshake/req","id":"h","version":"1.0","ts":1,"agent_caps":["proc"]}\n')
    print(s.recv(100000).decode())
except OSError as e:
    print("refused", e)
`)
	s.Cwd = project
	out := runOK(t, c, s)
	if strings.Contains(out, `"ok":true`) || (!strings.Contains(out, "unauthorized") && !strings.Contains(out, "refused")) {
		t.Errorf("a pen at the socket = %q; want it refused", out)
	}
}

// TestAWorkspaceBelowTmp, where agents like to have theirs.
func TestAWorkspaceBelowTmp(t *testing.T) {
	t.Parallel()
	d := prepare(t, "x")
	project := filepath.Join(d.dir, "work", "project")
	put(t, d.dir, "work/project/given", "from outside\n")
	d.writePolicy(forCaller(filepath.Join(d.dir, "work"), plainFS))
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	t.Cleanup(d.stop)
	c := d.caller()
	if out := runOK(t, c, in(project, `pwd; cat given; echo x > y; echo z > /tmp/private; ls /tmp`)); !strings.HasPrefix(out, project+"\nfrom outside\n") {
		t.Errorf("run below /tmp = %q; want the workspace there", out)
	}
	if got := owner(t, filepath.Join(project, "y")); got != callerUID {
		t.Errorf("owner of y = %d; want %d", got, callerUID)
	}
	if _, err := os.Stat("/tmp/private"); err == nil {
		t.Errorf("/tmp/private is on the host; want it in the pen only")
	}
}
