package host

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/proto"
	"pinfold/proto/client"
)

// reader is an operator who reads.
func (d *daemon) reader() *client.Client {
	d.t.Helper()
	return d.dial(proto.Handshake{Role: proto.RoleOperator, Proc: proto.ProcOptions{Batch: true}})
}

// TestReadersBesideTheOwner: three of them, from the beginning, from the middle and
// after the end, while the owner reads too; each gets each byte once.
func TestReadersBesideTheOwner(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	const lines = 100_000
	c := d.dial(proto.Handshake{Proc: proto.ProcOptions{Batch: true}})
	p := spawn(t, c, counting(lines))
	var all [4]struct{ out, errs bytes.Buffer }
	var verdicts [4]*proto.Verdict
	var wg sync.WaitGroup
	for i := range 3 {
		r := attach(t, d.reader(), p.ID, client.Offsets{})
		if r.Attached.Owner || r.Attached.Stdout == nil {
			t.Errorf("Attach() by an operator = %+v; want it not the owner", r.Attached)
		}
		wg.Go(func() {
			v, err := r.Copy(soon(t), &all[i].out, &all[i].errs)
			if err != nil {
				t.Errorf("Copy() of reader %d = %v; want a verdict", i, err)
			}
			verdicts[i] = v
		})
	}
	v, err := p.Copy(soon(t), &all[3].out, &all[3].errs)
	if err != nil {
		t.Fatalf("Copy() of the owner = %v; want a verdict", err)
	}
	verdicts[3] = v
	wg.Wait()
	for i := range all {
		counted(t, "out", all[i].out.String(), lines)
		counted(t, "err", all[i].errs.String(), lines)
		if verdicts[i] == nil || verdicts[i].Cause != proto.CauseExited || verdicts[i].Output != v.Output {
			t.Errorf("verdict %d = %+v; want the owner's %+v", i, verdicts[i], v)
		}
	}
	// Once more, of the finished process, from a place in the middle.
	middle := int64(len(all[0].out.String()) / 2)
	late := attach(t, d.reader(), p.ID, client.Offsets{Stdout: middle, Stderr: int64(v.Output.Stderr)})
	out, errs, _ := output(t, late)
	if out != all[0].out.String()[middle:] || errs != "" {
		t.Errorf("an attach to the middle of the finished process gave %d and %d bytes; want the %d that are left", len(out), len(errs), int(v.Output.Stdout)-int(middle))
	}
	if !d.audited(func(e auditLine) bool { return e.Kind == "operator_use" && e.Action == "proc/attach/req" }) {
		t.Error("the audit has no operator_use of proc/attach/req")
	}
}

// TestAStalledReaderIsTold what it missed, and slows nobody.
func TestAStalledReaderIsTold(t *testing.T) {
	t.Parallel()
	d := start(t, basic("", "    output: { keep: 64KiB }"))
	const lines = 1_000_000 // 10 MB: the reader's socket holds a part, and so much stays for an owner's
	c := d.dial(proto.Handshake{Proc: proto.ProcOptions{Batch: true}})
	p := spawn(t, c, python("input()\nfor i in range("+itoa(lines)+"): print('out', i)"))
	w := d.connect()
	w.hello(`,"role":"operator","proc":{"data":"object"}`)
	w.ask("proc/attach/req", "a", `,"proc_id":"`+p.ID+`"`)
	w.answerTo("a")
	if err := p.Write(soon(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	out, _, v := output(t, p) // the reader takes nothing meanwhile
	counted(t, "out", out, lines)
	at, gaps := int64(0), 0
	w.until("the final event", func(f frame) bool {
		if f.Verdict != nil {
			return true
		}
		var e proto.ReadEvent
		m, err := proto.DecodeAnswer([]byte(f.raw))
		if err != nil {
			t.Fatal(err)
		}
		e = *m.(*proto.ReadEvent) //nolint:errcheck,forcetypeassert // until then there is nothing else
		if e.Offset != at {
			t.Fatalf("%s begins at %d; want %d", clip(f.raw), e.Offset, at)
		}
		if e.Gap != nil {
			gaps++
			at = e.Gap.To
			return false
		}
		if want := out[at : at+int64(len(e.Data.Text))]; string(e.Data.Text) != want {
			t.Fatalf("%s at %d; want %q", clip(f.raw), at, want)
		}
		at += int64(len(e.Data.Text))
		return false
	})
	if gaps == 0 || at != int64(v.Output.Stdout) {
		t.Errorf("the reader came to %d with %d gaps; want %d, and a gap, since 64 KiB are kept", at, gaps, v.Output.Stdout)
	}
}

// TestAttachMovesTheOwner: one stream, never two, also over the same connection.
func TestAttachMovesTheOwner(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello(`,"proc":{"data":"object"}`)
	w.ask("proc/spawn/req", "s", `,"cmd":["sh","-c","echo abc; read x; echo def"]`)
	id := w.answerTo("s").ProcID
	w.until("abc", func(f frame) bool { return strings.Contains(string(f.Data), "abc") })
	for i := range 3 {
		w.ask("proc/attach/req", "a"+itoa(i), `,"proc_id":"`+id+`","stdout_from":1`)
		if f := w.next(); f.ReqID != "a"+itoa(i) || !f.OK {
			t.Fatalf("attach = %s; want ok before anything else", f.raw)
		}
		if f := w.next(); string(f.Data) != `{"text":"bc\n"}` || f.Offset != 1 {
			t.Fatalf("after the attach came %s; want bc from offset 1", f.raw)
		}
	}
	w.ask("proc/write/req", "w", `,"proc_id":"`+id+`","data":"\n"`)
	def := 0
	w.until("the final event", func(f frame) bool {
		if strings.Contains(string(f.Data), "def") {
			def++
		}
		return f.Verdict != nil
	})
	if def != 1 {
		t.Errorf("def came %d times; want once", def)
	}
}

// TestAttachRefuses what is not there.
func TestAttachRefuses(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.agent()
	p := spawn(t, c, shell("echo 12345; read x"))
	await(t, p, "12345\n")
	other, op := d.agent(), d.reader()
	for what, try := range map[string]struct {
		by   *client.Client
		id   string
		from client.Offsets
		code proto.Code
	}{
		"past the end":             {c, p.ID, client.Offsets{Stdout: 7}, proto.CodeOutOfRange},
		"past the end of stderr":   {c, p.ID, client.Offsets{Stderr: 1}, proto.CodeOutOfRange},
		"an operator past the end": {op, p.ID, client.Offsets{Stdout: 7}, proto.CodeOutOfRange},
		"another session's":        {other, p.ID, client.Offsets{}, proto.CodeUnknownProc},
		"nobody's":                 {op, "never", client.Offsets{}, proto.CodeUnknownProc},
		"a negative offset":        {c, p.ID, client.Offsets{Stdout: -1}, proto.CodeSchemaViolation},
	} {
		_, err := try.by.Attach(soon(t), try.id, try.from)
		refused(t, "Attach() "+what, err, try.code)
	}
	if err := p.Write(soon(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if _, _, v := output(t, p); v.Code != 0 {
		t.Errorf("verdict = %+v; want the stream of the owner untouched by what was refused", v)
	}
	if got := attach(t, c, p.ID, client.Offsets{Stdout: 6}); got.Attached.Status != proto.StatusCompleted {
		t.Errorf("Attach() at the very end = %+v; want it, with the status", got.Attached)
	} else if out, _, v := output(t, got); out != "" || v == nil {
		t.Errorf("output from the very end = %q, %+v; want the final event alone", out, v)
	}
}

// TestManyReadersOfOneConnection are bounded.
func TestManyReadersOfOneConnection(t *testing.T) {
	t.Parallel()
	const most = 64
	d := start(t, basic("    quota: { processes: 100 }", shortGrace))
	c, op := d.agent(), d.reader()
	var first *client.Process
	for i := range most + 1 {
		p := spawn(t, c, proto.Spawn{Cmd: []string{"cat"}})
		r, err := op.Attach(soon(t), p.ID, client.Offsets{})
		switch {
		case i < most && err != nil:
			t.Fatalf("Attach(%d) = %v; want it", i, err)
		case i == 0:
			first = r
		case i == most:
			refused(t, "Attach() beyond the limit", err, proto.CodeBusy)
		}
	}
	if _, err := op.Attach(soon(t), first.ID, client.Offsets{}); err != nil {
		t.Errorf("Attach() to what is read already = %v; want it to begin anew", err)
	}
	if _, err := first.Next(soon(t)); err != client.ErrAttached { //nolint:errorlint // it is returned bare
		t.Errorf("Next() of the reader before = %v; want ErrAttached", err)
	}
}

// TestAttachToATerminal: what was on it, then what comes; the owner that came back types
// and resizes.
func TestAttachToATerminal(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	m := d.enter()
	s := shell(`stty -echo; echo "$(stty size)"; while read line; do echo "<$line> $(stty size)"; done`)
	s.PTY = &proto.PTY{Rows: 11, Cols: 22}
	p := spawn(t, m.Client, s)
	await(t, p, "11 22\r\n")
	_ = m.Close()
	m = d.back(m, proto.Handshake{})
	p = attach(t, m.Client, p.ID, client.Offsets{})
	if !p.Attached.PTY {
		t.Errorf("Attach() = %+v; want a terminal", p.Attached)
	}
	await(t, p, "11 22\r\n")
	if err := p.Resize(soon(t), proto.PTY{Rows: 33, Cols: 44}); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(soon(t), []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	await(t, p, "<hello> 33 44\r\n")
	r := attach(t, d.reader(), p.ID, client.Offsets{})
	await(t, r, "<hello> 33 44\r\n")
	if err := p.Write(soon(t), []byte("\x04")); err != nil {
		t.Fatal(err)
	}
	if _, _, v := output(t, r); v.Code != 0 {
		t.Errorf("verdict = %+v; want exit 0", v)
	}
}

// TestAReaderGetsTheEndOfASession that is shut down at once: all of it.
func TestAReaderGetsTheEndOfASession(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	for i := range 10 {
		c := d.agent()
		p := spawn(t, c, shell(fmt.Sprintf("read x; seq 2000; echo last %d", i)))
		r := attach(t, d.reader(), p.ID, client.Offsets{})
		if err := p.Write(soon(t), []byte("\n")); err != nil {
			t.Fatal(err)
		}
		output(t, p)
		if err := c.Shutdown(soon(t), 0); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		out, _, v := output(t, r)
		if !strings.HasSuffix(out, fmt.Sprintf("2000\nlast %d\n", i)) || v.Code != 0 {
			t.Errorf("the reader got %q after %s; want all of it", clip(out), time.Since(began))
		}
	}
}

// TestOutputOfTheFinishedMakesWay at quota.output: that of who got all of it goes, the
// oldest first, and what nobody was sent stays.
func TestOutputOfTheFinishedMakesWay(t *testing.T) {
	t.Parallel()
	d := start(t, basic("    quota: { output: 2MiB }", ""))
	writes := func(letter string, bytes int) proto.Spawn {
		return python(fmt.Sprintf("input()\nprint(%q * %d)", letter, bytes))
	}
	const most = 700_000
	left := d.enter()
	unread := spawn(t, left.Client, writes("u", most))
	if err := unread.Write(soon(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	_ = left.Close() // in any case before it has read that
	c := d.dial(proto.Handshake{Proc: proto.ProcOptions{Batch: true}})
	var ended []*client.Process
	for _, letter := range []string{"a", "b", "c"} {
		p := spawn(t, c, writes(letter, most))
		if err := p.Write(soon(t), []byte("\n")); err != nil {
			t.Fatal(err)
		}
		if out, _, v := output(t, p); len(out) != most+1 || v.Output.Dropped != 0 {
			t.Fatalf("%d bytes of %s, %+v; want all of them", len(out), letter, v.Output)
		}
		ended = append(ended, p)
	}
	lost := 0
	for i, p := range ended {
		p := attach(t, c, p.ID, client.Offsets{})
		e, err := p.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if e.Gap != nil {
			lost++
		}
		if gone := e.Gap != nil; i == 0 && !gone || i == 2 && gone {
			t.Errorf("process %d of 3 at quota.output: its output is gone: %t; want the oldest gone and the last kept", i, gone)
		}
		output(t, p)
	}
	left = d.back(left, proto.Handshake{})
	out, _, v := output(t, attach(t, left.Client, unread.ID, client.Offsets{}))
	if len(out) != most+1 || v.Output.Dropped != 0 {
		t.Errorf("%d bytes, %+v of what its owner had not read (%d of 3 others are gone); want all %d", len(out), v.Output, lost, most+1)
	}
}

// TestAStalledReaderOfWhatIsForgotten is told what it cannot have any more, and the end.
func TestAStalledReaderOfWhatIsForgotten(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	c := d.dial(proto.Handshake{Proc: proto.ProcOptions{Batch: true}})
	p := spawn(t, c, python("input()\nfor i in range(500000): print('out', i)"))
	w := d.connect()
	w.hello(`,"role":"operator","proc":{"data":"object"}`)
	w.ask("proc/attach/req", "a", `,"proc_id":"`+p.ID+`"`)
	w.answerTo("a")
	if err := p.Write(soon(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	out, _, v := output(t, p) // the reader takes nothing meanwhile
	began := time.Now()
	if err := c.Shutdown(soon(t), 0); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the session ended %s after it was asked to; want it not to wait for a reader", took)
	}
	at, gaps := int64(0), 0
	final := w.until("the final event", func(f frame) bool {
		m, err := proto.DecodeAnswer([]byte(f.raw))
		e, ok := m.(*proto.ReadEvent)
		switch {
		case err != nil || !ok:
			t.Fatalf("%s = %v; want an event", clip(f.raw), err)
		case e.Final():
			return true
		case e.Offset != at:
			t.Fatalf("%s begins at %d; want %d", clip(f.raw), e.Offset, at)
		case e.Gap != nil:
			gaps++
			at = e.Gap.To
		case string(e.Data.Text) != out[at:at+int64(len(e.Data.Text))]:
			t.Fatalf("%s at %d is not what was written", clip(f.raw), at)
		default:
			at += int64(len(e.Data.Text))
		}
		return false
	})
	if gaps != 1 || at != int64(v.Output.Stdout) {
		t.Errorf("the reader came to %d with %d gaps, then %s; want %d, the last of it as a gap", at, gaps, clip(final.raw), v.Output.Stdout)
	}
}
