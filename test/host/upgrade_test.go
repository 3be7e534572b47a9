package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/supervisor/outcome"
)

// upgradable is a daemon whose programs are its own, so that a test can replace them.
func upgradable(t *testing.T, policy string) *daemon {
	t.Helper()
	d := prepare(t, policy)
	bin := d.ownPrograms()
	d.command = func(name string, args ...string) *exec.Cmd {
		return d.logged(name, exec.Command(filepath.Join(bin, name), args...))
	}
	return d
}

// logged gives a daemon a file for its log, which its successors have too.
func (d *daemon) logged(name string, cmd *exec.Cmd) *exec.Cmd {
	d.t.Helper()
	if name == "pinfoldd" {
		log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			d.t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
	}
	return cmd
}

// ownPrograms puts the programs into a directory beside the state.
func (d *daemon) ownPrograms() (bin string) {
	d.t.Helper()
	bin = filepath.Join(d.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		d.t.Fatal(err)
	}
	for _, name := range []string{"pinfoldd", "pinfold-stage", "pinfold"} {
		if err := install(d.t, name, bin); err != nil {
			d.t.Fatal(err)
		}
	}
	return bin
}

// upgradableOrdinary is upgradable for an ordinary user's daemon.
func upgradableOrdinary(t *testing.T, policy string) *daemon {
	t.Helper()
	d := prepare(t, policy)
	o := newOrdinary(t, d.dir)
	bin := d.ownPrograms()
	if err := os.Chown(d.dir, callerUID, callerUID); err != nil {
		t.Fatal(err)
	}
	d.users = true
	d.command = func(name string, args ...string) *exec.Cmd {
		return d.logged(name, o.command(filepath.Join(bin, name), args...))
	}
	return d
}

// install puts a program into a directory, in place of the one that may run there.
func install(t *testing.T, name, bin string) error {
	t.Helper()
	b, err := os.ReadFile(program(t, name))
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(bin, name), string(b))
}

// begin starts the daemon, and stops whichever there is when the test ends.
func (d *daemon) begin() {
	d.t.Helper()
	if err := d.launch(); err != nil {
		d.t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	d.t.Cleanup(func() {
		d.end()
		if d.t.Failed() {
			d.t.Logf("log of the daemons:\n%s", d.log)
		}
	})
}

// pid is the process of the daemon that has the state directory.
func (d *daemon) pid() int {
	d.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(readFile(d.t, filepath.Join(d.state, "pinfoldd.pid"))))
	if err != nil {
		d.t.Fatalf("the pid of the daemon = %v; want one", err)
	}
	return pid
}

// end stops the daemon, which need not be a child of this process, and looks the host over.
func (d *daemon) end() {
	d.t.Helper()
	if d.over {
		return
	}
	d.over = true
	pid := d.pid()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		d.t.Errorf("SIGTERM to pinfoldd = %v; want none", err)
	}
	go func() { _ = d.cmd.Wait() }() // it was told to end, or has ended
	for end := time.Now().Add(stopWithin()); procState(pid) != "" && procState(pid) != "Z"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGQUIT) // with all stacks in its log
			eventuallyOrNot(func() bool { return procState(pid) == "" })
			d.t.Errorf("pinfoldd runs %s after SIGTERM; want it ended", stopWithin())
			return
		}
	}
	d.checkNothingLeft()
	if d.t.Failed() {
		d.scrub()
	}
}

// upgrade asks for a new daemon by SIGUSR2 and waits for the answer.
func (d *daemon) upgrade() outcome.Outcome {
	d.t.Helper()
	before, err := outcome.Get(d.state)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := syscall.Kill(d.pid(), syscall.SIGUSR2); err != nil {
		d.t.Fatal(err)
	}
	var o outcome.Outcome
	eventually(d.t, "the daemon has answered SIGUSR2", func() bool {
		o, err = outcome.Get(d.state)
		return err == nil && o.Count > before.Count
	})
	if o.Of != outcome.Binary {
		d.t.Fatalf("outcome = %+v; want one of the binary", o)
	}
	return o
}

// upgraded wants another daemon to have taken over.
func (d *daemon) upgraded() {
	d.t.Helper()
	old := d.pid()
	if o := d.upgrade(); o.Error != "" || o.PID == old || o.PID != d.pid() {
		d.t.Fatalf("upgrade = %+v from pid %d; want another daemon\n%s", o, old, d.log)
	}
}

// TestUpgradesLoseNothing: daemons one after the other have the same process, whose
// numbered lines come once and in order both ways; a connection is never refused; the
// session, its offsets and the exit status are as if there had been one daemon.
func TestUpgradesLoseNothing(t *testing.T) {
	t.Parallel()
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		upgrades(t, upgradable(t, basic("", "")), 20)
	})
	t.Run("rootless", func(t *testing.T) {
		t.Parallel()
		upgrades(t, upgradableOrdinary(t, fmt.Sprintf(ordinaryPolicy, "/srv/none")), 5)
	})
}

func upgrades(t *testing.T, d *daemon, lives int) {
	t.Helper()
	d.begin()
	first := d.cmd
	m, f := d.enter(), d.enter()
	flood := spawn(t, f.Client, counting(400_000))
	p := spawn(t, m.Client, shell(`while read -r line; do echo "got $line"; done; exit 7`))
	var out, errs, got, none strings.Builder
	var v *proto.Verdict
	stop, refused := d.knock()
	for i := range lives {
		if err := p.Write(soon(t), fmt.Appendf(nil, "%d\n", i)); err != nil {
			t.Fatalf("Write in life %d = %v; want it taken", i, err)
		}
		for !strings.Contains(got.String(), fmt.Sprintf("got %d\n", i)) {
			take(t, p, &got, &none, 1)
		}
		if v == nil {
			v = take(t, flood, &out, &errs, 100_000)
		}
		d.upgraded()
		m, f = d.back(m, proto.Handshake{}), d.back(f, proto.Handshake{})
		p = attach(t, m.Client, p.ID, p.Offsets())
		if v == nil {
			flood = attach(t, f.Client, flood.ID, flood.Offsets())
		}
	}
	stop()
	if n := refused(); n != "" {
		t.Errorf("connections in between = %s; want each taken", n)
	}
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Fatal(err)
	}
	for v == nil {
		v = take(t, flood, &out, &errs, 1<<20)
	}
	counted(t, "out", out.String(), 400_000)
	counted(t, "err", errs.String(), 400_000)
	var end *proto.Verdict
	for end == nil {
		end = take(t, p, &got, &none, 1)
	}
	var want strings.Builder
	for i := range lives {
		fmt.Fprintf(&want, "got %d\n", i)
	}
	if got.String() != want.String() || end.Cause != proto.CauseExited || end.Code != 7 || end.Output.Dropped != 0 {
		t.Errorf("after %d upgrades: output %q, verdict %+v; want every line once, and exit 7", lives, got.String(), end)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("the first daemon = %v; want exit 0", err)
	}
	most := 2
	if d.users { // the stage has a part outside of its user namespace
		most++
	}
	if procs, err := d.processes(); err != nil || len(procs) > most {
		t.Errorf("processes = %q, %v; want the last daemon and its stage alone", procs, err)
	}
}

// knock connects again and again until it is stopped, and tells of what went wrong.
func (d *daemon) knock() (stop func(), refused func() string) {
	quit, done := make(chan struct{}), make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
			}
			c, err := net.DialTimeout("unix", d.sock, 5*time.Second)
			if err != nil {
				failed = err
				return
			}
			_ = c.Close()
		}
	}()
	return func() { close(quit); <-done }, func() string {
		if failed == nil {
			return ""
		}
		return failed.Error()
	}
}

// TestASuccessorThatCannotServeChangesNothing: the daemon goes on, says why, and upgrades
// once the cause is gone.
func TestASuccessorThatCannotServeChangesNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		spoil func(d *daemon, pinfoldd string) error
		want  string
	}{
		{"a newer record", func(d *daemon, _ string) error {
			return os.WriteFile(filepath.Join(d.state, "run/record/session/later.json"), []byte(`{"version":1000}`), 0o600)
		}, "1000"},
		{"a broken record", func(d *daemon, _ string) error {
			return os.WriteFile(filepath.Join(d.state, "run/record/session/later.json"), []byte(`{"version":1,`), 0o600)
		}, "later.json"},
		{"a broken policy", func(d *daemon, _ string) error {
			return os.WriteFile(d.policy, []byte("version: 1\nwrong: true\n"), 0o644)
		}, "wrong"},
		{"no policy", func(d *daemon, _ string) error { return os.Remove(d.policy) }, "cannot read policy"},
		{"not to be executed", func(_ *daemon, p string) error { return os.Chmod(p, 0o644) }, "may not be executed"},
		{"others may write to it", func(_ *daemon, p string) error { return os.Chmod(p, 0o757) }, "others may write"},
		{"others may replace it", func(_ *daemon, p string) error { return os.Chmod(filepath.Dir(p), 0o777) }, "others may write"},
		{"another's", func(_ *daemon, p string) error { return os.Chown(p, callerUID, -1) }, "belongs to uid"},
		{"gone", func(_ *daemon, p string) error { return os.Remove(p) }, "no such file"},
		{"no program", func(_ *daemon, p string) error { return replaceFile(p, "hello\n") }, "exec format error"},
		{"a program that ends", func(_ *daemon, p string) error { return replaceFile(p, "#!/bin/sh\nexit 3\n") }, "without a word"},
		{"a program that knows of nothing", func(_ *daemon, p string) error { return replaceFile(p, "#!/bin/sh\necho hello >&4\n") }, "hello"},
		{"no stage", func(_ *daemon, p string) error { return os.Remove(filepath.Join(filepath.Dir(p), "pinfold-stage")) }, "pinfold-stage"},
		{"a stage that ends", func(_ *daemon, p string) error {
			return replaceFile(filepath.Join(filepath.Dir(p), "pinfold-stage"), "#!/bin/sh\nexit 3\n")
		}, "cannot probe the host"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			d := upgradable(t, basic("", shortGrace))
			d.begin()
			m := d.enter()
			p := spawn(t, m.Client, shell(`read -r line; echo "got $line"`))
			bin := filepath.Join(d.dir, "bin")
			policy := readFile(t, d.policy)
			if err := row.spoil(d, filepath.Join(bin, "pinfoldd")); err != nil {
				t.Fatal(err)
			}
			old := d.pid()
			if o := d.upgrade(); o.PID != old || d.pid() != old || !strings.Contains(o.Error, row.want) || !strings.Contains(o.Error, "goes on") {
				t.Errorf("upgrade = %+v; want pid %d to go on, and an error with %q", o, old, row.want)
			}
			if err := p.Write(soon(t), []byte("on\n")); err != nil {
				t.Errorf("Write = %v; want the daemon to serve as before", err)
			}
			if out, _, v := output(t, p); out != "got on\n" || v.Cause != proto.CauseExited {
				t.Errorf("output %q, verdict %+v; want the daemon to serve as before", out, v)
			}
			eventually(t, "no successor is left", func() bool {
				procs, err := d.processes()
				return err == nil && len(procs) <= 2
			})
			d.mend(policy)
			d.upgraded()
			d.back(m, proto.Handshake{})
		})
	}
}

// mend makes policy, programs and records whole again.
func (d *daemon) mend(policy string) {
	d.t.Helper()
	d.writePolicy(policy)
	bin := filepath.Join(d.dir, "bin")
	err := os.Chmod(bin, 0o755)
	for _, name := range []string{"pinfoldd", "pinfold-stage"} {
		err = errors.Join(err, install(d.t, name, bin))
	}
	if rerr := os.Remove(filepath.Join(d.state, "run/record/session/later.json")); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// replaceFile puts another program where one runs.
func replaceFile(path, text string) error {
	tmp := path + ".new"
	return errors.Join(os.WriteFile(tmp, []byte(text), 0o755), os.Chmod(tmp, 0o755), os.Rename(tmp, path))
}

// TestTheServiceManagerIsTold: which process is the service's, in this order and by the
// process that is it at that time; and the successor is as the daemon was.
func TestTheServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	d := upgradable(t, basic("", shortGrace))
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(d.dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	start := d.command
	d.command = func(name string, args ...string) *exec.Cmd {
		cmd := start(name, args...)
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(d.dir, "notify"), "PINFOLD_TEST_MARK=1", "LISTEN_FDNAMES=x")
		return cmd
	}
	d.begin()
	told := func() string {
		t.Helper()
		buf := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(readyLimit)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("a message = %v; want one", err)
		}
		return string(buf[:n])
	}
	if s := told(); s != "READY=1" {
		t.Fatalf("first message = %q; want READY=1", s)
	}
	old := d.pid()
	before := likeness(t, old)
	d.upgraded()
	s := told()
	if lines := strings.Split(s, "\n"); len(lines) != 3 || lines[0] != "RELOADING=1" || !strings.HasPrefix(lines[1], "MONOTONIC_USEC=") || lines[2] != fmt.Sprintf("MAINPID=%d", d.pid()) {
		t.Errorf("message of the old daemon = %q; want RELOADING=1, MONOTONIC_USEC= and MAINPID=%d", s, d.pid())
	}
	if s := told(); s != "READY=1" {
		t.Errorf("message of the new daemon = %q; want READY=1", s)
	}
	if after := likeness(t, d.pid()); after != before {
		t.Errorf("the new daemon is\n%s\n; want it as the old one was\n%s", after, before)
	}
	fds := descriptors(t, d.pid())
	for range 3 {
		d.upgraded()
		told()
		told()
	}
	eventually(t, "the last daemon has as many descriptors as the second", func() bool { return descriptors(t, d.pid()) == fds })
	d.end()
	if s := told(); s != "STOPPING=1" {
		t.Errorf("last message = %q; want STOPPING=1", s)
	}
	if _, err := os.Lstat(d.sock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's file = %v; want the last daemon to have removed it", err)
	}
}

// likeness is what a daemon's successor must have as that had it.
func likeness(t *testing.T, pid int) string {
	t.Helper()
	var out bytes.Buffer
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/status", pid))) {
		switch name, _, _ := strings.Cut(line, ":"); name {
		case "Name", "Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Cpus_allowed_list":
			out.WriteString(line)
		}
	}
	for _, file := range []string{"cgroup", "oom_score_adj", "limits"} {
		out.WriteString(readFile(t, fmt.Sprintf("/proc/%d/%s", pid, file)))
	}
	for _, link := range []string{"cwd", "root", "ns/mnt", "ns/pid", "ns/user", "ns/net", "ns/cgroup"} {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, link))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, link, to)
	}
	for kv := range strings.SplitSeq(readFile(t, fmt.Sprintf("/proc/%d/environ", pid)), "\x00") {
		if strings.HasPrefix(kv, "PINFOLD_TEST_MARK=") || strings.HasPrefix(kv, "NOTIFY_SOCKET=") || strings.HasPrefix(kv, "PATH=") {
			fmt.Fprintln(&out, kv)
		}
	}
	return out.String()
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
