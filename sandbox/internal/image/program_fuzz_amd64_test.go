package image

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// maxCalls is how many system calls of a random Program are followed: it may be a
// loop. A cycle always has a system call.
const maxCalls = 64

// FuzzProgram makes a Program of any bytes. Its image must be an ELF file, and under a tracer make just the calls, with
// just the arguments and registers, that the printed list says.
func FuzzProgram(f *testing.F) {
	for _, s := range []string{"", "\x00", "abcdefgh", "\x05\x01\x03\x02\x02\x01\x07\x07\x07\x00\x00\x00", strings.Repeat("\x03\x11\x04\x02\x01\x00", 20)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<12 {
			return
		}
		p, err := randomProgram(in)
		if err != nil {
			t.Fatalf("Link() = %v; want a Program of valid parts", err)
		}
		checkELF(t, p)
		raw := p.Raw()
		if n := strings.Count(raw, "\n"); n != p.Len() {
			t.Fatalf("Raw() = %d lines; want %d:\n%s", n, p.Len(), raw)
		}
		follow(t, p, parseRaw(t, raw))
	})
}

// checkELF reads the image as the kernel does.
func checkELF(t *testing.T, p *Program) {
	t.Helper()
	b, err := p.Image()
	if err != nil {
		t.Fatalf("Image() = %v; want an image", err)
	}
	again, err := p.Image()
	if err != nil || !bytes.Equal(b, again) {
		t.Fatalf("Image() twice = other bytes, %v; want the same", err)
	}
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("elf.NewFile(image) = %v", err)
	}
	entered := false
	for _, g := range e.Progs {
		if g.Flags&elf.PF_W != 0 && g.Flags&elf.PF_X != 0 {
			t.Errorf("segment at %#x is both writable and executable", g.Vaddr)
		}
		if g.Type == elf.PT_LOAD && g.Off+g.Filesz > uint64(len(b)) {
			t.Errorf("segment at %#x ends at %d of %d bytes", g.Vaddr, g.Off+g.Filesz, len(b))
		}
		entered = entered || g.Flags&elf.PF_X != 0 && e.Entry >= g.Vaddr && e.Entry < g.Vaddr+g.Filesz
	}
	if !entered {
		t.Errorf("entry %#x lies in no executable segment", e.Entry)
	}
}

// printed is one line of Raw, read back.
type printed struct {
	name   string
	args   []operand
	save   int
	ignore uint64
	kind   string // want, if, unless or empty
	x      operand
	to     int
}

// operand is a number or a register as Raw prints it.
type operand struct {
	value uint64
	reg   bool
}

func (o operand) of(regs *[numRegs]uint64) uint64 {
	if o.reg {
		return regs[o.value]
	}
	return o.value
}

func parseOperand(t *testing.T, s string) operand {
	t.Helper()
	r, reg := strings.CutPrefix(s, "$")
	if n, err := strconv.ParseInt(r, 0, 64); err == nil {
		return operand{uint64(n), reg}
	}
	n, err := strconv.ParseUint(r, 0, 64)
	if err != nil {
		t.Fatalf("Raw() has the operand %q: %v", s, err)
	}
	return operand{n, reg}
}

func parseRaw(t *testing.T, raw string) []printed {
	t.Helper()
	var out []printed
	for line := range strings.Lines(raw) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, rest, ok := strings.Cut(rest, "(")
		args, results, closed := strings.Cut(rest, ")")
		if !ok || !closed || number != strconv.Itoa(len(out)) {
			t.Fatalf("Raw() has the line %q as number %d", line, len(out))
		}
		l := printed{name: name}
		for a := range strings.SplitSeq(args, ", ") {
			if a != "" {
				l.args = append(l.args, parseOperand(t, a))
			}
		}
		for r := range strings.FieldsSeq(results) {
			key, v, _ := strings.Cut(r, "=")
			switch v, to, _ := strings.Cut(v, "@"); key {
			case "save":
				l.save = int(parseOperand(t, v).value)
			case "ignore":
				l.ignore = parseOperand(t, v).value
			default:
				l.kind, l.x = key, parseOperand(t, v)
				if to != "" {
					l.to = int(parseOperand(t, to).value)
				}
			}
		}
		out = append(out, l)
	}
	return out
}

// model goes through the printed list in place of the interpreter.
type model struct {
	lines  []printed
	regs   [numRegs]uint64
	at     int
	failed bool // the list is left: what follows are the record and the exit
}

// call goes on to the next system call and returns its number and its arguments.
func (m *model) call() (uint64, []uint64) {
	for !m.failed {
		if m.at >= len(m.lines) {
			return 0, nil // off the end of the list: nothing may be there
		}
		l := m.lines[m.at]
		if l.name != "set" {
			var args []uint64
			for _, a := range l.args {
				args = append(args, a.of(&m.regs))
			}
			return uint64(find(l.name).number), args
		}
		m.result(l.args[0].of(&m.regs))
	}
	return unix.SYS_WRITE, []uint64{m.regs[RegStatus], regsAddr + 8*uint64(RegFail), FailedSize}
}

// end takes what the kernel answered to the call.
func (m *model) end(answer uint64) {
	if e := -answer; e > 0 && e <= 4095 {
		if e != m.lines[m.at].ignore {
			m.fail(e)
			return
		}
		answer = 0
	}
	m.result(answer)
}

func (m *model) result(v uint64) {
	l := m.lines[m.at]
	if l.save != int(RegSink) {
		m.regs[l.save] = v
	}
	equal := v == l.x.of(&m.regs)
	switch {
	case l.kind == "want" && !equal:
		m.fail(uint64(unix.EPROTO))
	case l.kind == "if" && equal, l.kind == "unless" && !equal:
		m.at = l.to
	default:
		m.at++
	}
}

func (m *model) fail(e uint64) {
	m.failed = true
	m.regs[RegFail], m.regs[regErrno] = RecordFailed|uint64(m.at)<<32, e
}

// follow runs the image under ptrace(2) beside the model.
func follow(t *testing.T, p *Program, lines []printed) {
	t.Helper()
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	pid := traced(t, p)
	defer func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, syscall.WALL, nil)
	}()
	m := model{lines: lines}
	m.regs[RegStatus] = FDStatus
	for n := range maxCalls {
		regs, ended := stop(t, pid)
		if ended {
			t.Fatalf("call %d: the process has ended; want a call of step %d:\n%s", n, m.at, p)
		}
		number, args := m.call()
		if m.at >= len(lines) {
			t.Fatalf("call %d: the list goes on at %d, behind its end:\n%s", n, m.at, p.Raw())
		}
		got := []uint64{regs.Rdi, regs.Rsi, regs.Rdx, regs.R10, regs.R8, regs.R9}[:len(args)]
		if regs.Orig_rax != number || fmt.Sprint(got) != fmt.Sprint(args) {
			t.Fatalf("call %d = %d(%#x); want %d(%#x) of step %d:\n%s", n, regs.Orig_rax, got, number, args, m.at, p.Raw())
		}
		m.compare(t, pid)
		if number == unix.SYS_EXIT_GROUP {
			wantExit(t, pid, int(args[0]&0xff))
			return
		}
		regs, ended = stop(t, pid)
		if ended {
			t.Fatalf("the process ended in step %d; want it to go on:\n%s", m.at, p)
		}
		if m.failed {
			exitAfterFailure(t, pid)
			return
		}
		m.end(regs.Rax)
	}
}

// exitAfterFailure: after the record nothing is left but the exit.
func exitAfterFailure(t *testing.T, pid int) {
	t.Helper()
	if regs, ended := stop(t, pid); ended || regs.Orig_rax != unix.SYS_EXIT_GROUP || regs.Rdi != ExitFailed {
		t.Fatalf("after the record of a failure = %d(%d); want exit_group(%d)", regs.Orig_rax, regs.Rdi, ExitFailed)
	}
	wantExit(t, pid, ExitFailed)
}

// traced starts the image, stopped at its first instruction.
func traced(t *testing.T, p *Program) int {
	t.Helper()
	f, err := p.Memfd("fuzz", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	files := make([]uintptr, FDStatus+1)
	for i := range files {
		files[i] = null.Fd()
	}
	im, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(im)
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", im), []string{"program", "dir", "x"}, &syscall.ProcAttr{
		Files: files, Env: []string{"A=1"}, Dir: "/", Sys: &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		t.Fatalf("ForkExec(image) = %v", err)
	}
	if _, err := syscall.Wait4(pid, nil, syscall.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if err := syscall.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		t.Fatal(err)
	}
	return pid
}

// stop lets the process go on to its next stop at a call, before or behind it.
func stop(t *testing.T, pid int) (regs syscall.PtraceRegs, ended bool) {
	t.Helper()
	if err := syscall.PtraceSyscall(pid, 0); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if !ws.Stopped() {
		return regs, true
	}
	if ws.StopSignal() != syscall.SIGTRAP|0x80 {
		t.Fatalf("the process got %v; want none", ws.StopSignal())
	}
	if err := syscall.PtraceGetRegs(pid, &regs); err != nil {
		t.Fatal(err)
	}
	return regs, false
}

func wantExit(t *testing.T, pid, status int) {
	t.Helper()
	if err := syscall.PtraceCont(pid, 0); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WALL, nil); err != nil || !ws.Exited() || ws.ExitStatus() != status {
		t.Fatalf("end = %#x, %v; want exit status %d", ws, err, status)
	}
}

func registers(t *testing.T, pid int) (regs [numRegs]uint64) {
	t.Helper()
	b := make([]byte, 8*numRegs)
	if n, err := syscall.PtracePeekData(pid, regsAddr, b); err != nil || n != len(b) {
		t.Fatalf("PtracePeekData(registers) = %d, %v", n, err)
	}
	for i := range regs {
		for j, v := range b[8*i : 8*i+8] {
			regs[i] |= uint64(v) << (8 * j)
		}
	}
	return regs
}

// compare looks at every register but the sink.
func (m *model) compare(t *testing.T, pid int) {
	t.Helper()
	regs := registers(t, pid)
	for r := RegFail; r < numRegs; r++ {
		if regs[r] != m.regs[r] {
			t.Fatalf("register %s = %#x before step %d; want %#x", r, regs[r], m.at, m.regs[r])
		}
	}
}
