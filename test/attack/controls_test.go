package attack

import (
	"context"
	"encoding/json"
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

// TestControls makes each attack outside of a pen: it succeeds there, or gets past what
// refuses it inside. So what was refused was not broken by itself.
func TestControls(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "controls")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, bin, work, filepath.Join(bin, "c"))
	shared := targets(t, d, ordinary).Scene
	have := capabilities(t)
	together := map[attack.Room][]attack.Attack{}
	made := 0
	check := func(a attack.Attack, told string) {
		made++
		passed := told == ""
		if a.Control.Past {
			passed = !slices.Contains(a.Want, told) && !strings.HasPrefix(told, attack.Lacking)
		}
		if !passed {
			t.Errorf("%s outside of a pen = %q; want it to succeed, or with Past %v another answer than %v", a.ID, told, a.Control.Past, a.Want)
		}
	}
	for _, a := range attack.Table() {
		switch {
		case a.Control.Room == attack.Nobody, absent(a):
		case a.Control.Cap != 0 && have&(1<<a.Control.Cap) == 0:
			t.Logf("%s: root of this host lacks capability %d", a.ID, a.Control.Cap)
		case a.ID == foreign && outside(t, d, []attack.Attack{a}, shared, work)[a.ID] == attack.Lacking+"32-bit system calls in this kernel":
			t.Logf("%s: this kernel has no 32-bit system calls", a.ID)
		case a.ID == recent && lacksRecent():
			t.Logf("%s: this kernel does not have the call", a.ID)
		case quiet(a):
			together[a.Control.Room] = append(together[a.Control.Room], a)
		default:
			check(a, outside(t, d, []attack.Attack{a}, shared, work)[a.ID])
		}
	}
	for _, list := range together {
		told := outside(t, d, list, shared, work)
		for _, a := range list {
			check(a, told[a.ID])
		}
	}
	if made < 150 {
		t.Errorf("%d control runs; want at least 150", made)
	}
	t.Logf("%d control runs", made)
}

// foreign needs a kernel that was built with 32-bit system calls.
const foreign = "kernel/foreign-architecture"

// recent makes a call that came with Linux 6.6.
const recent = "kernel/fchmodat2"

// lacksRecent asks the kernel for that call, on no file.
func lacksRecent() bool {
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2, ^uintptr(0), 0, 0, 0, 0, 0)
	return errno == unix.ENOSYS
}

// quiet attacks change nothing where they succeed, so that many can be made by one process.
func quiet(a attack.Attack) bool {
	changes := slices.ContainsFunc([]string{"unshare", "clone", "setns", "mount"}, func(s string) bool { return strings.Contains(a.ID, s) })
	return a.Control.Room != attack.InBox && (a.Reads != "" || a.Control.Past && a.Class == attack.Surface && !changes)
}

// capabilities are those of this process.
func capabilities(t *testing.T) uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// outside makes attacks in the room of the first, by one process.
func outside(t *testing.T, d *daemon, list []attack.Attack, s attack.Scene, work string) map[string]string {
	t.Helper()
	a := list[0]
	uid := 0
	if a.Control.Room == attack.AsUser {
		uid = ordinary
	}
	w := workspace(t, work, uid)
	s.View = view(t, work, uid)
	s.File = s.View + "/bin/env"
	for _, l := range list {
		s.IDs = append(s.IDs, l.ID)
	}
	if s.One = s.Victim; a.Class == attack.Stage {
		s.One = sacrifice(t, s.Self)
	}
	s.Neighbour = s.Victim
	order, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Self, attack.InsideArg, string(order))
	cmd.Dir, cmd.Env = w, []string{"PATH=/usr/bin:/bin", "HOME=" + w}
	cmd.ExtraFiles = []*os.File{null} // the stray descriptor
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if a.Control.Room == attack.InBox {
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWPID
	}
	if a.ID == "cgroup/own-path" {
		defer inCgroup(t, d, cmd)()
	}
	told, code := answers(t, cmd)
	if _, ok := told[a.ID]; !ok {
		t.Errorf("%s outside of a pen ended its process: exit %d", a.ID, code)
	}
	if a.Ends {
		endSurvivors(t, told, s.Word)
	}
	return told
}

// endSurvivors settles the answers of attacks that leave children, and ends these.
func endSurvivors(t *testing.T, told map[string]string, word string) {
	t.Helper()
	if err := attack.Settle(told, word); err != nil {
		t.Fatal(err)
	}
	left, err := attack.Survivors(word)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range left {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("SIGKILL to what an attack left = %v; want none", err)
		}
	}
}

// view is a directory like /usr that the attacker owns.
func view(t *testing.T, work string, uid int) string {
	t.Helper()
	v, err := os.MkdirTemp(work, "view-") //nolint:usetesting // other uids reach it
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bin", "lib"} {
		if err := os.Mkdir(filepath.Join(v, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(v, "bin/env"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, v, uid)
	return v
}

// sacrifice starts a process that an attack may kill.
func sacrifice(t *testing.T, self string) int {
	t.Helper()
	cmd := exec.Command(self, attack.VictimArg)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the attack may have killed it
	})
	return cmd.Process.Pid
}

// inCgroup starts a command in a cgroup below the root of its tree.
func inCgroup(t *testing.T, d *daemon, cmd *exec.Cmd) func() {
	t.Helper()
	var dir string
	for _, top := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err == nil {
			dir = filepath.Join(top, "pinfold-test-attack-control-"+filepath.Base(filepath.Dir(d.sock)))
			break
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	return func() {
		_ = f.Close()
		if err := os.Remove(dir); err != nil {
			t.Errorf("rmdir %s = %v; want none", dir, err)
		}
	}
}
