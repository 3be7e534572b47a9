package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pinfold/test/testkit"
)

// hostFacts is what the host has of control groups.
func hostFacts(t *testing.T) facts {
	t.Helper()
	f, err := readFacts()
	if errors.Is(err, ErrNoBase) {
		testkit.LeaveOut(t, fmt.Sprintf("this host lacks control groups: %v", err))
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestUnifiedWithoutControllers opens the base as on a host without v1 hierarchies: what the v2 tree gives works, and each
// limit that it does not give is unsupported with a cause.
func TestUnifiedWithoutControllers(t *testing.T) {
	f := hostFacts(t)
	f.v1 = nil
	at, err := f.place(fmt.Sprintf("pinfold-test-u%d", os.Getpid()), "x")
	if err != nil {
		t.Fatal(err)
	}
	b, err := openAt(f, at, nil)
	if err != nil {
		t.Fatalf("openAt() = %v; want nil", err)
	}
	defer func() {
		if err := errors.Join(b.Sweep(deadline(t)), b.Close()); err != nil {
			t.Errorf("Sweep() and Close() = %v; want nil", err)
		}
	}()
	if b.Backend() != BackendUnified || len(b.Hierarchies()) != 1 {
		t.Errorf("Backend() = %s with %+v; want unified with one tree", b.Backend(), b.Hierarchies())
	}
	j := newJob(t, b, all())
	for _, s := range j.Applied() {
		if s.State != StateUnsupported || s.Why == "" {
			t.Errorf("Applied() has %+v; want unsupported with a cause", s)
		}
	}
	if got := j.Join(); len(got) != 1 || got[0].Controller != "" {
		t.Errorf("Join() = %+v; want the v2 tree alone", got)
	}
	if err := j.WaitOOM(context.Background()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("WaitOOM() = %v; want %v", err, errors.ErrUnsupported)
	}
	cmd := start(t, j, "exec sleep 1000")
	until(t, "the target to join", func() bool { p, err := j.Pids(); return err == nil && len(p) == 1 })
	u, err := j.Usage()
	if err != nil || u.MemoryPeak != -1 || u.Pids != 1 || u.CPUUser < 0 {
		t.Errorf("Usage() = %+v, %v; want cpu time and one task, no memory", u, err)
	}
	if err := errors.Join(j.Freeze(deadline(t)), j.Thaw(deadline(t)), j.KillAll(), j.WaitEmpty(deadline(t)), j.Remove(deadline(t))); err != nil {
		t.Errorf("Freeze, Thaw, KillAll, WaitEmpty, Remove = %v; want nil", err)
	}
	_ = cmd.Wait() // killed
}

// TestControllersOnV2 runs itself again as the one member of a cgroup and opens a base below that with the one controller that the v2 tree of a
// hybrid host has to give: the process moves out of the way, and back at Close.
func TestControllersOnV2(t *testing.T) {
	const env = "PINFOLD_TEST_CONTROLLER"
	if c := os.Getenv(env); c != "" {
		controllersOnV2(t, c)
		return
	}
	f := hostFacts(t)
	own, err := f.v2.dirOf(f.own[""])
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(own, fmt.Sprintf("pinfold-test-own%d", os.Getpid()))
	if err := os.Mkdir(name, 0o755); err != nil {
		testkit.LeaveOut(t, fmt.Sprintf("this host lacks a cgroup of our own: %v", err))
	}
	defer func() {
		if err := os.Remove(name); err != nil {
			t.Errorf("Remove(%s) = %v; want nil", name, err)
		}
	}()
	have, err := readControllers(filepath.Join(name, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	if len(have) == 0 {
		testkit.LeaveOut(t, "the v2 tree of this host gives its cgroups no controller: "+name+"/cgroup.controllers is empty")
	}
	dir, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}()
	cmd := exec.Command(os.Args[0], "-test.run=^TestControllersOnV2$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), env+"="+have[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestControllersOnV2")) {
		t.Errorf("in a cgroup of its own: %v\n%s", err, out)
	}
}

func controllersOnV2(t *testing.T, controller string) {
	t.Helper()
	f, err := readFacts()
	if err != nil {
		t.Fatal(err)
	}
	f.v1 = nil
	at, err := f.place("", "pinfold-test-base")
	if err != nil {
		t.Fatal(err)
	}
	// With another member in the own cgroup there is no base to be had.
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if b, err := openAt(f, at, []string{controller}); !errors.Is(err, ErrNoBase) || !strings.Contains(err.Error(), "systemd-run") {
		t.Errorf("openAt() with a neighbour = %v, %v; want %v with a cure", b, err, ErrNoBase)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed
	b, err := openAt(f, at, []string{controller})
	if err != nil {
		t.Fatalf("openAt() = %v; want nil", err)
	}
	if len(b.Lacks()) > 1 || b.host.home[controller] != homeV2 {
		t.Errorf("Lacks() = %v; want %s on the v2 tree", b.Lacks(), controller)
	}
	where := func() string {
		text, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		_, path, _ := strings.Cut("\n"+string(text), "\n0::")
		return strings.TrimSpace(path)
	}
	if got, want := where(), f.own[""]+"/pinfold-test-base/daemon"; got != want {
		t.Errorf("own cgroup = %s; want %s", got, want)
	}
	if got := found(filepath.Join(at.v2, daemonDir), "pinfold-test-base"); got != at.v2 {
		t.Errorf("found(daemon/ of the base) = %s; want %s", got, at.v2)
	}
	j := newJob(t, b, NoLimits())
	if err := j.group.enable([]string{controller}); err != nil {
		t.Errorf("enable(%s) = %v; want nil", controller, err)
	}
	on, err := readControllers(filepath.Join(b.Hierarchies()[0].Dir, j.Path(), "cgroup.controllers"))
	if err != nil || !slices.Contains(on, controller) {
		t.Errorf("controllers of the process = %v, %v; want %s", on, err, controller)
	}
	if err := errors.Join(b.Sweep(deadline(t)), b.Close()); err != nil {
		t.Errorf("Sweep() and Close() = %v; want nil", err)
	}
	if got, want := where(), f.own[""]; got != want {
		t.Errorf("own cgroup after Close = %s; want %s", got, want)
	}
}
