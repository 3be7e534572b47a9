package stage_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"pinfold/sandbox"
)

// TestPlaceholderInAScratch: a placeholder in a directory that is the dynamic uid's own,
// and where its caller may do nothing, is made as that uid.
func TestPlaceholderInAScratch(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	const uid = dynFirst + 5
	dir, id, err := b.Scratch(ctx, "work", 1<<20, 100, uid, uid, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(dir.Close(), b.DropScratch(ctx, "work")); err != nil {
			t.Error(err)
		}
	}()
	p := testProfile()
	p.Attach = []sandbox.Attach{{Path: "/proj", Writable: true}}
	p.Landlock.Rules = append(p.Landlock.Rules, sandbox.Rule{Path: "/proj", Access: "rwx"})
	p.Deny = []sandbox.Deny{{Path: "/proj/keep/secret", Absent: sandbox.AbsentPlaceholder}}
	s := b.spec(p, "/bin/sh", "-c", "stat -c %u keep; mkdir keep/secret; mv keep away; echo x >fine; cat fine")
	s.Command.Dir, s.Command.DirID = "/proj", id
	s.Site.UID, s.Site.GID, s.Site.Attach = uid, uid, []sandbox.Identity{id}
	st, out, errs, err := b.run(s, "", dir)
	if err != nil || st.Code != 0 || out != "0\nx\n" {
		t.Errorf("run() = %+v, %q, %q, %v; want keep held, and the rest writable", st, out, errs, err)
	}
	left, err := os.ReadDir(b.state + "/run/scratch/work")
	if err != nil || len(left) != 1 || left[0].Name() != "fine" {
		t.Errorf("left in the workspace = %v, %v; want what the pen made alone", left, err)
	}
}
