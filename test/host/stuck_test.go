package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
)

// stuckLimit is what a spawn may take whose ready pen was stopped: a whole start on a busy
// host.
const stuckLimit = 4 * time.Second

// TestAStuckPenIsReplaced: a pen that somebody stopped while it waited for its spawn costs
// the spawn a moment, and is gone after it.
func TestAStuckPenIsReplaced(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(job string) error{
		"its process stopped": func(job string) error { return halt(t, job) },
		"its PID 1 stopped":   func(job string) error { return halt(t, filepath.Join(filepath.Dir(job), "init")) },
		"its process frozen":  freeze,
		"its PID 1 frozen":    func(job string) error { return freeze(filepath.Join(filepath.Dir(job), "init")) },
		"all of it frozen":    func(job string) error { return freeze(filepath.Dir(job)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, basic("", ""))
			c := d.agent()
			twice(t, d, c, shell("true"))
			job := d.jobs()[0]
			pid, first := onlyMember(t, job), onlyMember(t, filepath.Join(filepath.Dir(job), "init"))
			if err := stop(job); err != nil {
				t.Fatal(err)
			}
			asked := time.Now()
			p := spawn(t, c, shell("cat"))
			took := time.Since(asked)
			if took > stuckLimit {
				t.Errorf("spawn beside a stuck pen took %v; want %v at most", took, stuckLimit)
			}
			if p.PID == pid {
				t.Errorf("the spawn is process %d, which was stopped; want another", pid)
			}
			eventually(t, "the stuck pen is gone", func() bool {
				_, err := os.Stat(filepath.Dir(job))
				return errors.Is(err, fs.ErrNotExist) && !alive(pid) && !alive(first)
			})
			if err := p.Write(soon(t), []byte("in\n")); err != nil {
				t.Fatal(err)
			}
			if err := p.CloseStdin(soon(t)); err != nil {
				t.Fatal(err)
			}
			if out, errs, v := output(t, p); v.Cause != proto.CauseExited || v.Code != 0 || out != "in\n" || errs != "" {
				t.Errorf("spawn = %q, %q, %+v; want it to run as any", out, errs, v)
			}
			t.Logf("the spawn took %v", took)
		})
	}
}

// onlyMember is the one process of a cgroup.
func onlyMember(t *testing.T, dir string) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(members(dir)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func halt(t *testing.T, dir string) error {
	t.Helper()
	return syscall.Kill(onlyMember(t, dir), syscall.SIGSTOP)
}

func freeze(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0)
}
