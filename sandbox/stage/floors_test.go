package stage

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
)

func TestMayRun(t *testing.T) {
	s := &server{config: Config{DynamicFirst: 1900000000, DynamicCount: 10, Named: []uint32{1}}}
	peer := linux.Peer{UID: 1000, GID: 1000, Groups: []uint32{1000, 27}}
	own, err := primaryGroup("/etc/passwd", 1)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		uid, gid uint32
		peer     linux.Peer
		ok       bool
	}{
		{"the caller", 1000, 1000, peer, true},
		{"the caller with a group of its own", 1000, 27, peer, true},
		{"the caller with another group", 1000, 42, peer, false},
		{"another user", 1001, 1001, peer, false},
		{"root", 0, 1000, peer, false},
		{"group root", 1000, 0, peer, false},
		{"root asks as root", 0, 0, linux.Peer{}, false},
		{"dynamic", 1900000001, 1900000001, peer, true},
		{"dynamic with a host group", 1900000001, 42, peer, false},
		{"the last dynamic", 1900000009, 1900000009, peer, true},
		{"beyond the last dynamic", 1900000010, 1900000010, peer, false},
		{"PID 1's own", 1900000000, 1900000000, peer, false},
		{"PID 1's own group", 1000, 1900000000, peer, false},
		{"named", 1, own, peer, true},
		{"named with another group", 1, own + 41, peer, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := s.mayRun(tt.uid, tt.gid, tt.peer); (err == nil) != tt.ok {
				t.Errorf("mayRun(%d, %d) = %v; want ok %v", tt.uid, tt.gid, err, tt.ok)
			}
		})
	}
}

func TestFloors(t *testing.T) {
	s := &server{config: Config{Cgroups: []sandbox.CgroupHier{{Dir: "/sys/fs/cgroup/x"}}}}
	peer := linux.Peer{UID: 1000, GID: 1000}
	idmap := &sandbox.Profile{Attach: []sandbox.Attach{{Path: "/w", IDMap: true}}}
	tests := []struct {
		name string
		f    *sandbox.Profile
		c    sandbox.Site
		want string
	}{
		{"plain", &sandbox.Profile{}, sandbox.Site{}, ""},
		{"the caller's files", idmap, sandbox.Site{DiskUID: 1000, DiskGID: 1000}, ""},
		{"root's files", idmap, sandbox.Site{DiskUID: 0, DiskGID: 1000}, "cannot map owner"},
		{"another's files", idmap, sandbox.Site{DiskUID: 1001, DiskGID: 1000}, "cannot map owner"},
		{"another group's files", idmap, sandbox.Site{DiskUID: 1000, DiskGID: 42}, "cannot map owner"},
		{"a hierarchy that is not ours", &sandbox.Profile{}, sandbox.Site{Join: []sandbox.JoinFile{{Controller: "devices", Path: "a/tasks"}}}, "cannot join"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.UID, tt.c.GID = 1000, 1000
			err := s.floors(&tt.c, tt.f, peer)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("floors() = %v; want %q", err, tt.want)
			}
		})
	}
}

func TestPrimaryGroup(t *testing.T) {
	f := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(f, []byte("root:x:0:0::/:\nsvc:x:12:34::/:\nbad\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]uint32{12: 34, 99: 99} {
		if got, err := primaryGroup(f, uid); err != nil || got != want {
			t.Errorf("primaryGroup(%d) = %d, %v; want %d", uid, got, err, want)
		}
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		args []string
		ok   bool
	}{
		{[]string{"--state", "/s", "--cgroup", "=/sys/fs/cgroup/a", "--cgroup", "memory=/m", "--dynamic", "1900000000:65536", "--named", "33"}, true},
		{[]string{"--state", "s"}, false},
		{[]string{}, false},
		{[]string{"--state", "/s", "--cgroup", "/x"}, false},
		{[]string{"--state", "/s", "--cgroup", "=/x/.."}, false},
		{[]string{"--state", "/s", "--dynamic", "0:10"}, false},
		{[]string{"--state", "/s", "--dynamic", "4294967295:10"}, false},
		{[]string{"--state", "/s", "--named", "0"}, false},
		{[]string{"--state", "/s", "more"}, false},
	}
	for _, tt := range tests {
		if _, err := parse(tt.args, io.Discard); (err == nil) != tt.ok {
			t.Errorf("parse(%q) = %v; want ok %v", tt.args, err, tt.ok)
		}
	}
}
