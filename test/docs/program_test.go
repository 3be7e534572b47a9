package docs

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/policy"
	"pinfold/sandbox"
	"pinfold/supervisor/session"
)

var update = flag.Bool("update", false, "write the generated parts of documents anew")

// Where the Program stands in architecture.md.
const (
	programBegin = "<!-- program -->\n"
	programEnd   = "<!-- /program -->\n"
)

// defaultProgram is what the embedded default policy makes of ls for an ordinary
// user on a host with everything: decided, planned and compiled by the code that
// starts pens.
func defaultProgram(t *testing.T) string {
	t.Helper()
	p, err := policy.Parse(policy.DefaultSource())
	if err != nil {
		t.Fatal(err)
	}
	p.Bind(policy.IDs{})
	who := policy.Caller{UID: 1000, GID: 1000, Name: "agent", Home: "/home/agent", UnitKnown: true}
	ask := policy.Request{Cmd: []string{"ls", "-l"}}
	want := p.Candidates(who, ask)
	var facts policy.Facts
	for i, name := range want.Programs {
		facts.Programs = append(facts.Programs, policy.Fact{
			Name: name, Path: filepath.Join("/usr/bin", name), ID: policy.Identity{Dev: 1, Ino: uint64(i + 1)}, Mode: 0o100755,
			Kind: policy.KindELF, Interp: "/lib64/ld-linux-x86-64.so.2", Executable: true,
		})
	}
	for i, dir := range want.Under {
		facts.Under = append(facts.Under, policy.Fact{
			Name: dir, Path: dir, ID: policy.Identity{Dev: 2, Ino: uint64(i + 1)}, UID: who.UID, GID: who.GID, Mode: 0o40755, Kind: policy.KindDir,
		})
	}
	grant, err := p.Decide(who, ask, facts)
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := session.Plan(grant, session.Place{Name: who.Name, UID: who.UID, GID: who.GID, DiskUID: who.UID, DiskGID: who.GID, Stdin: sandbox.StdinPipe})
	all := sandbox.Features{LandlockABI: 7}
	for _, f := range sandbox.AllFeatures() {
		all.Findings = append(all.Findings, sandbox.Finding{Feature: f, OK: true})
	}
	prog, err := sandbox.Preview(spec.Profile, all, sandbox.JoinProcs)
	if err != nil {
		t.Fatal(err)
	}
	return prog.String()
}

// The Program that architecture.md prints is what compiles today.
func TestProgramInDocs(t *testing.T) {
	text := read(t, "architecture.md")
	before, rest, ok := strings.Cut(text, programBegin)
	shown, after, ok2 := strings.Cut(rest, programEnd)
	if !ok || !ok2 {
		t.Fatalf("architecture.md has no %s…%s", programBegin, programEnd)
	}
	want := "```\n" + defaultProgram(t) + "```\n"
	if *update {
		file := filepath.Join(top, "docs", "architecture.md")
		if err := os.WriteFile(file, []byte(before+programBegin+want+programEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if runtime.GOARCH != "amd64" { // a filter has other numbers there, and so another length
		length := regexp.MustCompile(`\{default, \d+ instructions\}`)
		shown, want = length.ReplaceAllString(shown, "{default}"), length.ReplaceAllString(want, "{default}")
	}
	if d := cmp.Diff(want, shown); d != "" {
		t.Errorf("the Program in architecture.md differs (go test ./test/docs -update writes it anew):\n%s", d)
	}
}
