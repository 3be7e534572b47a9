package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// host is a file system as a look would find it: resolved path by name.
type host map[string]Fact

// look answers Candidates as the host would, with the caller's rights left out.
func (h host) look(c Candidates) Facts {
	find := func(name string) Fact {
		f, ok := h[name]
		if !ok {
			return Fact{Name: name, Err: "ENOENT"}
		}
		f.Name = name
		if f.Path == "" && f.Kind != KindNone {
			f.Path = name
		}
		return f
	}
	var out Facts
	for _, p := range c.Programs {
		f := find(p)
		if !strings.Contains(p, "/") {
			for _, dir := range c.Path {
				if f = find(dir + "/" + p); f.Kind != KindNone {
					break
				}
			}
			f.Name = p
		}
		out.Programs = append(out.Programs, f)
	}
	if c.Dir != "" {
		out.Dir = find(c.Dir)
	}
	for _, u := range c.Under {
		out.Under = append(out.Under, find(u))
	}
	return out
}

func elf(ino uint64) Fact { return Fact{Kind: KindELF, Executable: true, ID: Identity{1, ino}} }

func link(path string, ino uint64) Fact {
	f := elf(ino)
	f.Path = path
	return f
}

func dir(uid uint32, ino uint64) Fact { return Fact{Kind: KindDir, UID: uid, ID: Identity{2, ino}} }

func testHost() host {
	return host{
		"/usr/bin/ls": elf(1), "/usr/bin/cat": elf(2), "/usr/bin/git": elf(3), "/usr/local/bin/git": elf(33), "/usr/bin/rm": elf(4),
		"/usr/bin/python3": link("/usr/bin/python3.12", 5), "/usr/bin/python3.12": elf(5), "/usr/bin/python": link("/usr/bin/python3.12", 5),
		"/home/agent/bin/ls": elf(60), "/home/agent/hard": elf(1), "/usr/bin/sh": link("/usr/bin/busybox", 7), "/usr/bin/vi": link("/usr/bin/busybox", 7), "/usr/bin/busybox": elf(7),
		"/usr/bin/noexec": {Kind: KindELF}, "/usr/bin/text": {Kind: KindFile, Executable: true}, "/usr/bin/adir": {Kind: KindDir}, "/usr/bin/fifo": {Kind: KindOther, Executable: true},
		"/usr/bin/oldelf": {Kind: KindELF, Executable: true, Interp: "/lib/ld-old.so", Err: "ENOENT"},
		"/usr/bin/script": {Kind: KindScript, Executable: true, Interp: "/usr/bin/ruby", Err: "ENOENT"},
		"/usr/bin/closed": {Err: "EACCES"}, "/usr/bin/loop": {Err: "ELOOP"},
		"/home/agent": dir(1000, 100), "/home/agent/p": dir(1000, 101), "/home/agent/.ssh": dir(1000, 102), "/home/agent/.config/systemd/user": dir(1000, 103),
		"/home/agent/sneak": {Kind: KindDir, UID: 1000, Path: "/etc", ID: Identity{2, 104}}, "/home/agent/roots": dir(0, 105), "/home/agent/other": dir(1001, 106),
		"/home/agent/up": {Kind: KindDir, UID: 1000, Path: "/home", ID: Identity{2, 107}}, "/home/agent/self": {Kind: KindDir, UID: 1000, Path: "/home/agent", ID: Identity{2, 100}},
		"/home": dir(0, 107), "/home/agent/file": {Kind: KindFile, UID: 1000}, "/home/agent-evil/x": dir(1000, 108), "/srv/agents": dir(0, 109), "/srv/agents/a": dir(1000, 110),
		"/srv/agents/shared": dir(0, 111), "/usr/bin/tool": elf(9), "/home/agent/p/made": elf(10), "/usr/bin/made": link("/home/agent/p/made", 10),
	}
}

func agent() Caller {
	return Caller{UID: 1000, GID: 1000, GIDs: []uint32{1000, 2000}, Name: "agent", Home: "/home/agent", Unit: "agent@7.service", UnitKnown: true}
}

const testPolicy = `version: 1
callers:
  - name: agents
    match: { users: ["*"] }
    profiles: [tools, python]
profiles:
  tools:
    commands:
      - ls
      - path: /usr/bin/git
        args: { allow: ["status", "diff **", "log --oneline", "show *", "grep --n*", ""], deny: ["diff --ext-diff", "** --output*"] }
      - noexec
      - text
      - adir
      - fifo
      - oldelf
      - script
      - closed
      - loop
      - gone
      - /opt/none/prog
      - sh
      - made
    workspace: { under: ["${home}", /srv/agents] }
    env: { set: { GREETING: "in ${workspace} of ${home}" }, deny: ["SECRET_*"] }
    timeout: { wall: 1m, idle: 10s }
    cgroup: { cpu: 2 }
    output: { limit: 1MiB, keep: 1MiB }
  python:
    commands: [python3, ls]
    env: { allow: [LANG, "LC_*", PYTHONPATH] }
    workspace: { under: [/srv/agents], else: refuse }
    fs: { read: [/usr, "${home}/data"], write: ["${workspace}", "${home}/out"], deny: ["${workspace}/.git"], absent: refuse }
`

func testDecider(tb testing.TB) (*Policy, host) {
	tb.Helper()
	return mustParse(tb, Source{"test.yaml", []byte(testPolicy)}), testHost()
}

// ask decides with what the host has.
func ask(p *Policy, h host, c Caller, r Request) (*Grant, *Denied) {
	g, err := p.Decide(c, r, h.look(p.Candidates(c, r)))
	d, _ := errors.AsType[*Denied](err)
	return g, d
}

func TestDecideProgram(t *testing.T) {
	p, h := testDecider(t)
	for _, tc := range []struct {
		cmd     string
		profile string // asked for
		want    string // profile, path and argv[0]; or code and part of the cause
		near    string
	}{
		{"ls -l", "", "tools /usr/bin/ls ls", ""},
		{"/usr/bin/ls", "", "tools /usr/bin/ls /usr/bin/ls", ""},
		{"/bin/ls", "", "not_found not among", "ls"},
		{"ls", "python", "python /usr/bin/ls ls", ""},
		{"python3 -c x", "", "python /usr/bin/python3.12 python3", ""},
		{"/usr/bin/python3.12", "", "python /usr/bin/python3.12 python3", ""},
		{"python", "", "python /usr/bin/python3.12 python3", ""},
		{"python3", "tools", "denied not among the commands of tools", ""},
		{"/home/agent/bin/ls", "", "denied not among", "ls"},
		{"/home/agent/hard", "", "tools /home/agent/hard ls", ""},
		{"./ls", "", "denied a relative path", ""},
		{"bin/ls", "", "denied a relative path", ""},
		{"../usr/bin/ls", "", "denied a relative path", ""},
		{"sl", "", "not_found not among", "ls"},
		{"ls;id", "", "not_found not among", ""},
		{"vi", "", "tools /usr/bin/busybox sh", ""}, // another name of a listed file runs what is listed
		{"busybox", "", "tools /usr/bin/busybox sh", ""},
		{"noexec", "", "not_executable may not execute", ""},
		{"text", "", "not_executable neither an ELF", ""},
		{"adir", "", "not_executable a directory", ""},
		{"fifo", "", "not_executable not a regular file", ""},
		{"oldelf", "", `not_found its loader "/lib/ld-old.so": it is not there`, ""},
		{"script", "", `not_found its interpreter "/usr/bin/ruby": it is not there`, ""},
		{"closed", "", "not_found it is not there", ""}, // a later directory of the path answers ENOENT
		{"loop", "", "not_found it is not there", ""},
		{"gone", "", "not_found it is listed, but it is not there", ""},
		{"/opt/none/prog", "", "not_found it is not there", ""},
		{"prog", "", "not_found it is not there", ""},
		{"made", "", "tools /home/agent/p/made made", ""},
		{"git status", "", "tools /usr/bin/git git", ""},
		{"/usr/local/bin/git status", "", "denied not among", "/usr/bin/git"},
	} {
		g, d := ask(p, h, agent(), Request{Cmd: strings.Fields(tc.cmd), Profile: tc.profile, Cwd: cwdFor(tc.cmd, tc.profile)})
		got, near := "", ""
		if d != nil {
			got, near = string(d.Code)+" "+d.Cause, d.Nearest
		} else {
			got = g.Profile + " " + g.Program.Path + " " + g.Argv[0]
		}
		code, part, _ := strings.Cut(tc.want, " ")
		if d == nil && got != tc.want || d != nil && (string(d.Code) != code || !strings.Contains(d.Cause, part)) || tc.near != "" && near != tc.near {
			t.Errorf("Decide(%s, profile %q) = %s (near %q); want %s (near %q)", tc.cmd, tc.profile, got, near, tc.want, tc.near)
		}
	}
}

// cwdFor gives the profile without a scratch workspace a directory.
func cwdFor(cmd, profile string) string {
	if profile == "python" || strings.Contains(cmd, "python") && profile == "" {
		return "/srv/agents/a"
	}
	return ""
}

func TestDecideUnreachable(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte("version: 1\ncallers: [ { match: { users: [\"*\"] }, profiles: [p] } ]\nprofiles: { p: { commands: [/usr/bin/closed, /usr/bin/loop] } }\n")})
	for name, want := range map[string]struct {
		code Code
		text string
	}{"/usr/bin/closed": {CodeNotExecutable, "may not reach it (EACCES)"}, "/usr/bin/loop": {CodeNotFound, "too many symbolic links"}} {
		_, d := ask(p, testHost(), agent(), Request{Cmd: []string{name}})
		if d == nil || d.Code != want.code || !strings.Contains(d.Cause, want.text) {
			t.Errorf("Decide(%s) = %v; want %s %s", name, d, want.code, want.text)
		}
	}
}

func TestDecideReplaceable(t *testing.T) {
	p, h := testDecider(t)
	_, d := ask(p, h, agent(), Request{Cmd: []string{"made"}, Cwd: "/home/agent/p"})
	if d == nil || !strings.Contains(d.Cause, "/home/agent/p, which the pen may write") {
		t.Errorf("Decide(made in its own workspace) = %v; want a refusal", d)
	}
}

func TestDecideArguments(t *testing.T) {
	p, h := testDecider(t)
	for _, tc := range []struct {
		args string
		want bool
		near string
	}{
		{"", true, ""},
		{"status", true, ""},
		{"status -s", false, "git status"},
		{"statsu", false, "git status"},
		{"diff", true, ""},
		{"diff a b c", true, ""},
		{"diff --ext-diff", false, "git diff **"},
		{"diff --ext-diff x", true, ""}, // anchored at both ends
		{"diff a --output=x", false, ""},
		{"log --oneline", true, ""},
		{"log", false, ""},
		{"show HEAD", true, ""},
		{"show", false, "git show *"},
		{"show a b", false, ""},
		{"grep --name-only", true, ""},
		{"grep --x", false, ""},
		{"push", false, ""},
		{"-c core.pager=x status", false, ""},
	} {
		cmd := append([]string{"git"}, strings.Fields(tc.args)...)
		_, d := ask(p, h, agent(), Request{Cmd: cmd})
		if (d == nil) != tc.want || d != nil && (d.Code != CodeDenied || !d.Final || d.Rule.Line == 0 || tc.near != "" && d.Nearest != tc.near) {
			t.Errorf("Decide(git %s) = %+v; want allowed %t, nearest %q", tc.args, d, tc.want, tc.near)
		}
	}
}

func TestMatchArgs(t *testing.T) {
	for _, tc := range []struct {
		pattern, args string
		want          bool
	}{
		{"", "", true},
		{"", "a", false},
		{"**", "", true},
		{"**", "a b", true},
		{"*", "", false},
		{"*", "a", true},
		{"*", "a b", false},
		{"a **", "a", true},
		{"a **", "b a", false},
		{"** a", "b a", true},
		{"** a", "a b", false},
		{"** a ** b", "x a y b", true},
		{"** a ** b", "x b y a", false},
		{"a*", "abc", true},
		{"a*", "b", false},
		{"*a", "xa", false},
		{"*a", "*a", true},
		{"a*b", "a*b", true},
		{"a*b", "axb", false},
		{"-o**", "-o", true},
		{"-o**", "-ox y z", true},
		{"-o**", "x -o", false},
		{"** ** a", "a", true},
		{"a ** **", "a", true},
		{"** a *", "a x a y", true},
	} {
		if got := matchArgs(splitTokens(strings.Fields(tc.pattern)), strings.Fields(tc.args)); got != tc.want {
			t.Errorf("matchArgs(%q, %q) = %t; want %t", tc.pattern, tc.args, got, tc.want)
		}
	}
}

func TestDecideWorkspace(t *testing.T) {
	p, h := testDecider(t)
	for _, tc := range []struct{ cwd, want, cause string }{
		{"", ScratchPath, ""},
		{"/workspace", ScratchPath, ""},
		{"/workspace/a/b", ScratchPath, ""},
		{"/home/agent/p", "/home/agent/p", ""},
		{"/srv/agents/a", "/srv/agents/a", ""},
		{"/home/agent", "", "not strictly below"},
		{"/home/agent/self", "", "not strictly below"},
		{"/home/agent/up", "", "not strictly below"},
		{"/home", "", "not strictly below"},
		{"/home/agent/sneak", "", "not strictly below"},
		{"/home/agent-evil/x", "", "not strictly below"},
		{"/workspace-evil", "", "it is not there"},
		{"/workspace/../home/agent/p/..", "", "it is not there"},
		{"/home/agent/roots", "", "belongs to uid 0"},
		{"/srv/agents/shared", "", "belongs to uid 0"},
		{"/home/agent/other", "", "belongs to uid 1001"},
		{"/home/agent/file", "", "not a directory"},
		{"/home/agent/none", "", "it is not there"},
		{"/home/agent/.ssh", "", "/home/agent/.ssh, which no pen may write"},
		{"/home/agent/.config/systemd/user", "", "/home/agent/.config/systemd, which no pen"},
		{"p", "", "not an absolute path"},
		{"./workspace", "", "not an absolute path"},
	} {
		g, d := ask(p, h, agent(), Request{Cmd: []string{"ls"}, Cwd: tc.cwd})
		if tc.cause == "" {
			if d != nil || g.Workspace.Path != tc.want || g.Workspace.Scratch != (tc.want == ScratchPath) {
				t.Errorf("Decide(cwd %q) = %+v, %v; want workspace %s", tc.cwd, g, d, tc.want)
			}
			continue
		}
		if d == nil || d.Op != "work in" || !strings.Contains(d.Cause, tc.cause) || d.Hint == "" {
			t.Errorf("Decide(cwd %q) = %+v; want a refusal: %s", tc.cwd, d, tc.cause)
		}
	}
	g, _ := ask(p, h, agent(), Request{Cmd: []string{"ls"}, Cwd: "/workspace/a/./b/"})
	if g == nil || g.Workspace.Cwd != "/workspace/a/b" {
		t.Errorf("Decide(cwd below the scratch workspace) = %+v; want Cwd /workspace/a/b", g)
	}
	if _, d := ask(p, h, agent(), Request{Cmd: []string{"python3"}}); d == nil || !strings.Contains(d.Cause, "no scratch workspace") {
		t.Errorf("Decide(no cwd, else: refuse) = %v; want a refusal", d)
	}
}

// TestWorkspaceHoldsHome has an under entry above the home.
func TestWorkspaceHoldsHome(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte("version: 1\ncallers: [ { match: { users: [\"*\"] }, profiles: [p] } ]\nprofiles: { p: { commands: [ls], workspace: { under: [/data] } } }\n")})
	h := testHost()
	maps.Copy(h, host{
		"/data": dir(0, 200), "/data/all": dir(1000, 201), "/data/all/home": dir(1000, 202), "/data/all/home/p": dir(1000, 203),
		"/h": {Kind: KindDir, UID: 1000, Path: "/data/all/home", ID: Identity{2, 202}},
	})
	c := agent()
	c.Home = "/h"
	for cwd, want := range map[string]bool{"/data/all": false, "/data/all/home": false, "/h": false, "/data/all/home/p": true} {
		_, d := ask(p, h, c, Request{Cmd: []string{"ls"}, Cwd: cwd})
		if (d == nil) != want {
			t.Errorf("Decide(cwd %s, home /h → /data/all/home) = %v; want allowed %t", cwd, d, want)
		}
	}
}

func TestDecideRoot(t *testing.T) {
	p := mustParse(t, DefaultSource())
	root := Caller{Name: "root", Home: "/root", UnitKnown: true}
	g, d := ask(p, testHost(), root, Request{Cmd: []string{"ls"}})
	if d != nil || g.RunAs.Kind != RunAsDynamic || !g.Workspace.Scratch || g.Home.Path != PenHome {
		t.Errorf("Decide(root) = %+v, %v; want a dynamic uid, a scratch workspace and a home of the pen", g, d)
	}
	h := testHost()
	h["/root"], h["/root/p"] = dir(0, 300), dir(0, 301)
	if _, d := ask(p, h, root, Request{Cmd: []string{"ls"}, Cwd: "/root/p"}); d == nil || !strings.Contains(d.Cause, "scratch workspace only") {
		t.Errorf("Decide(root in /root/p) = %v; want a refusal", d)
	}
	q, _ := testDecider(t)
	if g, d := ask(q, testHost(), root, Request{Cmd: []string{"ls"}}); d != nil || g.RunAs.Kind != RunAsDynamic {
		t.Errorf("Decide(root, run_as: caller) = %+v, %v; want a dynamic uid", g, d)
	}
	wheel := agent()
	wheel.GID = 0
	if g, d := ask(q, testHost(), wheel, Request{Cmd: []string{"ls"}}); d != nil || g.RunAs.Kind != RunAsDynamic {
		t.Errorf("Decide(gid 0, run_as: caller) = %+v, %v; want a dynamic uid", g, d)
	}
}

func TestDecideRunAsNamed(t *testing.T) {
	text := "version: 1\ncallers: [ { match: { users: [\"*\"] }, profiles: [p] } ]\nprofiles: { p: { commands: [ls], run_as: builder } }\n"
	for name, tc := range map[string]struct {
		ids   IDs
		cause string
	}{
		"known":   {IDs{Users: map[string]User{"builder": {2000, 2001, "/var/builder"}}}, ""},
		"unknown": {IDs{}, "no such user"},
		"root":    {IDs{Users: map[string]User{"builder": {0, 0, "/root"}}}, "never enter"},
		"gid 0":   {IDs{Users: map[string]User{"builder": {5, 0, "/x"}}}, "never enter"},
	} {
		p := mustParse(t, Source{"t.yaml", []byte(text)})
		warnings := p.Bind(tc.ids)
		g, d := ask(p, testHost(), agent(), Request{Cmd: []string{"ls"}})
		if tc.cause == "" {
			if d != nil || g.RunAs != (RunAs{RunAsNamed, "builder", 2000, 2001}) || g.Home.Path != "/var/builder" || len(warnings) != 0 {
				t.Errorf("%s: Decide = %+v, %v, warnings %v", name, g, d, warnings)
			}
		} else if d == nil || !strings.Contains(d.Cause, tc.cause) || len(warnings) != 1 {
			t.Errorf("%s: Decide = %v, warnings %v; want a refusal: %s", name, d, warnings, tc.cause)
		}
	}
}

func TestDecideEnv(t *testing.T) {
	p, h := testDecider(t)
	for _, tc := range []struct {
		profile, name, value string
		want                 string // part of the cause; empty: allowed
	}{
		{"tools", "FOO", "1", ""},
		{"tools", "PATH", "/x", ""},
		{"tools", "PAGER", "cat", ""},
		{"tools", "PAGER", "less", "built-in list: PAGER"},
		{"tools", "LD_PRELOAD", "x", "built-in list: LD_*"},
		{"tools", "BASH_ENV", "x", "built-in"},
		{"tools", "ENV", "x", "built-in"},
		{"tools", "BASH_FUNC_ls%%", "x", "built-in"},
		{"tools", "PYTHONSTARTUP", "x", "built-in"},
		{"tools", "NODE_OPTIONS", "x", "built-in"},
		{"tools", "GIT_SSH_COMMAND", "x", "built-in"},
		{"tools", "PERL5OPT", "x", "built-in"},
		{"tools", "RUBYOPT", "x", "built-in"},
		{"tools", "SECRET_X", "x", "env.deny has SECRET_*"},
		{"tools", "A=B", "x", "holds ="},
		{"tools", "", "x", "empty"},
		{"tools", "A\x00", "x", "NUL"},
		{"tools", "A", "\x00", "NUL"},
		{"tools", "A B", "x", "white space"},
		{"python", "LANG", "C", ""},
		{"python", "LC_ALL", "C", ""},
		{"python", "FOO", "1", "env.allow does not have it"},
		{"python", "PYTHONPATH", "x", ""},
		{"python", "LD_PRELOAD", "x", "env.allow does not"},
	} {
		_, d := ask(p, h, agent(), Request{Cmd: []string{"ls"}, Profile: tc.profile, Cwd: "/srv/agents/a", Env: map[string]string{tc.name: tc.value}})
		if tc.want == "" && d != nil || tc.want != "" && (d == nil || !strings.Contains(d.Cause, tc.want)) {
			t.Errorf("Decide(%s, env %q=%q) = %v; want %q", tc.profile, tc.name, tc.value, d, tc.want)
		}
	}
	g, d := ask(p, h, agent(), Request{Cmd: []string{"ls"}, Cwd: "/home/agent/p", Env: map[string]string{"ZZ": "1", "LANG": "de"}, PTY: true})
	if d != nil {
		t.Fatal(d)
	}
	want := []string{
		"GIT_TERMINAL_PROMPT=0", "GREETING=in /home/agent/p of /home/agent", "HOME=/home/agent", "LANG=de", "LOGNAME=agent", "PAGER=cat",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=/bin/sh", "TERM=xterm-256color", "TMPDIR=/tmp", "USER=agent", "ZZ=1",
	}
	if diff := cmp.Diff(want, g.Env); diff != "" {
		t.Errorf("Env (-want +got):\n%s", diff)
	}
}

func TestStarDoesNotAllowCode(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte("version: 1\ncallers: [ { match: { users: [\"*\"] }, profiles: [p] } ]\nprofiles: { p: { commands: [ls], env: { allow: [\"*\"] } } }\n")})
	for name, want := range map[string]bool{"FOO": true, "LD_PRELOAD": false} {
		_, d := ask(p, testHost(), agent(), Request{Cmd: []string{"ls"}, Env: map[string]string{name: "x"}})
		if (d == nil) != want {
			t.Errorf("Decide(env %s, allow *) = %v; want allowed %t", name, d, want)
		}
	}
}

func TestRequestIsSound(t *testing.T) {
	p, h := testDecider(t)
	for name, r := range map[string]Request{
		"no command":     {},
		"empty command":  {Cmd: []string{""}},
		"NUL":            {Cmd: []string{"ls", "a\x00b"}},
		"NUL in name":    {Cmd: []string{"l\x00s"}},
		"NUL in cwd":     {Cmd: []string{"ls"}, Cwd: "/home/agent/p\x00"},
		"long argument":  {Cmd: []string{"ls", strings.Repeat("x", 128<<10)}},
		"many arguments": {Cmd: make([]string, 70000)},
		"long in all":    {Cmd: append([]string{"ls"}, slices.Repeat([]string{strings.Repeat("x", 100000)}, 30)...)},
		"negative time":  {Cmd: []string{"ls"}, Timeout: -1},
		"negative limit": {Cmd: []string{"ls"}, Limits: &Narrow{Memory: -1}},
		"not a number":   {Cmd: []string{"ls"}, Limits: &Narrow{CPU: math.NaN()}},
		"labels":         {Cmd: []string{"ls"}, Labels: make([]string, 17)},
		"long label":     {Cmd: []string{"ls"}, Labels: []string{strings.Repeat("x", 65)}},
	} {
		if name == "many arguments" {
			r.Cmd[0] = "ls"
		}
		if _, d := ask(p, h, agent(), r); d == nil || d.Code != CodeInvalid {
			t.Errorf("%s: Decide = %v; want %s", name, d, CodeInvalid)
		}
	}
	if g, d := ask(p, h, agent(), Request{Cmd: []string{"ls", "a\nb", ";", "$(id)", strings.Repeat("x", 128<<10-1)}}); d != nil || len(g.Argv) != 5 {
		t.Errorf("Decide(newline, ;, $(), 128 KiB) = %v; want allowed, and untouched", d)
	}
}

func TestUnknownProfile(t *testing.T) {
	p, h := testDecider(t)
	_, d := ask(p, h, agent(), Request{Cmd: []string{"ls"}, Profile: "pyton"})
	if d == nil || d.Code != CodeUnknownProfile || d.Nearest != "python" || !strings.Contains(d.Hint, "tools, python") {
		t.Errorf("Decide(profile pyton) = %+v; want %s near python", d, CodeUnknownProfile)
	}
}

func TestLimitsOnlyNarrow(t *testing.T) {
	p, h := testDecider(t)
	for _, tc := range []struct {
		r    Request
		want string
	}{
		{Request{}, "wall 1m0s cpu 0s idle 10s memory 1GiB pids 256 cores 2 output 1MiB"},
		{Request{Timeout: 100000 * time.Second}, "wall 1m0s cpu 0s idle 10s memory 1GiB pids 256 cores 2 output 1MiB"},
		{Request{Timeout: time.Second}, "wall 1s cpu 0s idle 10s memory 1GiB pids 256 cores 2 output 1MiB"},
		{Request{Limits: &Narrow{Memory: 2 * GiB, Pids: 9999, CPU: 3, Idle: time.Hour, Output: GiB}}, "wall 1m0s cpu 0s idle 10s memory 1GiB pids 256 cores 2 output 1MiB"},
		{Request{Limits: &Narrow{Memory: MiB, Pids: 5, CPU: 0.5, CPUTime: time.Minute, Idle: time.Second, Output: KiB}}, "wall 1m0s cpu 1m0s idle 1s memory 1MiB pids 5 cores 0.5 output 1KiB"},
	} {
		tc.r.Cmd = []string{"ls"}
		g, d := ask(p, h, agent(), tc.r)
		if d != nil {
			t.Fatal(d)
		}
		got := fmt.Sprintf("wall %v cpu %v idle %v memory %v pids %d cores %v output %v", g.Timeout.Wall, g.Timeout.CPU, g.Timeout.Idle, g.Cgroup.Memory, g.Cgroup.Pids, g.Cgroup.CPU, g.Output.Limit)
		if got != tc.want {
			t.Errorf("Decide(timeout %v, limits %+v) = %s; want %s", tc.r.Timeout, tc.r.Limits, got, tc.want)
		}
	}
}

func TestGrantFiles(t *testing.T) {
	p, h := testDecider(t)
	g, d := ask(p, h, agent(), Request{Cmd: []string{"ls"}, Profile: "python", Cwd: "/srv/agents/a"})
	if d != nil {
		t.Fatal(d)
	}
	paths := func(list []PathRule) (out []string) {
		for _, r := range list {
			out = append(out, r.Path)
		}
		return out
	}
	if got := paths(g.Read); !cmp.Equal(got, []string{"/usr", "/home/agent/data"}) {
		t.Errorf("Read = %v", got)
	}
	if got := paths(g.Write); !cmp.Equal(got, []string{"/home/agent/out"}) || !g.Workspace.Write {
		t.Errorf("Write = %v, workspace %+v; want out, and the workspace on its own", got, g.Workspace)
	}
	if len(g.Deny) != 1 || g.Deny[0].Path != "/srv/agents/a/.git" || g.Deny[0].Absent != AbsentRefuse {
		t.Errorf("Deny = %v; want /srv/agents/a/.git refuse", g.Deny)
	}
	for path, want := range map[string]string{"/usr/bin/ls": "r mounts", "/srv/agents/a/x": "rw mounts", "/srv/agents/a/.git/config": " deny", "/etc/passwd": " mounts", "/home/agent/out/x": "rw mounts", "/home/agent/x": "rw mounts", "/usr/lib/systemd/x": "r mounts", "/srv/agents/ab": " mounts"} {
		a := g.Path(path)
		got := ""
		if a.Read {
			got += "r"
		}
		if a.Write {
			got += "w"
		}
		if got += " " + a.Layer; got != want {
			t.Errorf("Path(%s) = %s; want %s", path, got, want)
		}
	}
}

func TestSecretsInWritableHome(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte("version: 1\ncallers: [ { match: { users: [\"*\"] }, profiles: [p] } ]\nprofiles: { p: { commands: [ls], fs: { read: [/etc], write: [\"${workspace}\", \"${home}\"] } } }\n")})
	g, d := ask(p, testHost(), agent(), Request{Cmd: []string{"ls"}})
	if d != nil {
		t.Fatal(d)
	}
	for _, want := range []string{"/home/agent/.ssh", "/home/agent/.aws", "/home/agent/.gnupg", "/etc/shadow"} {
		if !slices.Contains(g.Hidden, want) {
			t.Errorf("Hidden does not have %s", want)
		}
	}
	for _, want := range []string{"/home/agent/.bashrc", "/home/agent/.claude", "/home/agent/.config/systemd"} {
		if !slices.Contains(g.Unwritable, want) {
			t.Errorf("Unwritable does not have %s", want)
		}
	}
	if a := g.Path("/home/agent/.bashrc"); a.Write || !a.Read {
		t.Errorf("Path(.bashrc) = %+v; want readable alone", a)
	}
	if a := g.Path("/home/agent/.ssh/id_rsa"); a.Read || a.Layer != "hidden" {
		t.Errorf("Path(.ssh/id_rsa) = %+v; want hidden", a)
	}
}

func TestExecListed(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte("version: 1\ncallers: [ { match: { users: [\"*\"] }, profiles: [p] } ]\nprofiles: { p: { commands: [ls, cat, gone, python3, noexec], exec: listed } }\n")})
	g, d := ask(p, testHost(), agent(), Request{Cmd: []string{"ls"}})
	if d != nil {
		t.Fatal(d)
	}
	var got []string
	for _, f := range g.Commands {
		got = append(got, f.Path)
	}
	if want := []string{"/usr/bin/ls", "/usr/bin/cat", "/usr/bin/python3.12"}; !cmp.Equal(got, want) {
		t.Errorf("Commands = %v; want %v", got, want)
	}
}

func TestCandidatesAreFew(t *testing.T) {
	p := mustParse(t, DefaultSource())
	if got := p.Candidates(agent(), Request{Cmd: []string{"ls"}}).Programs; !cmp.Equal(got, []string{"ls"}) {
		t.Errorf("Candidates(ls).Programs = %v; want [ls]: nothing else can change the answer", got)
	}
	if got := p.Candidates(agent(), Request{Cmd: []string{"/usr/bin/python3.12"}}).Programs; len(got) < 40 {
		t.Errorf("Candidates(python3.12).Programs has %d entries; want all, to compare files", len(got))
	}
}

func TestExplainTellsEveryStep(t *testing.T) {
	p, h := testDecider(t)
	var b strings.Builder
	for _, r := range []Request{
		{Cmd: []string{"ls", "-l"}, Cwd: "/home/agent/p", Env: map[string]string{"A": "b"}},
		{Cmd: []string{"git", "push"}},
		{Cmd: []string{"python3"}, Cwd: "/home/agent/p"},
		{Cmd: []string{"lsx"}},
		{Cmd: []string{"ls"}, Profile: "tool"},
		{Cmd: []string{"ls"}, Env: map[string]string{"LD_PRELOAD": "x"}},
	} {
		b.WriteString("$ " + strings.Join(r.Cmd, " ") + "\n" + p.Explain(agent(), r, h.look(p.Candidates(agent(), r))).String())
	}
	golden(t, "explain.golden", b.String())
}
