package host

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
)

// TestSpawnRespComesFirstAndTheFinalEventLast looks at the raw lines of many quick
// commands at once, in both forms of data.
func TestSpawnRespComesFirstAndTheFinalEventLast(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	for _, form := range []proto.DataForm{proto.DataString, proto.DataObject} {
		w := d.connect()
		w.hello(fmt.Sprintf(`,"proc":{"data":%q}`, form))
		const n = 20
		for i := range n {
			w.ask("proc/spawn/req", fmt.Sprintf("s%d", i), fmt.Sprintf(`,"cmd":["sh","-c","echo out; echo err >&2; exit %d"],"stdin_mode":"null"`, i%3))
		}
		type seen struct {
			told, final bool
			seq         uint64
			text        map[proto.Stream]string
		}
		procs := map[string]*seen{}
		for left := n; left > 0; {
			f := w.next()
			if f.Type == proto.TypeSpawnResp {
				if !f.OK || f.PID <= 0 || f.ProcID == "" {
					t.Fatalf("spawn/resp = %s; want ok with proc_id and pid", f.raw)
				}
				procs[f.ReqID] = &seen{told: true, text: map[proto.Stream]string{}}
				continue
			}
			p := procs[f.ReqID]
			if p == nil || !p.told {
				t.Fatalf("%s came before the spawn/resp of %s", f.raw, f.ReqID)
			}
			if p.final {
				t.Errorf("%s came after the final event", f.raw)
			}
			if p.seq++; f.Seq != p.seq {
				t.Errorf("seq of %s = %d; want %d", f.raw, f.Seq, p.seq)
			}
			code, text := payload(t, form, f)
			if code == nil {
				p.text[f.Stream] += text
				continue
			}
			p.final = true
			left--
			checkFinal(t, f, *code)
			if p.text[proto.Stdout] != "out\n" || p.text[proto.Stderr] != "err\n" {
				t.Errorf("output of %s = %q; want out and err, all before the final event", f.ReqID, p.text)
			}
		}
	}
}

// payload is the data of an event in the form that it must have.
func payload(t *testing.T, form proto.DataForm, f frame) (code *int, text string) {
	t.Helper()
	raw := f.Data
	if form == proto.DataString {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatalf("data of %s = %v; want a string", f.raw, err)
		}
		raw = json.RawMessage(s)
	}
	var data map[string]any
	if err := json.Unmarshal(raw, &data); err != nil {
		t.Fatalf("data of %s = %v; want an object", f.raw, err)
	}
	if c, ok := data["code"].(float64); ok {
		n := int(c)
		return &n, ""
	}
	s, ok := data["text"].(string)
	if !ok {
		t.Fatalf("data of %s has neither text nor code", f.raw)
	}
	return nil, s
}

func checkFinal(t *testing.T, f frame, code int) {
	t.Helper()
	want := proto.Stdout
	if code != 0 {
		want = proto.Stderr
	}
	var v proto.Verdict
	if err := json.Unmarshal(f.Verdict, &v); err != nil {
		t.Fatalf("verdict of %s = %v; want one beside the data", f.raw, err)
	}
	if f.Stream != want || v.Code != code || v.Cause != proto.CauseExited || !v.Output.Drained || v.Output.Stdout != 4 || v.Output.Stderr != 4 {
		t.Errorf("final event = %s; want stream %s, exited %d, 4 bytes of each, drained", f.raw, want, code)
	}
}

// TestNothingOfStderrIsLost is field point 31: a program that ends right after it
// wrote to standard error.
func TestNothingOfStderrIsLost(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	for i := range 300 {
		stdout, stderr, v := run(t, c, proto.Spawn{Cmd: []string{"sh", "-c", "echo e >&2; exit 1"}, StdinMode: proto.StdinNull})
		if stdout != "" || stderr != "e\n" || v.Code != 1 || v.Cause != proto.CauseExited || v.Output.Stderr != 2 {
			t.Fatalf("run %d = %q, %q, %+v; want e on stderr and exit 1", i, stdout, stderr, v)
		}
	}
}

// TestEveryRequestOnce walks through every message of the wire.
func TestEveryRequestOnce(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}, Labels: []string{"a cat"}})
	if p.PID <= 0 || p.Spawned.Profile != "default" || p.Spawned.Workspace == "" || len(p.Spawned.Enforcement) == 0 || p.Spawned.Rule == "" {
		t.Errorf("Spawn(cat) = %+v; want pid, profile, workspace, rule and record", p.Spawned)
	}
	if err := p.Write(soon(t), []byte("hello\n")); err != nil {
		t.Errorf("Write() = %v; want none", err)
	}
	await(t, p, "hello\n")
	if up, err := c.Ping(soon(t)); err != nil || up <= 0 {
		t.Errorf("Ping() = %v, %v; want a time", up, err)
	}
	s, err := c.Status(soon(t), p.ID)
	if err != nil || s.Status != proto.StatusRunning || s.ProcID != p.ID || s.Proc == nil || s.Proc.PID != p.PID || s.Proc.ExitCode != nil || s.Proc.Cmd != "cat" {
		t.Errorf("Status(%s) = %+v, %v; want running", p.ID, s, err)
	}
	if s, err := c.Status(soon(t), ""); err != nil || s.Status != "1 running" || s.ProcID != "" || len(s.Procs) != 1 {
		t.Errorf("Status() = %+v, %v; want 1 running", s, err)
	}
	if l, err := c.List(soon(t), "a cat"); err != nil || len(l) != 1 || l[0].Argv[0] != "cat" || l[0].Age <= 0 || l[0].State != proto.StateRunning {
		t.Errorf("List(a cat) = %+v, %v; want it", l, err)
	}
	if l, err := c.List(soon(t), "a dog"); err != nil || len(l) != 0 {
		t.Errorf("List(a dog) = %+v, %v; want none", l, err)
	}
	st, err := c.Stats(soon(t), p.ID)
	if err != nil || st.Stats == nil || st.Stats.PidsCurrent < 1 || st.Stats.MemoryLimit != 1<<30 || st.Stats.StdinBytes != 6 || st.Stats.Output.Stdout != 6 || st.Stats.Delivered != 6 {
		t.Errorf("Stats() = %+v, %v; want one pid, 1 GiB, 6 bytes each way", st, err)
	}
	_, err = c.Wait(soon(t), p.ID, 50*time.Millisecond)
	refused(t, "Wait(50ms)", err, proto.CodeTimeout)
	if e, err := c.Explain(soon(t), proto.Spawn{Cmd: []string{"perl", "-e", "1"}}); err != nil || e.Allowed || e.Denial == nil || e.Text == "" {
		t.Errorf("Explain(perl) = %+v, %v; want a refusal, explained", e, err)
	}
	if e, err := c.Explain(soon(t), proto.Spawn{Cmd: []string{"cat"}}); err != nil || !e.Allowed || e.Profile != "default" || e.Rule == "" {
		t.Errorf("Explain(cat) = %+v, %v; want allowed", e, err)
	}
	refused(t, "Resize(no terminal)", c.Resize(soon(t), p.ID, proto.PTY{Rows: 1, Cols: 1}), proto.CodeUnsupported)
	if state, err := c.Kill(soon(t), p.ID, proto.SigTerm); err != nil || state != proto.StatusKilled {
		t.Errorf("Kill() = %s, %v; want killed", state, err)
	}
	if v, err := c.Wait(soon(t), p.ID, 0); err != nil || v.Cause != proto.CauseKilled || v.Signal != "SIGTERM" || v.By != "request" {
		t.Errorf("Wait() = %+v, %v; want killed by request", v, err)
	}
	e, err := p.Next(soon(t))
	if err != nil || e.StreamType != proto.Killed || e.Data.Code != nil || len(e.Data.Text) != 0 || e.Verdict == nil {
		t.Errorf("Next() = %+v, %v; want killed {}", e, err)
	}
	if s, err := c.Status(soon(t), p.ID); err != nil || s.Status != proto.StatusKilled || s.Proc.State != proto.StateStopped || s.Proc.Verdict == nil {
		t.Errorf("Status(ended) = %+v, %v; want killed, stopped", s, err)
	}
	_, err = c.Kill(soon(t), p.ID, proto.SigInt)
	refused(t, "Kill(ended)", err, proto.CodeProcDead)
	refused(t, "Write(ended)", p.Write(soon(t), []byte("x")), proto.CodeProcDead)
	if st, err := c.Stats(soon(t), p.ID); err != nil || st.Status != proto.StatusKilled || st.Stats.Usage.Wall <= 0 {
		t.Errorf("Stats(ended) = %+v, %v; want what stood at the end", st, err)
	}
	if err := c.Shutdown(soon(t), 0); err != nil {
		t.Errorf("Shutdown() = %v; want the connection closed", err)
	}
	eventually(t, "no cgroup of a caller is left", func() bool { return len(d.below()) == 0 })
}

// TestSpawnErrorsAreToldApart is field point 8.
func TestSpawnErrorsAreToldApart(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	for _, tt := range []struct {
		spawn proto.Spawn
		code  proto.Code
		word  string
	}{
		{proto.Spawn{Cmd: []string{"nosuchprogram"}}, proto.CodeNotFound, "nosuchprogram"},
		{proto.Spawn{Cmd: []string{"/usr/bin/perl", "-e", "1"}}, proto.CodeDenied, "perl"},
		{proto.Spawn{Cmd: []string{"ls"}, Cwd: "/etc"}, proto.CodeDenied, "/etc"},
		{proto.Spawn{Cmd: []string{"ls"}, Cwd: "/nosuchdir"}, proto.CodeDenied, "/nosuchdir"},
		{proto.Spawn{Cmd: []string{"ls"}, Cwd: "relative"}, proto.CodeSchemaViolation, "relative"},
		{proto.Spawn{Cmd: []string{"ls"}, Profile: "defalt"}, proto.CodeDenied, "defalt"},
		{proto.Spawn{Cmd: []string{"ls"}, SessionID: "another"}, proto.CodeUnknownSession, "another"},
		{proto.Spawn{Cmd: []string{"ls"}, Env: map[string]string{"LD_PRELOAD": "/x.so"}}, proto.CodeDenied, "LD_PRELOAD"},
	} {
		_, err := c.Spawn(soon(t), tt.spawn)
		if e := refused(t, fmt.Sprintf("Spawn(%+v)", tt.spawn), err, tt.code); !strings.Contains(e.Message, tt.word) || e.Retryable {
			t.Errorf("Spawn(%+v) = %q, retryable %v; want it to name %s", tt.spawn, e.Message, e.Retryable, tt.word)
		}
	}
	for want := 1; want <= 2; want++ {
		_, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"/usr/bin/mkfifo", "x"}})
		e := refused(t, "Spawn(mkfifo)", err, proto.CodeDenied)
		if r, ok := e.Response.(*proto.SpawnResp); !ok || r.Denial == nil || r.Denial.Count != want || (want > 1 && !r.Denial.Final) {
			t.Errorf("Spawn(mkfifo) = %+v; want a denial with count %d, final from the second on", e.Response, want)
		}
	}
}
