package stage_test

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/sandbox"
)

// TestDenies makes and takes away denied paths, in the pen and outside of it, and
// asks what became of them once the target has ended.
func TestDenies(t *testing.T) {
	b := newBench(t)
	check, place := sandbox.AbsentCheck, sandbox.AbsentPlaceholder
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		path    string
		absent  sandbox.Absent
		before  func(w string)
		script  string
		outside func(w string)
		want    sandbox.DenyChange
	}{
		{name: "check, nothing came", path: "/proj/a/b", absent: check, script: "mkdir a; touch c"},
		{name: "check, made inside", path: "/proj/.env", absent: check, script: "echo x > .env", want: sandbox.DenyAppeared},
		{name: "check, made deep inside", path: "/proj/a/b/c", absent: check, script: "mkdir -p a/b/c", want: sandbox.DenyAppeared},
		{name: "check, a dangling link", path: "/proj/a", absent: check, script: "ln -s nowhere a", want: sandbox.DenyAppeared},
		{name: "check, a link on the way", path: "/proj/a/passwd", absent: check, script: "ln -s /etc a", want: sandbox.DenyAppeared},
		{name: "check, a file on the way goes", path: "/proj/f/x", absent: check, before: func(w string) { write(t, w+"/f", "") }, script: "rm f; mkdir f; touch f/x", want: sandbox.DenyAppeared},
		{name: "check, where a symlink leads", path: "/proj/l", absent: check, before: func(w string) { must(os.Symlink("to", w+"/l")); give(t, w+"/l") }, script: "touch to", want: sandbox.DenyAppeared},
		{name: "placeholder stays", path: "/proj/a/b", absent: place, script: "rmdir a; mv a c; true"},
		{name: "placeholder removed outside", path: "/proj/a/b", absent: place, outside: func(w string) { must(os.Remove(w + "/a")) }, want: sandbox.DenyRemoved},
		{name: "placeholder renamed outside", path: "/proj/a", absent: place, outside: func(w string) { must(os.Rename(w+"/a", w+"/b")) }, want: sandbox.DenyRemoved},
		{name: "placeholder replaced outside", path: "/proj/a", absent: place, outside: func(w string) { must(os.Rename(w+"/a", w+"/b")); write(t, w+"/a", "x") }, want: sandbox.DenyReplaced},
		// ext4 gives the next directory the inode number of the one that is gone.
		{name: "placeholder made again outside", path: "/proj/a", absent: place, outside: func(w string) { must(os.Remove(w + "/a")); must(os.Mkdir(w+"/a", 0o555)) }, want: sandbox.DenyReplaced},
		{name: "file on the way held", path: "/proj/f/x", absent: place, before: func(w string) { write(t, w+"/f", "") }, script: "rm -f f; mv f g; test -f f"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := workspace(t)
			if tt.before != nil {
				tt.before(w)
			}
			p := testProfile()
			p.Deny = []sandbox.Deny{{Path: tt.path, Absent: tt.absent}}
			s, d := b.inWork(p, w, "exec 2>/dev/null; read x; "+tt.script)
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			defer cancel()
			pen, err := b.Launch(ctx, b.conn, s, []*os.File{d})
			must(err)
			q, err := pen.Start(ctx)
			must(err)
			if st := q.Enforcement.Denies[0]; (st.Level == sandbox.LevelBestEffort) != (tt.absent == check) || st.Absent != tt.absent {
				t.Errorf("Enforcement.Denies = %+v; want absent %s, best_effort only with check", st, tt.absent)
			}
			if tt.outside != nil {
				tt.outside(w)
			}
			_, err = io.WriteString(q.Stdin, "\n")
			must(err)
			if st, err := q.Wait(ctx); err != nil || st.Code != 0 && tt.want != "" {
				t.Fatalf("Wait() = %+v, %v", st, err)
			}
			got, err := q.Denies(ctx)
			must(err)
			want := []sandbox.DenyEvent{{Path: tt.path, Change: tt.want}}
			if tt.want == "" {
				want = []sandbox.DenyEvent{}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("Denies() differs (-want +got):\n%s", d)
			}
			must(q.Kill())
			after, err := q.Denies(ctx)
			must(err)
			if d := cmp.Diff(got, after); d != "" {
				t.Errorf("Denies() after the end of PID 1 differs (-before +after):\n%s", d)
			}
			must(q.Release(ctx))
			if _, err := q.Denies(ctx); err == nil {
				t.Error("Denies() after Release = nil; want an error")
			}
		})
	}
}

// TestPlaceholderAbove has two pens deny paths at and below one placeholder.
func TestPlaceholderAbove(t *testing.T) {
	b, w := newBench(t), workspace(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	var pens []*sandbox.Pen
	for _, path := range []string{"/proj/none/deep", "/proj/none/deep/er", "/proj/none/other"} {
		p := testProfile()
		p.Deny = []sandbox.Deny{{Path: path, Absent: sandbox.AbsentPlaceholder}}
		s, d := b.inWork(p, w, "true")
		pen, err := b.Launch(ctx, b.conn, s, []*os.File{d})
		if err != nil {
			t.Fatalf("Launch(deny %s) = %v; want nil", path, err)
		}
		if st := pen.Enforcement.Denies[0]; st.Absent != sandbox.AbsentPlaceholder || st.Layer != "mount" {
			t.Errorf("Enforcement.Denies of %s = %+v; want a placeholder", path, st)
		}
		pens = append(pens, pen)
	}
	for _, pen := range pens {
		if _, err := os.Stat(w + "/none"); err != nil {
			t.Errorf("Stat(placeholder) = %v; want nil while a pen needs it", err)
		}
		if err := pen.Abort(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(w + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(placeholder) at the end = %v; want ENOENT", err)
	}
}
