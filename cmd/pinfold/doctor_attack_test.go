package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"strings"
	"testing"

	"pinfold/attack"
	"pinfold/policy"
	"pinfold/sandbox"
)

func testReport() attackReport {
	return attackReport{
		Profile: "tools", Daemon: "private", Added: []string{"commands: /usr/bin/pinfold"}, Seconds: 1.5,
		Attacks: []attackOutcome{
			{"kernel/bpf", attack.Surface, attack.Seccomp, attack.Held, "EPERM"},
			{"network/world", attack.Network, attack.NetNS, attack.NotApplicable, "net: host: policy gives the host's network"},
			{"stage/kill", attack.Stage, attack.IDs, attack.Broken, "it succeeded; ids must answer EPERM"},
		},
	}
}

func TestAttackReportText(t *testing.T) {
	got := testReport().text(style{})
	for _, want := range []string{
		"added to the policy: commands: /usr/bin/pinfold\n",
		"held    kernel/bpf     seccomp  EPERM\n",
		"n/a     network/world  netns    net: host: policy gives the host's network\n",
		"BROKEN  stage/kill     ids      it succeeded; ids must answer EPERM\n",
		"profile tools, daemon private: 1 attacks held, 1 broken, 1 not applicable, in 1.5 s\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("text =\n%s\nwant %q in it", got, want)
		}
	}
}

func TestAttackReportFormats(t *testing.T) {
	text, err := reportFormats()[formatJSON](testReport(), style{})
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Attacks []map[string]string `json:"attacks"`
	}
	if err := json.Unmarshal([]byte(text), &back); err != nil || len(back.Attacks) != 3 {
		t.Fatalf("json = %d attacks, %v; want 3", len(back.Attacks), err)
	}
	if got := back.Attacks[2]; got["id"] != "stage/kill" || got["class"] != "stage" || got["layer"] != "ids" || got["result"] != "broken" || got["reason"] == "" || len(got) != 5 {
		t.Errorf("third attack = %v; want the five keys", got)
	}
	text, err = reportFormats()[formatJUnit](testReport(), style{})
	if err != nil {
		t.Fatal(err)
	}
	var suite junitSuite
	if err := xml.Unmarshal([]byte(text), &suite); err != nil || suite.Tests != 3 || suite.Failures != 1 || suite.Skipped != 1 || len(suite.Cases) != 3 || suite.Cases[2].Failure == nil {
		t.Errorf("junit = %+v, %v; want three cases, the last failed", suite, err)
	}
}

// What the policy gives, or switches off, is never held.
func TestAttackNeeds(t *testing.T) {
	g := &ground{
		spec: sandbox.Profile{
			Net: sandbox.NetHost, RootMap: true, Controls: []sandbox.Need{{Control: sandbox.ControlLandlock, Level: sandbox.LevelOff}},
			View: []sandbox.Entry{{Kind: sandbox.EntryBind, Path: "/etc", Source: "/etc"}},
		},
		grant: &policy.Grant{Exec: policy.ExecAnything, Read: []policy.PathRule{{Path: "/etc", Rule: policy.Rule{File: "p.yaml", Line: 7, Text: "fs.read"}}}},
	}
	tests := []struct {
		name string
		a    attack.Attack
		why  string // begins so; empty: it applies
	}{
		{"nothing", attack.Attack{Layer: attack.Seccomp}, ""},
		{"network", attack.Attack{Needs: []attack.Need{attack.NetNone}}, "net: host"},
		{"listed", attack.Attack{Needs: []attack.Need{attack.ExecListed}}, "exec: anything"},
		{"root", attack.Attack{Needs: []attack.Need{attack.NotRoot}}, "allow_root"},
		{"scope", attack.Attack{Needs: []attack.Need{attack.Scoped}}, "the record shows Landlock ABI 0"},
		{"apart", attack.Attack{Needs: []attack.Need{attack.Apart}}, "net: host: the record shows Landlock ABI 0"},
		{"open files", attack.Attack{Needs: []attack.Need{attack.FileLimit}}, "policy allows more"},
		{"another need", attack.Attack{Needs: []attack.Need{"x"}}, "it needs x"},
		{"layer off", attack.Attack{Layer: attack.Landlock}, "controls: landlock: off"},
		{"given", attack.Attack{Reads: "/etc/passwd"}, "policy gives /etc/passwd [p.yaml:7"},
		{"not writable", attack.Attack{Writes: "/etc/passwd"}, ""},
		{"absent", attack.Attack{Reads: "/no/such/thing"}, "this host has no /no/such/thing"},
		{"not given", attack.Attack{Reads: "/usr"}, ""},
	}
	for _, tt := range tests {
		if got := g.without(tt.a); got != tt.why && (tt.why == "" || !strings.HasPrefix(got, tt.why)) {
			t.Errorf("without(%s) = %q; want %q", tt.name, got, tt.why)
		}
	}
}

// An attack that was to be made and has no answer is broken, not held.
func TestAttackWithoutAnswer(t *testing.T) {
	g := &ground{}
	g.judge(map[string]string{"kernel/bpf": "EPERM", "kernel/reboot": ""}, map[string]string{"kernel/swapon": "not here"})
	got := map[string]attack.Verdict{}
	for _, o := range g.report.Attacks {
		got[o.ID] = o.Result
	}
	for id, want := range map[string]attack.Verdict{"kernel/bpf": attack.Held, "kernel/reboot": attack.Broken, "kernel/swapon": attack.NotApplicable, "kernel/acct": attack.Broken} {
		if got[id] != want {
			t.Errorf("%s is %s; want %s", id, got[id], want)
		}
	}
	if _, there := got["resources/fork-bomb"]; there || len(got) < 100 {
		t.Errorf("%d attacks, the fork bomb among them: %v; want at least 100 that are harmless", len(got), there)
	}
}

// The policy of the private daemon is the profile, with this program and nothing more.
func TestSuit(t *testing.T) {
	const text = `version: 1
callers: [ { name: all, match: { users: ["*"] }, profiles: [narrow, other], run_as: dynamic } ]
profiles:
  narrow:
    commands: [ls]
    exec: listed
    workspace: { under: [/srv], else: refuse }
    env: { envdir: /etc/secrets }
    fs: { read: [/usr/share] }
  other: { commands: [cat] }
`
	p, err := policy.Parse(policy.Source{Name: "p.yaml", Data: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := suit(p, "", "/opt/pinfold")
	if err != nil {
		t.Fatal(err)
	}
	q, err := policy.Parse(policy.Source{Name: "suited.yaml", Data: s.source})
	if err != nil {
		t.Fatalf("Parse(suited) = %v; want none\n%s", err, s.source)
	}
	shown, err := q.Show(suitName)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- ls\n", "- /opt/pinfold\n", "exec: listed\n", "read: [ /usr/share, /opt/pinfold ]\n", "under: [ /srv ], else: scratch }"} {
		if !strings.Contains(shown, want) {
			t.Errorf("suited profile =\n%s\nwant %q in it", shown, want)
		}
	}
	if strings.Contains(shown, "envdir") || !strings.Contains(string(s.source), "run_as: \"dynamic\"") {
		t.Errorf("suited policy =\n%s\nwant no envdir, and run_as of the caller", s.source)
	}
	if want := "commands: /opt/pinfold; fs.read: /opt/pinfold; no env.envdir: the attacker gets no secrets; workspace.else: scratch"; strings.Join(s.added, "; ") != want {
		t.Errorf("added = %q; want %q", s.added, want)
	}
	who, err := callerNamed("")
	if err != nil {
		t.Fatal(err)
	}
	if a, err := q.Admit(who); err != nil || strings.Join(a.Profiles, " ") != suitName {
		t.Errorf("Admit = %v, %v; want %s alone for uid %d", a, err, suitName, os.Getuid())
	}
	if _, err := suit(p, "third", "/opt/pinfold"); err == nil || !strings.Contains(err.Error(), "narrow, other") {
		t.Errorf("suit(third) = %v; want the profiles of the caller", err)
	}
}
