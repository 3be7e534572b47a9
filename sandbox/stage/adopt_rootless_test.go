package stage_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pinfold/sandbox"
	"pinfold/test/testkit"
)

// TestAdoptRootless: the next stage of an ordinary user is in another user namespace
// than the pens of the last, and finds them all the same; of a pen of another state
// directory it gets nothing.
func TestAdoptRootless(t *testing.T) {
	needRoot(t) // to become another user
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID}}
	try := exec.CommandContext(t.Context(), "unshare", "--user", "--mount", "true")
	try.SysProcAttr = user
	if out, err := try.CombinedOutput(); err != nil {
		testkit.LeaveOut(t, fmt.Sprintf("needs user namespaces for ordinary users: %v: %s", err, out))
	}
	b, foreign := newOrdinary(t), newOrdinary(t)
	userns := testProfile()
	userns.UserNS, userns.RootMap = true, true
	specs := []sandbox.Spec{b.spec(testProfile(), "/bin/sh", "-c", echoes), b.spec(userns, "/bin/sh", "-c", echoes)}
	v := b.order(orders{Config: b.ordinary(), Specs: specs, Start: true}, b.as(user))
	m, n := v.started(), v.started()
	specs = []sandbox.Spec{foreign.spec(testProfile(), "/bin/sh", "-c", echoes)}
	fv := foreign.order(orders{Config: foreign.ordinary(), Specs: specs, Start: true}, foreign.as(user))
	theirs := fv.started()
	v.kill()
	fv.kill()
	theirs.Cgroup, theirs.Target = b.into(theirs.Init.Pid), sandbox.ProcessMark{}
	later := m
	later.Init.Start++

	next := b.order(orders{Config: b.ordinary(), Adopt: []sandbox.Mark{theirs, later, m, n, m}}, b.as(user))
	for _, want := range []string{
		"gone: .*image of ours", "gone: .*is another", `"out one\nerr one\n", exit 7, <nil>`, `"out one\nerr one\n", exit 7, <nil>`, "gone: .*ended",
	} {
		got := strings.TrimSpace(string(next.line()))
		start, end, _ := strings.Cut(want, ".*")
		if !strings.HasPrefix(got, start) || !strings.Contains(got, end) {
			t.Errorf("the next daemon says %q; want %q", got, want)
		}
	}
	next.kill()
}

// newOrdinary is a bench of an ordinary user, without a stage: with cgroups that were
// given to them.
func newOrdinary(t *testing.T) *bench {
	t.Helper()
	base, err := os.MkdirTemp(v2Root(t), "pinfold-test-stage-") //nolint:usetesting // a cgroup, not a directory of files
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroups(t, base) })
	if err := os.Mkdir(base+"/daemon", 0o755); err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, base: base, state: workspace(t), conn: connOf(t, testUID)}
}

// ordinary is how such a bench's stage is started: whatever was made in its cgroup is
// given to the user.
func (b *bench) ordinary() sandbox.StageConfig {
	b.t.Helper()
	err := filepath.WalkDir(b.base, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chown(path, testUID, testUID)
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	c := b.config()
	c.Path, c.DynamicFirst, c.DynamicCount = "/proc/self/exe", 0, 0
	return c
}

// as starts a process of a user in the bench's cgroup.
func (b *bench) as(user *syscall.SysProcAttr) *syscall.SysProcAttr {
	b.t.Helper()
	d := openDir(b.t, b.base+"/daemon")
	attr := *user
	attr.UseCgroupFD, attr.CgroupFD = true, int(d.Fd())
	return &attr
}
