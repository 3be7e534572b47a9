package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPrint(t *testing.T) {
	p := New()
	p.In("init")
	p.Call("umask", []Arg{Named(0o22, "022")}, Save(RegTemp))
	p.Fold("close(each of 1 to 2)", func() {
		p.Call("close", []Arg{Int(1)})
		p.Call("close", []Arg{Int(2)}, Or(unix.EBADF))
	})
	p.Label("again")
	p.Call("getpid", nil, UnlessValue(RegTemp, "again"))
	p.In("target")
	p.Set(RegPid, Int(7))
	p.Test(RegPid, If(7, "again"))
	p.Goto("again")
	p.Call("close", []Arg{Value(RegTemp)}, Refused(unix.EBADF))
	if _, err := p.Link(); err != nil {
		t.Fatal(err)
	}
	want := `# init
    0 umask(022) -> $t
    1-2 close(each of 1 to 2)
again:
    3 getpid(); unless $t goto again
# target
    4 set $pid to 7
    5 test $pid; if 7 goto again
    6 goto again
    7 close($t) refused with EBADF
`
	if got := p.String(); got != want {
		t.Errorf("String() = %s; want %s", got, want)
	}
	want = `0 umask(0x12) save=17
1 close(0x1)
2 close(0x2) ignore=9
3 getpid() unless=$17@3
4 set(0x7) save=14
5 set($14) if=7@3
6 set(0) if=0@3
7 close($17) ignore=9 want=0
`
	if got := p.Raw(); got != want {
		t.Errorf("Raw() = %s; want %s", got, want)
	}
	for i, want := range map[int]string{1: "close(1)", 4: "set $pid to 7", -1: "?", 8: "?"} {
		if got := p.Step(i); got != want {
			t.Errorf("Step(%d) = %s; want %s", i, got, want)
		}
	}
	for i, want := range map[int]string{3: "init", 4: "target", -1: "", 8: ""} {
		if got := p.Where(i); got != want {
			t.Errorf("Where(%d) = %s; want %s", i, got, want)
		}
	}
	if got := p.Len(); got != 8 {
		t.Errorf("Len() = %d; want 8", got)
	}
}

func TestLinkRefuses(t *testing.T) {
	tests := []struct {
		name  string
		build func(p *Program)
		want  string
	}{
		{"unknown call", func(p *Program) { p.Call("reboot", nil) }, "no system call reboot"},
		{"too few arguments", func(p *Program) { p.Call("close", nil) }, "close takes 1 arguments, not 0"},
		{"unknown label", func(p *Program) { p.Goto("away") }, "no step has the label away"},
		{"label at the end", func(p *Program) { p.Goto("end"); p.Label("end") }, "no step has the label end"},
		{"label twice", func(p *Program) { p.Label("a"); p.Label("a") }, "label a stands twice"},
		{"step that the filter kills", func(p *Program) {
			p.Seccomp(HolderFilter(), "PID 1")
			p.Call("umask", []Arg{Int(0)})
		}, "the filter answers 0x80000000 to umask(0)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := New()
			tt.build(p)
			_, err := p.Link()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Link() = %v; want an error with %q", err, tt.want)
			}
		})
	}
}

func TestFilterBindsOneProcess(t *testing.T) {
	p := New()
	p.In("init")
	p.Seccomp(HolderFilter(), "PID 1")
	p.Call("exit_group", []Arg{Int(0)})
	p.In("target")
	p.Call("umask", []Arg{Int(0)})
	if _, err := p.Link(); err != nil {
		t.Errorf("Link() = %v; want no error for a step of another process", err)
	}
}

// TestHolderFilter lets the kernel answer what the model says of the same filter.
func TestHolderFilter(t *testing.T) {
	begin := func(p *Program) {
		p.Call("prctl", []Arg{Int(unix.PR_SET_NO_NEW_PRIVS), Int(1), Int(0), Int(0), Int(0)})
		p.Seccomp(HolderFilter(), "PID 1")
	}
	out, status := run(t, func(p *Program) {
		begin(p)
		p.Call("close", []Arg{Int(999)}, Or(unix.EBADF))
		p.Call("wait4", []Arg{Int(-1), Null(), Int(unix.WNOHANG), Null()}, Or(unix.ECHILD))
		say(p, "alive")
		exit(p, 0)
	})
	if out != "alive" || status != 0 {
		t.Errorf("allowed calls = %q, status %d; want alive, 0", out, status)
	}
	p := New()
	begin(p)
	p.filter = nil // keep the check from refusing what follows
	p.Call("getpid", nil)
	exit(p, 0)
	if ws := ended(t, p); !ws.Signaled() || ws.Signal() != unix.SIGSYS {
		t.Errorf("getpid under the filter of PID 1 = %#x; want SIGSYS", ws)
	}
}

func TestAnswer(t *testing.T) {
	const jmp, k = unix.BPF_JMP, unix.BPF_K
	ret := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | k, K: v} }
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	tests := []struct {
		name string
		f    []unix.SockFilter
		want uint32
		err  string
	}{
		{"number", []unix.SockFilter{load(0), {Code: unix.BPF_RET | unix.BPF_A}}, 5, ""},
		{"architecture", []unix.SockFilter{load(4), {Code: unix.BPF_RET | unix.BPF_A}}, auditArch, ""},
		{"low half of an argument", []unix.SockFilter{load(24), {Code: unix.BPF_RET | unix.BPF_A}}, 0x55667788, ""},
		{"high half", []unix.SockFilter{load(28), {Code: unix.BPF_RET | unix.BPF_A}}, 0x11223344, ""},
		{"and, tax, compare with x", []unix.SockFilter{
			load(24),
			{Code: unix.BPF_ALU | unix.BPF_AND | k, K: 0xff},
			{Code: unix.BPF_MISC | unix.BPF_TAX},
			{Code: unix.BPF_LD | unix.BPF_IMM, K: 0x88},
			{Code: jmp | unix.BPF_JEQ | unix.BPF_X, Jf: 1},
			ret(1), ret(2),
		}, 1, ""},
		{"jset, jgt, jge, ja", []unix.SockFilter{
			load(0),
			{Code: jmp | unix.BPF_JSET | k, K: 4, Jf: 4},
			{Code: jmp | unix.BPF_JGT | k, K: 5, Jt: 3},
			{Code: jmp | unix.BPF_JGE | k, K: 5, Jf: 2},
			{Code: jmp | unix.BPF_JA, K: 1},
			ret(9), ret(3),
		}, 3, ""},
		{"off the end", []unix.SockFilter{load(0)}, 0, "runs off its end"},
		{"unknown code", []unix.SockFilter{{Code: 0xff}}, 0, "code 0xff is not known"},
		{"load beyond the data", []unix.SockFilter{load(64)}, 0, "loads offset 64"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := answer(tt.f, 5, [6]uint64{1: 0x1122334455667788})
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("answer(%v) = %#x, %v; want %#x, %q", tt.f, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestImageIsSmallELF(t *testing.T) {
	p := New()
	exit(p, 0)
	b, err := p.Image()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("elf.NewFile(image) = %v", err)
	}
	if len(b) > 2*segment || f.Type != elf.ET_EXEC || f.Machine != machine || len(f.Progs) != 3 {
		t.Errorf("image = %d bytes, %v, %v, %d segments; want at most %d, ET_EXEC, %v, 3", len(b), f.Type, f.Machine, len(f.Progs), 2*segment, machine)
	}
	for _, g := range f.Progs {
		if g.Flags&elf.PF_W != 0 && g.Flags&elf.PF_X != 0 {
			t.Errorf("segment at %#x is both writable and executable", g.Vaddr)
		}
	}
}

func TestMemfdIsSealed(t *testing.T) {
	p := New()
	exit(p, 0)
	f, err := p.Memfd("test", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || s&sealsOld != sealsOld {
		t.Errorf("seals = %#x, %v; want %#x", s, err, sealsOld)
	}
	if _, err := f.WriteAt([]byte{1}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write to the image = %v; want EPERM", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&0o7777 != Mode {
		t.Errorf("mode = %#o, %v; want %#o", st.Mode&0o7777, err, Mode)
	}
}

func TestUnlinkedFile(t *testing.T) {
	p := New()
	exit(p, 6)
	b, err := p.Image()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f, err := unlinked(dir, b)
	if err != nil {
		t.Fatalf("unlinked(%s) = %v", dir, err)
	}
	defer f.Close()
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), []string{"p", "d"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatalf("ForkExec(unlinked) = %v", err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 6 {
		t.Errorf("unlinked image = %#x, %v; want exit status 6", ws, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("ReadDir(%s) = %v, %v; want nothing", dir, left, err)
	}
}

// ended runs a Program as an ordinary child and returns its end.
func ended(t *testing.T, p *Program) syscall.WaitStatus {
	t.Helper()
	if _, err := p.Link(); err != nil {
		t.Fatal(err)
	}
	f, err := p.Memfd("test", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), []string{"p", "d"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	return ws
}
