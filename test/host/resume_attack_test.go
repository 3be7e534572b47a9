package host

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/proto"
)

// shaken opens a session on a wire of its own, or resumes m's, and returns it with its
// next token.
func (d *daemon) shaken(m *member) (*wire, *member) {
	d.t.Helper()
	w, resume := d.connect(), ""
	if m != nil {
		resume = fmt.Sprintf(`,"resume":{"session_id":%q,"token":%q}`, m.id, m.token)
	}
	w.send(`{"type":"handshake/req","id":"hello","version":"1.0","ts":1,"agent_id":"t","agent_caps":["proc"],"auth_token":""` + resume + `}`)
	f := w.next()
	var r struct {
		Resume *proto.ResumeOffer `json:"resume"`
	}
	if err := json.Unmarshal([]byte(f.raw), &r); err != nil || !f.OK || r.Resume == nil {
		d.t.Fatalf("handshake = %s, %v; want a session with a token", f.raw, err)
	}
	return w, &member{id: f.Session, token: r.Resume.Token}
}

// TestComingBackAgainAndAgainGrowsNothing: a client leaves, in each of many lives, as many
// requests behind as it may, which do not come to their end: many for one operation, writes
// that wait for their turn, waits.
func TestComingBackAgainAndAgainGrowsNothing(t *testing.T) {
	t.Parallel()
	const lives, before, each = 700, 200, 240
	d := start(t, "")
	w, m := d.shaken(nil)
	w.ask("proc/spawn/req", "s", `,"cmd":["sleep","600"]`)
	p := w.answerTo("s").ProcID
	var write strings.Builder
	fmt.Fprintf(&write, `,"proc_id":%q,"data":%q`, p, strings.Repeat("x", 200<<10))
	w.ask("proc/write/req", "full", write.String()) // its pipe takes no more
	early := 0
	for n := range lives {
		if n == before {
			early = residentKB(t, d.cmd.Process.Pid)
		}
		var all strings.Builder
		for i := range each {
			what := []string{`proc/write/req","data":"y","op_id":"same`, `proc/write/req","data":"z`, `proc/wait/req`}[i%3]
			fmt.Fprintf(&all, `{"id":"w%d","version":"1.0","ts":1,"proc_id":%q,"type":"%s"}`+"\n", i, p, what)
		}
		w.bytes([]byte(all.String()))
		w.ask("ping", "p", "")
		w.answerTo("p")
		last := w
		w, m = d.shaken(m)
		last.closed()
	}
	late := residentKB(t, d.cmd.Process.Pid)
	t.Logf("resident after %d lives: %d KiB, after %d: %d KiB", before, early, lives, late)
	if grown := late - early; grown > 16<<10 {
		t.Errorf("%d lives with %d requests each grew the daemon by %d KiB; want nothing", lives-before, each, grown)
	}
}

// TestTakenTwiceInAMoment: a session goes on over a third connection while what was sent
// over the first is still stuck there. Its process is there, and its output whole.
func TestTakenTwiceInAMoment(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	first, m := d.shaken(nil)
	first.ask("proc/spawn/req", "s", `,"cmd":["sh","-c","yes | head -c 8000000; sleep 600"]`)
	p := first.answerTo("s").ProcID
	eventually(t, "the first connection is full", func() bool {
		var a, b int64
		if a = queued(t, first); a < 100<<10 {
			return false
		}
		time.Sleep(50 * time.Millisecond)
		b = queued(t, first)
		return a == b
	})
	second, m := d.shaken(m)
	second.ask("proc/attach/req", "a", fmt.Sprintf(`,"proc_id":%q`, p))
	third, _ := d.shaken(m)
	third.ask("proc/attach/req", "a", fmt.Sprintf(`,"proc_id":%q`, p))
	if f := third.answerTo("a"); !f.OK {
		t.Fatalf("attach = %s; want the process", f.raw)
	}
	for at := int64(0); at < 1<<18; at += 2 { // a line each
		if f := third.until("an event of the process", func(f frame) bool { return f.Type == proto.TypeReadEvent }); f.Offset != at {
			t.Fatalf("event at byte %d; want %d", f.Offset, at)
		}
	}
}

// queued is how many bytes wait to be read.
func queued(t *testing.T, w *wire) int64 {
	t.Helper()
	raw, err := w.unix().SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return int64(n)
}
