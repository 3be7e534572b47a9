package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// member is a client with what brings it back into its session.
type member struct {
	*client.Client
	id, token string
}

// enter opens a session that can be resumed.
func (d *daemon) enter() *member {
	d.t.Helper()
	c := d.join()
	r, err := c.Handshake(soon(d.t), &proto.Handshake{})
	if err != nil || r.Resume == nil || r.Resume.Token == "" || r.Resume.TTLMS <= 0 {
		d.t.Fatalf("Handshake() = %+v, %v; want a session with a token", r, err)
	}
	return &member{Client: c, id: r.SessionID, token: r.Resume.Token}
}

// join is a connection of who may have one: root, or the user whose daemon it is.
func (d *daemon) join() *client.Client {
	d.t.Helper()
	var c *client.Client
	if d.users {
		c = client.New(d.joinAsCaller())
	} else {
		var err error
		if c, err = client.Dial(soon(d.t), d.sock); err != nil {
			d.t.Fatal(err)
		}
	}
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// back resumes the session over a new connection.
func (d *daemon) back(m *member, h proto.Handshake) *member {
	d.t.Helper()
	c := d.join()
	h.Resume = proto.ResumeRequest{SessionID: m.id, Token: m.token}
	r, err := c.Handshake(soon(d.t), &h)
	if err != nil || r.SessionID != m.id || r.Resume == nil || r.Resume.Token == m.token {
		d.t.Fatalf("Resume() = %+v, %v; want the same session and another token", r, err)
	}
	return &member{Client: c, id: m.id, token: r.Resume.Token}
}

// attach goes on with the output of a process.
func attach(t *testing.T, c *client.Client, id string, from client.Offsets) *client.Process {
	t.Helper()
	p, err := c.Attach(soon(t), id, from)
	if err != nil {
		t.Fatalf("Attach(%+v) = %v; want the process", from, err)
	}
	return p
}

// counting writes numbered lines on both streams, as fast as they are taken.
func counting(lines int) proto.Spawn {
	return python(fmt.Sprintf(`
import sys
for i in range(%d):
    sys.stdout.write("out %%d\n" %% i)
    sys.stderr.write("err %%d\n" %% i)
    if i %% 100 == 0:
        sys.stdout.flush(); sys.stderr.flush()
`, lines))
}

// counted checks numbered lines: each once and in order.
func counted(t *testing.T, stream, got string, lines int) {
	t.Helper()
	all := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	for i, line := range all {
		if want := fmt.Sprintf("%s %d", stream, i); line != want {
			t.Fatalf("line %d of %s = %q; want %q", i, stream, clip(line), want)
		}
	}
	if len(all) != lines {
		t.Errorf("%s has %d lines; want %d", stream, len(all), lines)
	}
}

// take reads events until it has so many bytes, or the final one, whose verdict it
// returns.
func take(t *testing.T, p *client.Process, out, errs *strings.Builder, bytes int) *proto.Verdict {
	t.Helper()
	for n := 0; n < bytes; {
		e, err := p.Next(soon(t))
		if err != nil {
			t.Fatalf("Next() = %v; want an event", err)
		}
		if e.Final() {
			return e.Verdict
		}
		if e.Gap != nil {
			t.Fatalf("Next() = the gap %+v of %s; want none", e.Gap, e.StreamType)
		}
		n += len(e.Data.Text)
		if e.StreamType == proto.Stdout {
			out.Write(e.Data.Text)
		} else {
			errs.Write(e.Data.Text)
		}
	}
	return nil
}

// eachOnce has a process write so many lines to both streams and comes back to it by cut
// again and again, at least so often, in the middle of them. Each line comes once, in order.
func (d *daemon) eachOnce(lines, least int, cut func(m *member, life int) *member) {
	d.t.Helper()
	m := d.enter()
	p := spawn(d.t, m.Client, counting(lines))
	var out, errs strings.Builder
	var v *proto.Verdict
	lives := 0
	for ; v == nil; lives++ {
		if v = take(d.t, p, &out, &errs, 300_000); v != nil {
			break
		}
		m = cut(m, lives)
		p = attach(d.t, m.Client, p.ID, p.Offsets())
	}
	counted(d.t, "out", out.String(), lines)
	counted(d.t, "err", errs.String(), lines)
	if lives < least || v.Cause != proto.CauseExited || int(v.Output.Stdout) != out.Len() || v.Output.Dropped != 0 || !v.Output.Drained {
		d.t.Errorf("after %d lives the verdict = %+v; want several, exited, and nothing lost", lives, v)
	}
}

// TestAClientThatIsCutOffLosesNothing: its connection goes again and again in the middle
// of output, and what it gets in all its lives is each byte once.
func TestAClientThatIsCutOffLosesNothing(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	d.eachOnce(200_000, 5, func(m *member, life int) *member {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		return d.back(m, proto.Handshake{Proc: proto.ProcOptions{Batch: life%2 == 0, Data: proto.DataObject}})
	})
}

// TestAResumedSessionSendsNothingUnasked, and its numbers go on.
func TestAResumedSessionSendsNothingUnasked(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, shell(`echo one; read x; echo two; read x; echo three`))
	first, err := p.Next(soon(t))
	if err != nil || string(first.Data.Text) != "one\n" {
		t.Fatalf("Next() = %+v, %v; want one", first, err)
	}
	w := d.connect()
	w.hello(`,"resume":{"session_id":"` + m.id + `","token":"` + m.token + `"}`)
	w.ask("proc/write/req", "w", `,"proc_id":"`+p.ID+`","data":"\n"`)
	if f := w.next(); f.ReqID != "w" || !f.OK {
		t.Fatalf("after a resume came %s; want the answer to the write", f.raw)
	}
	time.Sleep(200 * time.Millisecond) // for two to be written, and not to be sent
	w.ask("ping", "p", "")
	if f := w.next(); f.Type != proto.TypePong {
		t.Fatalf("before an attach came %s; want nothing of the process", f.raw)
	}
	w.ask("proc/attach/req", "a", `,"proc_id":"`+p.ID+`","stdout_from":4`)
	if f := w.next(); f.Type != proto.TypeAttachResp || !f.OK || f.ReqID != "a" || !strings.Contains(f.raw, `"owner":true`) {
		t.Fatalf("attach = %s; want ok", f.raw)
	}
	two := w.next()
	if string(two.Data) != `"{\"text\":\"two\\n\"}"` || two.Offset != 4 || two.Seq != first.Seq+1 {
		t.Fatalf("after the attach came %s; want two at offset 4 with the next number", two.raw)
	}
	w.ask("proc/write/req", "w2", `,"proc_id":"`+p.ID+`","data":"\n"`)
	if f := w.until("three", func(f frame) bool { return f.Offset == 8 }); f.Seq != two.Seq+1 {
		t.Errorf("three = %s; want the next number", f.raw)
	}
	final := w.until("the final event", func(f frame) bool { return f.Verdict != nil })
	w.ask("proc/attach/req", "again", `,"proc_id":"`+p.ID+`"`)
	w.answerTo("again")
	var got []string
	last := w.until("the final event again", func(f frame) bool {
		got = append(got, string(f.Data))
		if f.Seq <= final.Seq {
			t.Errorf("%s has a number that was given before; want a new one", f.raw)
		}
		return f.Verdict != nil
	})
	if len(got) != 4 || string(last.Data) != string(final.Data) {
		t.Errorf("an attach to a finished process sent %q; want its three lines and its end", got)
	}
}

// TestASessionIsTaken: the old connection is told, and is of no use any more.
func TestASessionIsTaken(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.ask("handshake/req", "h", `,"agent_caps":["proc"]`)
	f := w.next()
	m := &member{id: f.Session, token: between(f.raw, `"token":"`, `"`)}
	w.ask("proc/spawn/req", "s", `,"cmd":["sh","-c","while :; do echo x; sleep 0.01; done"]`)
	id := w.answerTo("s").ProcID
	w.until("output", func(f frame) bool { return f.Type == proto.TypeReadEvent })
	m = d.back(m, proto.Handshake{})
	taken := w.until("session_taken", func(f frame) bool { return f.Type == proto.TypeError })
	if taken.Code != proto.CodeSessionTaken || taken.ReqID != "" {
		t.Errorf("the old connection got %s; want session_taken", taken.raw)
	}
	w.closed()
	p := attach(t, m.Client, id, client.Offsets{})
	await(t, p, strings.Repeat("x\n", 3))
	if s, err := p.Kill(soon(t), proto.SigKill); err != nil || s != proto.StatusKilled {
		t.Errorf("Kill() over the new connection = %s, %v; want killed", s, err)
	}
}

// TestAStuckClientIsTakenFrom: it reads nothing, and its session goes on elsewhere all
// the same.
func TestAStuckClientIsTakenFrom(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	w := d.connect()
	w.ask("handshake/req", "h", `,"agent_caps":["proc"]`)
	f := w.next()
	m := &member{id: f.Session, token: between(f.raw, `"token":"`, `"`)}
	w.ask("proc/spawn/req", "s", `,"cmd":["yes"],"stdin_mode":"null"`)
	id := w.answerTo("s").ProcID
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	eventually(t, "the daemon waits for the client", func() bool {
		before := delivered(t, op, id)
		time.Sleep(300 * time.Millisecond)
		return before > 0 && before == delivered(t, op, id)
	})
	m = d.back(m, proto.Handshake{})
	p := attach(t, m.Client, id, client.Offsets{Stdout: 100})
	e, err := p.Next(soon(t))
	if err != nil || e.Offset != 100 || e.Gap != nil || string(e.Data.Text) != "y\n" {
		t.Errorf("Next() = %+v, %v; want the output from byte 100 on", e, err)
	}
	p.Discard()
}

// delivered is how many bytes the owner of a process got.
func delivered(t *testing.T, op *client.Client, id string) proto.Size {
	t.Helper()
	r, err := op.Stats(soon(t), id)
	if err != nil {
		t.Fatalf("Stats() = %v; want figures", err)
	}
	return r.Stats.Delivered
}

func between(s, before, after string) string {
	_, rest, _ := strings.Cut(s, before)
	found, _, _ := strings.Cut(rest, after)
	return found
}

// TestALostAnswerLocksNobodyOut: a token is good until the one after it was used.
func TestALostAnswerLocksNobodyOut(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, proto.Spawn{Cmd: []string{"cat"}})
	lost := d.back(m, proto.Handshake{}) // its answer never came to the client
	_ = lost.Close()
	second := d.back(m, proto.Handshake{})
	third := d.back(second, proto.Handshake{})
	for what, old := range map[string]*member{"the first": m, "the lost": lost} {
		if _, _, err := client.Resume(soon(t), d.sock, &proto.Handshake{}, old.id, old.token); err == nil {
			t.Errorf("Resume() with %s token = a session; want it refused after its successor was used", what)
		}
	}
	if s, err := third.Status(soon(t), p.ID); err != nil || s.Status != proto.StatusRunning {
		t.Errorf("Status() = %+v, %v; want the process running, and the session not taken by a refused token", s, err)
	}
	fourth := d.back(second, proto.Handshake{})
	if _, err := fourth.Ping(soon(t)); err != nil {
		t.Errorf("Ping() = %v; want the session on the token that was used last", err)
	}
}

// TestNoWayIntoASession: whatever is wrong, the refusal is the same byte for byte.
func TestNoWayIntoASession(t *testing.T) {
	t.Parallel()
	d := start(t, forCaller("/srv", plainFS))
	m := d.enter()
	p := spawn(t, m.Client, proto.Spawn{Cmd: []string{"cat"}})
	const never = "00000000-0000-4000-8000-000000000000"
	answers := map[string]string{}
	for what, extra := range map[string]string{
		"a wrong token":      `,"resume":{"session_id":"` + m.id + `","token":"` + strings.Repeat("A", len(m.token)) + `"}`,
		"no token":           `,"resume":{"session_id":"` + m.id + `","token":""}`,
		"an unknown session": `,"resume":{"session_id":"` + never + `","token":"` + m.token + `"}`,
		"no session":         `,"resume":{"session_id":"","token":"` + m.token + `"}`,
		"another role":       `,"role":"operator","resume":{"session_id":"` + m.id + `","token":"` + m.token + `"}`,
	} {
		w := d.connect()
		w.ask("handshake/req", "h", extra)
		f := w.next()
		answers[what] = anonymous(f, never, "h")
		if f.OK || f.Reason != string(proto.ReasonAuthFailed) {
			t.Errorf("%s: %s; want auth_failed", what, f.raw)
		}
		w.closed()
	}
	j := d.joinAsCaller()
	defer func() { _ = j.Close() }()
	if _, err := fmt.Fprintf(j, `{"type":"handshake/req","id":"h","version":"1.0","resume":{"session_id":"%s","token":"%s"}}`+"\n", m.id, m.token); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(j).ReadString('\n')
	f := frame{raw: strings.TrimSpace(line)}
	if err := errors.Join(err, json.Unmarshal([]byte(line), &f)); err != nil {
		t.Fatalf("the other uid's answer %q = %v; want a line", line, err)
	}
	answers["another uid"] = anonymous(f, never, "h")
	for what, a := range answers {
		if a != answers["a wrong token"] {
			t.Errorf("%s: %s\nwant as for a wrong token: %s", what, a, answers["a wrong token"])
		}
	}
	if s, err := m.Status(soon(t), p.ID); err != nil || s.Status != proto.StatusRunning {
		t.Errorf("Status() = %+v, %v; want the session untouched", s, err)
	}
	audit := readFile(t, d.state+"/audit.log")
	if strings.Contains(audit, m.token) || strings.Contains(d.log.String(), m.token) {
		t.Error("the token stands in the audit file or the log; want it nowhere")
	}
}

// TestADetachedSessionEndsInTime by SIGTERM, grace and kill; what it wrote on the way
// reaches who reads.
func TestADetachedSessionEndsInTime(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    detach_ttl: 1s", "    timeout: { stop: 1s }"))
	m := d.enter()
	p := spawn(t, m.Client, shell(`trap "echo told" TERM; echo ready; while :; do sleep 0.05; done`))
	await(t, p, "ready")
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	r := attach(t, op, p.ID, client.Offsets{})
	left := time.Now()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	out, _, v := output(t, r)
	if took := time.Since(left); took < 2*time.Second || took > 2*time.Second+finalLimit {
		t.Errorf("the process ended %s after its client left; want detach_ttl and the grace, 1 s each", took)
	}
	if out != "ready\ntold\n" || v.Cause != proto.CauseSessionEnded || v.Signal != "SIGKILL" {
		t.Errorf("output, verdict = %q, %+v; want SIGTERM told, then session_ended by SIGKILL", out, v)
	}
	if _, _, err := client.Resume(soon(t), d.sock, &proto.Handshake{}, m.id, m.token); err == nil {
		t.Error("Resume() after the end = a session; want it refused")
	}
	eventually(t, "no cgroup of a caller is left", func() bool { return len(d.below()) == 0 })
}

// TestADetachedWriterWaits: while nobody reads, a process writes no more than is kept,
// and nothing of it is lost.
func TestADetachedWriterWaits(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    output: { keep: 2MiB }"))
	const lines = 400_000
	m := d.enter()
	p := spawn(t, m.Client, counting(lines))
	var out, errs strings.Builder
	take(t, p, &out, &errs, 50_000)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	written := func() proto.OutputCount {
		s, err := op.Status(soon(t), p.ID)
		if err != nil || s.Proc == nil || s.Proc.Output == nil {
			t.Fatalf("Status() = %+v, %v; want figures", s, err)
		}
		return *s.Proc.Output
	}
	eventually(t, "the process waits", func() bool {
		before := written()
		time.Sleep(300 * time.Millisecond)
		return before.Stdout+before.Stderr > 2<<20 && written() == before
	})
	if w := written(); w.Stdout > 4<<20+100_000 || w.Dropped != 0 {
		t.Errorf("a process whose owner is detached wrote %+v; want no more than is kept beyond what was sent", w)
	}
	m = d.back(m, proto.Handshake{Proc: proto.ProcOptions{Batch: true}})
	p = attach(t, m.Client, p.ID, p.Offsets())
	if v := take(t, p, &out, &errs, 1<<30); v.Output.Dropped != 0 {
		t.Errorf("verdict = %+v; want nothing dropped", v)
	}
	counted(t, "out", out.String(), lines)
	counted(t, "err", errs.String(), lines)
}

// TestAProcessThatEndsUnwatched: what it wrote and how it ended come after the resume.
func TestAProcessThatEndsUnwatched(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, shell(`read x; echo late; exit 5`))
	if err := m.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: "\n"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	eventually(t, "the process has ended", func() bool {
		s, err := op.Status(soon(t), p.ID)
		return err == nil && s.Status == proto.StatusFailed
	})
	m = d.back(m, proto.Handshake{})
	l, err := m.List(soon(t), "")
	if err != nil || len(l) != 1 || l[0].ProcID != p.ID {
		t.Fatalf("List() after the resume = %+v, %v; want the process", l, err)
	}
	out, _, v := output(t, attach(t, m.Client, p.ID, client.Offsets{}))
	if out != "late\n" || v.Code != 5 {
		t.Errorf("output, verdict = %q, %+v; want late and 5", out, v)
	}
}

// TestALeftSessionGivesItsPlace to a new one, where nothing of it runs.
func TestALeftSessionGivesItsPlace(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    quota: { sessions: 2 }", shortGrace))
	done, busy := d.enter(), d.enter()
	output(t, spawn(t, done.Client, proto.Spawn{Cmd: []string{"true"}}))
	spawn(t, busy.Client, proto.Spawn{Cmd: []string{"cat"}})
	_, err := client.Dial(soon(t), d.sock)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = done.Close(), busy.Close()
	var third *member
	eventually(t, "there is room", func() bool {
		c, err := client.Dial(soon(t), d.sock)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Handshake(soon(t), &proto.Handshake{})
		if err == nil {
			third = &member{Client: c, id: r.SessionID, token: r.Resume.Token}
		}
		return err == nil
	})
	defer func() { _ = third.Close() }()
	if _, _, err := client.Resume(soon(t), d.sock, &proto.Handshake{}, done.id, done.token); err == nil {
		t.Error("Resume() of the session that gave its place = a session; want it refused")
	}
	if _, r, err := client.Resume(soon(t), d.sock, &proto.Handshake{}, busy.id, busy.token); err != nil {
		t.Errorf("Resume() of the session with a process = %+v, %v; want it", r, err)
	}
	w := d.connect()
	w.ask("handshake/req", "h", "")
	if f := w.next(); f.OK {
		t.Errorf("a session above the quota = %s; want it refused, since both that stand are in use", f.raw)
	}
}

// TestAClientThatOnlyEndsSending gets everything, and then the end of the connection.
func TestAClientThatOnlyEndsSending(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "s", `,"cmd":["sh","-c","sleep 1; echo done"]`)
	if err := w.unix().CloseWrite(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.until("the final event", func(f frame) bool { return f.Verdict != nil })
	w.closed()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the connection ended after %s; want it at the end of the process, not of detach_ttl", took)
	}
}

// TestASpawnWhoseAnswerWasLost is sent again with its name over the next connection: one
// process, known by its answer, and all of its output.
func TestASpawnWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	s := shell("echo once; read x")
	s.OpID = "one"
	lost := spawn(t, m.Client, s)
	_ = m.Close()
	m = d.back(m, proto.Handshake{})
	again := spawn(t, m.Client, s)
	if again.ID != lost.ID || !again.Spawned.Repeated {
		t.Errorf("the spawn that was sent again gave %+v; want process %s, repeated", again.Spawned, lost.ID)
	}
	p := attach(t, m.Client, again.ID, client.Offsets{})
	await(t, p, "once\n")
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Fatal(err)
	}
	if _, _, v := output(t, p); v.Cause != proto.CauseExited {
		t.Errorf("verdict = %+v; want exited", v)
	}
	if l, err := m.List(soon(t), ""); err != nil || len(l) != 1 {
		t.Errorf("List() = %+v, %v; want one process", l, err)
	}
}

// TestManyComeBackAtOnce: connections take one session from each other; one has it in the
// end, and everything adds up.
func TestManyComeBackAtOnce(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	p := spawn(t, m.Client, shell("while read x; do echo $x; done"))
	type result struct {
		c   *client.Client
		err error
	}
	got := make(chan result)
	const tries = 20
	for range tries {
		go func() {
			c, _, err := client.Resume(t.Context(), d.sock, &proto.Handshake{}, m.id, m.token)
			if err == nil {
				_, err = c.Attach(t.Context(), p.ID, client.Offsets{})
			}
			got <- result{c, err}
		}()
	}
	here := 0
	for range tries {
		r := <-got
		if r.c == nil {
			t.Errorf("Resume() = %v; want the session, for a while", r.err)
			continue
		}
		defer func() { _ = r.c.Close() }()
		if r.err == nil && r.c.Err() == nil {
			here++
		}
	}
	m = d.back(m, proto.Handshake{})
	q := attach(t, m.Client, p.ID, client.Offsets{})
	if err := q.Write(soon(t), []byte("still\n")); err != nil {
		t.Fatal(err)
	}
	await(t, q, "still\n")
	if here == 0 {
		t.Error("nobody of those that came back had the session when all were done; want the last")
	}
}
