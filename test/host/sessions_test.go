package host

import (
	"strings"
	"testing"
	"time"

	"pinfold/proto"
)

// TestAnotherSessionsProcessIsLikeOneThatNeverWas, byte for byte but for what
// names the message itself.
func TestAnotherSessionsProcessIsLikeOneThatNeverWas(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}})
	ended := spawn(t, c, proto.Spawn{Cmd: []string{"true"}})
	output(t, ended)
	w := d.connect()
	w.hello("")
	const never = "00000000-0000-4000-8000-000000000000"
	for i, q := range []struct{ typ, extra string }{
		{"proc/status/req", ""},
		{"proc/kill/req", `,"signal":"SIGKILL"`},
		{"proc/kill/req", `,"signal":"SIGINT"`},
		{"proc/write/req", `,"data":"x"`},
		{"proc/wait/req", ""},
		{"proc/wait/req", `,"timeout_ms":10`},
		{"proc/stats/req", ""},
		{"proc/resize/req", `,"rows":3,"cols":3`},
		{"proc/attach/req", ""},
		{"proc/attach/req", `,"stdout_from":1000000000`},
	} {
		answers := make([]string, 0, 3)
		for j, id := range []string{never, p.ID, ended.ID} {
			req := string(rune('a'+i)) + string(rune('0'+j))
			w.ask(q.typ, req, `,"proc_id":"`+id+`"`+q.extra)
			f := w.answerTo(req)
			if f.OK || f.Code != proto.CodeUnknownProc {
				t.Errorf("%s of another session = %s; want unknown_proc", q.typ, f.raw)
			}
			answers = append(answers, anonymous(f, id, req))
		}
		if answers[1] != answers[0] || answers[2] != answers[0] {
			t.Errorf("%s:\nnever   %s\nrunning %s\nended   %s\nwant no difference", q.typ, answers[0], answers[1], answers[2])
		}
	}
	w.ask("proc/status/req", "all", "")
	if f := w.answerTo("all"); f.Status != "0 running" || strings.Contains(f.raw, p.ID) {
		t.Errorf("status of all = %s; want nothing of another session", f.raw)
	}
	w.ask("proc/list/req", "list", "")
	if f := w.answerTo("list"); strings.Contains(f.raw, p.ID) {
		t.Errorf("list = %s; want nothing of another session", f.raw)
	}
	if s, err := c.Status(soon(t), p.ID); err != nil || s.Status != proto.StatusRunning {
		t.Errorf("Status() by its own session = %+v, %v; want it untouched", s, err)
	}
}

// anonymous takes out of an answer what differs between any two answers.
func anonymous(f frame, procID, reqID string) string {
	raw := strings.ReplaceAll(f.raw, procID, "PROC")
	raw = strings.ReplaceAll(raw, `"`+reqID+`"`, "REQ")
	raw = strings.ReplaceAll(raw, f.ID, "ID")
	before, rest, _ := strings.Cut(raw, `"ts":`)
	_, after, _ := strings.Cut(rest, ",")
	return before + after
}

// TestOperators see and end the processes of others as policy says, and no more.
func TestOperators(t *testing.T) {
	t.Parallel()
	for manage, sees := range map[string]bool{"own": true, "all": true, "none": false} {
		t.Run(manage, func(t *testing.T) {
			d := start(t, basic("    manage: "+manage, shortGrace))
			c := d.agent()
			p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}})
			op := d.dial(proto.Handshake{Role: proto.RoleOperator})
			_, err := op.Spawn(soon(t), proto.Spawn{Cmd: []string{"true"}})
			refused(t, "Spawn() by an operator", err, proto.CodeDenied)
			refused(t, "Write() by an operator", op.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: "x"}), proto.CodeUnknownProc)
			l, err := op.List(soon(t), "")
			if err != nil || (len(l) == 1 && l[0].ProcID == p.ID && l[0].UID != nil && l[0].SessionID != "") != sees {
				t.Errorf("List() by an operator = %+v, %v; want the process: %v", l, err, sees)
			}
			if !sees {
				_, err := op.Kill(soon(t), p.ID, proto.SigKill)
				refused(t, "Kill() by an operator", err, proto.CodeUnknownProc)
				return
			}
			if s, err := op.Status(soon(t), p.ID); err != nil || s.Status != proto.StatusRunning {
				t.Errorf("Status() by an operator = %+v, %v; want running", s, err)
			}
			if s, err := op.Kill(soon(t), p.ID, proto.SigTerm); err != nil || s != proto.StatusKilled {
				t.Errorf("Kill() by an operator = %s, %v; want killed", s, err)
			}
			if _, _, v := output(t, p); v.Cause != proto.CauseKilled {
				t.Errorf("verdict = %+v; want killed", v)
			}
			for _, action := range []string{"proc/list/req", "proc/status/req", "proc/kill/req"} {
				if !d.audited(func(e auditLine) bool { return e.Kind == "operator_use" && e.Action == action }) {
					t.Errorf("the audit has no operator_use of %s", action)
				}
			}
		})
	}
}

// TestAnOperatorThatLeavesHurtsNobody: its answers are owed when it has gone.
func TestAnOperatorThatLeavesHurtsNobody(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	c := d.agent()
	for range 5 {
		p := spawn(t, c, shell(`trap "" TERM; echo ready; while :; do sleep 0.05; done`))
		await(t, p, "ready")
		w := d.connect()
		w.hello(`,"role":"operator"`)
		w.ask("proc/wait/req", "w", `,"proc_id":"`+p.ID+`"`)
		w.ask("proc/wait/req", "t", `,"timeout_ms":300,"proc_id":"`+p.ID+`"`)
		w.ask("proc/kill/req", "k", `,"signal":"SIGTERM","proc_id":"`+p.ID+`"`)
		w.ask("ping", "p", "")
		w.answerTo("p")
		if err := w.conn.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, v := output(t, p); v.Cause != proto.CauseKilled {
			t.Errorf("verdict = %+v; want killed by the operator that left", v)
		}
	}
	if _, err := c.Ping(soon(t)); err != nil {
		t.Errorf("Ping() = %v; want the daemon well", err)
	}
}

// TestQuotas of sessions and processes.
func TestQuotas(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    quota: { sessions: 2, processes: 2 }", ""))
	c := d.agent()
	first := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}})
	second := spawn(t, d.agent(), proto.Spawn{Cmd: []string{"cat"}})
	_, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"cat"}})
	if e := refused(t, "Spawn(third)", err, proto.CodeProcLimit); e.Retryable {
		t.Errorf("Spawn(third) = retryable; want it not to be, as the spec says")
	}
	w := d.connect()
	w.send(`{"type":"handshake/req","id":"h","version":"1.0","ts":1,"agent_id":"","agent_caps":["proc"],"auth_token":""}`)
	if f := w.next(); f.Type != proto.TypeHandshakeResp || f.OK || f.Reason != string(proto.ReasonServerError) || f.Error == "" {
		t.Errorf("third session = %s; want server_error with a sentence", f.raw)
	}
	w.closed()
	if _, err := first.Kill(soon(t), proto.SigKill); err != nil {
		t.Fatalf("Kill() = %v; want none", err)
	}
	output(t, first)
	eventually(t, "there is room again", func() bool {
		p, err := c.Spawn(soon(t), proto.Spawn{Cmd: []string{"true"}})
		if err == nil {
			output(t, p)
		}
		return err == nil
	})
	if _, err := second.Kill(soon(t), proto.SigKill); err != nil {
		t.Errorf("Kill(second) = %v; want none", err)
	}
}

// TestASlowClientIsAlone: its own answers wait, nobody else's do.
func TestASlowClientIsAlone(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	slow := d.connect()
	slow.hello("")
	slow.ask("proc/spawn/req", "s", `,"cmd":["yes"],"stdin_mode":"null"`)
	if err := slow.conn.SetWriteDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for ; sent < 200000; sent++ { // until the daemon stops reading what nobody takes answers for
		if _, err := slow.conn.Write([]byte(`{"type":"ping","id":"` + strings.Repeat("x", 100) + string(rune('a'+sent%26)) + `","version":"1.0","ts":1}` + "\n")); err != nil {
			break
		}
	}
	if sent == 200000 {
		t.Errorf("the daemon took %d requests of a client that reads nothing; want it to stop reading", sent)
	}
	c := d.agent()
	for range 10 {
		began := time.Now()
		if out := runOK(t, c, shell("echo x")); out != "x\n" {
			t.Fatalf("run beside a slow client = %q; want x", out)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("run beside a slow client took %s; want it untouched", took)
		}
	}
}
