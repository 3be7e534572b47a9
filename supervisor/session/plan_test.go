package session

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"pinfold/cgroup"
	"pinfold/policy"
	"pinfold/proto"
	"pinfold/sandbox"
)

var update = flag.Bool("update", false, "write the golden files anew")

const agentPolicy = `version: 1
callers:
  - name: agents
    match: { uid: 1000 }
    profiles: [work, strict]
profiles:
  work:
    commands: [git]
    workspace: { under: ["${home}"], else: scratch }
    env: { set: { PAGER: cat } }
    fs:
      read: [/usr, /bin, /lib, /lib64, /etc/ssl]
      write: ["${workspace}", /srv/shared]
      deny: ["${workspace}/.git/hooks"]
      absent: check
      tmp: { size: 64MiB, exec: false }
    rlimits: { nofile: 1024, core: 0 }
    cgroup: { memory: 512MiB, pids: 64, cpu: 1.5 }
    timeout: { wall: 1m, stop: 2s }
  strict:
    extends: work
    commands: [ls]
    run_as: dynamic
    exec: listed
    seccomp: strict
    fs: { home: none }
    userns: on
`

// grant decides one command of a policy for a caller, with facts as look would
// give them.
func grant(t *testing.T, source policy.Source, c policy.Caller, r policy.Request) *policy.Grant {
	t.Helper()
	p, err := policy.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	p.Bind(policy.IDs{})
	cand := p.Candidates(c, r)
	var f policy.Facts
	for i, name := range cand.Programs {
		path := name
		if !filepath.IsAbs(path) {
			path = "/usr/bin/" + name
		}
		f.Programs = append(f.Programs, policy.Fact{Name: name, Path: path, ID: policy.Identity{Dev: 7, Ino: uint64(100 + i)}, Mode: 0o100755, Kind: policy.KindELF, Interp: "/lib64/ld-linux-x86-64.so.2", Executable: true})
	}
	dir := func(p string, uid uint32, ino uint64) policy.Fact {
		return policy.Fact{Name: p, Path: p, ID: policy.Identity{Dev: 7, Ino: ino}, UID: uid, GID: uid, Mode: 0o40755, Kind: policy.KindDir}
	}
	for i, u := range cand.Under {
		f.Under = append(f.Under, dir(u, c.UID, uint64(200+i)))
	}
	if cand.Dir != "" {
		f.Dir = dir(cand.Dir, c.UID, 300)
	}
	g, err := p.Decide(c, r, f)
	if err != nil {
		t.Fatalf("Decide(%v) = %v; want a grant", r.Cmd, err)
	}
	return g
}

func agent() policy.Caller {
	return policy.Caller{UID: 1000, GID: 1000, Name: "agent", Home: "/home/agent", UnitKnown: true}
}

// The golden files show what each line of a policy becomes: an auditor's reading.
func TestPlanGolden(t *testing.T) {
	custom := policy.Source{Name: "policy.yaml", Data: []byte(agentPolicy)}
	root := policy.Caller{Name: "root", Home: "/root", UnitKnown: true}
	job := Place{Name: "pen", UID: 1900000001, GID: 1900000001, Cgroup: "callers/0/s/p", Work: sandbox.Identity{Dev: 9, Ino: 1}, Home: sandbox.Identity{Dev: 9, Ino: 2}, Stdin: sandbox.StdinPipe}
	own := job
	own.Name, own.UID, own.GID, own.DiskUID, own.DiskGID = "agent", 1000, 1000, 1000, 1000
	dyn := job
	dyn.DiskUID, dyn.DiskGID, dyn.Listed = 1000, 1000, []string{"/usr/bin/ls", "/lib64/ld-linux-x86-64.so.2"}
	dyn.Join = []cgroup.JoinFile{{Controller: "memory", Path: "callers/1000/s/p/tasks"}}
	tests := []struct {
		name  string
		g     *policy.Grant
		place Place
	}{
		{"default-root", grant(t, policy.DefaultSource(), root, policy.Request{Cmd: []string{"echo", "hi"}}), job},
		{"default-pty", grant(t, policy.DefaultSource(), root, policy.Request{Cmd: []string{"bash"}, PTY: true}), job},
		{"workspace", grant(t, custom, agent(), policy.Request{Cmd: []string{"git", "status"}, Cwd: "/home/agent/project"}), own},
		{"listed-dynamic", grant(t, custom, agent(), policy.Request{Cmd: []string{"ls"}, Cwd: "/home/agent/project"}), dyn},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec, limits := Plan(tt.g, tt.place)
			got, err := json.Marshal(struct {
				Spec   sandbox.Spec
				Limits cgroup.Limits
			}{spec, limits}, jsontext.WithIndent("  "))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", tt.name+".plan.json")
			if *update {
				if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(strings.TrimSpace(string(want)), string(got)); d != "" {
				t.Errorf("Plan() differs from %s (-want +got); -update writes it:\n%s", file, d)
			}
			if err := spec.Validate(); err != nil {
				t.Errorf("Plan() = a spec below the floors: %v", err)
			}
		})
	}
}

func TestPlanNeverNamesTheWorkspaceByPath(t *testing.T) {
	g := grant(t, policy.Source{Name: "p", Data: []byte(agentPolicy)}, agent(), policy.Request{Cmd: []string{"git"}, Cwd: "/home/agent/project"})
	spec, _ := Plan(g, Place{UID: 1000, GID: 1000})
	for _, e := range spec.Profile.View {
		if e.Path == "/home/agent/project" || below(e.Path, "/home/agent/project") {
			t.Errorf("view has %s by name; want it mounted from the descriptor that was looked at", e.Path)
		}
	}
	if n := len(spec.Profile.Attach); n != 2 || spec.Profile.Attach[0].Path != "/home/agent" || spec.Profile.Attach[1].Path != "/home/agent/project" {
		t.Errorf("attaches = %+v; want the home, then the workspace in it", spec.Profile.Attach)
	}
	if m := mountpoint(g); m != "project" {
		t.Errorf("mountpoint() = %q; want project", m)
	}
}

func TestCheckHost(t *testing.T) {
	g := grant(t, policy.DefaultSource(), policy.Caller{Name: "root", UnitKnown: true}, policy.Request{Cmd: []string{"echo"}})
	if err := CheckHost(g, nil, nil); err != nil {
		t.Errorf("CheckHost() on a host with all = %v; want nil", err)
	}
	err := CheckHost(g, []sandbox.Lack{{Control: sandbox.ControlLandlock, Why: "not in lsm=", Fix: "boot with lsm=landlock"}}, map[string]string{"memory": "cgroup_disable=memory", "io": "none"})
	lacking, ok := errors.AsType[*LackingError](err)
	if !ok || lacking.Control != sandbox.ControlLandlock || lacking.Fix != "boot with lsm=landlock" {
		t.Errorf("CheckHost() without Landlock = %v; want a LackingError that names it and the cure", err)
	}
	if !strings.Contains(err.Error(), "cgroup.memory") {
		t.Errorf("CheckHost() = %v; want the memory controller named too", err)
	}
	if strings.Contains(err.Error(), "cgroup.io") {
		t.Errorf("CheckHost() = %v; want nothing of io, which is wanted at best effort", err)
	}
}

// TestLackingControlsCrossInOneLine with the first cure that is known.
func TestLackingControlsCrossInOneLine(t *testing.T) {
	g := grant(t, policy.DefaultSource(), policy.Caller{Name: "root", UnitKnown: true}, policy.Request{Cmd: []string{"echo"}})
	err := CheckHost(g, []sandbox.Lack{{Control: sandbox.ControlSeccomp, Why: "not built in"}, {Control: sandbox.ControlLandlock, Why: "not in lsm=", Fix: "boot with lsm=landlock"}}, nil)
	resp := failure(&proto.SpawnReq{}, err)
	if strings.Contains(resp.Error, "\n") || strings.Count(resp.Error, "; ") != 1 {
		t.Errorf("failure(two lacks).Error = %q; want one line that names both", resp.Error)
	}
	if resp.Code != proto.CodeUnsupported || resp.Hint != "boot with lsm=landlock" {
		t.Errorf("failure(two lacks) = %s, hint %q; want unsupported and the cure of Landlock", resp.Code, resp.Hint)
	}
}

func TestTidyKeepsParentsFirstAndRights(t *testing.T) {
	es := tidy([]sandbox.Entry{
		{Kind: sandbox.EntryBind, Path: "/usr/bin/ls", Source: "/usr/bin/ls"},
		{Kind: sandbox.EntryBind, Path: "/usr", Source: "/usr", NoExec: true},
		{Kind: sandbox.EntryBind, Path: "/usr/share", Source: "/usr/share", NoExec: true},
		{Kind: sandbox.EntryFile, Path: "/etc/passwd", Data: "x"},
		{Kind: sandbox.EntryBind, Path: "/etc/passwd", Source: "/etc/passwd"},
	})
	var got []string
	for _, e := range es {
		got = append(got, string(e.Kind)+" "+e.Path)
	}
	want := []string{"file /etc/passwd", "bind /usr", "bind /usr/bin/ls"}
	if !slices.Equal(got, want) {
		t.Errorf("tidy() = %v; want %v: the listed file keeps its own bind, what a bind shows already goes, a synthetic file beats the host's", got, want)
	}
}

// TestPlanBuiltInDenies has a pen write the home itself: what is denied there and
// absent is never passed over in silence.
func TestPlanBuiltInDenies(t *testing.T) {
	source := policy.Source{Name: "policy.yaml", Data: []byte(`version: 1
callers: [ { name: agents, match: { uid: 1000 }, profiles: [work] } ]
profiles:
  work:
    commands: [git]
    fs: { read: [ /usr, "${home}" ], write: [ "${workspace}", "${home}" ], home: none }
`)}
	spec, _ := Plan(grant(t, source, agent(), policy.Request{Cmd: []string{"git"}}), Place{UID: 1000, GID: 1000})
	for _, want := range []sandbox.Deny{
		{Path: "/home/agent/.ssh", Absent: sandbox.AbsentCheck},
		{Path: "/home/agent/.bashrc", Absent: sandbox.AbsentCheck, Readable: true},
	} {
		if !slices.Contains(spec.Profile.Deny, want) {
			t.Errorf("Plan() denies %+v; want %+v among them", spec.Profile.Deny, want)
		}
	}
}
