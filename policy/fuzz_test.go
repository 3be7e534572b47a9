package policy

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzParse: no input makes the reader panic; what fails has problems with
// places, and what loads can be shown, checked and read again.
func FuzzParse(f *testing.F) {
	f.Add(defaultYAML)
	for _, name := range []string{"example.yaml", "broken.yaml", "odd.yaml"} {
		f.Add(string(read(f, name).Data))
	}
	for _, s := range []string{"", "version: 1", "- - -", "a: &b [*b]", "{", "\t", "? a\n: b", "version: 1\nprofiles: { p: { commands: [ls], extends: p } }", "a: |\n  x\n b", "'", "\"\\", "version: 1\n---\n", "%YAML 1.2\n---\nversion: 1", "version: 1\nprofiles: {p: {commands: [{path: [], args: }]}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(Source{"fuzz.yaml", []byte(text)})
		if err != nil {
			var list *Problems
			if !errors.As(err, &list) || len(list.List) == 0 {
				t.Fatalf("Parse = %v; want *Problems", err)
			}
			for _, one := range list.List {
				if one.Pos.Line < 1 || one.Pos.Column < 1 || one.Pos.File != "fuzz.yaml" || one.Text == "" {
					t.Errorf("problem without a place: %+v", one)
				}
			}
			return
		}
		p.Check()
		p.Exposures()
		for _, name := range p.Profiles() {
			if len(p.profile(name).commands) > 0 {
				sameShown(t, p, name)
			}
		}
	})
}

// FuzzDecide: no request and no facts make a decision panic; the answer is one
// of yes and no, and yes is never wider than the profile.
func FuzzDecide(f *testing.F) {
	for _, s := range []string{"ls", "git\x1fstatus", "/usr/bin/ls\x1f-l", "./x", "python", "\x1f", "git\x1fdiff\x1f--output=x"} {
		f.Add(s, "/home/agent/p", "LANG", "C", "", uint8(3), int64(5))
		f.Add(s, "/home/agent/../x", "LD_PRELOAD", "x", "python", uint8(0), int64(-1))
	}
	p, h := testDecider(f)
	f.Fuzz(func(t *testing.T, cmd, cwd, name, value, profile string, broken uint8, number int64) {
		r := Request{Cmd: strings.Split(cmd, "\x1f"), Cwd: cwd, Env: map[string]string{name: value}, Profile: profile, Timeout: time.Duration(number), Limits: &Narrow{Memory: Bytes(number), Pids: number, CPU: float64(number)}}
		facts := h.look(p.Candidates(agent(), r))
		// Facts that do not fit the candidates: fewer, or of other names.
		if n := len(facts.Programs); n > 0 && broken&1 == 0 {
			facts.Programs = facts.Programs[:int(broken)%n]
		}
		if broken&2 == 0 {
			facts.Under = nil
		}
		g, err := p.Decide(agent(), r, facts)
		if (g == nil) == (err == nil) {
			t.Fatalf("Decide = %v, %v; want exactly one", g, err)
		}
		e := p.Explain(agent(), r, facts)
		if e.Allowed() != (err == nil) || e.String() == "" {
			t.Fatalf("Explain = %v; Decide = %v", e, err)
		}
		if g != nil {
			notWider(t, p, r, g)
		}
	})
}

// notWider compares a grant with the grant for a request that asks for nothing.
func notWider(t *testing.T, p *Policy, r Request, g *Grant) {
	t.Helper()
	f := p.profile(g.Profile)
	within := func(what string, policy, got int64) {
		if policy != Unset && policy != 0 && (got == Unset || got == 0 || got > policy) {
			t.Errorf("request %+v: %s = %d; want at most %d", r, what, got, policy)
		}
	}
	c, o := f.resolvedCgroup(), f.resolvedTimeout()
	within("memory", int64(c.Memory), int64(g.Cgroup.Memory))
	within("pids", c.Pids, g.Cgroup.Pids)
	within("cpu", int64(c.CPU*1000), int64(g.Cgroup.CPU*1000))
	within("wall", int64(o.Wall), int64(g.Timeout.Wall))
	within("idle", int64(o.Idle), int64(g.Timeout.Idle))
	within("output", int64(f.resolvedOutput().Limit), int64(g.Output.Limit))
	if g.Cgroup.Swap != c.Swap || g.Net != f.net.or(NetNone) || g.UserNS != f.userns.or(false) || g.Exec != f.exec.or(ExecAnything) || g.Tmp.Exec != f.fs.tmpExec.or(false) {
		t.Errorf("request %+v changed what only a policy says: %+v", r, g)
	}
	if !slices.Equal(g.Controls, f.resolvedControls()) || !slices.Equal(g.Rlimits, f.resolvedRlimits()) {
		t.Errorf("request %+v changed controls or rlimits", r)
	}
	if g.RunAs.Kind == RunAsCaller && (g.RunAs.UID == 0 || g.RunAs.GID == 0) {
		t.Errorf("request %+v runs as uid or gid 0", r)
	}
	if !g.Workspace.Scratch && !strings.HasPrefix(g.Workspace.Path, "/home/agent/") && !strings.HasPrefix(g.Workspace.Path, "/srv/agents/") {
		t.Errorf("request %+v got the workspace %s", r, g.Workspace.Path)
	}
	if !slices.ContainsFunc(f.commands, func(c command) bool {
		return c.name == g.Argv[0] || strings.HasSuffix(c.name, "/"+g.Argv[0]) || strings.HasSuffix(g.Argv[0], "/"+c.name)
	}) {
		t.Errorf("request %+v runs %s, which is not listed", r, g.Argv[0])
	}
	for _, e := range g.Env {
		name, _, _ := strings.Cut(e, "=")
		for _, bad := range []string{"LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "SECRET_X"} {
			if name == bad {
				t.Errorf("request %+v sets %s", r, name)
			}
		}
	}
}

// TestRequestNeverWidens draws requests at random and compares the grant of each
// with that of the same command that asks for nothing else.
func TestRequestNeverWidens(t *testing.T) {
	p, h := testDecider(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(list []string) string { return list[rnd.IntN(len(list))] }
	cwds := append(slices.Sorted(maps.Keys(h)), "", "/", "/workspace", "/workspace/../etc", "relative", "/home/agent/p/../../x")
	names := append([]string{"LANG", "PATH", "HOME", "SECRET_X", "A=B", "SHELL", "XDG_RUNTIME_DIR"}, deniedEnv()...)
	commands := append(slices.Sorted(maps.Keys(h)), "ls", "git", "python3", "sh", "vi", "made", "./ls")
	granted := 0
	for range 20000 {
		r := Request{
			Cmd: []string{pick(commands)}, Cwd: pick(cwds), Profile: pick([]string{"", "", "tools", "python", "root"}), PTY: rnd.IntN(2) == 0,
			Timeout: time.Duration(rnd.Int64N(int64(2 * time.Hour))), Limits: &Narrow{Memory: Bytes(rnd.Int64N(int64(4 * GiB))), Pids: rnd.Int64N(1000), CPU: rnd.Float64() * 8, CPUTime: time.Duration(rnd.Int64N(1 << 40)), Idle: time.Duration(rnd.Int64N(1 << 40)), Output: Bytes(rnd.Int64N(int64(GiB)))},
		}
		for range rnd.IntN(3) {
			r.Cmd = append(r.Cmd, pick([]string{"status", "diff", "push", "-c", "x", "--output=x"}))
		}
		if rnd.IntN(3) == 0 {
			r.Env = map[string]string{strings.TrimSuffix(pick(names), "*"): "v"}
		}
		g, d := ask(p, h, agent(), r)
		if d != nil {
			continue
		}
		granted++
		notWider(t, p, r, g)
		bare := Request{Cmd: r.Cmd, Cwd: r.Cwd, Profile: r.Profile}
		base, d := ask(p, h, agent(), bare)
		if d != nil {
			t.Fatalf("%+v is granted, but not without its limits and environment: %v", r, d)
		}
		if base.Program != g.Program || base.Workspace != g.Workspace || base.RunAs != g.RunAs || !slices.Equal(base.Read, g.Read) || !slices.Equal(base.Write, g.Write) || !slices.Equal(base.Deny, g.Deny) || !slices.Equal(base.Hidden, g.Hidden) {
			t.Errorf("%+v changed more than limits and environment:\n%+v\n%+v", r, base, g)
		}
	}
	if granted < 200 {
		t.Errorf("%d of 20000 requests were granted; want enough to mean something", granted)
	}
}
