package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/proto"
	"pinfold/proto/client"
	"pinfold/test/testkit"
)

// call is one system call of a start: the how-manieth with its number.
type call struct{ nr, nth int }

// idle are calls that change nothing but the process's own memory, descriptors and ids:
// killed at one it leaves what it leaves if killed at the next that is not.
func idle(nr int) bool {
	return slices.Contains([]int{
		unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_CTL, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_TGKILL, unix.SYS_MADVISE, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
		unix.SYS_GETRANDOM, unix.SYS_FCNTL, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_FSTATFS, unix.SYS_READLINKAT, unix.SYS_FACCESSAT2,
		unix.SYS_OPENAT2, unix.SYS_PREAD64, unix.SYS_READ, unix.SYS_GETDENTS64, unix.SYS_GETSOCKOPT, unix.SYS_PRLIMIT64, unix.SYS_GETEUID, unix.SYS_GETGROUPS, unix.SYS_SETGROUPS,
		unix.SYS_SETFSUID, unix.SYS_SETFSGID,
	}, nr)
}

// killed is one way in which a process comes to be, with what is killed meanwhile.
type killed struct {
	name  string
	stage bool // else the daemon
	ready bool // the spawn takes a pen that was made ready, and another is made
}

// TestKilledAtEveryStep kills the stage, and the daemon, at system calls of a start: all
// that change anything with PINFOLD_TEST_RACE=full, else the named steps and a few more. Nothing
// unconfined runs then, and the next daemon with the same state and socket finds or
// makes everything clean, and serves.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, k := range []killed{
		{"the stage, a new pen", true, false},
		{"the stage, a ready pen", true, true},
		{"the daemon, a new pen", false, false},
		{"the daemon, a ready pen", false, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if k.ready {
				testkit.NeedDetached(t)
			}
			s := newSlayer(t, k)
			calls := s.record()
			named := k.named(t, calls)
			points := choose(calls, named)
			hit := 0
			for _, p := range points {
				if s.kill(p) {
					hit++
				} else if named[p] != "" && !full() {
					t.Logf("the call %v of step %q was not made again: killed after the start", p, named[p])
				}
				if t.Failed() {
					t.Fatalf("after a kill at %v, step %q", p, named[p])
				}
			}
			if hit < len(points)*3/4 {
				t.Errorf("%d of %d calls were made again; want nearly all", hit, len(points))
			}
			t.Logf("%d system calls in a start; killed at %d of %d, the others came too late; steps: %v", len(calls), hit, len(points), k.steps())
			s.d.stop()
		})
	}
}

// named finds the steps among the calls of a start.
func (k killed) named(t *testing.T, calls []call) map[call]string {
	t.Helper()
	out := map[call]string{}
	i := 0
	for _, st := range k.steps() {
		for i < len(calls) && calls[i].nr != st.nr {
			i++
		}
		if i == len(calls) {
			t.Fatalf("step %q is not among the system calls of a start: %v", st.name, calls)
		}
		out[calls[i]] = st.name
		i++
	}
	return out
}

// slayer kills one daemon's parts again and again.
type slayer struct {
	t       *testing.T
	k       killed
	d       *daemon
	project string
	report  string   // what the command tells of itself
	before  []string // names in the caller's tree
	records int      // of starts, before the one that is cut short
	waits   string   // pid of the pen that is ready
}

func newSlayer(t *testing.T, k killed) *slayer {
	t.Helper()
	under, project := agents(t)
	fs := strings.Replace(plainFS, "      missing:", "      deny: [ \"${workspace}/none/at/all\", \"${workspace}/sub\" ]\n      missing:", 1)
	// No session waits for its client: what the next daemon adopts, it ends.
	d := prepare(t, strings.ReplaceAll(forCaller(under, fs+shortGrace), "    profiles: [work]\n", "    profiles: [work]\n    detach_ttl: 0s\n"))
	s := &slayer{t: t, k: k, d: d, project: project, report: filepath.Join(project, "report")}
	s.launch()
	s.before = s.files()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of pinfoldd:\n%s", d.log)
			_ = d.cmd.Process.Kill()
			_ = d.cmd.Wait() // it was killed
			d.scrub()
		}
	})
	return s
}

func (s *slayer) launch() {
	s.t.Helper()
	if err := s.d.launch(); err != nil {
		s.t.Fatalf("pinfoldd = %v; want it ready\n%s", err, s.d.log)
	}
}

// files are the names in the caller's tree, but for the report.
func (s *slayer) files() []string {
	s.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Dir(s.project), func(path string, _ fs.DirEntry, err error) error {
		if path != s.report {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// command tells how it is confined, and then stays.
func (s *slayer) command() proto.Spawn {
	return in(s.project, `grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/self/status >report; sleep 600`)
}

// session opens a session, in which a pen is ready where one is to be.
func (s *slayer) session() *client.Client {
	s.t.Helper()
	c := s.d.caller()
	if s.k.ready {
		for range 2 {
			run(s.t, c, in(s.project, "true"))
		}
		s.waits = onlyReady(s.t, s.d)
	}
	s.records = s.started()
	return c
}

// started counts the starts in the audit record.
func (s *slayer) started() int {
	return strings.Count(readFile(s.t, filepath.Join(s.d.state, "audit.log")), `"kind":"started"`)
}

// victim is the process that is killed.
func (s *slayer) victim() int {
	s.t.Helper()
	if !s.k.stage {
		return s.d.cmd.Process.Pid
	}
	procs, err := s.d.processes()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range procs {
		pid, line, _ := strings.Cut(p, " ")
		if strings.Contains(line, "pinfold-stage") {
			n, err := strconv.Atoi(pid)
			if err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatalf("processes = %q; want a stage among them", procs)
	return 0
}

// begin spawns and waits until the command runs, and where a pen was ready another is,
// or the daemon is gone.
func (s *slayer) begin(c *client.Client) {
	p, err := c.Spawn(soon(s.t), s.command())
	if err != nil {
		return // the kill came before
	}
	if s.k.ready && itoa(p.PID) != s.waits {
		s.t.Errorf("the spawn is process %d; want %s, which was ready", p.PID, s.waits)
	}
	until := time.Now().Add(5 * time.Second)
	for time.Now().Before(until) && alive(s.d.cmd.Process.Pid) && !s.begun(p) {
		time.Sleep(5 * time.Millisecond)
	}
}

// begun reports whether the command runs, and a pen for the next is there where one is
// to be.
func (s *slayer) begun(p *client.Process) bool {
	if _, err := os.Stat(s.report); err != nil {
		return false
	}
	if !s.k.ready {
		return true
	}
	for _, pid := range s.d.readyPens() {
		if pid != itoa(p.PID) && procState(atoi(pid)) == "S" && comm(pid) != "pinfold-init" {
			return true
		}
	}
	return false
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

func comm(pid string) string {
	b, _ := os.ReadFile("/proc/" + pid + "/comm") // it goes at any time
	return strings.TrimSpace(string(b))
}

func alive(pid int) bool {
	state := procState(pid)
	return state != "" && state != "Z"
}

// record returns the calls that the victim makes in one start.
func (s *slayer) record() []call {
	s.t.Helper()
	c := s.session()
	w := trace(s.t, tracing{PID: s.victim()})
	s.begin(c)
	time.Sleep(200 * time.Millisecond) // for what comes last
	var out []call
	count := map[int]int{}
	for _, line := range w.end(s.t) {
		nr, err := strconv.Atoi(line)
		if err != nil {
			s.t.Fatalf("helper trace said %q; want a number", line)
		}
		count[nr]++
		out = append(out, call{nr, count[nr]})
	}
	if err := syscall.Kill(s.victim(), syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	s.again()
	return out
}

// choose picks the calls to kill at: the named ones and, if not all, some more.
func choose(calls []call, named map[call]string) []call {
	r := rand.New(rand.NewPCG(3, 4)) // the same each time
	var out []call
	for _, c := range calls {
		if named[c] != "" || !idle(c.nr) && (full() || r.IntN(len(calls)) < 12) {
			out = append(out, c)
		}
	}
	return out
}

// kill lets a start begin and the victim be killed as it makes that call, then looks
// at what is left. It reports whether the call was made.
func (s *slayer) kill(p call) bool {
	s.t.Helper()
	c := s.session()
	pid := s.victim()
	w := trace(s.t, tracing{PID: pid, Kill: true, Call: p.nr, Nth: p.nth})
	s.begin(c)
	until := time.Now().Add(300 * time.Millisecond) // what comes last in a start
	for alive(pid) && time.Now().Before(until) {
		time.Sleep(5 * time.Millisecond)
	}
	if alive(pid) { // it makes fewer of these calls this time
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
	}
	hit := slices.Contains(w.rest(), "killed")
	_ = c.Close() // the daemon is gone
	s.again()
	return hit
}

// again waits for the end of the daemon, looks at what still runs, and starts the next
// one, which must find or make everything clean.
func (s *slayer) again() {
	s.t.Helper()
	d := s.d
	killer := time.AfterFunc(stopWithin(), func() { _ = d.cmd.Process.Kill() })
	err := d.cmd.Wait()
	if !killer.Stop() {
		s.t.Errorf("pinfoldd runs on %s after its stage has ended; want exit 1", stopWithin())
	}
	if code := d.cmd.ProcessState.ExitCode(); s.k.stage && code != 1 {
		s.t.Errorf("pinfoldd without its stage = %v; want exit 1", err)
	}
	eventually(s.t, "all that was not started has gone, and the stage", s.settled)
	s.checkReport()
	s.launch()
	var left []string
	eventuallyOrNot(func() bool { // what it has adopted, it ends: see newSlayer
		left = s.left()
		return len(left) == 0
	})
	for _, what := range left {
		s.t.Errorf("the next pinfoldd is ready, and there is %s; want nothing", what)
	}
	if !s.k.ready { // else the next session shows it
		if out := runOK(s.t, d.agent(), shell("echo well")); out != "well\n" {
			s.t.Errorf("run = %q; want it well", out)
		}
	}
}

// settled reports whether no process is left but what was started and is confined, with
// the PID 1 that holds it.
func (s *slayer) settled() bool {
	s.t.Helper()
	procs, err := s.d.processes()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range procs {
		pid, _, _ := strings.Cut(p, " ")
		b, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue // it has just ended
		}
		if !confined(string(b)) {
			return false
		}
	}
	return true
}

// confined says whether a status shows what every started process and its PID 1 have.
func confined(status string) bool {
	return statusField(status, "Uid:") != "0" && statusField(status, "CapEff:") == "0000000000000000" &&
		statusField(status, "NoNewPrivs:") == "1" && statusField(status, "Seccomp:") == "2"
}

// checkReport looks at what the command told of itself, if it ran, and takes it away. It
// runs only once it was recorded.
func (s *slayer) checkReport() {
	s.t.Helper()
	b, err := os.ReadFile(s.report)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if s.started() != s.records+1 {
		s.t.Errorf("the command ran, with %d records of starts; want %d", s.started(), s.records+1)
	}
	if len(b) > 0 && !confined(string(b)) { // empty: it was ended before it wrote
		s.t.Errorf("the command ran with %q; want it confined", b)
	}
	if err := os.Remove(s.report); err != nil {
		s.t.Fatal(err)
	}
}

// left is what there is beside a daemon, its stage, and the memory that it mounts.
func (s *slayer) left() []string {
	s.t.Helper()
	all, err := s.d.leftovers()
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	stages := 0
	for _, l := range all {
		switch {
		case strings.HasPrefix(l, "process "+strconv.Itoa(s.d.cmd.Process.Pid)+" "),
			l == "file "+filepath.Join(s.d.state, "run", "record", "daemon.json"), // the daemon's own
			strings.HasPrefix(l, "cgroup "),                                       // its base: callers are looked at below
			strings.HasPrefix(l, "mount ") && strings.Contains(l, " "+filepath.Join(s.d.state, "run")+" "):
		case strings.HasPrefix(l, "process ") && strings.Contains(l, "pinfold-stage"):
			if stages++; stages > 1 {
				out = append(out, l)
			}
		default:
			out = append(out, l)
		}
	}
	for _, g := range s.d.below() {
		out = append(out, "cgroup "+g)
	}
	for _, sub := range []string{"spool", "scratch"} {
		entries, err := os.ReadDir(filepath.Join(s.d.state, "run", sub))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, sub+" "+e.Name())
		}
	}
	if now := s.files(); !slices.Equal(now, s.before) {
		out = append(out, fmt.Sprintf("%q in the caller's tree, which was %q", now, s.before))
	}
	return out
}
