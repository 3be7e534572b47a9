package host

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// crash kills the daemon with SIGKILL and starts the next one on the same state, after
// some time without any.
func (d *daemon) crash(without time.Duration) {
	d.t.Helper()
	d.kill()
	time.Sleep(without)
	if err := d.launch(); err != nil {
		d.t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
	}
}

func (d *daemon) kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Wait(); err == nil {
		d.t.Fatal("a killed daemon exits 0")
	}
}

// TestAProcessOutlivesItsDaemon: it goes on while there is none, and its client finds
// every byte, its stdin and its exit status over the next one.
func TestAProcessOutlivesItsDaemon(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T) *daemon{
		"root": func(t *testing.T) *daemon { t.Helper(); return start(t, "") },
		"rootless": func(t *testing.T) *daemon {
			t.Helper()
			return startOrdinary(t, fmt.Sprintf(ordinaryPolicy, "/srv/none"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outlive(t, begin(t))
		})
	}
}

func outlive(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	uid := strings.TrimSpace(runOK(t, m.Client, shell("id -u")))
	p := spawn(t, m.Client, shell(`echo kept >file; i=0; while read -r line; do i=$((i+1)); echo "$i $line"; echo "err $i" >&2; done; echo end; exit 7`))
	var out, errs strings.Builder
	for life := range 4 {
		if err := p.Write(soon(t), fmt.Appendf(nil, "line %d\n", life)); err != nil {
			t.Fatalf("Write in life %d = %v; want it taken", life, err)
		}
		for !strings.Contains(out.String(), fmt.Sprintf("line %d\n", life)) {
			take(t, p, &out, &errs, 1)
		}
		d.crash(0)
		if procState(p.PID) == "" {
			t.Fatalf("process %d is gone after the daemon was killed; want it to go on", p.PID)
		}
		m = d.back(m, proto.Handshake{})
		p = attach(t, m.Client, p.ID, p.Offsets())
	}
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Fatal(err)
	}
	var v *proto.Verdict
	for v == nil {
		v = take(t, p, &out, &errs, 1)
	}
	if want := "1 line 0\n2 line 1\n3 line 2\n4 line 3\nend\n"; out.String() != want {
		t.Errorf("stdout = %q; want %q", out.String(), want)
	}
	if want := "err 1\nerr 2\nerr 3\nerr 4\n"; errs.String() != want {
		t.Errorf("stderr = %q; want %q", errs.String(), want)
	}
	if v.Cause != proto.CauseExited || v.Code != 7 || !v.Output.Drained || v.Output.Dropped != 0 {
		t.Errorf("verdict = %+v; want exited with 7, drained", v)
	}
	if d.users { // its memory file systems end with its stage
		return
	}
	if out := runOK(t, m.Client, shell("cat file; id -u")); out != "kept\n"+uid+"\n" {
		t.Errorf("the next process in the workspace = %q; want what the first left there, as uid %s", out, uid)
	}
}

// TestOutputGoesOnAtTheSameByte: a daemon is killed in the middle of much output again
// and again, and each line comes once.
func TestOutputGoesOnAtTheSameByte(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	d.eachOnce(150_000, 4, func(m *member, _ int) *member {
		d.crash(0)
		return d.back(m, proto.Handshake{})
	})
}

// TestWhatHappensWithoutADaemonIsKnown: a process ends, or its time is up, while there is
// no daemon; the next one tells it as the first would have.
func TestWhatHappensWithoutADaemonIsKnown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		keys   string
		script string
		during func(t *testing.T, p *client.Process)
		cause  proto.Cause
		code   int
	}{
		{name: "it exits", script: `sleep 0.3; echo last; exit 3`, cause: proto.CauseExited, code: 3},
		{name: "its wall time ends", keys: "wall: 1s, stop: 100ms", script: `echo last; while :; do sleep 0.1; done`, cause: proto.CauseTimeoutWall, code: -15},
		{name: "its wall time ends and it does not care", keys: "wall: 1s, stop: 300ms", script: `trap "" TERM; echo last; while :; do sleep 0.1; done`, cause: proto.CauseTimeoutWall, code: -9},
		{name: "its processor time ends", keys: "cpu: 500ms, stop: 100ms", script: `echo last; while :; do :; done`, cause: proto.CauseTimeoutCPU, code: -15},
		{name: "somebody kills its PID 1", script: `echo last; sleep 600`, cause: proto.CauseLost, during: func(t *testing.T, p *client.Process) {
			t.Helper()
			killPID1(t, p.PID)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			keys := ""
			if row.keys != "" {
				keys = "    timeout: { " + row.keys + " }\n"
			}
			d := start(t, basic("", keys))
			m := d.enter()
			p := spawn(t, m.Client, shell(row.script))
			want := "last\n"
			if row.cause == proto.CauseLost { // what lies in its pipes goes with it
				await(t, p, "last\n")
				want = ""
			}
			d.kill()
			began := time.Now()
			if row.during != nil {
				row.during(t, p)
			}
			time.Sleep(1500 * time.Millisecond)
			if err := d.launch(); err != nil {
				t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
			}
			m = d.back(m, proto.Handshake{})
			p = attach(t, m.Client, p.ID, p.Offsets())
			out, _, v := output(t, p)
			if out != want || v.Cause != row.cause || v.Code != row.code {
				t.Errorf("output %q, verdict %+v; want %q, and %s with %d", out, v, want, row.cause, row.code)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the end came after %s; want it soon after the start of the next daemon", took)
			}
		})
	}
}

// killPID1 kills the PID 1 of the pen of a process.
func killPID1(t *testing.T, pid int) {
	t.Helper()
	init, err := strconv.Atoi(statusField(readFile(t, fmt.Sprintf("/proc/%d/status", pid)), "PPid:"))
	if err != nil || init <= 1 {
		t.Fatalf("PID 1 of the pen of %d = %d, %v; want it", pid, init, err)
	}
	if err := syscall.Kill(init, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestAClientThatIsGoneByItsWelcome leaves the session as it was: the first to come back
// after a crash, it brings the connection by which the stage knows whose session it is.
func TestAClientThatIsGoneByItsWelcome(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	spawn(t, m.Client, shell("sleep 600"))
	d.crash(0)
	for lost := range 3 {
		w := d.connect()
		w.send(fmt.Sprintf(`{"type":"handshake/req","id":"hello","version":"1.0","ts":1,"agent_id":"t","agent_caps":["proc"],"auth_token":"","resume":{"session_id":%q,"token":%q}}`, m.id, m.token))
		if err := w.conn.Close(); err != nil {
			t.Fatal(err)
		}
		for late := time.Now().Add(10 * time.Second); d.lines("session_resumed") <= lost; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(late) {
				t.Fatal("the session is not resumed; want it, by the client that is gone")
			}
		}
	}
	m = d.back(m, proto.Handshake{})
	if out := runOK(t, m.Client, shell("echo still")); out != "still\n" {
		t.Errorf("the next process of the session = %q; want what it wrote", out)
	}
}
