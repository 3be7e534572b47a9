package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
	"pinfold/supervisor/record"
)

// sweep runs pinfoldd --sweep on the state of d.
func (d *daemon) sweep() (stdout string, code int) {
	d.t.Helper()
	out, errs, code := result(d.t, d.command("pinfoldd", append(d.args(), "--sweep")...))
	if code != 0 {
		d.t.Logf("pinfoldd --sweep: %s", errs)
	}
	return out, code
}

// gone reports whether a process has ended.
func gone(pid int) bool {
	s := procState(pid)
	return s == "" || s == "Z"
}

// TestSweep ends what a killed daemon has left, says so, and leaves nothing.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, rootless := range []bool{false, true} {
		t.Run(fmt.Sprintf("rootless %t", rootless), func(t *testing.T) {
			t.Parallel()
			var d *daemon
			if rootless {
				d = startOrdinary(t, fmt.Sprintf(ordinaryPolicy, "/srv/none"))
			} else {
				d = start(t, basic("", shortGrace))
			}
			m := d.enter()
			p := spawn(t, m.Client, shell(`(setsid sleep 600 &); echo ready; sleep 601`))
			await(t, p, "ready\n")
			if out, code := d.sweep(); code != 1 || out != "" || gone(p.PID) {
				t.Errorf("pinfoldd --sweep beside a daemon = exit %d, %q; want 1 and nothing ended", code, out)
			}
			d.kill()
			out, code := d.sweep()
			want := fmt.Sprintf("ended session %s of uid %s\nended process %s (pid %d) of session %s: sh -c (setsid", m.id, map[bool]string{false: "0", true: "54321"}[rootless], p.ID, p.PID, m.id)
			if code != 0 || !strings.HasPrefix(out, want) || !gone(p.PID) {
				t.Errorf("pinfoldd --sweep = exit %d, %q; want 0, %q, and process %d gone", code, out, want, p.PID)
			}
			d.over = true
			d.checkNothingLeft()
			if !d.audited(func(l auditLine) bool {
				return l.Kind == "ended" && l.Process == p.ID && strings.Contains(string(l.Verdict), `"cause":"session_ended"`)
			}) {
				t.Error("the audit record does not say how the process ended; want session_ended")
			}
			if out, code := d.sweep(); code != 0 || !strings.HasPrefix(out, "ended nothing") {
				t.Errorf("pinfoldd --sweep of nothing = exit %d, %q; want 0 and nothing", code, out)
			}
		})
	}
}

// TestARecordOfALaterVersionIsRefused before anything is touched; the daemon that knows
// it goes on with all of it.
func TestARecordOfALaterVersionIsRefused(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, shell(`while read -r l; do echo "$l"; done`))
	d.kill()
	file := filepath.Join(d.state, "run", "record", "process", p.ID+".json")
	text := readFile(t, file)
	later := strings.Replace(text, `{"version":1,`, `{"version":2,"hue":3,`, 1)
	if err := os.WriteFile(file, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	before := readFile(t, filepath.Join(d.state, "audit.log"))
	if err := d.launch(); err == nil || d.cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("pinfoldd with a record of version 2 = %v; want exit 1\n%s", err, d.log)
	}
	for _, w := range []string{file, "version 2", "up to 1", "--sweep"} {
		if !strings.Contains(d.log.String(), w) {
			t.Errorf("pinfoldd with a record of version 2 says %q; want %q in it", d.log, w)
		}
	}
	if gone(p.PID) || readFile(t, file) != later || readFile(t, filepath.Join(d.state, "audit.log")) != before {
		t.Error("a start that was refused has changed something; want all as it was")
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.launch(); err != nil {
		t.Fatalf("the pinfoldd that knows the record = %v; want it ready\n%s", err, d.log)
	}
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, p.Offsets())
	if err := p.Write(soon(t), []byte("well\n")); err != nil {
		t.Fatal(err)
	}
	await(t, p, "well\n")
	d.kill()
	if err := os.WriteFile(file, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := d.sweep(); code != 0 || !gone(p.PID) || !strings.Contains(out, file) {
		t.Errorf("pinfoldd --sweep of a later version = exit %d, %q; want 0 and process %d gone", code, out, p.PID)
	}
	d.over = true
	d.checkNothingLeft()
}

// TestABrokenRecordEndsWhatItNames, and nothing else.
func TestABrokenRecordEndsWhatItNames(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	broken, well := spawn(t, m.Client, shell("sleep 600")), spawn(t, m.Client, shell(`read -r l; echo "$l"`))
	d.kill()
	file := filepath.Join(d.state, "run", "record", "process", broken.ID+".json")
	if err := os.Truncate(file, 100); err != nil {
		t.Fatal(err)
	}
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	if !gone(broken.PID) {
		t.Errorf("process %d, whose record is broken, runs once the daemon is ready; want it ended", broken.PID)
	}
	aside := filepath.Join(d.state, "run", "record", "broken", "process-"+broken.ID+".json")
	if b, err := os.ReadFile(aside); err != nil || len(b) != 100 {
		t.Errorf("%s has %d bytes, %v; want the record as it was", aside, len(b), err)
	}
	if !d.audited(func(l auditLine) bool { return l.Kind == "set_aside" && l.File == file }) {
		t.Error("the audit record has no set_aside; want the file told")
	}
	d.log.forget() // it tells of the record as an error
	m = d.back(m, proto.Handshake{})
	p := attach(t, m.Client, well.ID, client.Offsets{})
	if err := p.Write(soon(t), []byte("well\n")); err != nil {
		t.Fatal(err)
	}
	if out, _, v := output(t, p); out != "well\n" || v.Code != 0 {
		t.Errorf("the other process = %q, %+v; want it to go on", out, v)
	}
	if err := os.Remove(aside); err != nil {
		t.Fatal(err)
	}
}

// TestAStopGoesOnOverAKill: what has been asked of a process when the daemon is killed
// happens at its time, once, and for the reason for which it was asked.
func TestAStopGoesOnOverAKill(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    timeout: { stop: 4s }\n"))
	m := d.enter()
	p := spawn(t, m.Client, shell(`trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done`))
	await(t, p, "ready\n")
	began := time.Now()
	go func() { _, _ = m.Kill(t.Context(), p.ID, proto.SigTerm) }()
	await(t, p, "asked\n")
	eventually(t, "the record says that SIGTERM was sent", func() bool { return d.records().Processes[0].Stop.Told })
	d.crash(2 * time.Second)
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, p.Offsets())
	out, _, v := output(t, p)
	if took := time.Since(began); took < 3900*time.Millisecond || took > 5900*time.Millisecond {
		t.Errorf("the end came after %s; want it at the end of the grace period of 4s", took)
	}
	if out != "" || v.Cause != proto.CauseKilled || v.By != "request" || v.Signal != "SIGKILL" {
		t.Errorf("after the kill %q, %+v; want no second SIGTERM, and killed by request", out, v)
	}
}

// TestLingeringGoesOnOverAKill: what the main process left has the rest of its time, and
// the end stays when it was.
func TestLingeringGoesOnOverAKill(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    linger: 4s\n"))
	m := d.enter()
	p := spawn(t, m.Client, shell(`(setsid sleep 600 &); exit 6`))
	began := time.Now()
	eventually(t, "the end of the main process is noted", func() bool { return !d.records().Processes[0].Exited.IsZero() })
	d.crash(2 * time.Second)
	m = d.back(m, proto.Handshake{})
	_, _, v := output(t, attach(t, m.Client, p.ID, p.Offsets()))
	if took := time.Since(began); took < 3900*time.Millisecond || took > 5900*time.Millisecond {
		t.Errorf("the end came after %s; want it at the end of the linger time of 4s", took)
	}
	if v.Code != 6 || v.Cause != proto.CauseExited || len(v.Survivors) != 1 || v.Usage.Wall > 1.9 {
		t.Errorf("verdict = %+v; want exit 6 before the kill, with one survivor", v)
	}
}

// TestAStopThatWasOnlyNotedIsCarriedOut: the daemon was killed between its note and the
// signal.
func TestAStopThatWasOnlyNotedIsCarriedOut(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		stop  record.Stop
		out   string
		cause proto.Cause
	}{
		"SIGTERM": {record.Stop{Cause: "timeout_idle", By: "timer", Scope: "process"}, "asked\n", proto.CauseTimeoutIdle},
		"SIGKILL": {record.Stop{Cause: "output_limit", By: "output", Scope: "process", Kill: true}, "", proto.CauseOutputLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, "")
			m := d.enter()
			p := spawn(t, m.Client, shell(`trap 'echo asked; exit 1' TERM; echo ready; while :; do sleep 0.1; done`))
			await(t, p, "ready\n")
			d.kill()
			st, err := record.Open(filepath.Join(d.state, "run", "record"))
			r := d.records().Processes[0]
			r.Stop, r.Stop.Due = row.stop, record.Now().Add(time.Minute)
			if err := errors.Join(err, st.PutProcess(r)); err != nil {
				t.Fatal(err)
			}
			if err := d.launch(); err != nil {
				t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
			}
			m = d.back(m, proto.Handshake{})
			out, _, v := output(t, attach(t, m.Client, p.ID, p.Offsets()))
			if out != row.out || v.Cause != row.cause {
				t.Errorf("after the next start %q, %+v; want %q and %s", out, v, row.out, row.cause)
			}
		})
	}
}

// TestWhatIsFinishedIsKeptOverAKill, with its output, its verdict, and one record of its end.
func TestWhatIsFinishedIsKeptOverAKill(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, shell(`seq 3; echo no >&2; exit 5`))
	_, _, v := output(t, p)
	eventually(t, "the end is noted", func() bool { r := d.records().Processes[0]; return r.Audited && r.Told })
	for range 2 {
		d.crash(0)
		m = d.back(m, proto.Handshake{})
		out, errs, again := output(t, attach(t, m.Client, p.ID, client.Offsets{}))
		if out != "1\n2\n3\n" || errs != "no\n" || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", v) {
			t.Errorf("after a kill = %q, %q, %+v; want the same output, and %+v", out, errs, again, v)
		}
	}
	if list, err := m.List(soon(t), ""); err != nil || len(list) != 1 || *list[0].ExitCode != 5 || list[0].Verdict == nil || list[0].Argv[2] != `seq 3; echo no >&2; exit 5` {
		t.Errorf("List = %+v, %v; want the process as it was", list, err)
	}
	if got := d.ends(p.ID); len(got) != 1 {
		t.Errorf("the audit record tells of its end %q; want once", got)
	}
}

// TestAFinishedProcessIsForgotten once its retention is over, also where the daemon was
// killed meanwhile; nothing of it is left then.
func TestAFinishedProcessIsForgotten(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    retention: 3s\n", ""))
	m := d.enter()
	p := spawn(t, m.Client, shell(`seq 3`))
	other := spawn(t, m.Client, shell(`echo ready; sleep 600`))
	await(t, other, "ready\n")
	output(t, p)
	ended := time.Now()
	d.crash(0)
	m = d.back(m, proto.Handshake{})
	if out, _, _ := output(t, attach(t, m.Client, p.ID, client.Offsets{})); out != "1\n2\n3\n" {
		t.Errorf("after a kill = %q; want the output of the finished process", out)
	}
	eventually(t, "the finished process is forgotten", func() bool {
		list, err := m.List(soon(t), "")
		return err == nil && len(list) == 1
	})
	if took := time.Since(ended); took < 2900*time.Millisecond {
		t.Errorf("it was forgotten after %s; want it kept for 3s", took)
	}
	if left, err := filepath.Glob(filepath.Join(d.state, "run", "*", p.ID+"*")); err != nil || len(left) > 0 || len(d.records().Processes) != 1 {
		t.Errorf("of the forgotten process are left %q and records of %d processes, %v; want one, of the other", left, len(d.records().Processes), err)
	}
}

// TestAnEndIsAuditedOnce: the daemon was killed between the note of a verdict and its
// audit record, or right after that, or after it had told of what it does not take up; and what
// the next one needs to take the process up may be broken.
func TestAnEndIsAuditedOnce(t *testing.T) {
	t.Parallel()
	whole := func(*daemon, record.Process) error { return nil }
	noSession := func(d *daemon, r record.Process) error {
		return os.WriteFile(filepath.Join(d.state, "run", "record", "session", r.Session+".json"), []byte("{"), 0o600)
	}
	noSpool := func(d *daemon, r record.Process) error {
		dir := filepath.Join(d.state, "run", "spool", r.ID)
		return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
	}
	for _, row := range []onceRow{
		{name: "whole", damage: whole, kept: true},
		{name: "whole, and the pens live", damage: whole, alive: true, kept: true},
		{name: "no session", damage: noSession, twice: true},
		{name: "no session, and the pens live", damage: noSession, alive: true},
		{name: "no session, of one that was being ended", damage: noSession, stop: true},
		{name: "no spool", damage: noSpool},
		{name: "no spool, of one that was being ended", damage: noSpool, stop: true},
		{name: "no spool, and the pens live", damage: noSpool, alive: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.run(t, start(t, ""))
		})
	}
}

type onceRow struct {
	name   string
	damage func(d *daemon, r record.Process) error // to what is left of a process
	alive  bool                                    // PID 1 of each pen goes on
	stop   bool                                    // the time of what runs was up
	twice  bool                                    // the next daemon was killed before it had removed what it told of
	kept   bool                                    // the processes are taken up
}

func (row onceRow) run(t *testing.T, d *daemon) {
	t.Helper()
	m := d.enter()
	told, untold, running := spawn(t, m.Client, shell("exit 3")), spawn(t, m.Client, shell("echo ready; sleep 600")), spawn(t, m.Client, shell("echo ready; sleep 600"))
	output(t, told)
	await(t, untold, "ready\n")
	await(t, running, "ready\n")
	eventually(t, "the end is noted", func() bool {
		return slices.ContainsFunc(d.records().Processes, func(r record.Process) bool { return r.ID == told.ID && r.Audited && r.Told })
	})
	d.kill()
	if !row.alive {
		killPID1(t, untold.PID)
		killPID1(t, running.PID)
	}
	all := row.leave(t, d, told.ID, untold.ID, running.ID)
	d.next(t)
	eventually(t, "the process whose verdict stood is gone", func() bool { return procState(untold.PID) == "" })
	cause := proto.CauseLost
	if row.alive && row.kept {
		cause = proto.CauseKilled
		if _, err := d.back(m, proto.Handshake{}).Kill(soon(t), running.ID, proto.SigKill); err != nil {
			t.Fatal(err)
		}
	}
	if row.stop {
		cause = proto.CauseTimeoutWall
	}
	eventually(t, "the process that ran is gone", func() bool { return procState(running.PID) == "" })
	if row.twice {
		d.kill()
		d.put(t, all)
		d.next(t)
	}
	d.crash(0)
	for id, cause := range map[string]proto.Cause{told.ID: proto.CauseExited, untold.ID: proto.CauseExited, running.ID: cause} {
		eventuallyOrNot(func() bool { return len(d.ends(id)) > 0 })
		if got := d.ends(id); len(got) != 1 || !strings.Contains(got[0], `"cause":"`+string(cause)+`"`) {
			t.Errorf("the audit record tells of the end of process %s %q; want it once, %s", id, got, cause)
		}
	}
	eventually(t, "what cannot be taken up is forgotten", func() bool { return len(d.records().Processes) > 0 == row.kept })
	d.crash(0) // to a log without what was damaged
}

// leave is what a daemon leaves that was killed at the end of two processes, of which it had
// told one in its audit record and not in its own, and the other in its own alone, while a third runs.
func (row onceRow) leave(t *testing.T, d *daemon, told, untold, running string) []record.Process {
	t.Helper()
	all := d.records().Processes
	at := func(id string) *record.Process {
		return &all[slices.IndexFunc(all, func(r record.Process) bool { return r.ID == id })]
	}
	a, b := at(told), at(untold)
	a.Audited, a.Told = false, false
	b.Verdict, b.Exited = a.Verdict, a.Exited
	if row.stop {
		at(running).Stop = record.Stop{Cause: string(proto.CauseTimeoutWall), By: "timer", Scope: "process", Due: record.Now()}
	}
	d.put(t, all)
	for _, r := range all {
		if err := row.damage(d, r); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// put stores records for the next daemon.
func (d *daemon) put(t *testing.T, all []record.Process) {
	t.Helper()
	st, err := record.Open(filepath.Join(d.state, "run", "record"))
	for _, r := range all {
		if err == nil {
			err = st.PutProcess(r)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// next starts the next daemon.
func (d *daemon) next(t *testing.T) {
	t.Helper()
	if err := d.launch(); err != nil {
		t.Fatalf("pinfoldd = %v; want it ready\n%s", err, d.log)
	}
}

// ends are the verdicts that the audit record tells of a process.
func (d *daemon) ends(id string) (verdicts []string) {
	d.t.Helper()
	for _, l := range d.auditLines() {
		if l.Kind == "ended" && l.Process == id {
			verdicts = append(verdicts, string(l.Verdict))
		}
	}
	return verdicts
}

// TestQuotasCountWhatWasAdopted: processes and sessions.
func TestQuotasCountWhatWasAdopted(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    quota: { processes: 2, sessions: 2 }", shortGrace))
	m, other := d.enter(), d.enter()
	first := spawn(t, m.Client, shell("sleep 600"))
	spawn(t, other.Client, shell("sleep 600"))
	d.crash(0)
	m = d.back(m, proto.Handshake{})
	_, err := m.Spawn(soon(t), shell("true"))
	refused(t, "a spawn beyond quota.processes", err, proto.CodeProcLimit)
	c := d.join()
	if _, err := c.Handshake(soon(t), &proto.Handshake{}); err == nil {
		t.Error("a session beyond quota.sessions = nil; want it refused")
	}
	if _, err := m.Kill(soon(t), first.ID, proto.SigKill); err != nil {
		t.Fatal(err)
	}
	if out := runOK(t, m.Client, shell("echo well")); out != "well\n" {
		t.Errorf("run = %q; want it well", out)
	}
}

// TestPensOutliveTheirStage: the daemon then ends as if it were killed.
func TestPensOutliveTheirStage(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, shell(`while read -r l; do echo "$l"; done; exit 4`))
	if err := syscall.Kill(d.stage(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait() // its exit code is looked at below
	if code := d.cmd.ProcessState.ExitCode(); code != 1 || gone(p.PID) {
		t.Fatalf("without its stage pinfoldd = exit %d, process gone %t; want 1, and the process going on", code, gone(p.PID))
	}
	if err := d.launch(); err != nil {
		t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, p.Offsets())
	if err := errors.Join(p.Write(soon(t), []byte("well\n")), p.CloseStdin(soon(t))); err != nil {
		t.Fatal(err)
	}
	if out, _, v := output(t, p); out != "well\n" || v.Code != 4 {
		t.Errorf("after the next start %q, %+v; want well, and exit 4", out, v)
	}
}

// stage is the pid of the daemon's stage.
func (d *daemon) stage() int {
	d.t.Helper()
	procs, err := d.processes()
	if err != nil {
		d.t.Fatal(err)
	}
	i := slices.IndexFunc(procs, func(p string) bool { return strings.Contains(p, "pinfold-stage") })
	if i < 0 {
		d.t.Fatalf("processes = %q; want a stage among them", procs)
	}
	pid, _, _ := strings.Cut(procs[i], " ")
	return atoi(pid)
}

// TestADaemonIsKilledWhileItAdopts, at some moment of its start, again and again: the one
// that comes through finds everything.
func TestADaemonIsKilledWhileItAdopts(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	m := d.enter()
	var all []*client.Process
	for range 6 {
		all = append(all, spawn(t, m.Client, shell(`read -r l; echo "$l"; exit 9`)))
	}
	d.kill()
	for i := range 25 {
		d.log = &lockedBuffer{}
		d.cmd = d.command("pinfoldd", d.args()...)
		d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
		if err := d.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(10+6*i) * time.Millisecond)
		d.kill()
	}
	if err := d.launch(); err != nil {
		t.Fatalf("the next pinfoldd = %v; want it ready\n%s", err, d.log)
	}
	m = d.back(m, proto.Handshake{})
	for _, p := range all {
		p = attach(t, m.Client, p.ID, p.Offsets())
		if err := p.Write(soon(t), []byte("well\n")); err != nil {
			t.Fatal(err)
		}
		if out, _, v := output(t, p); out != "well\n" || v.Code != 9 || v.Cause != proto.CauseExited {
			t.Errorf("process %s = %q, %+v; want well, and exit 9", p.ID, out, v)
		}
	}
}

// TestATerminalIsAdopted: its size can be changed, and what is typed arrives.
func TestATerminalIsAdopted(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	s := shell(`stty size; while read -r l; do echo "<$l>"; stty size; done`)
	s.PTY = &proto.PTY{Rows: 10, Cols: 20}
	s.Cmd[2] = strings.ReplaceAll(s.Cmd[2], "stty size", `python3 -c 'import os; print(*os.get_terminal_size())'`)
	p := spawn(t, m.Client, s)
	await(t, p, "20 10")
	d.crash(0)
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, p.Offsets())
	if err := errors.Join(p.Resize(soon(t), proto.PTY{Rows: 30, Cols: 40}), p.Write(soon(t), []byte("hello\n"))); err != nil {
		t.Fatal(err)
	}
	if out := await(t, p, "40 30"); !strings.Contains(out, "<hello>") {
		t.Errorf("the terminal says %q; want what was typed", out)
	}
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Fatal(err)
	}
	if _, _, v := output(t, p); v.Cause != proto.CauseExited {
		t.Errorf("verdict = %+v; want exited", v)
	}
}

// TestOperationsAreKnownOverAKill: what was done is done once.
func TestOperationsAreKnownOverAKill(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	s := shell("sleep 600")
	s.OpID = "start-it"
	p := spawn(t, m.Client, s)
	d.crash(0)
	m = d.back(m, proto.Handshake{})
	for id, want := range map[string]proto.Outcome{"start-it": proto.OutcomeApplied, "never": proto.OutcomeNotSent} {
		if r, err := m.OpsGet(soon(t), id); err != nil || r.Outcome != want {
			t.Errorf("Op(%s) = %+v, %v; want %s", id, r, err, want)
		}
	}
	if again := spawn(t, m.Client, s); again.ID != p.ID {
		t.Errorf("the same operation again = process %s; want %s", again.ID, p.ID)
	}
	if list, err := m.List(soon(t), ""); err != nil || len(list) != 1 {
		t.Errorf("List = %+v, %v; want one process", list, err)
	}
}
