package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox/internal/image"
	"pinfold/sandbox/internal/launch"
	"pinfold/test/testkit"
)

// straceDir names the directory in which TestStraced leaves what it started.
const straceDir = "PINFOLD_TEST_STRACE_DIR"

// TestStraced is what TestStraceEqualsProgram runs under strace.
func TestStraced(t *testing.T) {
	dir := os.Getenv(straceDir)
	if dir == "" {
		return // nothing of its own to test
	}
	p := newPen(t, penConfig{profile: testProfile(), argv: sh("( : & ); cat")})
	p.begin(t)
	target := p.target(t)
	open(t, p.gate2)
	if s, ok := p.next(t).(launch.Started); !ok {
		t.Fatalf("record = %#v; want Started", s)
	}
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.status.Write(launch.CloseFD(image.FDHeldIn)); err != nil {
		t.Fatal(err)
	}
	p.ended(t)
	p.release(t)
	for name, text := range map[string]string{"program": p.prog.Raw(), "pids": fmt.Sprintf("%d %d", p.pid, target)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStraceEqualsProgram compares what the kernel saw of PID 1 and of the target,
// call by call and argument by argument, with the printed Program.
func TestStraceEqualsProgram(t *testing.T) {
	needRoot(t)
	strace := testkit.NeedProgram(t, "strace")
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(strace, "-ff", "-e", "raw=all", "-o", filepath.Join(dir, "t"), self, "-test.run=^TestStraced$")
	cmd.Env = append(os.Environ(), straceDir+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("strace TestStraced = %v\n%s", err, out)
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	steps := parseRaw(t, read("program"))
	pids := strings.Fields(read("pids"))
	w := &walker{t: t, steps: steps, regs: map[int]int64{
		int(image.RegStatus): image.FDStatus, int(image.RegUID): 65533, int(image.RegGID): 65533,
		int(image.RegInitUID): 65532, int(image.RegInitGID): 65532, int(image.RegAct): image.ActExec,
	}}
	_, init, ok := cutLine(read("t."+pids[0]), "execve", "= 0") // execve(2) or execveat(2)
	if !ok {
		t.Fatal("no execve of PID 1 in the trace")
	}
	w.walk("init", 0, init, "exit_group")
	if w.child < 0 {
		t.Fatal("PID 1 did not clone")
	}
	w.regs[int(image.RegReady)] = 0
	w.walk("target", w.child, read("t."+pids[1]), "execveat")
}

// cutLine cuts at the first line that has both parts.
func cutLine(text, one, two string) (before, after string, ok bool) {
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		if strings.Contains(l, one) && strings.Contains(l, two) {
			return strings.Join(lines[:i], ""), strings.Join(lines[i+1:], ""), true
		}
	}
	return "", "", false
}

// rawStep is a line of Program.Raw.
type rawStep struct {
	name string
	args []string
	opts map[string]string
}

func parseRaw(t *testing.T, text string) []rawStep {
	t.Helper()
	re := regexp.MustCompile(`^\d+ (\w+)\((.*?)\)(.*)$`)
	var steps []rawStep
	for line := range strings.Lines(text) {
		m := re.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			t.Fatalf("Raw() has the line %q", line)
		}
		s := rawStep{name: m[1], opts: map[string]string{}}
		if m[2] != "" {
			s.args = strings.Split(m[2], ", ")
		}
		for f := range strings.FieldsSeq(m[3]) {
			k, v, _ := strings.Cut(f, "=")
			s.opts[k] = v
		}
		steps = append(steps, s)
	}
	return steps
}

// walker follows a Program by the results that strace shows.
type walker struct {
	t     *testing.T
	steps []rawStep
	regs  map[int]int64 // those whose content is known
	child int           // where the target begins
}

var traceLine = regexp.MustCompile(`^(\w+)\((.*)\) += (\?|-?\w+)(?: (\w+))?`)

func (w *walker) walk(who string, i int, trace, last string) {
	w.t.Helper()
	n := 0
	for line := range strings.Lines(trace) {
		m := traceLine.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "---") || strings.HasPrefix(line, "+++") {
				continue
			}
			w.t.Fatalf("%s: strace has the line %q", who, line)
		}
		for w.steps[i].name == "set" {
			i = w.result(i, w.value(w.steps[i].args[0]))
		}
		s := w.steps[i]
		if got, want := m[1]+"("+m[2]+")", w.call(s, m[2]); got != want {
			w.t.Fatalf("%s: call %d (step %d) = %s; want %s", who, n, i, got, want)
		}
		n++
		if s.name == last {
			w.t.Logf("%s: %d calls", who, n)
			return
		}
		if m[3] == "?" {
			continue // the kernel makes it again
		}
		r, err := strconv.ParseInt(m[3], 0, 64)
		if err != nil {
			w.t.Fatalf("%s: result in %q: %v", who, line, err)
		}
		if r == -1 {
			if e := s.opts["ignore"]; e == "" || errno(m[4]) != e {
				w.t.Fatalf("%s: step %d %s = %s; want no error", who, i, s.name, m[4])
			}
			r = 0
		}
		if s.name == "clone" || s.name == "clone3" {
			w.child = w.jump(s.opts["if"])
			w.regs[int(image.RegPid)] = r // the kernel writes it
		}
		i = w.result(i, r)
	}
	w.t.Fatalf("%s: the trace ends before %s, at step %d", who, last, i)
}

// call prints a step with what is known of registers; unknown ones are as traced.
func (w *walker) call(s rawStep, traced string) string {
	got := strings.Split(traced, ", ")
	args := make([]string, len(s.args))
	for j, a := range s.args {
		args[j] = a
		if strings.HasPrefix(a, "$") {
			n, _ := strconv.Atoi(a[1:])
			if v, ok := w.regs[n]; ok && v != 0 {
				args[j] = fmt.Sprintf("%#x", v)
			} else if ok {
				args[j] = "0"
			} else if j < len(got) {
				args[j] = got[j]
			}
		}
	}
	return s.name + "(" + strings.Join(args, ", ") + ")"
}

func (w *walker) value(a string) int64 {
	if strings.HasPrefix(a, "$") {
		n, _ := strconv.Atoi(a[1:])
		switch {
		case n == int(image.RegFail):
			return 0
		case n == int(image.RegReady) && w.regs[n] == 0:
			return 1 // the target set it, in memory that both have
		}
		return w.regs[n]
	}
	v, err := strconv.ParseInt(a, 0, 64)
	if err != nil {
		w.t.Fatalf("argument %q: %v", a, err)
	}
	return v
}

// result applies a result and returns the next step.
func (w *walker) result(i int, r int64) int {
	s := w.steps[i]
	if n, ok := s.opts["save"]; ok {
		w.regs[int(w.value(n))] = r
	}
	if s.name == "recvfrom" && r == image.CommandSize {
		// The commands of TestStraced, in order.
		w.regs[int(image.RegCommand)]++ // first CommandClose, then CommandRelease
		w.regs[int(image.RegOperand)] = image.FDHeldIn
	}
	if x, ok := s.opts["want"]; ok && w.value(x) != r {
		w.t.Fatalf("step %d %s = %d; want %s", i, s.name, r, x)
	}
	if x, ok := s.opts["if"]; ok && w.value(before(x)) == r {
		return w.jump(x)
	}
	if x, ok := s.opts["unless"]; ok && w.value(before(x)) != r {
		return w.jump(x)
	}
	return i + 1
}

func before(x string) string { v, _, _ := strings.Cut(x, "@"); return v }

func (w *walker) jump(x string) int {
	_, to, _ := strings.Cut(x, "@")
	n, err := strconv.Atoi(to)
	if err != nil {
		w.t.Fatalf("jump %q: %v", x, err)
	}
	return n
}

// errno returns the number of an errno's name as Raw prints it.
func errno(name string) string {
	for n := range 256 {
		if unix.ErrnoName(syscall.Errno(n)) == name {
			return strconv.Itoa(n)
		}
	}
	return name
}
