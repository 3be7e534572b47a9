package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
	"pinfold/test/testkit"
)

// readyPens are the main processes of cgroups in which no process of a client is: of
// pens that wait for a spawn.
func (d *daemon) readyPens() []string {
	d.t.Helper()
	var out []string
	for _, name := range d.jobs() {
		if pid := strings.TrimSpace(members(name)); pid != "" && !strings.Contains(pid, "\n") {
			out = append(out, pid)
		}
	}
	return out
}

// jobs are the job cgroups of all processes.
func (d *daemon) jobs() []string {
	d.t.Helper()
	names, err := filepath.Glob(filepath.Join(d.base(), "callers", "*", "*", "*", "job"))
	if err != nil {
		d.t.Fatal(err)
	}
	return names
}

// twice runs a command two times, and waits until a pen is ready for the third.
func twice(t *testing.T, d *daemon, c *client.Client, s proto.Spawn) (pid string) {
	t.Helper()
	testkit.NeedDetached(t)
	for range 2 {
		if _, _, v := run(t, c, s); v.Cause != proto.CauseExited {
			t.Fatalf("%v = %+v; want it to exit", s.Cmd, v)
		}
	}
	return onlyReady(t, d)
}

// onlyReady waits until the only pen is one that is ready.
func onlyReady(t *testing.T, d *daemon) (pid string) {
	t.Helper()
	eventually(t, "one pen is ready", func() bool {
		pens := d.readyPens()
		if len(pens) != 1 || len(d.jobs()) != 1 {
			return false
		}
		pid = pens[0]
		return true
	})
	return pid
}

// TestAPenIsReadyForTheThird of a kind; it holds one process like any other.
func TestAPenIsReadyForTheThird(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	pid := twice(t, d, c, shell("echo x > /tmp/left; ls /tmp"))
	p := spawn(t, c, shell("ls /tmp; echo $A; pwd; cat"))
	if got := itoa(p.PID); got != pid {
		t.Errorf("the third spawn is process %s; want %s, which was ready", got, pid)
	}
	if err := p.Write(soon(t), []byte("in\n")); err != nil {
		t.Fatal(err)
	}
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Fatal(err)
	}
	out, errs, v := output(t, p)
	if v.Cause != proto.CauseExited || v.Code != 0 || !strings.HasPrefix(out, "\n/") || !strings.HasSuffix(out, "\nin\n") || errs != "" {
		t.Errorf("third spawn = %q, %q, %+v; want an empty /tmp of its own", out, errs, v)
	}
}

// TestAReadyPenNeedsNoOtherLook: a spawn of the same program in the same place, with other
// arguments, is decided on what was seen for the one before.
func TestAReadyPenNeedsNoOtherLook(t *testing.T) {
	t.Parallel()
	d := prepare(t, basic("", ""))
	d.command = func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(program(t, name), args...)
		cmd.Env = append(os.Environ(), "PINFOLD_LOG=debug")
		return cmd
	}
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	c := d.agent()
	steps := func(s proto.Spawn) string {
		p := spawn(t, c, s)
		output(t, p)
		line := regexp.MustCompile(`(?m)^.* msg=steps .*process=` + p.ID + ` .*$`)
		eventually(t, "the steps of the spawn are logged", func() bool { return line.MatchString(d.log.String()) })
		return line.FindString(d.log.String())
	}
	looked := regexp.MustCompile(` look=`)
	if first := steps(shell("true")); !looked.MatchString(first) {
		t.Errorf("first spawn: %s; want a look", first)
	}
	twice(t, d, c, shell("true"))
	for try := range 20 { // the daemon may not know yet of the pen that waits
		next := steps(shell("echo next"))
		if !looked.MatchString(next) {
			break
		}
		if try == 19 {
			t.Errorf("spawn after spawn looks: %s; want none of its own where a pen is ready", next)
		}
		onlyReady(t, d)
	}
	d.stop()
}

// TestAPenIsReadyWhereNamesComeAndGo in the working directory, by the commands themselves
// and as a placeholder of each pen.
func TestAPenIsReadyWhereNamesComeAndGo(t *testing.T) {
	t.Parallel()
	for name, deny := range map[string]string{
		"nothing denied":       "",
		"an absent denied one": "      deny: [ \"${workspace}/none\" ]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, basic("", deny))
			c := d.agent()
			writes := shell("echo $$ > mine; ls; rm mine")
			pid := twice(t, d, c, writes)
			for n := range 3 {
				p := spawn(t, c, writes)
				if got := itoa(p.PID); got != pid {
					t.Errorf("spawn %d is process %s; want %s, which was ready", n+3, got, pid)
				}
				if out, _, v := output(t, p); v.Code != 0 || !strings.HasPrefix(out, "mine\n") {
					t.Errorf("spawn %d = %q, %+v; want it to see its file", n+3, out, v)
				}
				pid = onlyReady(t, d)
			}
		})
	}
}

// TestAReadyPenIsNotWeaker: what comes between the building of a pen and its spawn
// holds as it does for a new one.
func TestAReadyPenIsNotWeaker(t *testing.T) {
	t.Parallel()
	t.Run("a denied path appears", func(t *testing.T) {
		t.Parallel()
		d := start(t, basic("", "      deny: [ \"${workspace}/.env\" ]\n      absent: check"))
		c := d.agent()
		twice(t, d, c, shell("pwd"))
		dirs, err := filepath.Glob(filepath.Join(d.state, "run", "scratch", "*work*"))
		if err != nil || len(dirs) != 1 {
			t.Fatalf("Glob(workspace) = %q, %v; want one", dirs, err)
		}
		if err := os.WriteFile(filepath.Join(dirs[0], ".env"), []byte("secret\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, _, v := run(t, c, shell("cat .env")); strings.Contains(out, "secret") {
			t.Errorf("cat of a denied path = %q, %+v; want nothing of it", out, v)
		}
	})
	t.Run("the policy changes", func(t *testing.T) {
		t.Parallel()
		d := start(t, basic("", "    rlimits: { nofile: 100 }"))
		c := d.agent()
		pid := twice(t, d, c, shell("ulimit -n"))
		if err := os.WriteFile(d.policy, []byte(basic("", "    rlimits: { nofile: 50 }")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new policy holds", func() bool {
			p := spawn(t, c, shell("ulimit -n"))
			out, _, _ := output(t, p)
			if out == "50\n" && itoa(p.PID) == pid {
				t.Errorf("process %s of the old policy has the limit of the new", pid)
			}
			return out == "50\n"
		})
	})
}

// TestReadyPensGo when nobody spawns, with their session, and with the daemon.
func TestReadyPensGo(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	idle := d.agent()
	twice(t, d, idle, shell("true"))
	eventually(t, "a pen that waits for nothing is gone", func() bool { return len(d.jobs()) == 0 })
	left := d.agent()
	twice(t, d, left, shell("true"))
	if err := left.Shutdown(soon(t), time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a session's pen is gone with it", func() bool { return len(d.jobs()) == 0 })
	twice(t, d, d.agent(), shell("true"))
	d.stop() // looks for what is left
}

// TestNoPenIsReady for a command with a terminal, nor for what changes each time.
func TestNoPenIsReady(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	c := d.agent()
	term := shell("true")
	term.PTY = &proto.PTY{Rows: 24, Cols: 80}
	null := shell("true")
	null.StdinMode = proto.StdinNull
	for _, s := range []proto.Spawn{term, term, shell("true"), null, shell("true"), null} {
		if _, _, v := run(t, c, s); v.Cause != proto.CauseExited {
			t.Fatalf("%+v = %+v; want it to exit", s, v)
		}
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if pens := d.readyPens(); len(pens) > 0 {
			t.Fatalf("pens %q wait for a spawn; want none made", pens)
		}
	}
}
