package stage_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox"
	"pinfold/test/testkit"
)

// unneeded are steps whose lack the record need not tell, each with the reason.
func unneeded() map[string]string {
	const (
		nothing  = "there is nothing of it here; where there is, the record shows it"
		twice    = "another step or the view's own building does it too"
		comfort  = "without it the pen has less, or is less comfortable"
		checked  = "it is itself a check of something that is there"
		initOnly = "it is PID 1's own, and keeps nothing from the target"
	)
	return map[string]string{
		"init rt_sigprocmask":               initOnly,
		"init close_range(":                 twice,
		"init prctl(PR_SET_NAME":            initOnly,
		"init prctl(PR_SET_DUMPABLE":        "the image cannot be read, so PID 1 is not dumpable from its first instruction: TestRun",
		"init fcntl(24":                     checked,
		"init fcntl(":                       comfort,
		"init close(25)":                    twice,
		"init close(12)":                    twice,
		"init prctl(PR_SET_TIMERSLACK":      comfort,
		"init mount(\"none\", \"/\"":        "the stage's own mount namespace is private; a shared mount is refused",
		"init chdir(\"/\")":                 initOnly,
		"init mount_setattr(":               twice,
		"init mount(\"/dev/pts\", \"/proc/": nothing,
		"init sethostname(":                 "a name is no control",
		"init socket(":                      comfort,
		"init ioctl(3, SIOCSIFFLAGS":        comfort,
		"init landlock_add_rule(":           comfort,
		"init prctl(PR_CAPBSET_DROP":        nothing,
		"target setgroups(":                 nothing,
		"target prctl(PR_CAP_AMBIENT":       nothing,
		"target capset(":                    "the change of ids has emptied the sets, which are read back",
		"target prctl(PR_SET_DUMPABLE":      "the change of ids has done it: fs.suid_dumpable is read before",
		"target openat(18, \"canary\"":      "the layer that it tries is there",
		"target add_key(":                   "the layer that it tries is there",
		"init read(10, &$uid":               "the ids that it reads are read back; PID 1's own are looked at once the target runs",
		"init ioctl(15, TIOCSWINSZ":         comfort,
		"init fchownat(3":                   comfort,
		"init dup3(3":                       comfort,
		"target ioctl(0, TIOCSCTTY":         comfort,
		"target dup3(4, 9":                  "PID 1 takes the end of that pipe for the exec, and ends the pen",
		"target memfd_create(":              "the layer that it tries is there",
		"target set $waiting":               checked,
		"target write(10, &$waiting":        "without it the start ends when its time is over",
	}
}

// afterExec says whether a step is made once the gates are behind: the holder's and the
// exec have tests of their own.
func afterExec(steps []string, n int) bool {
	clone := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "init clone") })
	target := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "target ") })
	gate := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "target read(14") }) // TestAtTheLastGate
	return n > clone && n < target || n >= gate
}

// skipping is a stage that leaves out one step of its Programs.
type skipping struct {
	*bench
	program string
	edit    func(p *sandbox.Profile)
	work    string
	start   bool // the target too
}

func newSkipping(t *testing.T) *skipping {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pinfold-stage")
	if err := testkit.BuildTagged(t.Context(), "../..", "pinfold_skip", "./cmd/pinfold-stage", program); err != nil {
		t.Fatal(err)
	}
	s := &skipping{program: program, work: workspace(t)}
	s.leaveOut(t, -1)
	s.bench = newBenchOf(t, program)
	return s
}

func (s *skipping) leaveOut(t *testing.T, n int) {
	t.Helper()
	if err := os.WriteFile(s.program+".skip", []byte(strconv.Itoa(n)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// record launches a pen without step n and returns its record, but for what each pen
// has of its own.
func (s *skipping) record(t *testing.T, n int) (sandbox.Enforcement, error) {
	t.Helper()
	s.leaveOut(t, n)
	p := testProfile()
	p.Attach = append(p.Attach, sandbox.Attach{Path: "/ro", NoExec: true})
	s.edit(&p)
	p.Name += strconv.Itoa(n) // another Program
	spec, d := s.inWork(p, s.work, "true")
	spec.Site.Attach = append(spec.Site.Attach, spec.Site.Attach[0])
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	pen, err := s.Launch(ctx, s.conn, spec, []*os.File{d, d})
	if err != nil {
		return sandbox.Enforcement{}, err
	}
	e := pen.Enforcement
	e.Namespaces, e.MountsHash = nil, ""
	if s.start {
		_, _, _, err = s.follow(ctx, pen, "")
		return e, err
	}
	return e, pen.Abort(ctx)
}

// steps are those of the last Program.
func (s *skipping) steps(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(s.program + ".steps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// TestEachMissingStepIsNoticed: a stage that leaves out any one step of the Program
// cannot launch, or its record says what is missing.
func TestEachMissingStepIsNoticed(t *testing.T) {
	needRoot(t)
	s := newSkipping(t)
	seen := map[string]bool{}
	for name, edit := range map[string]func(p *sandbox.Profile){
		"ordinary": func(*sandbox.Profile) {},
		"listed":   func(p *sandbox.Profile) { p.Exec, p.Stdin = sandbox.ExecListed, sandbox.StdinNull },
		"userns":   func(p *sandbox.Profile) { p.UserNS, p.RootMap, p.Proc = true, true, sandbox.ProcPids },
		"terminal": func(p *sandbox.Profile) {
			p.PTY = true
			if sandbox.Unscoped(s.Features().LandlockABI) == "" { // else the start is refused
				p.Net = sandbox.NetHost
			}
		},
	} {
		if testing.Short() && name != "ordinary" {
			continue // an emulated host takes half a minute for each
		}
		t.Run(name, func(t *testing.T) {
			s.edit = func(p *sandbox.Profile) { p.Name = name; edit(p) }
			want, err := s.record(t, -1)
			if err != nil {
				t.Fatal(err)
			}
			s.eachStep(t, want, seen)
		})
	}
	for prefix := range unneeded() {
		if !seen[prefix] && !testing.Short() {
			t.Errorf("no step begins with %q", prefix)
		}
	}
}

// holderSteps are those of PID 1 between the clone and its word that the target runs,
// each with the reason where its lack need not be noticed.
func holderSteps() map[string]string {
	return map[string]string{
		"init close(4)":               "it then waits for itself, until the time of the start is over",
		"init read(3":                 "it then tells of an exec that may not have been made: TestFailingStepIsNamed",
		"init test $fail":             "a target that failed has no exec to tell of: TestFailingStepIsNamed",
		"init test $ready":            "the same",
		"init close_range(":           "its filter lets it do nothing with them but read, write and close: TestHolder",
		"init close(3)":               "its filter lets it do nothing with it but read and close: TestHolder",
		"init munmap(":                "its own memory, which nobody can read",
		"init setgroups(":             "there are none here",
		"init prctl(PR_CAP_AMBIENT":   "there are none here",
		"init capset(":                "the change of ids has emptied the sets",
		"init prctl(PR_SET_DUMPABLE":  "the image cannot be read",
		"init prctl(PR_SET_NO_NEW_PR": "its filter has no exec: TestHolder",
		"init signalfd4(":             "without it the end is not told: TestNoZombies",
		"init seccomp(":               "TestHolder",
		"init setresgid(":             "",
		"init setresuid(":             "",
	}
}

// TestEachMissingStepOfTheHolderIsNoticed: what PID 1 gives up once the target runs is
// given up, or the start fails.
func TestEachMissingStepOfTheHolderIsNoticed(t *testing.T) {
	needRoot(t)
	s := newSkipping(t)
	s.edit, s.start = func(p *sandbox.Profile) { p.Name = "holder" }, true
	if _, err := s.record(t, -1); err != nil {
		t.Fatal(err)
	}
	all := s.steps(t)
	clone := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(s, "init clone") })
	told := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(s, "init write(10, &started") })
	for n := clone + 1; n < told; n++ {
		reason, known := "", false
		for prefix, why := range holderSteps() {
			if strings.HasPrefix(all[n], prefix) {
				reason, known = why, true
			}
		}
		if !known {
			t.Errorf("step %d %s: want it in the list, with the reason where it need not be noticed", n, all[n])
		}
		if reason != "" {
			continue
		}
		if _, err := s.record(t, n); err == nil {
			t.Errorf("step %d left out and not noticed: %s", n, all[n])
		}
	}
}

// private begins the step that keeps a pen's mounts from the namespace it was started in.
const private = `init mount("none", "/"`

// sharedRoot says whether mounts of a copy of this namespace would appear on the host's root.
func sharedRoot(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 6 && f[4] == "/" && strings.HasPrefix(f[6], "shared:") {
			return true
		}
	}
	return false
}

func (s *skipping) eachStep(t *testing.T, want sandbox.Enforcement, seen map[string]bool) {
	t.Helper()
	all, noticed := s.steps(t), 0
	for n, step := range all {
		reason := ""
		for prefix, why := range unneeded() {
			if strings.HasPrefix(step, prefix) {
				reason, seen[prefix] = why, true
			}
		}
		if afterExec(all, n) || strings.HasPrefix(step, "target write(10, &$waiting") {
			continue
		}
		if strings.HasPrefix(step, private) && sharedRoot(t) {
			t.Logf("not left out: %s; a pen in the host's network would cover the host's root, which is shared", step)
			continue
		}
		got, err := s.record(t, n)
		if err != nil && !errors.As(err, new(*sandbox.StepError)) {
			t.Fatalf("step %d %s left out: %v; want it told as a step", n, step, err)
		}
		if err != nil || cmp.Diff(want, got) != "" {
			noticed++
		} else if reason == "" {
			t.Errorf("step %d left out and not noticed: %s", n, step)
		}
	}
	t.Logf("%d of %d steps noticed", noticed, len(all))
}
