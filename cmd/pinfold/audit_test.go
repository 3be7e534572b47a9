package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold/audit"
)

// auditLog writes a log with an event of some kinds.
func auditLog(t *testing.T) (string, audit.Head) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := audit.Open(path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mine, other := audit.Subject{Session: "s1", Caller: "c", UID: 1000}, audit.Subject{Session: "s2", UID: 1001}
	for _, e := range []struct {
		of audit.Subject
		is audit.Event
	}{
		{audit.Subject{}, audit.DaemonStarted{Version: "1", PID: 2, Backend: "unified"}},
		{mine, audit.SessionOpened{Role: "agent", PID: 3}},
		{mine, audit.Decision{Process: "p1", Allowed: true, Rule: "r", Profile: "dev", Argv: []string{"echo", "a b", "\x1b[2J"}, Cwd: "/w"}},
		{mine, audit.Started{Process: "p1", PID: 9, Profile: "dev", RunUID: 1000, Program: audit.File{Path: "/bin/echo"}}},
		{mine, audit.Ended{Process: "p1", Verdict: audit.Verdict{Cause: "exited", Code: 3, Usage: audit.Usage{Wall: 0.25}}}},
		{other, audit.Decision{Process: "p2", Code: "denied", Rule: "r2", Argv: []string{"rm"}}},
		{other, audit.StartFailed{Process: "p2", Code: "start_failed", Step: "exec", Reason: "no"}},
		{audit.Subject{UID: audit.ManyUIDs}, audit.Flood{Of: audit.FloodRefused, Count: 3, Since: time.Now()}},
	} {
		if err := l.Append(e.of, e.is); err != nil {
			t.Fatal(err)
		}
	}
	head := l.Head()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return path, head
}

func TestAuditVerify(t *testing.T) {
	path, head := auditLog(t)
	for _, args := range [][]string{nil, {"--head", head.String()}, {"--head", head.SHA256}} {
		got := pinfold(t, "", append([]string{"audit", "verify", "--file", path}, args...)...)
		if got.code != 0 || !strings.Contains(got.stdout, head.String()) || !strings.HasSuffix(got.stdout, "the chain holds\n") {
			t.Errorf("audit verify %q = %+v; want it to hold, with head %s", args, got, head)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	for name, tt := range map[string]struct {
		text, want string
		args       []string
	}{
		"changed":   {strings.Replace(string(whole), `"uid":1001`, `"uid":1000`, 1), path + ":7: ", nil},
		"taken out": {strings.Replace(string(whole), lines[3], "", 1), path + ":4: ", nil},
		"cut off":   {strings.Join(lines[:5], ""), "its end was cut off", []string{"--head", head.String()}},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := pinfold(t, "", append([]string{"audit", "verify", "--file", path}, tt.args...)...)
		if got.code != 1 || !strings.Contains(got.stdout, tt.want) || strings.Contains(got.stdout, "the chain holds") || !strings.Contains(got.stderr, "does not hold") {
			t.Errorf("audit verify of a log %s = %+v; want exit 1 and %q", name, got, tt.want)
		}
	}
	if got := pinfold(t, "", "audit", "verify", "--file", filepath.Join(t.TempDir(), "x")); got.code != 1 {
		t.Errorf("audit verify of no file = %+v; want exit 1", got)
	}
	if got := pinfold(t, "", "audit", "verify", "--head", "12"); got.code != 2 {
		t.Errorf("audit verify --head 12 = %+v; want exit 2", got)
	}
}

func TestAuditShow(t *testing.T) {
	path, _ := auditLog(t)
	for _, tt := range []struct {
		args  []string
		kinds string
	}{
		{nil, "daemon_started session_opened decision started ended decision start_failed flood"},
		{[]string{"--process", "p1"}, "decision started ended"},
		{[]string{"--session", "s2"}, "decision start_failed"},
		{[]string{"--uid", "1000"}, "session_opened decision started ended"},
		{[]string{"--uid", "0"}, "daemon_started"},
		{[]string{"--type", "started", "--type", "flood"}, "started flood"},
		{[]string{"--since", "1h", "--uid", "1001", "--type", "decision"}, "decision"},
		{[]string{"--since", "2999-01-01"}, ""},
	} {
		text := pinfold(t, "", append([]string{"audit", "show", "--file", path}, tt.args...)...)
		raw := pinfold(t, "", append([]string{"audit", "show", "--json", "--file", path}, tt.args...)...)
		var kinds, rawKinds []string
		for line := range strings.Lines(text.stdout) {
			kinds = append(kinds, strings.Fields(line)[2])
		}
		for line := range strings.Lines(raw.stdout) {
			_, rest, _ := strings.Cut(line, `"kind":"`)
			kind, _, _ := strings.Cut(rest, `"`)
			rawKinds = append(rawKinds, kind)
		}
		if text.code != 0 || raw.code != 0 || strings.Join(kinds, " ") != tt.kinds || strings.Join(rawKinds, " ") != tt.kinds {
			t.Errorf("audit show %q = %+v and %+v; want %s", tt.args, text, raw, tt.kinds)
		}
	}
	all := pinfold(t, "", "audit", "show", "--file", path)
	for _, want := range []string{
		`decision  uid 1000  allowed  p1  profile dev  echo "a b" "\x1b[2J"  in /w  rule r  session s1`,
		"ended  uid 1000  p1  exited 3  after 0.250 s  session s1\n", "decision  uid 1001  refused denied  p2  rm  rule r2", "flood  uid of many  refused  3 since ",
	} {
		if !strings.Contains(all.stdout, want) {
			t.Errorf("audit show = %s; want %q in it", all.stdout, want)
		}
	}
	for _, args := range [][]string{{"--type", "x"}, {"--since", "soon"}, {"--uid", "-2"}} {
		if got := pinfold(t, "", append([]string{"audit", "show", "--file", path}, args...)...); got.code != 2 {
			t.Errorf("audit show %q = %+v; want exit 2", args, got)
		}
	}
}

func TestAuditTail(t *testing.T) {
	path, _ := auditLog(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	if got := pinfold(t, "", "audit", "tail", "--json", "-n", "3", "--file", path); got != (result{0, strings.Join(lines[5:], ""), ""}) {
		t.Errorf("audit tail --json -n 3 = %+v; want the last three lines as they are", got)
	}
	if got := pinfold(t, "", "audit", "tail", "-n", "2", "--file", path); got.code != 0 || strings.Count(got.stdout, "\n") != 2 || !strings.Contains(got.stdout, "start_failed") {
		t.Errorf("audit tail -n 2 = %+v; want two lines", got)
	}
	if got := pinfold(t, "", "audit", "tail", "-n", "0", "--file", path); got != (result{0, "", ""}) {
		t.Errorf("audit tail -n 0 = %+v; want nothing", got)
	}
	if got := pinfold(t, "", "audit", "tail", "-n", "1000000", "--file", path); got.code != 2 {
		t.Errorf("audit tail -n 1000000 = %+v; want exit 2", got)
	}
	if err := os.WriteFile(path, append(whole, "\x1b[2J\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := pinfold(t, "", "audit", "tail", "--file", path); got.code != 0 || strings.Count(got.stdout, "\n") != 8 || !strings.HasPrefix(got.stderr, path+": cannot read line 9") {
		t.Errorf("audit tail of a log with a foreign line = %+v; want the records, and the line named", got)
	}
	if got := pinfold(t, "", "audit", "tail", "--file", filepath.Join(t.TempDir(), "x")); got.code != 1 {
		t.Errorf("audit tail of no file = %+v; want exit 1", got)
	}
}
