package attack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/attack"
)

// signalBase is what `pinfold run` adds to the signal that ended a command.
const signalBase = 128

// pen is one profile, asked for by one caller.
type pen struct {
	name    string
	uid     uint32
	profile string
	work    string        // workspace; empty: a scratch one
	has     []attack.Need // what attacks may need of it
}

// targets makes what attacks aim at on the host.
func targets(t *testing.T, d *daemon, uid uint32) *attack.Targets {
	t.Helper()
	dir := t.TempDir()
	for p := dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) { // other uids reach the sockets
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var who *syscall.Credential
	if uid != 0 {
		who = &syscall.Credential{Uid: uid, Gid: uid}
	}
	got, err := attack.NewTargets(dir, filepath.Join(d.bin, "pinfold"), who)
	t.Cleanup(func() {
		if err := got.Close(); err != nil {
			t.Errorf("Close of the targets = %v; want none", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	got.Scene.Socket, got.Scene.State = d.sock, d.state
	got.Scene.Stage, got.Scene.Daemon = filepath.Join(d.bin, "pinfold-stage"), filepath.Join(d.bin, "pinfoldd")
	return got
}

// run is a command line of a pen, not yet started.
func (d *daemon) run(ctx context.Context, p pen, flags []string, argv ...string) *exec.Cmd {
	args := append([]string{"run", "--socket", d.sock, "--profile", p.profile}, flags...)
	if p.work != "" {
		args = append(args, "--cwd", p.work)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "pinfold"), slices.Concat(args, []string{"--", filepath.Join(d.bin, "pinfold")}, argv)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.uid, Gid: p.uid}}
	return cmd
}

// neighbour starts a process in another pen of the same profile, and returns its pid on
// the host and what ends it.
func (d *daemon) neighbour(t *testing.T, p pen) (int, func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	cmd := d.run(ctx, pen{uid: p.uid, profile: p.profile}, []string{"--json"}, attack.NeighbourArg)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	pid := 0
	for lines.Scan() {
		var m struct {
			PID  int    `json:"pid"`
			Data string `json:"data"`
		}
		_ = json.Unmarshal(lines.Bytes(), &m) // the form of data is another's business
		pid = max(pid, m.PID)
		if bytes.Contains(lines.Bytes(), []byte(attack.Ready)) {
			break
		}
	}
	if pid == 0 {
		t.Fatalf("neighbour in %s has no pid; want it ready", p.name)
	}
	return pid, func() {
		defer cancel()
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("neighbour in %s = %v; want exit 0", p.name, err)
		}
	}
}

// attackIn makes attacks in a pen and returns what each was told.
func (d *daemon) attackIn(t *testing.T, p pen, s attack.Scene, list []attack.Attack) map[string]string {
	t.Helper()
	told := map[string]string{}
	var many []string
	for _, a := range list {
		if !a.Alone {
			many = append(many, a.ID)
			continue
		}
		one, code := d.obey(t, p, s, []string{a.ID})
		if _, ok := one[a.ID]; !ok && code > signalBase {
			one[a.ID] = unix.SignalName(syscall.Signal(code - signalBase))
		}
		told[a.ID] = one[a.ID]
	}
	got, code := d.obey(t, p, s, many)
	if code != 0 {
		t.Errorf("attacker in %s = exit %d; want 0", p.name, code)
	}
	maps.Copy(told, got)
	if err := attack.Settle(told, s.Word); err != nil {
		t.Fatal(err)
	}
	return told
}

// obey runs the attacker in a pen once.
func (d *daemon) obey(t *testing.T, p pen, s attack.Scene, ids []string) (map[string]string, int) {
	t.Helper()
	if len(ids) == 0 {
		return map[string]string{}, 0
	}
	s.IDs = ids
	order, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return answers(t, d.run(ctx, p, nil, attack.InsideArg, string(order)))
}

// answers runs an attacker and reads what it says, and its exit status.
func answers(t *testing.T, cmd *exec.Cmd) (map[string]string, int) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &stderr, stopLimit
	out, err := cmd.Output()
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			code = signalBase + int(st.Signal())
		}
	} else if err != nil {
		t.Fatal(err)
	}
	if code != 0 && code <= signalBase {
		t.Logf("attacker said: %s", stderr.String())
	}
	got := map[string]string{}
	for line := range bytes.Lines(out) {
		var r attack.Result
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("attacker said %q; want results", line)
		}
		got[r.ID] = r.Told
	}
	return got, code
}

// absent says that this host does not have what an attack aims at.
func absent(a attack.Attack) bool {
	for _, p := range []string{a.Reads, a.Writes} {
		if p == "" {
			continue
		}
		// ENODEV: it would be mounted on demand, and the kernel has no such file system.
		if _, err := os.Lstat(p); errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return true
		}
	}
	return false
}

// scopesABI is the first of Landlock that keeps a pen from abstract sockets of others.
const scopesABI = 6

// scopes says whether the kernel has it.
func scopes(t *testing.T) bool {
	t.Helper()
	return landlockABI(t) >= scopesABI
}

// workspace makes what the attacks on denied paths need, all of it owned by one uid.
func workspace(t *testing.T, below string, uid int) string {
	t.Helper()
	w, err := os.MkdirTemp(below, "work-") //nolint:usetesting // other uids reach it
	if err != nil {
		t.Fatal(err)
	}
	if err := attack.Workspace(w); err != nil {
		t.Fatal(err)
	}
	own(t, w, uid)
	return w
}

// own gives a tree to a uid.
func own(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
	if err != nil {
		t.Fatal(err)
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
	for _, name := range attack.DeniedPaths() {
		if strings.HasSuffix(name, "hooks") || strings.HasPrefix(name, "link") {
			continue // they are not there
		}
		if b, err := os.ReadFile(filepath.Join(work, name)); err != nil || string(b) != "secret\n" {
			out = append(out, name+" = "+strconv.Quote(string(b)))
		}
	}
	return out
}
