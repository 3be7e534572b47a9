package session

import (
	"testing"
	"time"

	"pinfold/cgroup"
	"pinfold/sandbox"
)

func someKind(edit func(*kind)) *kind {
	k := &kind{limits: cgroup.NoLimits(), quota: cgroup.NoLimits(), mounts: []sandbox.MountFacts{{ID: 7, Flags: 2}}}
	k.spec.Profile.View = []sandbox.Entry{{Kind: sandbox.EntryBind, Path: "/usr", Source: "/usr"}}
	k.spec.Site = sandbox.Site{UID: 1000, GID: 1000, Attach: []sandbox.Identity{{Dev: 1, Ino: 2}}}
	k.spec.Command = sandbox.Command{Argv: []string{"true"}, Env: []string{"KEY=secret"}}
	if edit != nil {
		edit(k)
	}
	return k
}

func TestKindsAreAlike(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*kind)
		like bool
	}{
		"the same":           {nil, true},
		"another command":    {func(k *kind) { k.spec.Command = sandbox.Command{Argv: []string{"false"}} }, true},
		"another cgroup":     {func(k *kind) { k.spec.Site.Cgroup, k.spec.Site.Join = "a/b", []sandbox.JoinFile{{Path: "x"}} }, true},
		"another view":       {func(k *kind) { k.spec.Profile.View[0].Writable = true }, false},
		"another uid":        {func(k *kind) { k.spec.Site.UID++ }, false},
		"another workspace":  {func(k *kind) { k.spec.Site.Attach[0].Ino++ }, false},
		"another mount":      {func(k *kind) { k.mounts[0].ID++ }, false},
		"a remounted one":    {func(k *kind) { k.mounts[0].Flags |= 1 }, false},
		"another stdin":      {func(k *kind) { k.spec.Profile.Stdin = sandbox.StdinNull }, false},
		"another limit":      {func(k *kind) { k.limits.Memory = 1 << 20 }, false},
		"another quota":      {func(k *kind) { k.quota.Pids = 7 }, false},
		"another deny":       {func(k *kind) { k.spec.Profile.Deny = []sandbox.Deny{{Path: "/x"}} }, false},
		"another rule":       {func(k *kind) { k.spec.Profile.Landlock.Rules = []sandbox.Rule{{Path: "/x"}} }, false},
		"another rlimit":     {func(k *kind) { k.spec.Profile.Rlimits = []sandbox.Rlimit{{Name: "nofile"}} }, false},
		"another filter":     {func(k *kind) { k.spec.Profile.Seccomp.Base = "strict" }, false},
		"another user on it": {func(k *kind) { k.spec.Site.DiskUID = 5 }, false},
	} {
		if got := someKind(tt.edit).like(someKind(nil)); got != tt.like {
			t.Errorf("like(%s) = %v; want %v", name, got, tt.like)
		}
	}
	if someKind(nil).like(nil) {
		t.Error("like(none) = true; want false")
	}
}

func TestReadyWants(t *testing.T) {
	var r ready
	a, b := someKind(nil), someKind(func(k *kind) { k.spec.Site.UID++ })
	pty := someKind(func(k *kind) { k.spec.Profile.PTY = true })
	made := make(chan struct{})
	close(made)
	for i, step := range []struct {
		k    *kind
		want bool
	}{{a, false}, {a, true}, {b, false}, {b, true}, {a, false}, {b, false}, {pty, false}, {pty, false}} {
		if got := r.wants(step.k); got != step.want {
			t.Errorf("step %d: wants() = %v; want %v", i, got, step.want)
		}
		if step.want && r.wants(step.k) {
			t.Errorf("step %d: wants() with one under way = true; want one at a time", i)
		}
		r.leave()
	}
	tight := someKind(func(k *kind) { k.quota.Pids = minQuota - 1 })
	r.wants(tight)
	if r.wants(tight) {
		t.Error("wants() beside a tight quota.pids = true; want false")
	}
	if r.last.spec.Command.Env != nil {
		t.Errorf("what is remembered of a spawn = %q; want nothing of its environment", r.last.spec.Command.Env)
	}
	n := &readyPen{kind: a.bare(), made: made, idle: time.NewTimer(time.Hour)}
	if old, ok := r.put(n); old != nil || !ok {
		t.Errorf("put() = %v, %v; want nothing before it", old, ok)
	}
	r.wants(a)
	if r.wants(a) {
		t.Error("wants() with one ready = true; want false")
	}
	r.wants(b)
	if !r.wants(b) {
		t.Error("wants() with one of another kind ready = false; want it replaced")
	}
	r.leave()
	if got, err := r.take(t.Context(), b); got != nil || err != nil {
		t.Errorf("take(another kind) = %v, %v; want none", got, err)
	}
	if got, err := r.take(t.Context(), a); got != n || err != nil {
		t.Errorf("take() = %v, %v; want the one that is ready", got, err)
	}
	if got, err := r.take(t.Context(), a); got != nil || err != nil {
		t.Errorf("take() again = %v, %v; want none", got, err)
	}
	if r.drop(n) {
		t.Error("drop() of one that was taken = true; want false")
	}
}
