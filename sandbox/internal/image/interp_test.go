package image

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/test/testkit"
)

// run executes a Program as an ordinary child and returns what it wrote to the
// status descriptor, and its exit status.
func run(t *testing.T, build func(p *Program)) (string, int) {
	t.Helper()
	p := New()
	p.In("test")
	build(p)
	if _, err := p.Link(); err != nil {
		t.Fatalf("Link() = %v", err)
	}
	f, err := p.Memfd("test", t.TempDir())
	if err != nil {
		t.Fatalf("Memfd() = %v", err)
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	files := make([]uintptr, FDStatus+1)
	for i := range files {
		files[i] = w.Fd()
	}
	im, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(im)
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", im), []string{"program"}, &syscall.ProcAttr{Files: files})
	if err != nil {
		t.Fatalf("ForkExec(image) = %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	if !ws.Exited() {
		t.Fatalf("program was ended by %v:\n%s", ws.Signal(), p)
	}
	b := make([]byte, 1<<16)
	n, _ := r.Read(b)
	return string(b[:n]), ws.ExitStatus()
}

func exit(p *Program, status int) { p.Call("exit_group", []Arg{Int(status)}) }

func say(p *Program, s string) {
	p.Call("write", []Arg{Value(RegStatus), Text(s), Int(len(s))}, Want(len(s)))
}

// failed is the record of a failed step.
func failed(step int, e syscall.Errno) string {
	var b []byte
	for _, v := range []uint32{RecordFailed, uint32(step), uint32(e), 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return string(b)
}

func TestInterpreter(t *testing.T) {
	badFD := Int(999)
	tests := []struct {
		name   string
		build  func(p *Program)
		out    string
		status int
	}{
		{"steps in order", func(p *Program) { say(p, "a"); say(p, "b"); exit(p, 3) }, "ab", 3},
		{"a failing step is named", func(p *Program) {
			say(p, "a")
			p.Call("close", []Arg{badFD})
			say(p, "b")
		}, "a" + failed(1, unix.EBADF), ExitFailed},
		{"another errno than the one to ignore fails", func(p *Program) {
			p.Call("close", []Arg{badFD}, Or(unix.ENOENT))
			exit(p, 0)
		}, failed(0, unix.EBADF), ExitFailed},
		{"an ignored errno is the result 0", func(p *Program) {
			p.Call("close", []Arg{badFD}, Or(unix.EBADF), If(0, "zero"))
			exit(p, 1)
			p.Label("zero")
			exit(p, 2)
		}, "", 2},
		{"an ignored errno is saved as 0", func(p *Program) {
			p.Set(RegTemp, Int(9))
			p.Call("close", []Arg{badFD}, Or(unix.EBADF), Save(RegTemp))
			p.Call("exit_group", []Arg{Value(RegTemp)})
		}, "", 0},
		{"a wanted result goes on", func(p *Program) {
			p.Call("umask", []Arg{Int(0o77)})
			p.Call("umask", []Arg{Int(0)}, Want(0o77))
			exit(p, 0)
		}, "", 0},
		{"an unwanted result fails", func(p *Program) {
			p.Call("umask", []Arg{Int(0o77)})
			p.Call("umask", []Arg{Int(0)}, Want(0o76))
		}, failed(1, unix.EPROTO), ExitFailed},
		{"a wanted refusal goes on", func(p *Program) {
			p.Call("close", []Arg{badFD}, Refused(unix.EBADF))
			exit(p, 4)
		}, "", 4},
		{"a refusal with another errno fails", func(p *Program) {
			p.Call("close", []Arg{badFD}, Refused(unix.EPERM))
		}, failed(0, unix.EBADF), ExitFailed},
		{"what must be refused and is not fails", func(p *Program) {
			p.Call("openat", []Arg{Int(unix.AT_FDCWD), Text("/"), Int(0), Int(0)}, Refused(unix.EACCES))
		}, failed(0, unix.EPROTO), ExitFailed},
		{"save and compare with a register", func(p *Program) {
			p.Call("getpid", nil, Save(RegTemp))
			p.Call("getpid", nil, UnlessValue(RegTemp, "other"))
			exit(p, 5)
			p.Label("other")
			exit(p, 6)
		}, "", 5},
		{"unless jumps when it differs", func(p *Program) {
			p.Call("getpid", nil, Unless(-1, "other"))
			exit(p, 5)
			p.Label("other")
			exit(p, 6)
		}, "", 6},
		{"if goes on when it differs", func(p *Program) {
			p.Set(RegTemp, Int(7))
			p.Test(RegTemp, If(6, "six"))
			exit(p, 1)
			p.Label("six")
			exit(p, 2)
		}, "", 1},
		{"set, test and goto are no system calls", func(p *Program) {
			p.Set(RegTemp, Int(-4000)) // no errno here
			p.Test(RegTemp, Unless(-4000, "wrong"))
			p.Goto("end")
			p.Label("wrong")
			exit(p, 1)
			p.Label("end")
			exit(p, 0)
		}, "", 0},
		{"a jump backwards is a loop", func(p *Program) {
			p.Label("again")
			p.Call("umask", []Arg{Int(0o11)}, Unless(0o11, "again"))
			exit(p, 8)
		}, "", 8},
		{"the sink keeps nothing", func(p *Program) {
			p.Call("getpid", nil)
			exit(p, 9)
		}, "", 9},
		{"all six arguments can be registers", func(p *Program) {
			p.Set(RegCommand, Int(FDStatus))
			p.Set(RegTemp, Int(0))
			p.Call("recvfrom", []Arg{
				Value(RegCommand), Value(RegTemp), Value(RegTemp), Value(RegTemp), Value(RegTemp), Value(RegTemp),
			}, Refused(unix.ENOTSOCK))
			exit(p, 0)
		}, "", 0},
		{"the record of a failure is left for who shares the memory", func(p *Program) {
			flags := unix.CLONE_VM | unix.CLONE_VFORK | int(unix.SIGCHLD)
			p.Call("clone", []Arg{Int(flags), Int(0), Int(0), Int(0), Int(0)}, Save(RegPid), If(0, "child"))
			p.Test(RegFail, If(0, "none"))
			exit(p, 10)
			p.Label("none")
			exit(p, 11)
			p.Label("child")
			p.Call("close", []Arg{badFD})
		}, failed(4, unix.EBADF), 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, status := run(t, tt.build)
			if out != tt.out || status != tt.status {
				t.Errorf("program = %q, status %d; want %q, status %d", out, status, tt.out, tt.status)
			}
		})
	}
}

// TestPinnedToSource assembles the source again, in an empty package, and compares.
func TestPinnedToSource(t *testing.T) {
	testkit.NeedProgram(t, "go")
	name := "interp_" + runtime.GOARCH + ".s"
	object := filepath.Join(t.TempDir(), "interp.o")
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("go env GOROOT = %v", err)
	}
	include := filepath.Join(strings.TrimSpace(string(goroot)), "pkg", "include")
	cmd := exec.Command("go", "tool", "asm", "-S", "-p", "image", "-I", include, "-o", object, name)
	listing, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go tool asm %s = %v\n%s", name, err, listing)
	}
	code := machineCode()
	var all []byte
	for _, symbol := range []string{"start", "interp"} {
		b := dumped(t, string(listing), "image."+symbol)
		end := strings.Index(string(b), endOfText)
		if end < 0 {
			t.Fatalf("%s: no end mark in %x", symbol, b)
		}
		all = append(all, b[:end]...)
	}
	if string(all) != string(code) {
		t.Errorf("text of this program = %x; want what %s assembles to, %x", code, name, all)
	}
}

// dumped returns the bytes of a symbol in the listing of go tool asm -S.
func dumped(t *testing.T, listing, symbol string) []byte {
	t.Helper()
	_, rest, ok := strings.Cut(listing, symbol+" STEXT")
	if !ok {
		t.Fatalf("no %s in the listing:\n%s", symbol, listing)
	}
	row := regexp.MustCompile(`^\t0x[0-9a-f]+((?: [0-9a-f]{2}){1,16}) `)
	var b []byte
	for i, line := range strings.Split(rest, "\n") {
		if i > 0 && line != "" && line[0] != '\t' {
			break
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for h := range strings.FieldsSeq(m[1]) {
			var v byte
			if _, err := fmt.Sscanf(h, "%02x", &v); err != nil {
				t.Fatal(err)
			}
			b = append(b, v)
		}
	}
	return b
}
