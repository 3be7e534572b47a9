package supervisor

import (
	"strings"
	"testing"

	"pinfold/policy"
)

const reloadBase = `version: 1
callers: [{ name: any, match: { users: ["*"] }, profiles: [p] }]
profiles: { p: { commands: [ls], run_as: %RUN% } }
%MORE%
`

func bound(t *testing.T, run, more string) *policy.Policy {
	t.Helper()
	text := strings.NewReplacer("%RUN%", run, "%MORE%", more).Replace(reloadBase)
	p, err := policy.Parse(policy.Source{Name: "p.yaml", Data: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	p.Bind(policy.IDs{Users: map[string]policy.User{"one": {UID: 1001, GID: 1001}, "two": {UID: 1002, GID: 1002}}})
	return p
}

func TestReloadable(t *testing.T) {
	tests := []struct {
		oldRun, run, more string
		want              string // in the error; empty: none
	}{
		{"caller", "caller", "", ""},
		{"caller", "dynamic", "", ""},
		{"one", "caller", "", ""},
		{"one", "one", "audit: { on_failure: continue }", ""},
		{"caller", "one", "", "uid 1001"},
		{"one", "two", "", "uid 1002"},
		{"caller", "caller", "audit: { sync: each }", "audit.sync changes"},
		{"caller", "caller", "dynamic: { first: 1900000000, count: 16 }", "dynamic changes"},
	}
	for _, tt := range tests {
		err := reloadable(bound(t, tt.oldRun, ""), bound(t, tt.run, tt.more))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("reloadable(run_as %s to %s, %s) = %v; want %q", tt.oldRun, tt.run, tt.more, err, tt.want)
		}
	}
}
