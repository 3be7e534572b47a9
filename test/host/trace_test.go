package host

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tracing is what the helper "trace" is told: to name each system call that a process
// enters, by all of its threads, or to kill it as it enters one. Children are left alone.
type tracing struct {
	PID  int
	Kill bool
	Call int // number of the call
	Nth  int // the how-manieth of those with that number, from 1
}

// traceCalls is that helper. It says "ready" once it has every thread.
func traceCalls(arg string) error {
	runtime.LockOSThread()
	var t tracing
	if err := json.Unmarshal([]byte(arg), &t); err != nil {
		return err
	}
	if err := seize(t.PID); err != nil {
		return fmt.Errorf("cannot trace %d: %w", t.PID, err)
	}
	fmt.Println("ready")
	entered := 0
	for {
		var ws syscall.WaitStatus
		tid, err := syscall.Wait4(-1, &ws, syscall.WALL, nil)
		if errors.Is(err, syscall.ECHILD) {
			return nil // it has ended
		}
		if err != nil {
			return err
		}
		if !ws.Stopped() {
			continue
		}
		sig := 0
		switch {
		case ws.StopSignal() == syscall.SIGTRAP|0x80:
			nr, enters, err := callOf(tid)
			if err != nil {
				return err
			}
			if !enters {
				break
			}
			if !t.Kill {
				fmt.Println(nr)
			}
			if nr == t.Call {
				entered++
			}
			if t.Kill && nr == t.Call && entered == t.Nth {
				if err := syscall.Kill(t.PID, syscall.SIGKILL); err != nil {
					return err
				}
				fmt.Println("killed")
				t.Kill = false
			}
		case ws>>16 == 0: // a signal of its own
			sig = int(ws.StopSignal())
		}
		if err := goOn(tid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
}

// seize takes all threads of a process; those that come later come by themselves.
func seize(pid int) error {
	have := map[int]bool{}
	for again := true; again; {
		again = false
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return err
		}
		for _, dir := range threads {
			tid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil || have[tid] {
				continue
			}
			have[tid], again = true, true
			if err := ptrace(unix.PTRACE_SEIZE, tid, 0, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE); err != nil {
				if errors.Is(err, syscall.EPERM) && traced(dir) || errors.Is(err, syscall.ESRCH) {
					continue // it came by itself, or has ended
				}
				return err
			}
			if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// traced reports whether this process is the tracer of a thread.
func traced(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	return err == nil && statusField(string(b), "TracerPid:") == strconv.Itoa(os.Getpid())
}

// goOn lets a stopped thread go on to its next system call.
func goOn(tid, sig int) error { return ptrace(syscall.PTRACE_SYSCALL, tid, 0, uintptr(sig)) }

func ptrace(request, tid int, addr, data uintptr) error {
	_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
	return orNil(errno)
}

// callOf is the system call that a thread stands at: ptrace(2), PTRACE_GET_SYSCALL_INFO.
func callOf(tid int) (nr int, enters bool, err error) {
	var info [88]byte
	err = ptrace(unix.PTRACE_GET_SYSCALL_INFO, tid, unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info[0])))
	if errors.Is(err, syscall.ESRCH) {
		return 0, false, nil
	}
	const entry = 1
	return int(binary.NativeEndian.Uint64(info[24:])), info[0] == entry, err
}

// tracer is the helper "trace" at work on a process.
type tracer struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func trace(t *testing.T, what tracing) *tracer {
	t.Helper()
	arg, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	w := &tracer{cmd: exec.Command(program(t, "helper"))}
	w.cmd.Env = []string{helperVar + "=trace", helperArg + "=" + string(arg)}
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err := errors.Join(err, w.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	w.lines = bufio.NewScanner(out)
	if !w.lines.Scan() || w.lines.Text() != "ready" {
		t.Fatalf("helper trace said %q, %v; want ready", w.lines.Text(), w.lines.Err())
	}
	return w
}

// end takes the tracer away from a process that lives, and returns what it has said.
func (w *tracer) end(t *testing.T) []string {
	t.Helper()
	if err := w.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	return w.rest()
}

// rest is what the tracer says until it ends, with the process.
func (w *tracer) rest() []string {
	var out []string
	for w.lines.Scan() {
		out = append(out, w.lines.Text())
	}
	_ = w.cmd.Wait() // it was killed, or has ended with the process
	return out
}
