package policy

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files and the reference")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func read(tb testing.TB, name string) Source {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return Source{name, data}
}

func mustParse(tb testing.TB, sources ...Source) *Policy {
	tb.Helper()
	p, err := Parse(sources...)
	if err != nil {
		tb.Fatalf("Parse:\n%v", err)
	}
	return p
}

// problems parses one source that must fail.
func problems(t *testing.T, sources ...Source) []Problem {
	t.Helper()
	_, err := Parse(sources...)
	var list *Problems
	if !errors.As(err, &list) {
		t.Fatalf("Parse = %v; want *Problems", err)
	}
	return list.List
}

func TestEmbeddedDefaultParses(t *testing.T) {
	p := mustParse(t, DefaultSource())
	if got := p.Profiles(); !cmp.Equal(got, []string{"default"}) {
		t.Errorf("Profiles() = %v; want [default]", got)
	}
	want := strings.Fields(`python3 bash ls sh cat echo env head tail wc sort uniq cut tr sed awk grep find xargs diff cp mv rm mkdir touch chmod ln stat
		date sleep true false test printf seq tee id whoami uname pwd git make node npm go`)
	var got []string
	for _, c := range p.profile("default").commands {
		got = append(got, c.name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("commands of the default profile (-want +got):\n%s", diff)
	}
	if n := p.Names(); len(n.Users)+len(n.Groups) != 0 {
		t.Errorf("Names() = %v; want none, so that the default needs no lookup", n)
	}
}

func TestShowDefaultGolden(t *testing.T) {
	got, err := mustParse(t, DefaultSource()).Show("default")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "show_default.golden", got)
}

func TestShowExampleGolden(t *testing.T) {
	p := mustParse(t, read(t, "example.yaml"))
	for _, name := range p.Profiles() {
		got, err := p.Show(name)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "show_"+name+".golden", got)
	}
	if _, err := p.Show("nobody"); err == nil || !strings.Contains(err.Error(), "python") {
		t.Errorf("Show(nobody) = %v; want an error that lists the profiles", err)
	}
}

func TestProblemsGolden(t *testing.T) {
	var b strings.Builder
	for _, p := range problems(t, read(t, "broken.yaml"), read(t, "broken2.yaml")) {
		b.WriteString(p.String() + "\n")
	}
	golden(t, "problems.golden", b.String())
}

// TestProblem has one mistake a row, at the place that the message must name.
func TestProblem(t *testing.T) {
	const head = "version: 1\nprofiles:\n  p:\n    commands: [ls]\n"
	for _, tc := range []struct{ name, text, at, want, hint string }{
		{"no version", "profiles: {}\n", "1:1", "no version", "version: 1"},
		{"version", "version: 2\n", "1:10", `unknown version "2"`, ""},
		{"not a mapping", "- a\n", "1:1", "must be a mapping, not a list", ""},
		{"scalar", "hello\n", "1:1", "must be a mapping, not a value", ""},
		{"tab", "version: 1\nprofiles:\n\tp: {}\n", "3:1", "not YAML", ""},
		{"anchor", "version: &v 1\n", "1:10", "anchors and aliases", "extends"},
		{"alias", "version: *v\n", "1:10", "anchors and aliases", "extends"},
		{"tag", "version: !!str 1\n", "1:10", "tags", ""},
		{"merge", "<<: {version: 1}\n", "1:1", "anchors and aliases", ""},
		{"two documents", "version: 1\n---\nversion: 1\n", "3:1", "second document", ""},
		{"bytes", "version: 1\n# \xff\n", "2:3", "not text", "UTF-8"},
		{"NUL", "version: 1\n# \x00\n", "2:3", "not text", ""},
		{"unknown key", "version: 1\nprofile: {}\n", "2:1", `unknown key "profile"`, "did you mean profiles?"},
		{"repeated key", "version: 1\nversion: 1\n", "2:1", `"version" is given twice`, "line 1"},
		{"no value", "version: 1\nprofiles:\n", "2:1", "profiles has no value", "leave the key out"},
		{"unknown control", head + "    controls: { landlok: required }\n", "5:17", `unknown control "landlok"`, "did you mean landlock?"},
		{"unknown level", head + "    controls: { landlock: require }\n", "5:27", `unknown level "require"`, "did you mean required?"},
		{"caps off", head + "    controls: { caps: off }\n", "5:23", "caps cannot be off", ""},
		{"mounts off", head + "    controls: { mounts: off }\n", "5:25", "mounts cannot be off", ""},
		{"pidns off", head + "    controls: { pidns: off }\n", "5:24", "pidns cannot be off", ""},
		{"seccomp off", head + "    controls: { seccomp: off }\n", "5:26", "seccomp cannot be off", ""},
		{"ipcns off", head + "    controls: { ipcns: off }\n", "5:24", "ipcns cannot be off", ""},
		{"netns off without net", head + "    controls: { netns: off }\n", "5:24", "net: none rests on", ""},
		{"netns with host", head + "    net: host\n    controls: { netns: required }\n", "6:24", "no network namespace", ""},
		{"userns off against on", head + "    userns: on\n    controls: { userns: off }\n", "6:25", "userns: on with", ""},
		{"userns without on", head + "    controls: { userns: required }\n", "5:25", "without userns: on", ""},
		{"size without unit", head + "    cgroup: { memory: 512 }\n", "5:23", "not a size", "a unit is missing: 512MiB or 512B"},
		{"decimal unit", head + "    cgroup: { memory: 512MB }\n", "5:23", "not a size", "write 512MiB"},
		{"negative size", head + "    cgroup: { memory: -5MiB }\n", "5:23", "not a size", ""},
		{"too large a size", head + "    cgroup: { memory: 99999999999TiB }\n", "5:23", "too large", ""},
		{"too small a size", head + "    cgroup: { memory: 5B }\n", "5:23", "too small", "at least 1MiB"},
		{"time without unit", head + "    timeout: { wall: 10 }\n", "5:22", "not a time", "a unit is missing: 10s"},
		{"negative time", head + "    timeout: { wall: -10s }\n", "5:22", "not a time", ""},
		{"start off", head + "    timeout: { start: off }\n", "5:23", "a start without a limit", ""},
		{"net allow", head + "    net: { allow: [\"pypi.org:443\"] }\n", "5:12", "not yet supported", "net: none"},
		{"pen session", head + "    pen: session\n", "5:10", "not yet supported", "pen: process"},
		{"nproc", head + "    rlimits: { nproc: 10 }\n", "5:16", "nproc with run_as: caller", "cgroup.pids"},
		{"unknown rlimit", head + "    rlimits: { nofiles: 10 }\n", "5:16", "unknown resource limit", "did you mean nofile?"},
		{"rlimit unit", head + "    rlimits: { fsize: 10 }\n", "5:23", "not a size", ""},
		{"cpu rlimit", head + "    rlimits: { cpu: 1500ms }\n", "5:21", "whole seconds", ""},
		{"allow_root", head + "    allow_root: true\n", "5:17", "allow_root without a user namespace", "userns: on"},
		{"tmp exec", head + "    exec: listed\n    fs: { tmp: { exec: true } }\n", "6:24", "tmp: exec: true with exec: listed", ""},
		{"listed without landlock", head + "    exec: listed\n    controls: { landlock: off }\n", "6:27", "exec: listed with landlock off", ""},
		{"workspace not visible", head + "    fs: { write: [ /srv ] }\n", "5:18", "the workspace is not visible", ""},
		{"empty rulesets", head + "    fs: { read: [], write: [] }\n", "5:28", "the workspace is not visible", ""},
		{"home in the middle", head + "    fs: { read: [ \"/x/${home}\" ] }\n", "5:19", "does not stand at the beginning", ""},
		{"tilde", head + "    fs: { read: [ ~/x ] }\n", "5:19", "~ is not known", "${home}"},
		{"relative path", head + "    fs: { read: [ usr ] }\n", "5:19", "not an absolute path", ""},
		{"dots", head + "    fs: { read: [ /usr/../etc ] }\n", "5:19", "not a clean path", ""},
		{"path glob", head + "    fs: { read: [ \"/lib*\" ] }\n", "5:19", "no patterns", ""},
		{"workspace in under", head + "    workspace: { under: [ \"${workspace}\" ] }\n", "5:27", "unknown variable", "${home}"},
		{"home cache", head + "    fs: { home: cache }\n", "5:17", "a cache needs a name", ""},
		{"home cache name", head + "    fs: { home: \"cache(../x)\" }\n", "5:17", "not a home", ""},
		{"run_as root", head + "    run_as: root\n", "5:13", "run_as: root is never possible", ""},
		{"run_as number", head + "    run_as: 1000\n", "5:13", "not the number", ""},
		{"no commands", "version: 1\nprofiles:\n  p: { net: none }\n", "3:3", "has no commands", ""},
		{"empty commands", "version: 1\nprofiles:\n  p: { commands: [] }\n", "3:18", "an empty list of commands", ""},
		{"command glob", "version: 1\nprofiles:\n  p: { commands: [\"*\"] }\n", "3:19", "without patterns", ""},
		{"command with arguments", "version: 1\nprofiles:\n  p: { commands: [git status] }\n", "3:19", "no arguments here", ""},
		{"relative command", "version: 1\nprofiles:\n  p: { commands: [bin/x] }\n", "3:19", "neither a bare name nor", ""},
		{"command in the workspace", "version: 1\nprofiles:\n  p: { commands: [\"${workspace}/x\"] }\n", "3:19", "may write", ""},
		{"command in /tmp", "version: 1\nprofiles:\n  p: { commands: [/tmp/x] }\n", "3:19", "/tmp, which the pen may write", ""},
		{"command in a write tree", "version: 1\nprofiles:\n  p: { commands: [/srv/bin/x], fs: { write: [\"${workspace}\", /srv] } }\n", "3:19", "/srv, which the pen may write", ""},
		{"empty args", "version: 1\nprofiles:\n  p:\n    commands:\n      - path: git\n        args: { allow: [] }\n", "6:24", "an empty list allows no arguments", ""},
		{"command key", "version: 1\nprofiles:\n  p:\n    commands:\n      - pth: git\n", "5:9", `unknown key "pth"`, "did you mean path?"},
		{"env name", head + "    env: { set: { \"A=B\": x } }\n", "5:19", "holds =", ""},
		{"env star", head + "    env: { allow: [\"A*B\"] }\n", "5:20", "a star stands only at the end", ""},
		{"env variable", head + "    env: { set: { A: \"${hom}\" } }\n", "5:22", "unknown variable ${hom}", "${home}"},
		{"syscall", head + "    seccomp: { allow: [\"Bad-Name\"] }\n", "5:24", "not the name of a system call", ""},
		{"output", head + "    output: { keep: 8MiB, limit: 1MiB }\n", "5:21", "keep is more than", ""},
		{"extends unknown", head + "    extends: q\n", "5:14", `unknown profile "q"`, ""},
		{"extends itself", head + "    extends: p\n", "5:14", "a circle in extends: p → p", ""},
		{"profile name", "version: 1\nprofiles:\n  \"a b\": { commands: [ls] }\n", "3:3", "is not a name", ""},
		{"empty profile", "version: 1\nprofiles:\n  p:\n", "3:3", "is empty", ""},
		{"caller without match", head + "callers: [ { profiles: [p] } ]\n", "5:14", "a caller without match", ""},
		{"empty match", head + "callers: [ { match: {}, profiles: [p] } ]\n", "5:21", "an empty match", "users"},
		{"empty users", head + "callers: [ { match: { users: [] }, profiles: [p] } ]\n", "5:30", "an empty list matches nobody", ""},
		{"no profiles", head + "callers: [ { match: { uid: 1 } } ]\n", "5:14", "a caller without profiles", ""},
		{"unknown profile of a caller", head + "callers: [ { match: { uid: 1 }, profiles: [q] } ]\n", "5:44", `unknown profile "q"`, ""},
		{"profile twice", head + "callers: [ { match: { uid: 1 }, profiles: [p, p] } ]\n", "5:47", "listed twice", ""},
		{"uid -1", head + "callers: [ { match: { uid: 4294967295 }, profiles: [p] } ]\n", "5:28", "not a whole number", ""},
		{"unit", head + "callers: [ { match: { units: [\"a[\"] }, profiles: [p] } ]\n", "5:31", "not a pattern for units", ""},
		{"manage", head + "callers: [ { match: { uid: 1 }, profiles: [p], manage: al } ]\n", "5:56", `unknown reach "al"`, "did you mean all?"},
		{"token", head + "callers: [ { match: { uid: 1 }, profiles: [p], auth_token_file: x } ]\n", "5:65", "not an absolute path", ""},
		{"audit", head + "audit: { sync: always }\n", "5:16", `unknown sync "always"`, ""},
		{"audit interval", head + "audit: { interval: 0 }\n", "5:20", "not between", ""},
		{"dynamic", head + "dynamic: { first: 5 }\n", "5:19", "not a whole number", ""},
		{"dynamic range", head + "dynamic: { first: 4294967000, count: 65536 }\n", "5:12", "beyond the last uid", ""},
		{"deep", "version: 1\na: " + strings.Repeat("[", 40) + "\n", "2:36", "nested too deeply", ""},
		{"deep lists", "version: 1\na:\n " + strings.Repeat("- ", 40) + "\n", "3:66", "nested too deeply", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list := problems(t, Source{"p.yaml", []byte(tc.text)})
			for _, p := range list {
				if p.Pos.String() == "p.yaml:"+tc.at && strings.Contains(p.Text, tc.want) && strings.Contains(p.Hint, tc.hint) {
					return
				}
			}
			t.Errorf("Parse(%q) = %v; want %s %q (%q)", tc.text, list, tc.at, tc.want, tc.hint)
		})
	}
}

func TestSourcesAreJoined(t *testing.T) {
	first := Source{"policy.yaml", []byte("version: 1\ncallers: [ { name: a, match: { uid: 1 }, profiles: [one] } ]\nprofiles: { one: { commands: [ls] } }\naudit: { sync: each }\n")}
	second := Source{"policy.d/10.yaml", []byte("version: 1\ncallers: [ { name: b, match: { uid: 1 }, profiles: [two] } ]\nprofiles: { two: { extends: one, commands: [cat] } }\ndynamic: { first: 5000, count: 10 }\n")}
	p := mustParse(t, first, second)
	if got, want := p.Profiles(), []string{"one", "two"}; !cmp.Equal(got, want) {
		t.Errorf("Profiles() = %v; want %v", got, want)
	}
	a, err := p.Admit(Caller{UID: 1})
	if err != nil || a.Caller != "a" {
		t.Errorf("Admit(uid 1) = %v, %v; want the rule of the first source", a, err)
	}
	if p.Audit().Sync != SyncEach || p.Dynamic() != (DynamicRange{5000, 10}) {
		t.Errorf("Audit(), Dynamic() = %v, %v; want each, {5000 10}", p.Audit(), p.Dynamic())
	}
	third := Source{"policy.d/20.yaml", []byte("version: 1\ncallers: [ { name: a, match: { uid: 2 }, profiles: [one] } ]\nprofiles: { one: { commands: [rm] } }\naudit: {}\n")}
	var got []string
	for _, one := range problems(t, first, second, third) {
		got = append(got, one.String())
	}
	want := []string{
		`policy.d/20.yaml:2:14: caller "a" is there already (first at policy.yaml:2:14)`,
		`policy.d/20.yaml:3:13: profile "one" is there already (first at policy.yaml:3:13; use extends)`,
		`policy.d/20.yaml:4:8: audit is there already (first at policy.yaml:4:10)`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems of three sources (-want +got):\n%s", diff)
	}
}

func TestExtendsCircle(t *testing.T) {
	list := problems(t, Source{"p.yaml", []byte("version: 1\nprofiles:\n  a: { extends: b, commands: [ls] }\n  b: { extends: c }\n  c: { extends: a }\n")})
	if len(list) != 1 || !strings.Contains(list[0].Text, "a → b → c → a") {
		t.Errorf("Parse = %v; want one problem with a → b → c → a", list)
	}
}

func TestExtendsKeepsDenies(t *testing.T) {
	p := mustParse(t, Source{"p.yaml", []byte(`version: 1
profiles:
  base:
    commands: [{ path: git, args: { deny: ["push **"] } }]
    env: { deny: ["A*"], set: { X: "1", Y: "2" } }
    fs: { deny: [ "${workspace}/.git" ] }
    seccomp: { deny: [kill] }
    timeout: { wall: 10s }
    rlimits: { nofile: 100 }
  child:
    extends: base
    commands: [git]
    env: { deny: [B], set: { X: "3" } }
    fs: { deny: [ "${workspace}/x" ] }
    seccomp: { deny: [ptrace] }
    timeout: { wall: 1h }
  sibling: { extends: base, commands: [ls] }
`)})
	f := p.profile("child")
	if got := texts(f.fs.deny.v); !cmp.Equal(got, []string{"${workspace}/.git", "${workspace}/x"}) {
		t.Errorf("fs.deny = %v; want both", got)
	}
	if got := texts(f.env.deny); !cmp.Equal(got, []string{"A*", "B"}) {
		t.Errorf("env.deny = %v; want both", got)
	}
	if got := f.seccomp.v.Deny; !cmp.Equal(got, []string{"kill", "ptrace"}) {
		t.Errorf("seccomp.deny = %v; want both", got)
	}
	if got := f.resolvedTimeout().Wall; got != time.Hour {
		t.Errorf("timeout.wall = %v; want the own one", got)
	}
	if len(f.env.set) != 2 || f.env.set[0].name != "Y" || f.env.set[1].value != "3" {
		t.Errorf("env.set = %v; want Y of the parent and the own X", f.env.set)
	}
	if got := len(p.profile("base").commands); got != 1 {
		t.Errorf("base has %d commands after inheritance; want 1", got)
	}
	if got := texts(p.profile("sibling").fs.deny.v); !cmp.Equal(got, []string{"${workspace}/.git"}) {
		t.Errorf("sibling's fs.deny = %v; want the parent's alone", got)
	}
}

func TestUnits(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Bytes
		ok   bool
	}{
		{"0", 0, true},
		{"1B", 1, true},
		{"512MiB", 512 * MiB, true},
		{"2GiB", 2 * GiB, true},
		{"8388607TiB", 8388607 * TiB, true},
		{"8388608TiB", 0, false},
		{"", 0, false},
		{"B", 0, false},
		{"1", 0, false},
		{"1.5GiB", 0, false},
		{"1 GiB", 0, false},
		{"+1B", 0, false},
		{"1gib", 0, false},
		{"0x1B", 0, false},
	} {
		got, err := ParseBytes(tc.in)
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("ParseBytes(%q) = %v, %v; want %v, ok %t", tc.in, got, err, tc.want, tc.ok)
		}
		if err == nil {
			if again, err := ParseBytes(got.String()); err != nil || again != got {
				t.Errorf("ParseBytes(%q) = %v, %v; want %v", got.String(), again, err, got)
			}
		}
	}
	for _, v := range []time.Duration{0, time.Millisecond, 10 * time.Second, 90 * time.Minute, time.Hour, time.Hour + time.Second, 1500 * time.Millisecond, 10 * time.Minute} {
		if got, err := parseTime(formatTime(v)); err != nil || got != v {
			t.Errorf("parseTime(%q) = %v, %v; want %v", formatTime(v), got, err, v)
		}
	}
}

func TestNearest(t *testing.T) {
	words := []string{"commands", "callers", "profiles", "git", "ls", "python3"}
	for in, want := range map[string]string{"comands": "commands", "sl": "ls", "Callers": "callers", "gti": "git", "python": "python3", "zzz": "", "": "", "profile": "profiles"} {
		if got := nearest(in, words); got != want {
			t.Errorf("nearest(%q) = %q; want %q", in, got, want)
		}
	}
}

// TestNameCallers: records and quotas go by a caller's name, so that none has another's.
func TestNameCallers(t *testing.T) {
	p := &Policy{callers: []callerRule{{}, {name: "caller 1"}, {name: "x"}, {}}}
	p.nameCallers()
	seen := map[string]bool{}
	for _, c := range p.callers {
		if c.name == "" || seen[c.name] {
			t.Errorf("callers are named %+v; want each its own name", p.callers)
		}
		seen[c.name] = true
	}
}
