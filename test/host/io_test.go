package host

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"pinfold/proto"
	"pinfold/proto/client"
)

// texts are the texts of the events of one stream up to the final one.
func texts(t *testing.T, p *client.Process) []string {
	t.Helper()
	var out []string
	for at := int64(0); ; {
		e, err := p.Next(soon(t))
		if err != nil {
			t.Fatalf("Next() = %v; want an event", err)
		}
		if e.Final() {
			return out
		}
		if e.Offset != at {
			t.Errorf("offset of %q = %d; want %d", clip(string(e.Data.Text)), e.Offset, at)
		}
		at += int64(len(e.Data.Text))
		out = append(out, string(e.Data.Text))
	}
}

// TestLines: one event for each line, a prompt at once, long ones in pieces.
func TestLines(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	if got, want := texts(t, spawn(t, c, shell(`printf 'a\nbb\n\nlast'`))), []string{"a\n", "bb\n", "\n", "last"}; strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("events = %q; want %q", got, want)
	}
	p := spawn(t, c, shell(`printf 'name? '; read x; printf 'hello %s' "$x"; read x`))
	if e, err := p.Next(soon(t)); err != nil || string(e.Data.Text) != "name? " {
		t.Fatalf("Next() = %+v, %v; want the prompt, though its line has no end", e, err)
	}
	if err := p.Write(soon(t), []byte("you\n")); err != nil {
		t.Fatalf("Write() = %v; want none", err)
	}
	await(t, p, "hello you")
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Fatalf("CloseStdin() = %v; want none", err)
	}
	output(t, p)
	const piece = 64 << 10
	got := texts(t, spawn(t, c, python(fmt.Sprintf(`import sys; sys.stdout.write("x" * %d + "\n"); sys.stdout.flush()`, 2*piece+10))))
	joined := strings.Join(got, "")
	if len(joined) != 2*piece+11 || len(got) < 3 {
		t.Errorf("a line of %d bytes = %d bytes in %d events; want it all, in pieces", 2*piece+11, len(joined), len(got))
	}
	for _, s := range got {
		if len(s) > piece {
			t.Errorf("event of %d bytes; want at most 64 KiB", len(s))
		}
	}
}

// TestSplitCharactersArriveWhole, however slowly their bytes come.
func TestSplitCharactersArriveWhole(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "s", `,"stdin_mode":"null","cmd":["python3","-c","import os,time\nfor b in 'é€😀\\n'.encode():\n  os.write(1, bytes([b])); time.sleep(0.1)\nos.write(1, '😀'.encode()[:3])"]`)
	var text string
	var raw []string
	for {
		f := w.next()
		if f.Type != proto.TypeReadEvent {
			continue
		}
		if len(f.Verdict) > 0 {
			break
		}
		raw = append(raw, f.raw)
		m, err := proto.DecodeAnswer([]byte(f.raw))
		if err != nil {
			t.Fatalf("DecodeAnswer(%s) = %v; want none", f.raw, err)
		}
		e, ok := m.(*proto.ReadEvent)
		if !ok {
			t.Fatalf("DecodeAnswer(%s) = %T; want an event", f.raw, m)
		}
		piece := e.Data.Text
		if b64 := strings.Contains(string(f.Data), "b64"); b64 == utf8.Valid(piece) {
			t.Errorf("%s: b64 = %v; want it only for what is no UTF-8", f.raw, b64)
		}
		text += string(piece)
	}
	if want := "é€😀\n" + "😀"[:3]; text != want {
		t.Errorf("text = %q; want %q", text, want)
	}
	if cut := raw[:len(raw)-1]; strings.Contains(strings.Join(cut, ""), "b64") {
		t.Errorf("events = %q; want no character cut in two, but the tail at the end", raw)
	}
}

// TestAnyBytesBothWays: not UTF-8, with NUL, more than the pipe holds; in all forms.
func TestAnyBytesBothWays(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	random := make([]byte, 700<<10)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for _, o := range []proto.ProcOptions{{}, {Data: proto.DataObject}, {Batch: true}, {Data: proto.DataObject, Batch: true}} {
		c := d.dial(proto.Handshake{Proc: o})
		for name, data := range map[string][]byte{
			"random": random, "zeros": make([]byte, 100<<10), "text": bytes.Repeat([]byte("ein Wörtchen, \"quoted\"\\ \t\n"), 8000), "one": {0xff},
		} {
			p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}})
			done := make(chan error, 1)
			go func() {
				err := p.Write(soon(t), data)
				if err == nil {
					err = p.CloseStdin(soon(t))
				}
				done <- err
			}()
			out, _, v := output(t, p)
			if err := <-done; err != nil || v.Code != 0 || out != string(data) {
				t.Errorf("%+v, %s: %d bytes came back of %d, write = %v, verdict = %+v; want them as they were", o, name, len(out), len(data), err, v)
			}
		}
	}
}

// TestBatchPutsManyLinesIntoOneEvent and without it never.
func TestBatchPutsManyLinesIntoOneEvent(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	for _, batch := range []bool{false, true} {
		c := d.dial(proto.Handshake{Proc: proto.ProcOptions{Batch: batch}})
		got := texts(t, spawn(t, c, shell("seq 20000")))
		most := 0
		for _, s := range got {
			most = max(most, strings.Count(s, "\n"))
		}
		if joined := strings.Join(got, ""); strings.Count(joined, "\n") != 20000 || !strings.HasSuffix(joined, "\n20000\n") {
			t.Errorf("batch %v: %d lines; want 20000", batch, strings.Count(joined, "\n"))
		}
		if batch != (most > 1) {
			t.Errorf("batch %v: %d events, at most %d lines in one; want many only with batch", batch, len(got), most)
		}
	}
}

// TestStdin: end of file, null, and after the end.
func TestStdin(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, proto.Spawn{Cmd: []string{"wc", "-c"}})
	if err := c.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: "12345", EOF: true}); err != nil {
		t.Errorf("Write(eof) = %v; want none", err)
	}
	if out, _, v := output(t, p); strings.TrimSpace(out) != "5" || v.Code != 0 {
		t.Errorf("wc -c = %q, %+v; want 5: the reader saw the end", out, v)
	}
	refused(t, "Write(ended)", p.Write(soon(t), []byte("x")), proto.CodeProcDead)

	p = spawn(t, c, shell("sleep 600 <&0"))
	if err := p.CloseStdin(soon(t)); err != nil {
		t.Errorf("CloseStdin() = %v; want none", err)
	}
	if err := p.Write(soon(t), []byte("x")); err == nil {
		t.Errorf("Write() after eof = nil; want a refusal")
	}
	if _, err := p.Kill(soon(t), proto.SigKill); err != nil {
		t.Errorf("Kill() = %v; want none", err)
	}

	null := proto.Spawn{Cmd: []string{"sh", "-c", "cat; sleep 600"}, StdinMode: proto.StdinNull}
	p = spawn(t, c, null)
	refused(t, "Write(null)", p.Write(soon(t), []byte("x")), proto.CodeUnsupported)
	if _, err := p.Kill(soon(t), proto.SigKill); err != nil {
		t.Errorf("Kill() = %v; want none", err)
	}
	output(t, p)
	refused(t, "Write(null, ended)", p.Write(soon(t), []byte("x")), proto.CodeProcDead)
}

// TestWritesKeepTheirOrderAndWait: a reader that is slow, and one that dies.
func TestWritesKeepTheirOrderAndWait(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "s", `,"cmd":["sh","-c","sleep 1; cat"]`)
	id := w.answerTo("s").ProcID
	var want strings.Builder
	const n = 40
	for i := range n {
		text := strings.Repeat(fmt.Sprintf("%04d ", i), 1000)
		want.WriteString(text)
		w.ask("proc/write/req", fmt.Sprintf("w%d", i), fmt.Sprintf(`,"proc_id":%q,"data":%q,"eof":%v`, id, text, i == n-1))
	}
	var got strings.Builder
	answered := map[string]bool{}
	for {
		f := w.next()
		if f.Type == proto.TypeWriteResp {
			if !f.OK || answered[f.ReqID] {
				t.Errorf("answer = %s; want ok, once for each write", f.raw)
			}
			answered[f.ReqID] = true
			continue
		}
		m, err := proto.DecodeAnswer([]byte(f.raw))
		e, ok := m.(*proto.ReadEvent)
		if err != nil || !ok {
			t.Fatalf("line = %s, %v; want an event", f.raw, err)
		}
		if e.Final() {
			break
		}
		got.Write(e.Data.Text)
	}
	for len(answered) < n {
		if f := w.next(); f.Type == proto.TypeWriteResp && f.OK {
			answered[f.ReqID] = true
		}
	}
	if got.String() != want.String() {
		t.Errorf("%d answers, %d bytes; want %d and all %d bytes in order", len(answered), got.Len(), n, want.Len())
	}
	// One that never reads and dies: part of the second write was taken.
	w.ask("proc/spawn/req", "s2", `,"cmd":["sleep","600"]`)
	spawned := w.answerTo("s2")
	id, pid := spawned.ProcID, spawned.PID
	w.ask("proc/write/req", "fits", `,"proc_id":"`+id+`","data":"x"`)
	if f := w.answerTo("fits"); !f.OK {
		t.Errorf("write that the pipe takes = %s; want ok", f.raw)
	}
	w.ask("proc/write/req", "part", fmt.Sprintf(`,"proc_id":%q,"data":%q`, id, strings.Repeat("y", 300<<10)))
	w.ask("proc/write/req", "none", fmt.Sprintf(`,"proc_id":%q,"data":"z"`, id))
	waitUnread(t, pid, 4096) // the kernel has begun to take the second write
	w.ask("proc/kill/req", "k", `,"proc_id":"`+id+`","signal":"SIGKILL"`)
	codes := map[string]proto.Code{}
	for len(codes) < 2 {
		if f := w.next(); f.Type == proto.TypeWriteResp {
			codes[f.ReqID] = f.Code
		}
	}
	if codes["part"] != proto.CodeOutcomeUnknown || codes["none"] != proto.CodeProcDead {
		t.Errorf("writes to a process that died = %v; want outcome_unknown for the part taken, proc_dead for what was not", codes)
	}
}

// waitUnread waits until at least n bytes lie unread in the pipe that is a process's
// standard input.
func waitUnread(t *testing.T, pid, n int) {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/0", pid), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for range 3000 {
		if got, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ); err != nil || got >= n {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("after 30 s the pipe holds less than %d bytes", n)
}

// TestAWriteQueueThatIsFullSaysBusy and takes no more memory.
func TestAWriteQueueThatIsFullSaysBusy(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", shortGrace))
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "s", `,"cmd":["sleep","600"]`)
	id := w.answerTo("s").ProcID
	big := strings.Repeat("y", 500<<10)
	for i := range 8 {
		w.ask("proc/write/req", fmt.Sprintf("w%d", i), fmt.Sprintf(`,"proc_id":%q,"data":%q`, id, big))
	}
	f := w.until("a refusal", func(f frame) bool { return f.Type == proto.TypeWriteResp })
	if f.OK || f.Code != proto.CodeBusy {
		t.Errorf("write into a full queue = %s; want busy", f.raw)
	}
	w.ask("ping", "p", "")
	w.answerTo("p")
}

// TestTerminal: a real one, of the size that was asked, resized, and interrupted by
// what is typed.
func TestTerminal(t *testing.T) {
	t.Parallel()
	d := start(t, strings.Replace(basic("", ""), "[python3,", "[stty, tty, python3,", 1))
	c := d.agent()
	s := shell(`trap 'stty size' WINCH; trap 'echo interrupted; exit 7' INT; tty; stty size; echo ready; while :; do sleep 0.1; done`)
	s.PTY = &proto.PTY{Rows: 30, Cols: 100}
	p := spawn(t, c, s)
	text := await(t, p, "ready")
	if !strings.Contains(text, "/dev/pts/") || !strings.Contains(text, "30 100") {
		t.Errorf("on a terminal: %q; want its name and 30 100", text)
	}
	if err := p.Resize(soon(t), proto.PTY{Rows: 50, Cols: 200}); err != nil {
		t.Errorf("Resize() = %v; want none", err)
	}
	await(t, p, "50 200")
	if err := p.Write(soon(t), []byte{3}); err != nil {
		t.Errorf("Write(^C) = %v; want none", err)
	}
	out, _, v := output(t, p)
	if !strings.Contains(out, "interrupted") || v.Code != 7 || v.Cause != proto.CauseExited {
		t.Errorf("after ^C: %q, %+v; want it interrupted, exit 7", out, v)
	}
	// End of file on a terminal, and none where there is no terminal.
	cat := proto.Spawn{Cmd: []string{"cat"}, PTY: &proto.PTY{Rows: 1, Cols: 10}}
	p = spawn(t, c, cat)
	if err := c.Write(soon(t), &proto.WriteReq{ProcID: p.ID, Data: "typed\n", EOF: true}); err != nil {
		t.Errorf("Write(eof) = %v; want none", err)
	}
	if out, _, v := output(t, p); v.Code != 0 || strings.Count(out, "typed") != 2 {
		t.Errorf("cat on a terminal = %q, %+v; want the echo and the copy, and its end", out, v)
	}
	if _, stderr, v := run(t, c, shell("echo x > /dev/tty")); v.Code == 0 {
		t.Errorf("echo > /dev/tty without a terminal = %q, exit 0; want a refusal", stderr)
	}
}

// TestUnreadOutputHoldsTheProcessNotTheDaemon: nothing is lost when it is read after
// all.
func TestUnreadOutputHoldsTheProcessNotTheDaemon(t *testing.T) {
	t.Parallel()
	const total = 12 << 20
	d := start(t, basic("", "    output: { keep: 256KiB }"))
	w := d.connect()
	w.hello(`,"proc":{"batch":true}`)
	w.ask("proc/spawn/req", "s", fmt.Sprintf(`,"cmd":["sh","-c","yes 0123456 | head -c %d"],"stdin_mode":"null"`, total))
	id := w.answerTo("s").ProcID
	time.Sleep(time.Second)
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	st, err := op.Stats(soon(t), id)
	if err != nil || st.Status != proto.StatusRunning || int64(st.Stats.Output.Stdout) >= total {
		t.Errorf("Stats() while nothing is read = %+v, %v; want it waiting", st, err)
	}
	var got int64
	for {
		m, err := proto.DecodeAnswer([]byte(w.next().raw))
		e, ok := m.(*proto.ReadEvent)
		if err != nil || !ok {
			t.Fatalf("DecodeAnswer = %T, %v; want events", m, err)
		}
		if e.Final() {
			if got != total || e.Verdict.Output.Dropped != 0 || int64(e.Verdict.Output.Stdout) != total {
				t.Errorf("%d bytes, %+v; want all %d", got, e.Verdict.Output, total)
			}
			return
		}
		if strings.Trim(string(e.Data.Text), "0123456\n") != "" {
			t.Fatalf("event at %d has other bytes: %q", e.Offset, clip(string(e.Data.Text)))
		}
		got += int64(len(e.Data.Text))
	}
}
