package attack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/test/testkit"
)

const (
	ordinary   = 61357 // uid and gid of the ordinary caller
	patience   = 60 * time.Second
	stopLimit  = 20 * time.Second
	readyLimit = 30 * time.Second
)

// pen is one profile, asked for by one caller.
type pen struct {
	name    string
	uid     uint32
	profile string
	work    string   // workspace; empty: a scratch one
	traits  []string // which attacks are tried beside those for every pen
}

func policyText(bin, work string) string {
	return strings.NewReplacer("BIN", bin, "WORK", work).Replace(`version: 1
callers:
  - name: root
    match: { uid: 0 }
    profiles: [default, strict]
    run_as: dynamic
  - name: ordinary
    match: { uid: 61357 }
    profiles: [default, denied, mapped, strict, small]
profiles:
  default:
    commands: [BIN/attacker]
    workspace: { under: [WORK], else: scratch }
    fs:
      read: [ /usr, /bin, /sbin, /lib, /lib32, /lib64, /etc/ssl, /etc/alternatives, BIN ]
      write: [ "${workspace}" ]
      tmp: { size: 64MiB, exec: true }
  denied:
    extends: default
    fs: { deny: [ "${workspace}/keep/secret", "${workspace}/tree/.git/config", "${workspace}/tree/.git/hooks", "${workspace}/link/.git/config" ] }
  mapped: { extends: denied, run_as: dynamic }
  small: { extends: default, cgroup: { memory: 64MiB } }
  strict:
    commands: [BIN/attacker, /usr/bin/cat]
    workspace: { under: [WORK], else: scratch }
    fs: { read: [ /usr/share ], write: [ "${workspace}" ] }
    exec: listed
    seccomp: strict
    userns: on
    allow_root: true
    cgroup: { memory: 256MiB, pids: 64 }
`)
}

// daemon is one pinfoldd.
type daemon struct {
	t    *testing.T
	bin  string
	sock string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// start runs pinfoldd with its socket at sock until the test ends.
func start(t *testing.T, bin, work, sock string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, bin: bin, sock: sock}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(policyText(bin, work)), 0o600); err != nil {
		t.Fatal(err)
	}
	ready, told, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ready.Close() }()
	d.cmd = exec.Command(filepath.Join(bin, "pinfoldd"), "--socket", sock, "--state", filepath.Join(dir, "state"), "--policy", policy,
		"--cgroup", "pinfold-test-attack-"+filepath.Base(dir)+"-"+fmt.Sprint(os.Getpid()), "--ready-fd", "3")
	d.cmd.Stderr = &d.log
	d.cmd.ExtraFiles = []*os.File{told}
	if err := errors.Join(d.cmd.Start(), told.Close(), ready.SetReadDeadline(time.Now().Add(readyLimit))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	if line, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		t.Fatalf("pinfoldd = %q, %v; want it ready", line, err)
	}
	if err := os.Chmod(sock, 0o666); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *daemon) stop() {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Errorf("SIGTERM to pinfoldd = %v; want none", err)
	}
	killer := time.AfterFunc(stopLimit, func() { _ = d.cmd.Process.Kill() })
	defer killer.Stop()
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("pinfoldd = %v; want exit 0", err)
	}
	if d.t.Failed() {
		d.t.Logf("log of pinfoldd:\n%s", d.log.String())
	}
}

// attacker runs the attacker, in a pen or, with d nil, outside of any.
func attacker(t *testing.T, d *daemon, p pen, o order) map[string]string {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	argv := []string{o.Self, insideArg, string(text)}
	if d != nil {
		run := []string{filepath.Join(d.bin, "pinfold"), "run", "--socket", d.sock, "--profile", p.profile}
		if p.work != "" {
			run = append(run, "--cwd", p.work)
		}
		argv = slices.Concat(run, []string{"--"}, argv)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	if d == nil {
		cmd.Dir = p.work
	}
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.uid, Gid: p.uid}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("attacker in %s = %v; want exit 0\n%s", p.name, err, stderr.String())
	}
	got := map[string]string{}
	for line := range bytes.Lines(out) {
		var r result
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("attacker in %s said %q; want results", p.name, line)
		}
		got[r.Name] = r.Err
	}
	return got
}

// workspace makes what the attacks on denied paths need, all the ordinary user's.
func workspace(t *testing.T, below string) string {
	t.Helper()
	w, err := os.MkdirTemp(below, "work-") //nolint:usetesting // other uids reach it
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"keep", "other", "tree", "tree/.git", "link"} {
		if err := os.Mkdir(filepath.Join(w, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"keep/secret", "tree/.git/config", "link/.git"} {
		if err := os.WriteFile(filepath.Join(w, f), []byte("secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("keep/secret", filepath.Join(w, "alias")); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(w, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, ordinary, ordinary))
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// built says where the programs are.
func built(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t)
	testkit.NeedCgroup(t)
	bin, ok := os.LookupEnv(binVar)
	if !ok {
		testkit.LeaveOut(t, "needs /srv, where programs that pens may run are put")
	}
	return bin
}

// targets makes what the attacks aim at on the host.
func targets(t *testing.T, bin, sock string) order {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tcp.Close() })
	name := fmt.Sprintf("pinfold-test-attack-%d", os.Getpid())
	abstract, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = abstract.Close() })
	return order{Port: tcp.Addr().(*net.TCPAddr).Port, Name: name, Socket: sock, Self: filepath.Join(bin, "attacker")} //nolint:errcheck // a TCP listener has such an address
}

// TestAttacks runs every attack inside real pens: each is refused, with an errno of
// the layer that it names. Those that harm nobody are run outside too, where they succeed.
func TestAttacks(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, bin, work, filepath.Join(bin, "s"))
	o := targets(t, bin, d.sock)
	pens := []pen{
		{name: "default, root asks", profile: "default"},
		{name: "denied paths", uid: ordinary, profile: "denied", work: workspace(t, work), traits: []string{withDeny}},
		{name: "denied paths, dynamic uid", uid: ordinary, profile: "mapped", work: workspace(t, work), traits: []string{withDeny}},
		{name: "strict", uid: ordinary, profile: "strict", work: workspace(t, work), traits: []string{onlyListed}},
		{name: "strict, root asks", profile: "strict", traits: []string{onlyListed}},
		{name: "little memory", uid: ordinary, profile: "small", work: workspace(t, work), traits: []string{littleMemory}},
	}
	for _, p := range pens {
		t.Run(p.name, func(t *testing.T) {
			o := o
			for _, a := range attacks(o) {
				if a.where == anywhere || slices.Contains(p.traits, a.where) {
					o.Names = append(o.Names, a.name)
				}
			}
			check(t, p, attacker(t, d, p, o), o)
		})
	}
	t.Run("outside", func(t *testing.T) {
		o := o
		for _, a := range attacks(o) {
			if a.control {
				o.Names = append(o.Names, a.name)
			}
		}
		got := attacker(t, nil, pen{name: "no pen", uid: ordinary, work: workspace(t, work)}, o)
		for _, name := range o.Names {
			if told, ok := got[name]; !ok || told != "" {
				t.Errorf("outside of a pen: %s = %q; want success", name, told)
			}
		}
	})
}

func check(t *testing.T, p pen, got map[string]string, o order) {
	t.Helper()
	for _, a := range attacks(o) {
		if !slices.Contains(o.Names, a.name) {
			continue
		}
		told, ok := got[a.name]
		switch {
		case !ok:
			t.Errorf("%s in %s has no result; want refused by %s", a.name, p.name, a.layer)
		case told == "":
			t.Errorf("%s in %s succeeded; want refused by %s", a.name, p.name, a.layer)
		case !a.refusedBy(told):
			t.Errorf("%s in %s = %s; want refused by %s with one of %v", a.name, p.name, told, a.layer, a.want)
		}
	}
	if p.work == "" {
		return
	}
	for _, f := range hostile(t, p.work) {
		t.Errorf("%s left %s on the host; want no set-id bits, no devices, no owner but the caller", p.name, f)
	}
}

// hostile lists what a pen must never leave in a directory of the host.
func hostile(t *testing.T, work string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(work, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0 || st.Uid != ordinary {
			out = append(out, fmt.Sprintf("%s %v", path, info.Mode()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPenIsNoCaller has the daemon's socket in the workspace itself.
func TestPenIsNoCaller(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "callers")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	w := workspace(t, work)
	d := start(t, bin, work, filepath.Join(w, "s"))
	o := targets(t, bin, d.sock)
	o.Names = []string{askDaemon}
	for _, profile := range []string{"default", "mapped", "strict"} {
		p := pen{name: profile, uid: ordinary, profile: profile, work: w}
		if got := attacker(t, d, p, o)[askDaemon]; got != "refused" && got != "EACCES" {
			t.Errorf("%s in %s, with the socket in its workspace = %q; want refused by %s", askDaemon, profile, got, byDaemon)
		}
	}
	if got := attacker(t, nil, pen{name: "no pen", uid: ordinary, work: w}, o)[askDaemon]; got != "" {
		t.Errorf("%s outside of a pen = %q; want success", askDaemon, got)
	}
}
