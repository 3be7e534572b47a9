package stage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox"
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
		"target set $waiting":               checked,
		"target write(10, &$waiting":        "without it the start ends when its time is over",
	}
}

// afterExec says whether a step is made once the gates are behind: the holder's and the
// exec have tests of their own.
func afterExec(steps []string, n int) bool {
	clone := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "init clone") })
	target := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "target ") })
	ready := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "target set $ready") }) - 1 // and the gate: TestAtTheLastGate
	return n > clone && n < target || n >= ready
}

// TestEachMissingStepIsNoticed: a stage that leaves out any one step of the Program
// cannot launch, or its record says what is missing.
func TestEachMissingStepIsNoticed(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "pinfold-stage")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "pinfold_skip", "-o", program, "pinfold/cmd/pinfold-stage").CombinedOutput(); err != nil {
		t.Fatalf("go build = %v\n%s", err, out)
	}
	leaveOut := func(n int) {
		if err := os.WriteFile(program+".skip", []byte(strconv.Itoa(n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leaveOut(-1)
	w := workspace(t)
	b := newBenchOf(t, program)
	launch := func(n int) (sandbox.Enforcement, error) {
		leaveOut(n)
		p := testProfile()
		p.Name = fmt.Sprintf("skip%d", n) // another Program
		p.Attach = append(p.Attach, sandbox.Attach{Path: "/ro", NoExec: true})
		s, d := b.inWork(p, w, "true")
		s.Site.Attach = append(s.Site.Attach, s.Site.Attach[0])
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		pen, err := b.Launch(ctx, b.conn, s, []*os.File{d, d})
		if err != nil {
			return sandbox.Enforcement{}, err
		}
		e := pen.Enforcement
		e.Namespaces, e.MountsHash = nil, "" // each pen's own
		return e, pen.Abort(ctx)
	}
	want, err := launch(-1)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := os.ReadFile(program + ".steps")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	all := strings.Split(string(steps), "\n")
	noticed := 0
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
		got, err := launch(n)
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
	for prefix := range unneeded() {
		if !seen[prefix] {
			t.Errorf("no step begins with %q", prefix)
		}
	}
}
