package stage_test

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pinfold/sandbox"
)

// TestAdoptDenies: the placeholder of a denied path stays for as long as a pen needs it
// that has outlived its stage, with its mask in the pen; what became of denied paths is
// told as ever; and what nobody needs is removed.
func TestAdoptDenies(t *testing.T) {
	b, w := newBench(t), workspace(t)
	host := t.TempDir()
	if err := os.Chmod(host, 0o755); err != nil {
		t.Fatal(err)
	}
	denying := func(paths ...string) sandbox.Profile {
		p := testProfile()
		for _, d := range paths {
			p.Deny = append(p.Deny, sandbox.Deny{Path: d, Absent: sandbox.AbsentPlaceholder})
		}
		p.View = append(p.View, sandbox.Entry{Kind: sandbox.EntryBind, Path: "/opt/host", Source: host})
		for _, d := range []string{"/proj/later", "/opt/host/later", "/proj/never", "/opt/own/later"} {
			p.Deny = append(p.Deny, sandbox.Deny{Path: d, Absent: sandbox.AbsentCheck})
		}
		return p
	}
	const script = `while read x; do mkdir held/x 2>&1 || mv held away 2>&1 || rmdir held 2>&1 || :; done`
	one, d := b.inWork(denying("/proj/held", "/proj/taken"), w, script)
	two, _ := b.inWork(denying("/proj/held", "/proj/swapped"), w, script)
	lost, _ := b.inWork(denying("/proj/lost"), w, script)
	v := b.victim(true, []*os.File{d}, one, two, lost)
	m, n, l := v.started(), v.started(), v.started()
	v.kill()
	b.successor()
	there := func(when string, want map[string]bool) {
		t.Helper()
		for name, is := range want {
			if _, err := os.Lstat(filepath.Join(w, name)); (err == nil) != is {
				t.Errorf("%s: %s is there: %v; want %v", when, name, err == nil, is)
			}
		}
	}
	there("before Settle", map[string]bool{"held": true, "taken": true, "swapped": true, "lost": true})
	q, r := b.adopt(m), b.adopt(n)
	kill(t, l.Init.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := b.Settle(ctx); err != nil {
		t.Fatalf("Settle() = %v; want nil", err)
	}
	there("after Settle", map[string]bool{"held": true, "taken": true, "swapped": true, "lost": false})
	for _, p := range []*sandbox.Process{q, r} {
		if _, err := p.Stdin.WriteString("try\n"); err != nil {
			t.Fatal(err)
		}
		out := bufio.NewReader(p.Stdout)
		for range 3 {
			if line, err := out.ReadString('\n'); err != nil || line == "" {
				t.Fatalf("the pen says %q, %v; want three refusals, a line each", line, err)
			}
		}
	}
	remove(t, w+"/taken")
	move(t, w+"/swapped", w+"/old")
	if err := os.Mkdir(w+"/swapped", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, w+"/later", "x")
	write(t, host+"/later", "x")
	b.denied(ctx, q, sandbox.DenyEvent{Path: "/proj/taken", Change: sandbox.DenyRemoved})
	b.endsWith(q, 0)
	there("after the first", map[string]bool{"held": true, "swapped": true})
	b.denied(ctx, r, sandbox.DenyEvent{Path: "/proj/swapped", Change: sandbox.DenyReplaced})
	b.endsWith(r, 0)
	there("after both", map[string]bool{"held": false, "swapped": true})
	if left, err := os.ReadDir(b.state + "/stage/places"); err != nil || len(left) > 0 {
		t.Errorf("records of placeholders left: %v, %v", left, err)
	}
}

// denied compares what became of denied paths: that of the pen alone and what has
// appeared for all.
func (b *bench) denied(ctx context.Context, p *sandbox.Process, own sandbox.DenyEvent) {
	b.t.Helper()
	want := []sandbox.DenyEvent{own, {Path: "/proj/later", Change: sandbox.DenyAppeared}, {Path: "/opt/host/later", Change: sandbox.DenyAppeared}}
	got, err := p.Denies(ctx)
	if d := cmp.Diff(want, got, cmpopts.SortSlices(func(a, b sandbox.DenyEvent) bool { return a.Path < b.Path })); d != "" || err != nil {
		b.t.Errorf("Denies() = %v, differs (-want +got):\n%s", err, d)
	}
}

// TestAdoptDeniesElsewhere: where the directory that a path is looked for in is another
// by now, nothing is said of the path but that.
func TestAdoptDeniesElsewhere(t *testing.T) {
	b, top := newBench(t), workspace(t)
	w := top + "/w"
	if err := os.Mkdir(w, 0o755); err != nil {
		t.Fatal(err)
	}
	give(t, w)
	p := testProfile()
	p.Deny = []sandbox.Deny{{Path: "/proj/later", Absent: sandbox.AbsentCheck}}
	s, d := b.inWork(p, w, echoes)
	v := b.victim(true, []*os.File{d}, s)
	m := v.started()
	v.kill()
	move(t, w, top+"/moved")
	if err := os.Mkdir(w, 0o755); err != nil {
		t.Fatal(err)
	}
	b.successor()
	q := b.adopt(m)
	got, err := q.Denies(t.Context())
	if d := cmp.Diff([]sandbox.DenyEvent{{Path: "/proj/later", Change: sandbox.DenyUnknown}}, got); d != "" || err != nil {
		t.Errorf("Denies() = %v, differs (-want +got):\n%s", err, d)
	}
	b.endsWith(q, 7)
}
