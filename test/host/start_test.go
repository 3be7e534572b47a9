package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pinfold/proto"
)

// fails starts a daemon that must end with 1 and say words.
func (d *daemon) fails(what string, words ...string) {
	d.t.Helper()
	err := d.launch()
	if err == nil {
		d.stop()
		d.t.Errorf("pinfoldd with %s got ready; want it to fail", what)
		return
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 1 {
		d.t.Errorf("pinfoldd with %s = exit %d; want 1\n%s", what, code, d.log)
	}
	for _, w := range words {
		if !strings.Contains(d.log.String(), w) {
			d.t.Errorf("pinfoldd with %s says %q; want %q in it", what, d.log, w)
		}
	}
	left, err := d.leftovers()
	if err != nil || len(left) > 0 {
		d.t.Errorf("after pinfoldd with %s: left %q, %v; want nothing", what, left, err)
	}
}

// TestASecondDaemonNamesTheFirst and leaves it untouched.
func TestASecondDaemonNamesTheFirst(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	pid, err := os.ReadFile(filepath.Join(d.state, "pinfoldd.pid"))
	if err != nil || strings.TrimSpace(string(pid)) != fmt.Sprint(d.cmd.Process.Pid) {
		t.Errorf("pinfoldd.pid = %q, %v; want %d", pid, err, d.cmd.Process.Pid)
	}
	if info, err := os.Stat(d.state); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the state directory = %v, %v; want 0700", info, err)
	}
	second := prepare(t, "")
	second.state = d.state
	if err := second.launch(); err == nil || second.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("second daemon = %v; want exit 1", err)
	}
	if want := fmt.Sprintf("pid %d", d.cmd.Process.Pid); !strings.Contains(second.log.String(), want) {
		t.Errorf("second daemon says %q; want %q in it", second.log, want)
	}
	if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
		t.Errorf("the first daemon's run = %q; want it well", out)
	}
}

// TestSocketPaths: a stale socket is replaced, anything else is not.
func TestSocketPaths(t *testing.T) {
	t.Parallel()
	t.Run("stale", func(t *testing.T) {
		d := prepare(t, "")
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.sock, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.launch(); err != nil {
			t.Fatalf("pinfoldd at a stale socket = %v; want it replaced\n%s", err, d.log)
		}
		if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
			t.Errorf("run = %q; want it well", out)
		}
		d.stop()
		if _, err := os.Lstat(d.sock); err == nil {
			t.Errorf("the socket is there after the end; want it removed")
		}
	})
	t.Run("in another's directory", func(t *testing.T) {
		d := prepare(t, "")
		dir := filepath.Join(d.dir, "theirs")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		d.sock = filepath.Join(dir, "s")
		for range 2 { // the second replaces what the first had to leave
			if err := d.launch(); err != nil {
				t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
			}
			if out := runOK(t, d.agent(), shell("echo well")); out != "well\n" {
				t.Errorf("run = %q; want it well", out)
			}
			d.stop() // wants exit 0
		}
	})
	t.Run("in use", func(t *testing.T) {
		d := prepare(t, "")
		ln, err := net.Listen("unix", d.sock)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		d.fails("a socket in use", d.sock)
		if _, err := os.Lstat(d.sock); err != nil {
			t.Errorf("the socket in use: %v; want it untouched", err)
		}
	})
	t.Run("regular file", func(t *testing.T) {
		d := prepare(t, "")
		if err := os.WriteFile(d.sock, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		d.fails("a file in place of its socket", d.sock)
		if data, err := os.ReadFile(d.sock); err != nil || string(data) != "precious" {
			t.Errorf("the file = %q, %v; want it untouched", data, err)
		}
	})
	t.Run("link to a socket", func(t *testing.T) {
		d := prepare(t, "")
		if err := os.Symlink("/nonexistent", d.sock); err != nil {
			t.Fatal(err)
		}
		d.fails("a link in place of its socket", d.sock)
	})
	t.Run("too long", func(t *testing.T) {
		d := prepare(t, "")
		d.sock = filepath.Join(d.dir, strings.Repeat("x", 120))
		d.fails("a socket path that is too long", "107", d.sock)
	})
}

// TestBadPoliciesAreRefusedAtTheStart with every problem at its place.
func TestBadPoliciesAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	const callers = "version: 1\ncallers:\n  - { name: r, match: { uid: 0 }, profiles: [a], run_as: dynamic }\nprofiles:\n"
	for _, tt := range []struct {
		name, policy string
		words        []string
	}{
		{"unknown keys", callers + "  a:\n    comands: [ls]\n    timeout: { wal: 1s }\n    commands: [ls]\n", []string{"policy.yaml:6:5", "commands", "policy.yaml:7:16", "wall"}},
		{"bad units", callers + "  a:\n    commands: [ls]\n    cgroup: { memory: 5 gigs }\n    timeout: { wall: soon }\n", []string{"policy.yaml:7:", "policy.yaml:8:"}},
		{"a cycle", callers + "  a: { extends: b, commands: [ls] }\n  b: { extends: a }\n", []string{"policy.yaml:", "extends"}},
		{"an unknown profile", "version: 1\ncallers:\n  - { name: r, match: { uid: 0 }, profiles: [b] }\nprofiles:\n  a: { commands: [ls] }\n", []string{"policy.yaml:3:"}},
		{"no commands", callers + "  a: { net: none }\n", []string{"policy.yaml:"}},
		{"an allowlisted network", callers + "  a:\n    commands: [ls]\n    net: { allow: [\"pypi.org:443\"] }\n", []string{"not yet supported", "policy.yaml:7:"}},
		{"not YAML", "version: [\n", []string{"policy.yaml:"}},
		{"a key twice", callers + "  a: { commands: [ls] }\n  a: { commands: [cat] }\n", []string{"policy.yaml:6:"}},
	} {
		prepare(t, tt.policy).fails(tt.name, tt.words...)
	}
	d := prepare(t, "x")
	if err := os.Remove(d.policy); err != nil {
		t.Fatal(err)
	}
	d.fails("a policy that is not there", d.policy)
}

// TestReload swaps a policy as a whole or not at all.
func TestReload(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	before := spawn(t, c, proto.Spawn{Cmd: []string{"sleep", "600"}})
	reload := func(policy, says string) {
		t.Helper()
		d.writePolicy(policy)
		seen := strings.Count(d.log.String(), says)
		if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the log says "+says, func() bool { return strings.Count(d.log.String(), says) > seen })
	}
	reload(strings.Replace(basic("", ""), "version: 1", "version: 1\nnonsense: yes", 1), "policy not reloaded")
	runOK(t, c, shell("echo the old one holds"))
	if !strings.Contains(d.log.String(), "nonsense") {
		t.Errorf("log = %q; want it to name what was wrong", d.log)
	}
	reload(strings.Replace(basic("", ""), "sh, ls", "ls", 1), "policy reloaded")
	_, err := c.Spawn(soon(t), shell("echo never"))
	refused(t, "Spawn(sh) after a reload without it", err, proto.CodeDenied)
	if s, err := c.Status(soon(t), before.ID); err != nil || s.Status != proto.StatusRunning {
		t.Errorf("Status() of what ran before = %+v, %v; want it running under its own policy", s, err)
	}
	reload(basic("", ""), "policy reloaded")
	runOK(t, c, shell("echo and back"))
}
