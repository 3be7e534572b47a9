package attack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/attack"
	"pinfold/test/testkit"
)

// TestWeakerPens takes one layer away at a time: the attacks that it held get through,
// and are judged so. A suite that cannot say this proves nothing by saying held.
func TestWeakerPens(t *testing.T) {
	bin := built(t)
	work := filepath.Join(bin, "weaker")
	for _, dir := range []string{work, filepath.Join(bin, "view")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := start(t, bin, work, filepath.Join(bin, "w"))
	tests := []struct {
		profile, without string
		broken           string // through the hole
		held             string // beside it
	}{
		{"net", "network namespace and Landlock", "landlock/abstract-stream landlock/abstract-datagram landlock/abstract-packet network/loopback daemons/abstract-stream neighbours/count-connections", "kernel/socket-packet network/add-address"},
		{"net-scoped", "network namespace", "network/loopback neighbours/count-connections", "landlock/abstract-stream landlock/abstract-datagram landlock/abstract-packet"},
		{"files", "narrow view", "paths/read-etc-pamd paths/read-var-log proc/sys-class-net landlock/mkdir landlock/create landlock/chmod landlock/rename", "paths/read-etc-shadow proc/sys-kernel"},
		{"anything", "exec: listed", "allowlist/copy-in-workspace allowlist/map-code-in-workspace allowlist/memfd allowlist/memfd-execveat", "kernel/mount-tmpfs"},
		{"default", "exec: listed and the strict filter", "allowlist/unlisted-env allowlist/unlisted-sh allowlist/copy-in-tmp kernel/strict-sysv kernel/strict-sync", "allowlist/copy-in-dev-shm kernel/bpf"},
		{"limits", "limit of processes", "resources/fork-bomb", "resources/nice"},
	}
	for _, tt := range tests {
		t.Run("without "+tt.without, func(t *testing.T) {
			if tt.profile == "net-scoped" {
				testkit.NeedLandlock(t, scopesABI)
			}
			p := pen{name: tt.profile, uid: ordinary, profile: tt.profile, work: workspace(t, work, ordinary)}
			s := targets(t, d, p.uid).Scene
			if tt.profile == "files" {
				s.View = filepath.Join(bin, "view", "usr")
				if err := os.MkdirAll(s.View+"/bin", 0o755); err != nil {
					t.Fatal(err)
				}
				s.File = s.View + "/bin/env"
				if err := os.WriteFile(s.File, nil, 0o755); err != nil {
					t.Fatal(err)
				}
				own(t, filepath.Join(bin, "view"), ordinary)
			}
			told := d.attackIn(t, p, s, named(t, tt.broken+" "+tt.held))
			for _, a := range named(t, tt.broken) {
				answer, made := told[a.ID]
				if v, why := a.Judge(answer); !made || v != attack.Broken || answer != "" {
					t.Errorf("%s without %s is %s (%s); want it broken by a success", a.ID, tt.without, v, why)
				}
			}
			for _, a := range named(t, tt.held) {
				if v, why := a.Judge(told[a.ID]); v != attack.Held { // no answer is none of its answers
					t.Errorf("%s without %s is %s (%s); want it held by %s", a.ID, tt.without, v, why, a.Layer)
				}
			}
		})
	}
}

// named finds attacks by their names.
func named(t *testing.T, ids string) []attack.Attack {
	t.Helper()
	var out []attack.Attack
	for id := range strings.FieldsSeq(ids) {
		n := len(out)
		for _, a := range attack.Table() {
			if a.ID == id {
				out = append(out, a)
			}
		}
		if len(out) != n+1 {
			t.Fatalf("there is no attack %q", id)
		}
	}
	return out
}
