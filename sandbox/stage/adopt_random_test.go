package stage_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold/sandbox"
)

// TestAdoptAfterRandomKills kills daemon or stage at a random moment of a start. The
// pen is then gone by itself, with all that was in it, or it is adopted and whole.
func TestAdoptAfterRandomKills(t *testing.T) {
	b := newBench(t)
	rounds, adopted, gone := 60, 0, 0
	if testing.Short() {
		rounds = 8
	}
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for range rounds {
		s := b.spec(testProfile(), "/bin/sh", "-c", echoes)
		v := b.victim(true, nil, s)
		m := v.next()
		stage := children(t, v.cmd.Process.Pid)
		time.Sleep(time.Duration(max(0, r.Int64N(int64(2*time.Millisecond))-int64(time.Millisecond))))
		if r.IntN(2) == 0 {
			for _, pid := range stage {
				kill(t, pid)
			}
		}
		v.kill()
		b.successor()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		q, err := b.Adopt(ctx, m)
		cancel()
		switch {
		case err == nil:
			adopted++
			if _, err := q.Stdin.WriteString("x\n"); err != nil {
				t.Fatal(err)
			}
			if out, errs := said(t, q.Stdout, 6), said(t, q.Stderr, 6); out != "out x\n" || errs != "err x\n" {
				t.Errorf("out %q, err %q", out, errs)
			}
			b.endsWith(q, 7)
		case errors.Is(err, sandbox.ErrGone):
			gone++
			until(t, "a pen that is gone to have ended", func() bool { return empty(t, jobOf(b, s)) && empty(t, b.base+"/"+s.Site.Cgroup+"/init") })
		default:
			t.Errorf("Adopt() = %v; want the pen or ErrGone", err)
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d adopted, %d gone", adopted, gone)
	if adopted == 0 {
		t.Errorf("none of %d was adopted; want some", rounds)
	}
}

// empty reports whether no process is in a cgroup.
func empty(t *testing.T, dir string) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b)) == ""
}
