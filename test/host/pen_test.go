package host

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/proto"
)

// TestExecListed: only the listed programs, whatever way is tried.
func TestExecListed(t *testing.T) {
	t.Parallel()
	policy := strings.Replace(basic("", "    exec: listed\n    controls: { landlock: required }"), "[python3, bash, sh, ls, cat, echo,", "[python3, sh, cat,", 1)
	d := start(t, policy)
	c := d.agent()
	out := runOK(t, c, python(`
import errno, glob, os, shutil, subprocess
def attempt(name, f):
    try:
        print(name, f())
    except OSError as e:
        print(name, errno.errorcode[e.errno])
def call(*argv):
    return "ran " + str(subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode)
attempt("listed", lambda: call("/bin/cat", "/dev/null"))
attempt("unlisted", lambda: call("/usr/bin/ls"))
for ld in glob.glob("/lib64/ld-linux*"):
    attempt("loader", lambda: call(ld, "/usr/bin/ls"))
    attempt("loader copy", lambda: call(ld, "./copy"))
def copy(to):
    shutil.copy("/bin/cat", to)
    os.chmod(to, 0o755)
    return call(to, "/dev/null")
attempt("copy", lambda: copy("./copy"))
attempt("copy in tmp", lambda: copy("/tmp/copy"))
attempt("copy in shm", lambda: copy("/dev/shm/copy"))
def memfd():
    fd = os.memfd_create("x", 0)
    with open("/bin/cat", "rb") as f:
        os.write(fd, f.read())
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(fd, ["cat", "/dev/null"], {})
        except OSError as e:
            os._exit(e.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return "ran 0" if code == 0 else errno.errorcode[code]
attempt("memfd", memfd)
def script():
    with open("script", "w") as f:
        f.write("#!/bin/sh\nexit 0\n")
    os.chmod("script", 0o755)
    return call("./script")
attempt("script", script)
`))
	for line := range strings.Lines(out) {
		ok := strings.Contains(line, "ran 0")
		if want := strings.HasPrefix(line, "listed"); ok != want {
			t.Errorf("exec: %q; want it run: %v", strings.TrimSpace(line), want)
		}
	}
	for _, word := range []string{"listed ran 0", "unlisted ", "copy ", "memfd ", "script "} {
		if !strings.Contains(out, word) {
			t.Errorf("output = %q; want %q in it", out, word)
		}
	}
}

// TestUserNamespace: root inside is the run uid outside, without power.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    userns: on\n    allow_root: true"))
	c := d.agent()
	p := spawn(t, c, shell(`id -u; cat /proc/self/uid_map; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; touch f && stat -c %u f; mkdir m; mount -t tmpfs none m 2>&1 && echo mounted; cat`))
	text := await(t, p, "NoNewPrivs:\t1")
	if !strings.HasPrefix(text, "0\n") {
		t.Errorf("id -u = %q; want 0 inside", text)
	}
	host := statusUID(t, p.PID)
	if host == "0" || !strings.Contains(text, host) {
		t.Errorf("uid on the host = %s, uid_map = %q; want the run uid, not 0", host, text)
	}
	if !strings.Contains(text, "CapEff:\t0000000000000000") || !strings.Contains(text, "CapBnd:\t0000000000000000") {
		t.Errorf("status = %q; want no capability", text)
	}
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Errorf("CloseStdin() = %v; want none", err)
	}
	out, _, _ := output(t, p)
	if strings.Contains(text+out, "mounted") {
		t.Errorf("mount = %q; want a refusal", out)
	}
}

func statusUID(t *testing.T, pid int) string {
	t.Helper()
	data := readFile(t, filepath.Join("/proc", itoa(pid), "status"))
	for line := range strings.Lines(data) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			return f[1]
		}
	}
	t.Fatalf("status of %d has no Uid", pid)
	return ""
}

// TestNetwork: none has a loopback of its own, host is the host's.
func TestNetwork(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	script := `
import socket
def attempt(name, f):
    try:
        f()
        print(name, "yes")
    except OSError as e:
        print(name, "no")
attempt("host", lambda: socket.create_connection(("127.0.0.1", ` + port + `), 2))
def own():
    l = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(l.getsockname(), 2)
attempt("own", own)
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
def metadata():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(b"x", ("169.254.169.254", 80))
attempt("datagram", metadata)
`
	for mode, want := range map[string]string{
		"none": "host no\nown yes\npacket no\nraw no\nvsock no\ndatagram no\n",
		"host": "host yes\nown yes\npacket no\nraw no\nvsock no\n",
	} {
		d := start(t, basic("", "    net: "+mode+"\n    controls: { netns: "+map[string]string{"none": "required", "host": "off, landlock: best_effort"}[mode]+" }"))
		if out := runOK(t, d.agent(), python(script)); !strings.HasPrefix(out, want) {
			t.Errorf("net %s = %q; want %q", mode, out, want)
		}
	}
}

// TestTheRecordIsWhatTheKernelShows: read again from the host while the pen runs.
func TestTheRecordIsWhatTheKernelShows(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	p := spawn(t, d.agent(), proto.Spawn{Cmd: []string{"cat"}})
	var r struct {
		UID        uint32            `json:"uid"`
		NoNewPrivs bool              `json:"no_new_privs"`
		Namespaces map[string]uint64 `json:"namespaces"`
		Seccomp    struct {
			Mode int `json:"mode"`
		} `json:"seccomp"`
		Controls []struct {
			Control, Level, State string
			ProvedBy              string `json:"proved_by"`
		} `json:"controls"`
	}
	if err := json.Unmarshal(p.Spawned.Enforcement, &r); err != nil {
		t.Fatalf("enforcement %s = %v; want a record", p.Spawned.Enforcement, err)
	}
	if uid := statusUID(t, p.PID); uid != itoa(int(r.UID)) || !r.NoNewPrivs || r.Seccomp.Mode != 2 {
		t.Errorf("record = uid %d, no_new_privs %v, seccomp %d; want uid %s, true, 2", r.UID, r.NoNewPrivs, r.Seccomp.Mode, uid)
	}
	for name, ino := range r.Namespaces {
		if got := readLink(t, filepath.Join("/proc", itoa(p.PID), "ns", name)); !strings.Contains(got, itoa(int(ino))) {
			t.Errorf("namespace %s = %s; want %d as in the record", name, got, ino)
		}
		if own := readLink(t, filepath.Join("/proc/self/ns", name)); strings.Contains(own, itoa(int(ino))) && name != "user" && name != "time" {
			t.Errorf("namespace %s = the host's; want one of its own", name)
		}
	}
	seen := map[string]bool{}
	for _, c := range r.Controls {
		seen[c.Control] = true
		if c.Control == "cgroup.cpu" { // no limit of it was asked for
			continue
		}
		if c.Level == "required" && (c.State != "enforced" || c.ProvedBy == "") {
			t.Errorf("control %s = %s by %q; want it enforced and proved", c.Control, c.State, c.ProvedBy)
		}
	}
	for _, want := range []string{"mounts", "landlock", "seccomp", "caps", "pidns", "ipcns", "netns", "cgroup.memory", "cgroup.pids", "rlimits"} {
		if !seen[want] {
			t.Errorf("record has no control %s: %s", want, p.Spawned.Enforcement)
		}
	}
}

// TestOnlyThreeDescriptors are open at the program's start.
func TestOnlyThreeDescriptors(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	if out := runOK(t, c, proto.Spawn{Cmd: []string{"ls", "/proc/self/fd"}}); out != "0\n1\n2\n3\n" { // 3 is ls's own
		t.Errorf("ls /proc/self/fd = %q; want 0 to 2, and 3 of ls itself", out)
	}
	if out := runOK(t, c, shell(`ls -A /tmp /dev/shm; echo x > /tmp/x; echo x > /dev/shm/x; ls /proc | grep -c '^[0-9]'`)); strings.Contains(out, "x") {
		t.Errorf("the first = %q; want /tmp and /dev/shm empty", out)
	}
	if out := runOK(t, c, shell(`ls -A /tmp /dev/shm`)); strings.Contains(out, "x") {
		t.Errorf("the second = %q; want nothing of the first", out)
	}
}

// TestScratchIsTheSessions: its own spawns share it, others see nothing of it.
func TestScratchIsTheSessions(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	runOK(t, c, shell("echo mine > kept; echo h > $HOME/h"))
	if out := runOK(t, c, shell("cat kept $HOME/h")); out != "mine\nh\n" {
		t.Errorf("the second spawn of a session = %q; want what the first left", out)
	}
	if out := runOK(t, d.agent(), shell("ls -A . $HOME | grep -E 'kept|^h$' || echo none")); out != "none\n" {
		t.Errorf("another session = %q; want nothing of it", out)
	}
}

// TestNoSetIDBits may be made anywhere.
func TestNoSetIDBits(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	out := runOK(t, d.agent(), python(`
import os
open("f", "w").close()
def attempt(name, f):
    try:
        f()
        print(name, "done")
    except OSError:
        print(name, "refused")
attempt("chmod", lambda: os.chmod("f", 0o4755))
attempt("chmod g", lambda: os.chmod("f", 0o2755))
attempt("open", lambda: os.close(os.open("g", os.O_CREAT | os.O_WRONLY, 0o6777)))
attempt("mkdir", lambda: os.mkdir("d", 0o2777))
attempt("mknod", lambda: os.mknod("n", 0o4755))
attempt("plain", lambda: os.chmod("f", 0o755))
`))
	if strings.Count(out, "refused") != 5 || !strings.Contains(out, "plain done") {
		t.Errorf("set-id = %q; want each refused, and plain done", out)
	}
}
