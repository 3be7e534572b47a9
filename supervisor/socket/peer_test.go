package socket

import (
	"errors"
	"strings"
	"testing"
)

func TestUnitOf(t *testing.T) {
	for path, want := range map[string]string{
		"/system.slice/ssh.service":                                            "ssh.service",
		"/system.slice/ssh.service/sub/cg.service":                             "ssh.service",
		"/system.slice/system-getty.slice/getty@tty1.service":                  "getty@tty1.service",
		"/user.slice/user-1000.slice/user@1000.service":                        "user@1000.service",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/evil.service": "user@1000.service",
		"/user.slice/user-1000.slice/session-3.scope":                          "session-3.scope",
		"/init.scope":                            "init.scope",
		"/system.slice/_cpu.service":             "cpu.service",
		`/system.slice/dev-disk-by\x2duuid.swap`: `dev-disk-by\x2duuid.swap`,
		"/":                                      "", "": "", "/user.slice": "", "/docker/0123": "", "/pinfold-1/callers/0/ssh.service": "",
		"/system.slice/.service": "", "/system.slice/a b.service": "", "/system.slice/x.timer": "",
		"/system.slice/getty@.service": "", "/system.slice/@x.service": "", "/a/../system.slice/ssh.service": "",
		"/system.slice/" + strings.Repeat("x", 300) + ".service": "", "/../ssh.service": "",
	} {
		got, err := unitOf(path)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("unitOf(%.60q) = %q, %v; want %q", path, got, err, want)
		}
	}
}

func TestParseCgroup(t *testing.T) {
	for _, c := range []struct{ text, v2, unit string }{
		{"0::/system.slice/a.service\n", "/system.slice/a.service", "a.service"},
		{"0::/system.slice/a.service (deleted)\n", "/system.slice/a.service", "a.service"},
		{"4:memory:/x\n1:name=systemd:/system.slice/a.service\n0::/x\n", "/x", "a.service"},
		{"1:name=systemd:/system.slice/a.service\n0::/system.slice/b.service\n", "/system.slice/b.service", "b.service"},
		{"1:name=systemd:/\n0::/\n", "/", ""},
		{"0::/odd:name.slice/a.service\n", "/odd:name.slice/a.service", "a.service"},
		{"7:0::/fake\n", "", ""},
		{"garbage\n\n0\n", "", ""},
		{"", "", ""},
	} {
		v2, units := parseCgroup(c.text)
		unit, _ := unitOf(units) // "" is what is compared
		if v2 != c.v2 || unit != c.unit {
			t.Errorf("parseCgroup(%q) = %q, unit %q; want %q, %q", c.text, v2, unit, c.v2, c.unit)
		}
	}
}

func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		cgroup, below string
		want          error
	}{
		{"/a/callers/1/2", "/a/callers", ErrOwnPen},
		{"/a/callers", "/a/callers", ErrOwnPen},
		{"/a/callers2", "/a/callers", nil},
		{"/a", "/a/callers", nil},
		{"/", "/a/callers", nil},
		{"", "/a/callers", ErrUnplaced},
		{"", "", nil},
		{"/a", "/", ErrOwnPen},
	} {
		p := Peer{Cgroup: c.cgroup}
		if got := p.refusal(c.below); !errors.Is(got, c.want) {
			t.Errorf("Peer{Cgroup: %q}.refusal(%q) = %v; want %v", c.cgroup, c.below, got, c.want)
		}
	}
}

func FuzzUnitOf(f *testing.F) {
	f.Add("/system.slice/a.service")
	f.Fuzz(func(t *testing.T, path string) {
		unit, err := unitOf(path)
		if (unit == "") != (err != nil) {
			t.Fatalf("unitOf(%q) = %q, %v; want a name or an error", path, unit, err)
		}
		if err == nil && !strings.Contains(path, unit) {
			t.Fatalf("unitOf(%q) = %q; want a part of the path", path, unit)
		}
	})
}
