package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAdmit(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte(`version: 1
callers:
  - { name: unit, match: { users: [agent], units: ["agent@*.service", x.service] }, profiles: [p] }
  - { name: both, match: { users: [agent, other], groups: [agents] }, profiles: [p] }
  - { name: numbers, match: { uid: [7, 8], gid: 9 }, profiles: [p] }
  - { name: ghost, match: { users: [ghost] }, profiles: [p] }
  - { name: "root", match: { users: [root] }, profiles: [p], run_as: dynamic, manage: all, detach_ttl: off, auth_token_file: /etc/pinfold/token }
profiles: { p: { commands: [ls] } }
`)})
	if diff := cmp.Diff(Names{[]string{"agent", "ghost", "other", "root"}, []string{"agents"}}, p.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
	warnings := p.Bind(IDs{Users: map[string]User{"agent": {UID: 1000}, "other": {UID: 1001}, "root": {}}, Groups: map[string]uint32{"agents": 50}})
	if len(warnings) != 1 || !strings.Contains(warnings[0].String(), `t.yaml:6:37: this host has no user "ghost"`) {
		t.Errorf("Bind = %v; want one warning about ghost", warnings)
	}
	for _, tc := range []struct {
		c    Caller
		want string
	}{
		{Caller{UID: 1000, GIDs: []uint32{50}, Unit: "agent@3.service", UnitKnown: true}, "unit"},
		{Caller{UID: 1000, GIDs: []uint32{50}, Unit: "user@1000.service", UnitKnown: true}, "both"},
		{Caller{UID: 1000, GIDs: []uint32{50}, Unit: "agent@3.service"}, "both"},
		{Caller{UID: 1001, GID: 50}, "both"},
		{Caller{UID: 1001, GID: 51}, ""},
		{Caller{UID: 1002, GID: 50, Name: "agent"}, ""}, // ids decide, not names that somebody gave
		{Caller{UID: 7, GID: 9}, "numbers"},
		{Caller{UID: 8, GID: 1, GIDs: []uint32{9}}, "numbers"},
		{Caller{UID: 8, GID: 1}, ""},
		{Caller{UID: 9, GID: 9}, ""},
		{Caller{UID: 0}, "root"},
	} {
		a, err := p.Admit(tc.c)
		got := ""
		if err == nil {
			got = a.Caller
		}
		var d *Denied
		if got != tc.want || err != nil && (!errors.As(err, &d) || d.Code != CodeUnauthorized) {
			t.Errorf("Admit(%+v) = %q, %v; want %q", tc.c, got, err, tc.want)
		}
	}
	a, err := p.Admit(Caller{UID: 0})
	if err != nil || a.Manage != ManageAll || a.DetachTTL != 0 || a.AuthTokenFile != "/etc/pinfold/token" || a.Rule.Line != 7 {
		t.Errorf("Admit(root) = %+v, %v", a, err)
	}
	a, err = p.Admit(Caller{UID: 7, GID: 9})
	want := Quota{Sessions: defaultSessions, Processes: defaultProcesses, Memory: Unset, Pids: Unset, Output: defaultOutput}
	if err != nil || a.Quota != want || a.DetachTTL != 30*time.Second || a.Retention != time.Hour || a.Manage != ManageOwn {
		t.Errorf("Admit(uid 7) = %+v, %v; want the defaults", a, err)
	}
	a, err = p.Admit(Caller{UID: 1000, GIDs: []uint32{50}})
	if err != nil || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "unit of the caller is not known") {
		t.Errorf("Admit(unknown unit) = %+v, %v; want a note that says why the first rule did not match", a, err)
	}
}

func TestUnboundNamesMatchNobody(t *testing.T) {
	p := mustParse(t, Source{"t.yaml", []byte("version: 1\ncallers: [ { match: { users: [root] }, profiles: [p] } ]\nprofiles: { p: { commands: [ls] } }\n")})
	if a, err := p.Admit(Caller{UID: 0, Name: "root"}); err == nil {
		t.Errorf("Admit(uid 0) before Bind = %+v; want a refusal", a)
	}
}
