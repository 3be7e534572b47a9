package stage_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/image"
)

// startOf is when a process was started: field 22 of its stat.
func startOf(tb testing.TB, pid int) sandbox.ProcessMark {
	tb.Helper()
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		tb.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndex(string(b), ")")+1:]))
	m := sandbox.ProcessMark{Pid: pid}
	for _, c := range f[19] {
		m.Start = m.Start*10 + uint64(c-'0')
	}
	return m
}

// into moves a process into the init cgroup of a new place for a pen, as a daemon of
// root could, and returns that place.
func (b *bench) into(pids ...int) string {
	b.t.Helper()
	cgroup := b.spec(testProfile(), "/bin/true").Site.Cgroup
	for _, pid := range pids {
		if err := os.WriteFile(filepath.Join(b.base, cgroup, "init/cgroup.procs"), []byte(itoa(pid)), 0); err != nil {
			b.t.Fatal(err)
		}
	}
	return cgroup
}

// sleeper starts a process with descriptors where a PID 1 has its own, and moves it
// into a cgroup for a PID 1.
func (b *bench) sleeper(attr *syscall.SysProcAttr, program string) (sandbox.ProcessMark, string) {
	b.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.t.Context(), program, "1000")
	cmd.ExtraFiles = make([]*os.File, 22) // 3 to 24
	cmd.ExtraFiles[15-3], cmd.ExtraFiles[16-3], cmd.ExtraFiles[17-3] = w, r, r
	cmd.ExtraFiles[24-3] = os.NewFile(uintptr(pair[0]), "status")
	if _, err := syscall.Write(pair[1], []byte{image.RecordStarted, 0, 0, 0, 2, 0, 0, 0}); err != nil {
		b.t.Fatal(err)
	}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = syscall.Close(pair[1])
		for _, f := range []*os.File{r, w, cmd.ExtraFiles[24-3]} {
			_ = f.Close()
		}
	})
	return startOf(b.t, cmd.Process.Pid), b.into(cmd.Process.Pid)
}

// named makes a program that is run as an anonymous file of a name would be.
func named(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// lookalike is an anonymous file of root's with the name and the mode of our images. A
// daemon of root could make one, and have it executed by whoever works with it.
func lookalike(t *testing.T, state string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(state))
	name := "pinfold-init-" + hex.EncodeToString(sum[:8])
	fd, err := unix.MemfdCreate(name, unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, 0) // before Linux 6.3 every one is
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "lookalike")
	t.Cleanup(func() { _ = f.Close() })
	data, err := os.ReadFile("/bin/sleep")
	if err == nil {
		_, err = f.Write(data)
	}
	if err = errors.Join(err, f.Chmod(0o111)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
}

// TestAHostileMarkFindsNothing: whatever a daemon in an attacker's hands names, no
// descriptor of another process comes back.
func TestAHostileMarkFindsNothing(t *testing.T) {
	b, foreign := newBench(t), newBench(t)
	v := b.victim(true, nil, b.spec(testProfile(), "/bin/sh", "-c", echoes), b.spec(testProfile(), "/bin/sh", "-c", echoes))
	good, other := v.started(), v.started()
	v.kill()
	fv := foreign.victim(true, nil, foreign.spec(testProfile(), "/bin/sh", "-c", echoes))
	theirs := fv.started()
	fv.kill()
	b.successor()

	inner := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	plain, plainAt := b.sleeper(nil, "/bin/sleep")
	one, oneAt := b.sleeper(inner, "/bin/sleep")
	asInit, asInitAt := b.sleeper(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Credential: &syscall.Credential{Uid: dynFirst, Gid: dynFirst}}, "/bin/sleep")
	likely, likelyAt := b.sleeper(inner, named(t, "pinfold-init-0123456789abcdef"))
	same, sameAt := b.sleeper(inner, lookalike(t, b.state))
	alone, aloneAt := b.sleeper(nil, lookalike(t, b.state))
	theirsAt := b.into(theirs.Init.Pid)

	ended := sandbox.ProcessMark{Pid: other.Target.Pid, Start: 1} // nothing is asked of it

	marks := map[string]struct {
		why  string
		edit func(*sandbox.Mark)
	}{
		"an image of ours alone":    {"no PID 1", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = alone, ended, aloneAt }},
		"another boot":              {"booted", func(m *sandbox.Mark) { m.Boot = strings.Repeat("0", 36) }},
		"no boot":                   {"booted", func(m *sandbox.Mark) { m.Boot = "" }},
		"another start":             {"is another", func(m *sandbox.Mark) { m.Init.Start++ }},
		"no process":                {"no process", func(m *sandbox.Mark) { m.Init.Pid = 0 }},
		"a group of processes":      {"no process", func(m *sandbox.Mark) { m.Init.Pid = -m.Init.Pid }},
		"the target as PID 1":       {"not in the cgroup", func(m *sandbox.Mark) { m.Init = m.Target }},
		"the host's PID 1":          {"not in the cgroup", func(m *sandbox.Mark) { m.Init = startOf(t, 1) }},
		"the stage":                 {"not in the cgroup", func(m *sandbox.Mark) { m.Init = startOf(t, stagePid(t, b.state)) }},
		"the daemon":                {"not in the cgroup", func(m *sandbox.Mark) { m.Init = startOf(t, os.Getpid()) }},
		"the cgroup of another":     {"not in the cgroup", func(m *sandbox.Mark) { m.Cgroup = other.Cgroup }},
		"a cgroup above":            {"no cgroup of ours", func(m *sandbox.Mark) { m.Cgroup = "../" + filepath.Base(b.base) + "/" + m.Cgroup }},
		"an absolute cgroup":        {"no cgroup of ours", func(m *sandbox.Mark) { m.Cgroup = filepath.Join(b.base, m.Cgroup) }},
		"no cgroup":                 {"no cgroup of ours", func(m *sandbox.Mark) { m.Cgroup = "" }},
		"a process in our cgroup":   {"no PID 1", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = plain, ended, plainAt }},
		"a PID 1 in our cgroup":     {"image of ours", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = one, ended, oneAt }},
		"one of PID 1's uid":        {"image of ours", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = asInit, ended, asInitAt }},
		"one with our name":         {"image of ours", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = likely, ended, likelyAt }},
		"one with an image of ours": {"other rights", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = same, ended, sameAt }},
		"another stage's pen":       {"image of ours", func(m *sandbox.Mark) { m.Init, m.Target, m.Cgroup = theirs.Init, ended, theirsAt }},
		"another pen's target":      {"not in the cgroup", func(m *sandbox.Mark) { m.Target = other.Target }},
		"a target of the host":      {"not in the cgroup", func(m *sandbox.Mark) { m.Target = startOf(t, os.Getpid()) }},
		"PID 1 as the target":       {"not in the cgroup", func(m *sandbox.Mark) { m.Target = m.Init }},
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	before := fds(t, stagePid(t, b.state))
	for name, tt := range marks {
		m := good
		tt.edit(&m)
		if p, err := b.Adopt(ctx, m); !errors.Is(err, sandbox.ErrGone) || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: Adopt(%+v, %+v, %q) = %v, %v; want ErrGone: %s", name, m.Init, m.Target, m.Cgroup, p, err, tt.why)
		}
	}
	if after := fds(t, stagePid(t, b.state)); after > before {
		t.Errorf("the stage has %d descriptors; before it had %d", after, before)
	}
	for _, m := range []sandbox.Mark{good, other} {
		b.endsWith(b.adopt(m), 7)
	}
}
