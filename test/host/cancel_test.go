package host

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
)

// answers reads up to the answers to these requests, and fails if one comes twice.
func (w *wire) answers(ids ...string) map[string]frame {
	w.t.Helper()
	got := map[string]frame{}
	for len(got) < len(ids) {
		f := w.next()
		if f.Type == proto.TypeReadEvent {
			continue
		}
		if _, twice := got[f.ReqID]; twice {
			w.t.Fatalf("a second answer to %s = %s; the first = %s", f.ReqID, f.raw, got[f.ReqID].raw)
		}
		got[f.ReqID] = f
	}
	for _, id := range ids {
		if _, ok := got[id]; !ok {
			w.t.Fatalf("answers = %v; want one to each of %q", got, ids)
		}
	}
	return got
}

// begin shakes hands and starts a process.
func (w *wire) begin(id, cmd string) (proc string) {
	w.t.Helper()
	w.ask("proc/spawn/req", id, `,"cmd":["sh","-c",`+quoted(cmd)+`]`)
	f := w.answerTo(id)
	if !f.OK {
		w.t.Fatalf("spawn = %s; want a process", f.raw)
	}
	return f.ProcID
}

func quoted(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }

// TestCancelTakesAWaitBack: each request has one answer, and the wait's comes first.
func TestCancelTakesAWaitBack(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello("")
	id := w.begin("s", "read x")
	for i := range 300 { // more than may wait at a time: each gives its place back
		wait, cancel := fmt.Sprint("v", i), fmt.Sprint("c", i)
		w.ask("proc/wait/req", wait, `,"proc_id":"`+id+`","timeout_ms":60000`)
		w.ask("cancel", cancel, `,"req_id":"`+wait+`"`)
		if f := w.next(); f.ReqID != wait || f.OK || f.Code != proto.CodeCancelled || f.Type != proto.TypeWaitResp {
			t.Fatalf("answer = %s; want %s cancelled", f.raw, wait)
		}
		if f := w.next(); f.ReqID != cancel || !f.OK || f.Type != proto.TypeCancelResp {
			t.Fatalf("answer = %s; want %s ok", f.raw, cancel)
		}
	}
	for _, c := range []struct {
		id, of string
		code   proto.Code
	}{
		{"x1", "v1", proto.CodeUnknownReq},
		{"x2", "never", proto.CodeUnknownReq},
		{"x3", "s", proto.CodeUnknownReq},
		{"x4", "hello", proto.CodeUnknownReq},
		{"x5", "x5", proto.CodeUnsupported},
	} {
		w.ask("cancel", c.id, `,"req_id":"`+c.of+`"`)
		if f := w.answerTo(c.id); f.OK || f.Code != c.code || f.Type != proto.TypeCancelResp {
			t.Errorf("cancel of %s = %s; want %s", c.of, f.raw, c.code)
		}
	}
	w.ask("proc/wait/req", "last", `,"proc_id":"`+id+`"`)
	w.ask("proc/write/req", "w", `,"proc_id":"`+id+`","data":"\n"`)
	if f := w.answers("last", "w")["last"]; !f.OK || f.Status != "completed" {
		t.Errorf("wait = %s; want the end", f.raw)
	}
}

// TestCancelOfAnOperator takes back what waits in another session.
func TestCancelOfAnOperator(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    manage: all", ""))
	w := d.connect()
	w.hello("")
	id := w.begin("s", "read x")
	op := d.connect()
	op.hello(`,"role":"operator"`)
	for i := range 300 {
		wait, cancel := fmt.Sprint("v", i), fmt.Sprint("c", i)
		op.ask("proc/wait/req", wait, `,"proc_id":"`+id+`"`)
		op.ask("cancel", cancel, `,"req_id":"`+wait+`"`)
		got := op.answers(wait, cancel)
		if got[wait].Code != proto.CodeCancelled || !got[cancel].OK {
			t.Fatalf("wait = %s, cancel = %s; want it taken back", got[wait].raw, got[cancel].raw)
		}
	}
	op.ask("proc/wait/req", "last", `,"proc_id":"`+id+`"`)
	w.ask("proc/write/req", "w", `,"proc_id":"`+id+`","data":"\n"`)
	if f := op.answerTo("last"); !f.OK {
		t.Errorf("wait = %s; want the end", f.raw)
	}
}

// TestCancelOfAKill ends the wait alone: the signal was sent.
func TestCancelOfAKill(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello("")
	id := w.begin("s", `trap 'read x; exit 4' TERM; echo ready; while :; do sleep 0.05; done`)
	w.until("ready", func(f frame) bool { return f.Type == proto.TypeReadEvent })
	kill := `,"proc_id":"` + id + `","signal":"SIGTERM"`
	w.ask("proc/kill/req", "k1", kill)
	w.ask("proc/kill/req", "k2", kill+`,"op_id":"term"`)
	w.ask("proc/kill/req", "k3", kill+`,"op_id":"term"`)
	for i, of := range []string{"k1", "k2", "k3"} {
		cancel := fmt.Sprint("c", i)
		w.ask("cancel", cancel, `,"req_id":"`+of+`"`)
		got := w.answers(of, cancel)
		if got[of].Code != proto.CodeCancelled || got[of].Type != proto.TypeKillResp || !got[cancel].OK {
			t.Fatalf("kill = %s, cancel = %s; want it taken back", got[of].raw, got[cancel].raw)
		}
	}
	w.ask("ops/get/req", "g1", `,"op_id":"term"`)
	if f := w.answerTo("g1"); !strings.Contains(f.raw, `"open":true`) {
		t.Errorf("ops/get = %s; want it under way", f.raw)
	}
	w.ask("proc/write/req", "w", `,"proc_id":"`+id+`","data":"\n"`)
	w.until("the final event", func(f frame) bool { return len(f.Verdict) > 0 })
	w.ask("ops/get/req", "g2", `,"op_id":"term"`)
	if f := w.answerTo("g2"); !strings.Contains(f.raw, `"outcome":"applied"`) || f.ReqID != "g2" {
		t.Errorf("ops/get = %s; want applied", f.raw)
	}
	w.ask("proc/kill/req", "k4", kill+`,"op_id":"term"`)
	if f := w.answerTo("k4"); !f.OK || f.State != "killed" {
		t.Errorf("kill again = %s; want the outcome", f.raw)
	}
}

// TestCancelOfAWrite takes back what waits for its turn, and nothing else.
func TestCancelOfAWrite(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "s", `,"cmd":["sh","-c",`+quoted(gated("tr -d x").Cmd[2])+`]`)
	id := w.answerTo("s").ProcID
	w.until("ready", func(f frame) bool { return f.Type == proto.TypeReadEvent })
	write := func(req, data, more string) {
		w.ask("proc/write/req", req, `,"proc_id":"`+id+`","data":"`+data+`"`+more)
	}
	write("begun", strings.Repeat("x", 300_000), "")
	write("taken", "taken", "")
	write("back", "never", `,"op_id":"back","eof":true`)
	cancel := func(req string) frame {
		w.ask("cancel", "c-"+req, `,"req_id":"`+req+`"`)
		return w.answerTo("c-" + req)
	}
	w.ask("cancel", "c", `,"req_id":"back"`)
	got := w.answers("c", "back")
	if got["back"].Code != proto.CodeCancelled || !got["c"].OK {
		t.Fatalf("write = %s, cancel = %s; want it taken back", got["back"].raw, got["c"].raw)
	}
	w.ask("ops/get/req", "g", `,"op_id":"back"`)
	if f := w.answerTo("g"); !strings.Contains(f.raw, `"outcome":"rejected"`) {
		t.Errorf("ops/get = %s; want rejected", f.raw)
	}
	if f := cancel("begun"); f.OK || f.Code != proto.CodeUnsupported {
		t.Errorf("cancel of a write that is being made = %s; want unsupported", f.raw)
	}
	write("shared", "shared", `,"op_id":"shared"`)
	write("shares", "shared", `,"op_id":"shared"`)
	w.ask("cancel", "c2", `,"req_id":"shared"`) // the one that carries it out
	got = w.answers("c2", "shared")
	if got["shared"].Code != proto.CodeCancelled || !got["c2"].OK {
		t.Errorf("write = %s, cancel = %s; want it left to the other", got["shared"].raw, got["c2"].raw)
	}
	w.ask("proc/kill/req", "go", `,"proc_id":"`+id+`","signal":"SIGUSR1"`)
	got = w.answers("go", "begun", "taken", "shares")
	for req, f := range got {
		if !f.OK {
			t.Errorf("%s = %s; want ok", req, f.raw)
		}
	}
	write("end", "end", `,"eof":true`)
	text := w.until("output", func(f frame) bool { return f.Type == proto.TypeReadEvent })
	if !strings.Contains(string(text.Data), "takensharedend") {
		t.Errorf("tr -d x = %s; want what was not taken back", text.Data)
	}
}

// TestCancelOfASpawn: whenever it comes, there is one answer, and no process is left.
func TestCancelOfASpawn(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello("")
	var cancelled, started, late int
	for i := range 150 {
		spawn, cancel := fmt.Sprint("s", i), fmt.Sprint("c", i)
		w.ask("proc/spawn/req", spawn, fmt.Sprintf(`,"cmd":["sleep","1000"],"op_id":"o%d"`, i))
		time.Sleep(time.Duration(i%15) * time.Millisecond)
		w.ask("cancel", cancel, `,"req_id":"`+spawn+`"`)
		got := w.answers(spawn, cancel)
		s, c := got[spawn], got[cancel]
		outcome := "applied"
		switch {
		case s.OK && c.OK: // executed all the same
			started++
			w.ask("proc/wait/req", "v"+spawn, `,"proc_id":"`+s.ProcID+`"`)
			if f := w.answerTo("v" + spawn); !f.OK || f.Status != "killed" {
				t.Fatalf("wait for a cancelled process = %s; want it killed", f.raw)
			}
		case s.OK && c.Code == proto.CodeUnknownReq:
			late++
			w.ask("proc/kill/req", "k"+spawn, `,"proc_id":"`+s.ProcID+`","signal":"SIGKILL"`)
			w.answerTo("k" + spawn)
		case s.Code == proto.CodeCancelled && c.OK:
			cancelled++
			outcome = "rejected"
		case s.Code == proto.CodeOutcomeUnknown && c.OK: // cut behind the last gate
			outcome = "outcome_unknown"
		default:
			t.Fatalf("spawn = %s, cancel = %s; want both to fit", s.raw, c.raw)
		}
		w.ask("ops/get/req", "g"+spawn, fmt.Sprintf(`,"op_id":"o%d"`, i))
		if f := w.answerTo("g" + spawn); !strings.Contains(f.raw, `"outcome":"`+outcome+`"`) {
			t.Errorf("ops/get = %s; want %s", f.raw, outcome)
		}
	}
	if cancelled == 0 {
		t.Errorf("of 150 spawns %d were cancelled, %d started, %d answered before; want some cancelled", cancelled, started, late)
	}
	t.Logf("%d cancelled, %d started all the same, %d answered before", cancelled, started, late)
	w.ask("proc/status/req", "all", `,"proc_id":""`)
	if f := w.answerTo("all"); f.Status != "0 running" {
		t.Errorf("status = %.200s; want none running", f.raw)
	}
	eventually(t, "no process is left", func() bool { return len(d.jobs()) <= 1 }) // one may be ready
}

// TestCancelAgainstTheEnd: a wait, a kill and a write, the end of the process and their
// cancels come in any order, and each request has one answer.
func TestCancelAgainstTheEnd(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", ""))
	w := d.connect()
	w.hello("")
	const rounds = 1000
	counts := map[proto.Code]int{}
	for i := range rounds {
		n := fmt.Sprint(i)
		id := w.begin("s"+n, "read x")
		of := `,"proc_id":"` + id + `"`
		w.ask("proc/wait/req", "v"+n, of)
		w.ask("proc/wait/req", "u"+n, of+`,"timeout_ms":`+fmt.Sprint(1+rand.IntN(8)))
		w.ask("proc/write/req", "w"+n, of+`,"data":"\n"`)
		time.Sleep(time.Duration(rand.IntN(6000)) * time.Microsecond)
		w.ask("proc/kill/req", "k"+n, of+`,"signal":"SIGTERM","op_id":"k`+n+`"`)
		for _, r := range []string{"v", "u", "w", "k"} {
			w.ask("cancel", "c"+r+n, `,"req_id":"`+r+n+`"`)
		}
		got := w.answers("v"+n, "u"+n, "w"+n, "k"+n, "cv"+n, "cu"+n, "cw"+n, "ck"+n)
		for _, r := range []string{"v", "u", "w", "k"} {
			f, c := got[r+n], got["c"+r+n]
			if (f.Code == proto.CodeCancelled) != c.OK {
				t.Fatalf("round %d: %s, cancel %s; want both to say the same", i, f.raw, c.raw)
			}
			if r == "v" || r == "u" {
				counts[f.Code]++
			}
		}
		w.ask("proc/wait/req", "e"+n, of)
		if f := w.answerTo("e" + n); !f.OK {
			t.Fatalf("round %d: wait = %s; want the end", i, f.raw)
		}
	}
	t.Logf("waits: %v", counts)
	if counts[""] == 0 || counts[proto.CodeCancelled] == 0 {
		t.Errorf("waits = %v; want some ended, some cancelled", counts)
	}
}
