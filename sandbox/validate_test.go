package sandbox

import (
	"strings"
	"testing"
)

func goodSpec() Spec {
	var controls []Need
	for _, c := range Controls() {
		controls = append(controls, Need{c, LevelRequired})
	}
	return Spec{
		Profile: Profile{
			Name: "p", Hostname: "pen", Proc: ProcMasked, Net: NetNone, Exec: ExecAnything, Stdin: StdinPipe,
			View:    []Entry{{Kind: EntryBind, Path: "/usr", Source: "/usr"}},
			Attach:  []Attach{{Path: "/proj", Writable: true}},
			Private: []Tmpfs{{Path: "/tmp", Size: 1, Inodes: 1, Mode: 0o1777}},
			Seccomp: Filter{Base: "default"}, Controls: controls,
		},
		Site:    Site{UID: 1000, GID: 1000, Attach: []Identity{{1, 2}}, Cgroup: "callers/1000/s/p"},
		Command: Command{Program: "/usr/bin/true", Argv: []string{"true"}, Env: []string{"A=b"}, Dir: "/proj"},
	}
}

func TestValidateGood(t *testing.T) {
	if err := goodSpec().Validate(); err != nil {
		t.Fatalf("Validate() = %v; want nil", err)
	}
}

func TestValidateBad(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Spec)
		want string
	}{
		{"uid 0", func(s *Spec) { s.Site.UID = 0 }, "uid or gid 0"},
		{"gid 0", func(s *Spec) { s.Site.GID = 0 }, "uid or gid 0"},
		{"uid -1", func(s *Spec) { s.Site.UID = ^uint32(0) }, "no uid"},
		{"no argv", func(s *Spec) { s.Command.Argv = nil }, "no arguments"},
		{"NUL in argv", func(s *Spec) { s.Command.Argv = []string{"a\x00b"} }, "argument 0"},
		{"long argument", func(s *Spec) { s.Command.Argv = []string{strings.Repeat("a", MaxArgLen)} }, "argument 0"},
		{"NUL in env", func(s *Spec) { s.Command.Env = []string{"A=\x00"} }, "environment entry 0"},
		{"env without =", func(s *Spec) { s.Command.Env = []string{"A"} }, "not NAME=value"},
		{"env without name", func(s *Spec) { s.Command.Env = []string{"=A"} }, "not NAME=value"},
		{"relative program", func(s *Spec) { s.Command.Program = "true" }, "absolute clean"},
		{"unclean directory", func(s *Spec) { s.Command.Dir = "/srv/../etc" }, "absolute clean"},
		{"cgroup up", func(s *Spec) { s.Site.Cgroup = "../x" }, "below its base"},
		{"cgroup up inside", func(s *Spec) { s.Site.Cgroup = "a/../../x" }, "below its base"},
		{"cgroup absolute", func(s *Spec) { s.Site.Cgroup = "/x" }, "below its base"},
		{"cgroup empty", func(s *Spec) { s.Site.Cgroup = "" }, "below its base"},
		{"join another file", func(s *Spec) { s.Site.Join = []JoinFile{{Controller: "memory", Path: "a/memory.limit_in_bytes"}} }, "tasks or cgroup.procs"},
		{"join up", func(s *Spec) { s.Site.Join = []JoinFile{{Controller: "memory", Path: "../tasks"}} }, "below its base"},
		{"attach facts", func(s *Spec) { s.Site.Attach = nil }, "facts of 0"},
		{"idmap of root", func(s *Spec) { s.Profile.Attach[0].IDMap = true }, "on disk is never"},
		{"seccomp off", func(s *Spec) { setLevel(s, ControlSeccomp, LevelOff) }, "cannot be off"},
		{"caps off", func(s *Spec) { setLevel(s, ControlCaps, LevelOff) }, "cannot be off"},
		{"mounts off", func(s *Spec) { setLevel(s, ControlMounts, LevelOff) }, "cannot be off"},
		{"pidns off", func(s *Spec) { setLevel(s, ControlPidNS, LevelOff) }, "cannot be off"},
		{"ipcns off", func(s *Spec) { setLevel(s, ControlIPCNS, LevelOff) }, "cannot be off"},
		{"bad level", func(s *Spec) { setLevel(s, ControlCPU, "maybe") }, "level"},
		{"a control is missing", func(s *Spec) { s.Profile.Controls = s.Profile.Controls[1:] }, "once each"},
		{"entry of root", func(s *Spec) { s.Profile.View[0].Path = "/" }, "root of the view"},
		{"entry twice", func(s *Spec) { s.Profile.View = append(s.Profile.View, s.Profile.View[0]) }, "twice"},
		{"unknown kind", func(s *Spec) { s.Profile.View[0].Kind = "x" }, "unknown kind"},
		{"a disk as device", func(s *Spec) { s.Profile.View[0] = Entry{Kind: EntryDevice, Path: "/dev/null", Source: "/dev/vda"} }, "not one of"},
		{"device elsewhere", func(s *Spec) { s.Profile.View[0] = Entry{Kind: EntryDevice, Path: "/null", Source: "/dev/null"} }, "outside of /dev"},
		{"NUL in source", func(s *Spec) { s.Profile.View[0].Source = "/a\x00" }, "NUL"},
		{"tmpfs without a size", func(s *Spec) { s.Profile.Private[0].Size = 0 }, "size 0"},
		{"huge tmpfs", func(s *Spec) { s.Profile.Private[0].Size = MaxTmpfs + 1 }, "size"},
		{"tmpfs without inodes", func(s *Spec) { s.Profile.Private[0].Inodes = 0 }, "inodes"},
		{"set-id tmpfs", func(s *Spec) { s.Profile.Private[0].Mode = 0o4777 }, "mode"},
		{"deny above an attach", func(s *Spec) { s.Profile.Deny = []Deny{{Path: "/proj", Absent: AbsentSkip}} }, "holds the attach"},
		{"deny with a bad answer", func(s *Spec) { s.Profile.Deny = []Deny{{Path: "/srv/a", Absent: "x"}} }, "absent"},
		{"rule without access", func(s *Spec) { s.Profile.Landlock.Rules = []Rule{{"/usr", ""}} }, "access"},
		{"rule with other letters", func(s *Spec) { s.Profile.Landlock.Rules = []Rule{{"/usr", "rz"}} }, "access"},
		{"unknown rlimit", func(s *Spec) { s.Profile.Rlimits = []Rlimit{{"x", 1}} }, "unknown rlimit"},
		{"rlimit twice", func(s *Spec) { s.Profile.Rlimits = []Rlimit{{"core", 1}, {"core", 0}} }, "twice"},
		{"rootmap alone", func(s *Spec) { s.Profile.RootMap = true }, "user namespace"},
		{"hostname", func(s *Spec) { s.Profile.Hostname = "a b" }, "host name"},
		{"seccomp base", func(s *Spec) { s.Profile.Seccomp.Base = "none" }, "seccomp base"},
		{"seccomp name", func(s *Spec) { s.Profile.Seccomp.Allow = []string{"a b"} }, "name of a system call"},
		{"net", func(s *Spec) { s.Profile.Net = "" }, "net"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := goodSpec()
			tt.edit(&s)
			err := s.Validate()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate() = %v; want %q in it", err, tt.want)
			}
		})
	}
}

func setLevel(s *Spec, c Control, l Level) {
	for i := range s.Profile.Controls {
		if s.Profile.Controls[i].Control == c {
			s.Profile.Controls[i].Level = l
		}
	}
}

func TestValidateSaysEverything(t *testing.T) {
	s := goodSpec()
	s.Site.UID = 0
	s.Command.Argv = nil
	s.Profile.Net = "x"
	err := s.Validate()
	for _, want := range []string{"uid or gid 0", "no arguments", "net"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v; want %q in it", err, want)
		}
	}
}

func TestValidateNeverShowsSecrets(t *testing.T) {
	s := goodSpec()
	s.Command.Env = []string{"hunter2"}
	s.Command.Argv = []string{"hunter2\x00"}
	if err := s.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Validate() = %v; want an error without the values", err)
	}
}

func TestBelow(t *testing.T) {
	tests := []struct {
		p, dir string
		want   bool
	}{
		{"/proj", "/proj", true},
		{"/proj/a", "/proj", true},
		{"/proj-evil", "/proj", false},
		{"/", "/proj", false},
		{"/a", "/", true},
		{"/pro", "/proj", false},
	}
	for _, tt := range tests {
		if got := Below(tt.p, tt.dir); got != tt.want {
			t.Errorf("Below(%q, %q) = %v; want %v", tt.p, tt.dir, got, tt.want)
		}
	}
}
