package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
)

func sh(script string) []string { return []string{"/usr/bin/sh", "-c", script} }

func TestRun(t *testing.T) {
	tests := []struct {
		name string
		argv []string
		dir  string
		out  string
		want syscall.WaitStatus
	}{
		{"true", []string{"/usr/bin/true"}, "", "", 0},
		{"exit status", sh("exit 7"), "", "", 7 << 8},
		{"signal", sh("kill -KILL $$"), "", "", syscall.WaitStatus(syscall.SIGKILL)},
		{"default disposition of a signal", sh("kill -PIPE $$"), "", "", syscall.WaitStatus(syscall.SIGPIPE)},
		{"argv", []string{"/usr/bin/printf", "%s|", "a b", "", "c\n"}, "", "a b||c\n|", 0},
		{"directory", sh("pwd"), "/home/u/work", "/home/u/work\n", 0},
		{"hostname", sh("uname -n"), "", "pen\n", 0},
		{"umask", sh("umask"), "", "0022\n", 0},
		{"ids", sh("id -u; id -g; id -G"), "", "65533\n65533\n65533\n", 0},
		{"session leader and pid", sh("cut -d ' ' -f 1,5,6,7 /proc/self/stat; echo $$"), "", "3 2 2 0\n2\n", 0},
		{"only descriptors 0 to 2", sh("ls /proc/$$/fd"), "", "0\n1\n2\n", 0},
		{"rlimit", sh("ulimit -n; ulimit -c"), "", "256\n0\n", 0},
		{
			"capabilities and no_new_privs", sh("grep -E 'Cap|NoNewPrivs|^Seccomp:|Groups' /proc/self/status | tr -d '[:space:]'"), "",
			"Groups:CapInh:0000000000000000CapPrm:0000000000000000CapEff:0000000000000000CapBnd:0000000000000000CapAmb:0000000000000000NoNewPrivs:1Seccomp:2", 0,
		},
		{"signals", sh("grep -E '^Sig(Blk|Ign)' /proc/self/status | tr -d '[:space:]'"), "", "SigBlk:0000000000000000SigIgn:0000000000000000", 0},
		{"private files", sh("cd /tmp && echo x >a && cat a && cd && echo y >/home/u/b && cat /home/u/b && stat -c %u:%a /home/u /tmp"), "", "x\ny\n65533:700\n0:1777\n", 0},
		{"root is read-only", sh("echo x >/etc/passwd"), "", "", 2 << 8},
		{"lo is up", sh("cat /sys/class/net/lo/operstate 2>/dev/null; grep -c lo: /proc/net/dev"), "", "1\n", 0},
		{"masked proc", sh("wc -c </proc/keys; echo x >/proc/sys/kernel/hostname"), "", "0\n", 2 << 8},
		{"PID 1 is closed to the target", sh("cat /proc/1/environ || ls /proc/1/fd || readlink /proc/1/exe || kill -0 1 || echo refused"), "", "refused\n", 0},
		{
			"nothing but the view is mounted", sh("cut -d ' ' -f 5 /proc/self/mountinfo | grep -v ^/proc/ | LC_ALL=C sort | tr '\\n' ' '"), "",
			"/ /dev/null /dev/pts /dev/tty /dev/zero /home/u /home/u/work /probe /proc /tmp /usr ", 0,
		},
		{"no more than rules allow", sh("ls /home || ls / || echo refused"), "", "refused\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, e := output(t, penConfig{profile: testProfile(), argv: tt.argv, dir: tt.dir, env: []string{"PATH=/usr/bin"}})
			if out != tt.out || e.Status != tt.want {
				t.Errorf("%q = %q, status %#x (%s); want %q, %#x", tt.argv, out, e.Status, errs, tt.out, tt.want)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	_, _, e := output(t, penConfig{profile: testProfile(), argv: sh("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")})
	if e.Usage.Utime.Nano() == 0 || e.Usage.Maxrss == 0 {
		t.Errorf("usage of a busy loop = %+v; want user time and a size", e.Usage)
	}
}

func TestFailingStepIsNamed(t *testing.T) {
	tests := []struct {
		name  string
		c     penConfig
		step  string // what the step begins with
		where string
		errno syscall.Errno
	}{
		{"no program", penConfig{argv: []string{"/usr/bin/absent"}}, "openat(AT_FDCWD, $path, O_PATH|O_CLOEXEC", WhereTarget, unix.ENOENT},
		{"no directory", penConfig{argv: []string{"/usr/bin/true"}, dir: "/absent"}, "openat(AT_FDCWD, $dir", WhereTarget, unix.ENOENT},
		{"directory is a file", penConfig{argv: []string{"/usr/bin/true"}, dir: "/etc/passwd"}, "openat(AT_FDCWD, $dir", WhereTarget, unix.ENOTDIR},
		{"program is a directory", penConfig{argv: []string{"/usr/bin"}}, "execveat(3", WhereTarget, unix.EACCES},
		{"program is data", penConfig{argv: []string{"/etc/passwd"}}, "execveat(3", WhereTarget, unix.EACCES},
		{"too long a hostname", penConfig{argv: []string{"/usr/bin/true"}, build: func(b *Build) {
			b.Join = []Join{JoinTasks} // and no descriptor for it
		}}, "write(20, \"0\", 1)", WhereTarget, unix.EBADF},
		{"no ruleset", penConfig{argv: []string{"/usr/bin/true"}, wrap: func(s *launch.Start) {
			delete(s.Files, image.FDRuleset)
		}}, "landlock_add_rule(11", WhereInit, unix.EBADF},
		{"status socket is not held", penConfig{argv: []string{"/usr/bin/true"}, wrap: func(s *launch.Start) {
			delete(s.Files, image.FDPeer)
		}}, "fcntl(24, F_GETFD", WhereInit, unix.EBADF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.profile = testProfile()
			p := newPen(t, tt.c)
			_, _ = p.gate1.Write(append([]byte{1}, p.command...)) // PID 1 may be gone already
			_, _ = p.gate2.Write([]byte{1})
			f := p.failed(t)
			if f.Errno != tt.errno || p.prog.Where(f.Step) != tt.where || !strings.HasPrefix(p.prog.Step(f.Step), tt.step) {
				t.Errorf("record = %+v %q of %q; want %q of %q: %v", f, p.prog.Step(f.Step), p.prog.Where(f.Step), tt.step, tt.where, tt.errno)
			}
			if err := p.wantEnd(); err != nil {
				t.Error(err)
			}
		})
	}
}

// wantEnd wants PID 1 to exit by itself with ExitFailed.
func (p *pen) wantEnd() error {
	done := []unix.PollFd{{Fd: int32(p.pidfd.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(done, int(penWait.Milliseconds())); n != 1 {
		return fmt.Errorf("PID 1 stays: poll = %d, %w", n, err)
	}
	ws := p.wait()
	if ws.ExitStatus() != image.ExitFailed {
		return fmt.Errorf("PID 1 ended with %#x; want exit status %d", ws, image.ExitFailed)
	}
	return nil
}

func TestClosedGate(t *testing.T) {
	for _, gate := range []string{"first", "last"} {
		t.Run(gate, func(t *testing.T) {
			p := newPen(t, penConfig{profile: testProfile(), argv: sh("echo ran >/home/u/work/ran")})
			closed := p.gate1
			if gate == "last" {
				p.begin(t)
				closed = p.gate2
				p.target(t)
			}
			if err := closed.Close(); err != nil {
				t.Fatal(err)
			}
			f := p.failed(t)
			if f.Errno != unix.EPROTO || !strings.HasPrefix(p.prog.Step(f.Step), "read(1") {
				t.Errorf("record after the %s gate closed = %+v %q; want read, EPROTO", gate, f, p.prog.Step(f.Step))
			}
			if err := p.wantEnd(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(p.work, "ran")); !os.IsNotExist(err) {
				t.Errorf("stat of what the target would make = %v; want that it is not there", err)
			}
		})
	}
}

// target waits until the target is at the last gate and returns its host pid.
func (p *pen) target(tb testing.TB) int {
	tb.Helper()
	p.waiting(tb)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.pid, p.pid))
	if err != nil {
		tb.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		tb.Fatalf("children of PID 1 = %q: %v", b, err)
	}
	return pid
}

func TestAtTheLastGate(t *testing.T) {
	p := newPen(t, penConfig{profile: testProfile(), argv: []string{"/usr/bin/true"}, dir: "/home/u/work"})
	p.begin(t)
	pid := p.target(t)
	proc := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	same := func(name, other string) {
		t.Helper()
		a, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.Stat(other)
		if err != nil {
			t.Fatal(err)
		}
		if !os.SameFile(a, b) {
			t.Errorf("%s is not %s", name, other)
		}
	}
	same(proc("fd/"+strconv.Itoa(image.FDProgram)), "/usr/bin/true")
	same(proc("fd/"+strconv.Itoa(image.FDDir)), p.work)
	same(proc("cwd"), p.work)
	fds, err := os.ReadDir(proc("fd"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range fds {
		names = append(names, f.Name())
	}
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "0 1 10 11 13 14 18 2 3 4 9"; got != want {
		t.Errorf("descriptors at the gate = %s; want %s", got, want)
	}
	open(t, p.gate2)
	if s, ok := p.next(t).(launch.Started); !ok || s.Pid != 2 {
		t.Errorf("record = %+v; want Started{2}", s)
	}
}

func TestKilledAtTheGate(t *testing.T) {
	p := newPen(t, penConfig{profile: testProfile(), argv: []string{"/usr/bin/true"}})
	p.begin(t)
	pid := p.target(t)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.wantEnd(); err != nil {
		t.Error(err)
	}
	closeGate(t, p)
	if r, err := p.read(); !errors.Is(err, io.EOF) {
		t.Errorf("record of a target that was killed before its exec = %v, %v; want EOF", r, err)
	}
}

// closeGate closes the gates, so that nothing but the status is left to be read.
func closeGate(t *testing.T, p *pen) {
	t.Helper()
	if err := p.gate2.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestScriptByPath(t *testing.T) {
	c := penConfig{profile: testProfile(), argv: []string{"/home/u/work/s", "a"}, script: true}
	p := newPen(t, c)
	if err := os.WriteFile(filepath.Join(p.work, "s"), []byte("#!/usr/bin/sh\necho \"$0 $1\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	if e := p.ended(t); e.Status != 0 {
		t.Errorf("script = %#x; want 0", e.Status)
	}
	p.release(t)
	out, err := io.ReadAll(p.stdout)
	if want := "/home/u/work/s a\n"; string(out) != want || err != nil {
		t.Errorf("script wrote %q, %v; want %q", out, err, want)
	}
}

func TestHolder(t *testing.T) {
	p := newPen(t, penConfig{profile: testProfile(), argv: sh("cat; exec true")})
	p.start(t)
	if _, err := p.stdin.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	// PID 1 holds the write end too: EOF needs both to be closed.
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(p.stdout, b); err != nil || string(b) != "hello" {
		t.Fatalf("stdout = %q, %v; want hello", b, err)
	}
	if err := p.status.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := p.status.Read(make([]byte, 200)); err == nil {
		t.Fatalf("record of %d bytes before PID 1 closed its end", n)
	}
	for range 2 { // the second finds it closed
		if _, err := p.status.Write(launch.CloseFD(image.FDHeldIn)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.status.Write([]byte("short")); err != nil {
		t.Fatal(err)
	}
	if e := p.ended(t); e.Status != 0 {
		t.Errorf("cat = %#x; want 0", e.Status)
	}
	var status []string
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "Name", "Uid", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp":
			status = append(status, value)
		}
	}
	zero := "0000000000000000"
	want := "pinfold-init|65532\t65532\t65532\t65532|" + zero + "|" + zero + "|1|2"
	if got := strings.Join(status, "|"); got != want {
		t.Errorf("status of PID 1 = %q; want %q", got, want)
	}
	if kb := anonymous(t, p.pid); kb > maxInitKB {
		t.Errorf("memory of PID 1 = %d KB; want at most %d", kb, maxInitKB)
	}
	p.release(t)
}

// maxInitKB bounds PID 1's own memory: the page of registers and the stack's.
const maxInitKB = 16

// anonymous returns the memory of a process that nobody else has, in KB:
// smaps_rollup in proc(5).
func anonymous(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == "Anonymous:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("memory of PID 1: %d KB", kb)
			return kb
		}
	}
	t.Fatalf("no Anonymous in %s", b)
	return 0
}

func TestNoZombies(t *testing.T) {
	p := newPen(t, penConfig{profile: testProfile(), argv: sh("i=0; while [ $i -lt 1000 ]; do ( : & ); i=$((i+1)); done")})
	p.start(t)
	if e := p.ended(t); e.Status != 0 {
		t.Errorf("1,000 double forks = %#x; want 0", e.Status)
	}
	end := time.Now().Add(penWait)
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.pid, p.pid))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("children of PID 1 = %s; want none", b)
		}
		time.Sleep(time.Millisecond)
	}
	if err := p.status.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := p.status.Read(make([]byte, 200)); err == nil {
		t.Errorf("a record of %d bytes about others than the target", n)
	}
	p.release(t)
}

func TestTerminal(t *testing.T) {
	profile := testProfile()
	profile.PTY = true
	p := newPen(t, penConfig{
		profile: profile, argv: sh("stty size; tty; [ -O $(tty) ] && echo mine; read x </dev/tty; echo got $x"), env: []string{"PATH=/usr/bin"},
		wrap: func(s *launch.Start) { delete(s.Files, image.FDHeldIn) },
	})
	p.start(t)
	m, err := unix.PidfdGetfd(int(p.pidfd.Fd()), image.FDHeldIn, 0)
	if err != nil {
		t.Fatalf("pidfd_getfd(terminal) = %v", err)
	}
	master := os.NewFile(uintptr(m), "terminal")
	defer master.Close()
	if _, err := master.WriteString("line\n"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	b := make([]byte, 4096)
	for !strings.Contains(out.String(), "got") {
		n, err := master.Read(b)
		if err != nil {
			t.Fatalf("terminal = %q, %v", out.String(), err)
		}
		out.Write(b[:n])
	}
	for _, want := range []string{"24 80\r\n", "/dev/pts/0\r\n", "mine\r\n", "got line"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("terminal shows %q; want %q in it", out.String(), want)
		}
	}
	if e := p.ended(t); e.Status != 0 {
		t.Errorf("program on a terminal = %#x; want 0", e.Status)
	}
	p.release(t)
}
