package stage_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/sandbox"
)

// TestRlimitAboveTheHost: a limit that this host does not give is neither given up
// in silence nor replaced by another. A pen with a user namespace of its own can
// never raise a hard limit: setrlimit(2).
func TestRlimitAboveTheHost(t *testing.T) {
	b := newBench(t)
	var own unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &own); err != nil {
		t.Fatal(err)
	}
	spec := func(level sandbox.Level, value uint64) sandbox.Spec {
		p := testProfile()
		p.UserNS = true
		p.Rlimits = []sandbox.Rlimit{{Name: "core", Value: 0}, {Name: "nofile", Value: value}}
		p.Controls = slices.DeleteFunc(p.Controls, func(n sandbox.Need) bool { return n.Control == sandbox.ControlRlimits })
		p.Controls = append(p.Controls, sandbox.Need{Control: sandbox.ControlRlimits, Level: level})
		return b.spec(p, "/bin/sh", "-c", "ulimit -Hn; ulimit -Sn")
	}
	for range 2 { // the second is not answered from what the first has left
		_, _, _, err := b.run(spec(sandbox.LevelRequired, own.Max+1), "")
		var step *sandbox.StepError
		if !errors.As(err, &step) {
			t.Fatalf("run(nofile above the host's) = %v; want a step that failed", err)
		}
		for _, w := range []string{"nofile", fmt.Sprint(own.Max), fmt.Sprint(own.Max + 1), "LimitNOFILE="} {
			if !strings.Contains(step.Error(), w) {
				t.Errorf("run(nofile above the host's) = %v; want %q in it", err, w)
			}
		}
	}
	for _, tt := range []struct {
		level       sandbox.Level
		asked, want uint64
	}{
		{sandbox.LevelRequired, own.Max, own.Max},
		{sandbox.LevelRequired, 99, 99},
		{sandbox.LevelBestEffort, own.Max + 1, own.Max},
		{sandbox.LevelBestEffort, 99, 99},
	} {
		pen, err := b.Launch(t.Context(), b.conn, spec(tt.level, tt.asked), nil)
		if err != nil {
			t.Fatalf("Launch(%s, nofile %d) = %v; want nil", tt.level, tt.asked, err)
		}
		if !slices.Contains(pen.Enforcement.Rlimits, sandbox.Rlimit{Name: "nofile", Value: tt.want}) {
			t.Errorf("Launch(%s, nofile %d): record has %v; want nofile %d", tt.level, tt.asked, pen.Enforcement.Rlimits, tt.want)
		}
		for _, c := range pen.Enforcement.Controls {
			if c.Control != sandbox.ControlRlimits {
				continue
			}
			if said := strings.Contains(c.Detail, strconv.FormatUint(tt.asked, 10)); c.State != sandbox.StateEnforced || said != (tt.asked != tt.want) {
				t.Errorf("Launch(%s, nofile %d): record has %+v; want it enforced, and a word where it is lower", tt.level, tt.asked, c)
			}
		}
		if err := pen.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, out, errs, err := b.run(spec(tt.level, tt.asked), ""); err != nil || out != fmt.Sprintf("%d\n%d\n", tt.want, tt.want) {
			t.Errorf("run(%s, nofile %d) = %q, %q, %v; want %d", tt.level, tt.asked, out, errs, err, tt.want)
		}
	}
}
