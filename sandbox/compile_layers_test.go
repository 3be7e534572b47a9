package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/ruleset"
	"pinfold/test/testkit"
)

// wantFailed wants the launch to end with a failed step.
func (p *pen) wantFailed(t *testing.T, step string, errno syscall.Errno) {
	t.Helper()
	_, _ = p.gate1.Write(append([]byte{1}, p.command...)) // PID 1 may be gone already
	_, _ = p.gate2.Write([]byte{1})
	f := p.failed(t)
	if f.Errno != errno || !strings.HasPrefix(p.prog.Step(f.Step), step) {
		t.Errorf("record = %+v %q; want %q: %v", f, p.prog.Step(f.Step), step, errno)
	}
}

// run starts the pen and returns what its target wrote to stdout.
func (p *pen) run(t *testing.T) string {
	t.Helper()
	p.start(t)
	e := p.ended(t)
	p.release(t)
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.stdout)
	if err != nil {
		t.Fatal(err)
	}
	errs, err := io.ReadAll(p.stderr)
	if err != nil {
		t.Fatal(err)
	}
	if e.Status != 0 {
		t.Errorf("target = %#x, %s; want 0", e.Status, errs)
	}
	return string(out)
}

// A ruleset that covers the canary, or none at all, must not pass for one.
func TestLandlockCanarySings(t *testing.T) {
	if _, err := ruleset.ABI(); errors.Is(err, ruleset.ErrUnsupported) {
		testkit.LeaveOut(t, fmt.Sprintf("ruleset.ABI() = %v", err))
	}
	c := penConfig{profile: testProfile(), argv: []string{"/usr/bin/true"}, wrap: func(s *launch.Start) {
		fd, _, _, err := ruleset.New([]ruleset.Rule{{FD: s.Files[image.FDCanary], Access: "r"}})
		if err != nil {
			t.Fatalf("ruleset.New(canary) = %v", err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		s.Files[image.FDRuleset] = fd
	}}
	newPen(t, c).wantFailed(t, `openat(18, "canary"`, unix.EPROTO)
}

func TestSeccompCanarySings(t *testing.T) {
	p := testProfile()
	b := testBuild(t, penConfig{})
	b.Filter = nil
	c := penConfig{profile: p, argv: []string{"/usr/bin/true"}}
	// Without a filter the very step of the canary is EFAULT, not EPERM.
	prog := image.New()
	prog.In(WhereInit)
	z := image.Int(0)
	prog.Call("add_key", []image.Arg{z, z, z, z, z}, image.Refused(unix.EPERM))
	if _, err := prog.Link(); err != nil {
		t.Fatal(err)
	}
	needRoot(t)
	startPen(t, c, b, prog, nil).wantFailed(t, "add_key(", unix.EFAULT)
}

func TestExecListed(t *testing.T) {
	if _, err := os.Stat("/proc/sys/vm/memfd_noexec"); errors.Is(err, os.ErrNotExist) {
		testkit.LeaveOut(t, fmt.Sprintf("the kernel has no vm.memfd_noexec: %v", err))
	}
	p := testProfile()
	p.Exec = ExecListed
	for i := range p.Private {
		p.Private[i].NoExec = true
	}
	c := penConfig{
		profile: p, build: func(b *Build) { b.MemfdNoexec = On }, env: []string{"PATH=/usr/bin"},
		argv: sh("cat /proc/sys/vm/memfd_noexec; cp /usr/bin/true /tmp/t; /tmp/t; echo $?"),
	}
	if got, want := newPen(t, c).run(t), "2\n126\n"; got != want {
		t.Errorf("exec: listed = %q; want %q", got, want)
	}
	b, err := os.ReadFile("/proc/sys/vm/memfd_noexec")
	if err != nil || string(b) == "2\n" {
		t.Errorf("the host's vm.memfd_noexec = %q, %v; want it as it was", b, err)
	}
}

// Without the sysctl the canary must sing.
func TestMemfdCanarySings(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/vm/memfd_noexec")
	if err != nil || string(b) == "2\n" {
		testkit.LeaveOut(t, fmt.Sprintf("vm.memfd_noexec of the host is %q, %v", b, err))
	}
	needRoot(t)
	prog := image.New()
	prog.In(WhereInit)
	c := &compiler{Program: prog}
	c.memfdCanary(unix.EACCES)
	if _, err := prog.Link(); err != nil {
		t.Fatal(err)
	}
	pc := penConfig{profile: testProfile(), argv: []string{"/usr/bin/true"}}
	startPen(t, pc, testBuild(t, pc), prog, nil).wantFailed(t, "memfd_create(", unix.EPROTO)
}

func TestUserNamespace(t *testing.T) {
	if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || string(b) == "0\n" {
		testkit.LeaveOut(t, fmt.Sprintf("user.max_user_namespaces = %q, %v", b, err))
	}
	tests := []struct {
		name string
		root bool
		uid  uint32 // inside
		maps []syscall.SysProcIDMap
		want string
		proc ProcView
	}{
		{"same ids", false, 65533, []syscall.SysProcIDMap{
			{ContainerID: 0, HostID: 65532, Size: 1}, {ContainerID: 65533, HostID: 65533, Size: 1}, {ContainerID: 65532, HostID: 65531, Size: 1},
		}, "65533 65533\n", ProcMasked},
		{"shown as root", true, 0, []syscall.SysProcIDMap{
			{ContainerID: 0, HostID: 65533, Size: 1}, {ContainerID: 65532, HostID: 65532, Size: 1},
		}, "0 0\n", ProcPids},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := testProfile()
			p.UserNS, p.RootMap, p.Proc = true, tt.root, tt.proc
			c := penConfig{profile: p, argv: sh("echo $(id -u) $(stat -c %u /home/u/work/own); touch /home/u/work/new /home/u/x /tmp/y"), env: []string{"PATH=/usr/bin"}}
			c.wrap = func(s *launch.Start) {
				s.UIDMaps, s.GIDMaps, s.Groups = tt.maps, tt.maps, launch.GroupsAllowed
				s.Credential = &syscall.Credential{NoSetGroups: true}
			}
			c.uid = tt.uid
			c.root = tt.root
			pn := newPen(t, c)
			own := filepath.Join(pn.work, "own")
			if err := os.WriteFile(own, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(own, 65533, 65533); err != nil {
				t.Fatal(err)
			}
			if got := pn.run(t); got != tt.want {
				t.Errorf("ids in a user namespace = %q; want %q", got, tt.want)
			}
			st, err := linux.StatPath(filepath.Join(pn.work, "new"))
			if err != nil || st.Uid != 65533 {
				t.Errorf("owner on the host of what it made = %d, %v; want 65533", st.Uid, err)
			}
		})
	}
}

func TestDenyMounts(t *testing.T) {
	p := testProfile()
	mask := func(t *testing.T) *os.File {
		t.Helper()
		m, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_RDONLY, linux.Option{Key: "mode", Value: "0555"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	c := penConfig{
		profile: p, env: []string{"PATH=/usr/bin"}, build: func(b *Build) {
			b.DenyMounts = []DenyMount{{From: 0, Path: "repo"}, {From: 1, Path: "hooks"}}
		},
		argv: sh("cd /home/u/work; ls repo/hooks; mv repo away || mv repo/hooks away || rmdir repo/hooks || echo pinned; echo x >repo/fine; cat repo/fine"),
	}
	c.wrap = func(s *launch.Start) {
		work := c.work
		if err := os.MkdirAll(filepath.Join(work, "repo/hooks/secret"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(work, "repo"), 0o777); err != nil {
			t.Fatal(err)
		}
		repo, err := os.Open(filepath.Join(work, "repo"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = repo.Close() })
		pin, err := linux.CloneMount(repo, linux.One)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pin.Close() })
		if err := linux.SetMount(pin, linux.One, linux.Attr{Private: true}); err != nil {
			t.Fatal(err)
		}
		s.Files[image.FDAttach+1] = linux.FD(pin)
		s.Files[image.FDAttach+2] = linux.FD(mask(t))
	}
	c.work = t.TempDir()
	if got, want := newPen(t, c).run(t), "pinned\nx\n"; got != want {
		t.Errorf("a denied path = %q; want %q", got, want)
	}
}

// cgroupDir makes a child cgroup of this process's own in a hierarchy.
func cgroupDir(t *testing.T, mount string) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil {
		testkit.LeaveOut(t, fmt.Sprintf("statfs(%s) = %v", mount, err))
	}
	if fs.Type != unix.CGROUP_SUPER_MAGIC && fs.Type != unix.CGROUP2_SUPER_MAGIC {
		testkit.LeaveOut(t, fmt.Sprintf("%s is no cgroup hierarchy: type %#x", mount, fs.Type))
	}
	dir := filepath.Join(mount, fmt.Sprintf("pinfold-test-compile-%d", os.Getpid()))
	err := os.Mkdir(dir, 0o755)
	if err != nil {
		testkit.LeaveOut(t, fmt.Sprintf("mkdir in %s = %v", mount, err))
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("rmdir(%s) = %v", dir, err)
		}
	})
	return dir
}

func TestCgroups(t *testing.T) {
	needRoot(t)
	v2 := "/sys/fs/cgroup"
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		v2 = "/sys/fs/cgroup/unified"
	}
	tests := []struct {
		name  string
		mount string
		kind  Join
		into  Switch
		line  string // of /proc/<pid>/cgroup
	}{
		{"v1 tasks", "/sys/fs/cgroup/pids", JoinTasks, Off, ":pids:"},
		{"v2 cgroup.procs", v2, JoinProcs, Off, "0::"},
		{"v2 clone3", v2, "", On, "0::"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := cgroupDir(t, tt.mount)
			c := penConfig{profile: testProfile(), argv: sh("cat /proc/self/cgroup")}
			c.build = func(b *Build) {
				b.IntoCgroup = tt.into
				if tt.kind != "" {
					b.Join = []Join{tt.kind}
				}
			}
			c.wrap = func(s *launch.Start) {
				name, flags, to := dir, unix.O_RDONLY|unix.O_DIRECTORY, image.FDJob
				if tt.kind != "" {
					name, flags, to = filepath.Join(dir, string(tt.kind)), unix.O_WRONLY, image.FDJoin
				}
				f, err := os.OpenFile(name, flags, 0)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = f.Close() })
				s.Files[to] = linux.FD(f)
			}
			p := newPen(t, c)
			p.begin(t)
			pid := p.target(t)
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if want := tt.line + "/" + filepath.Base(dir) + "\n"; err != nil || !strings.Contains(string(b), want) {
				t.Errorf("cgroups of the target = %s, %v; want %s", b, err, want)
			}
			b, err = os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
			if err != nil || strings.Contains(string(b), filepath.Base(dir)) {
				t.Errorf("cgroups of PID 1 = %s, %v; want it where it began", b, err)
			}
			open(t, p.gate2)
			p.next(t)
			p.ended(t)
			p.release(t)
			out, err := io.ReadAll(p.stdout)
			if err != nil || strings.Contains(string(out), filepath.Base(dir)) || !strings.Contains(string(out), tt.line+"/\n") {
				t.Errorf("cgroups as the target sees them = %s, %v; want %s/", out, err, tt.line)
			}
		})
	}
}

func TestIgnoredSignalsOfTheParent(t *testing.T) {
	needRoot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `trap "" HUP PIPE USR1; exec "$0" -test.run='^TestRun$/^signals$' -test.v`, self)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRun/signals") {
		t.Errorf("a pen under a parent that ignores signals = %v\n%s", err, out)
	}
}
