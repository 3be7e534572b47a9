package host

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"pinfold/proto"
)

// TestBadInputGetsAClearErrorAndNothingIsLost: after each line that could be read
// to its end the connection goes on, and so does the process beside it.
func TestBadInputGetsAClearErrorAndNothingIsLost(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "cat", `,"cmd":["cat"]`)
	cat := w.answerTo("cat")
	if !cat.OK {
		t.Fatalf("spawn cat = %s; want ok", cat.raw)
	}
	const head = `"version":"1.0","ts":1`
	for i, tt := range []struct {
		name, line string
		req        string // the id that the answer names
		typ        proto.Type
		code       proto.Code
		word       string
	}{
		{"too long", `{"type":"ping","id":"long",` + head + `,"x":"` + strings.Repeat("a", proto.MaxFrame) + `"}`, "", proto.TypeError, proto.CodeFrameTooLarge, "1048576"},
		{"much too long", strings.Repeat("z", 5*proto.MaxFrame), "", proto.TypeError, proto.CodeFrameTooLarge, "1048576"},
		{"not JSON", `hello there`, "", proto.TypeError, proto.CodeParseError, ""},
		{"cut off", `{"type":"ping","id":"cut"`, "cut", proto.TypeError, proto.CodeParseError, ""},
		{"two objects", `{"type":"ping","id":"two",` + head + `}{}`, "two", proto.TypeError, proto.CodeParseError, ""},
		{"an array", `[{"type":"ping"}]`, "", proto.TypeError, proto.CodeParseError, ""},
		{"a string", `"ping"`, "", proto.TypeError, proto.CodeParseError, ""},
		{"null", `null`, "", proto.TypeError, proto.CodeParseError, ""},
		{"invalid UTF-8", "{\"type\":\"ping\",\"id\":\"u\xff\"," + head + `}`, "", proto.TypeError, proto.CodeParseError, ""},
		{"a raw NUL", "{\"type\":\"ping\",\"id\":\"n\x00\"," + head + `}`, "", proto.TypeError, proto.CodeParseError, ""},
		{"nested too deep", `{"type":"ping","id":"deep",` + head + `,"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, "deep", proto.TypeError, proto.CodeParseError, "64"},
		{"a name twice", `{"type":"ping","id":"dup",` + head + `,"type":"ping"}`, "dup", proto.TypeError, proto.CodeParseError, "type"},
		{"a name twice inside", `{"type":"proc/spawn/req","id":"dup2",` + head + `,"cmd":["true"],"env":{"A":"1","A":"2"}}`, "dup2", proto.TypeError, proto.CodeParseError, "A"},
		{"unknown type", `{"type":"proc/dance/req","id":"ut",` + head + `}`, "ut", proto.TypeError, proto.CodeUnknownType, "proc/dance/req"},
		{"a daemon's type", `{"type":"pong","id":"pt",` + head + `}`, "pt", proto.TypeError, proto.CodeUnknownType, "pong"},
		{"case of a type", `{"type":"Ping","id":"ct",` + head + `}`, "ct", proto.TypeError, proto.CodeUnknownType, "Ping"},
		{"no type", `{"id":"nt",` + head + `}`, "nt", proto.TypeError, proto.CodeSchemaViolation, "type"},
		{"no id", `{"type":"ping",` + head + `}`, "", proto.TypeError, proto.CodeSchemaViolation, "id"},
		{"another version", `{"type":"ping","id":"v2","version":"2.0","ts":1}`, "v2", proto.TypeError, proto.CodeVersionMismatch, "2.0"},
		{"cmd a string", `{"type":"proc/spawn/req","id":"w1",` + head + `,"cmd":"true"}`, "w1", proto.TypeError, proto.CodeSchemaViolation, "cmd"},
		{"cmd of numbers", `{"type":"proc/spawn/req","id":"w2",` + head + `,"cmd":[1]}`, "w2", proto.TypeError, proto.CodeSchemaViolation, "cmd"},
		{"env a list", `{"type":"proc/spawn/req","id":"w3",` + head + `,"cmd":["true"],"env":[]}`, "w3", proto.TypeError, proto.CodeSchemaViolation, "env"},
		{"timeout a string", `{"type":"proc/spawn/req","id":"w4",` + head + `,"cmd":["true"],"timeout":"5"}`, "w4", proto.TypeError, proto.CodeSchemaViolation, "timeout"},
		{"timeout negative", `{"type":"proc/spawn/req","id":"w5",` + head + `,"cmd":["true"],"timeout":-1}`, "w5", proto.TypeError, proto.CodeSchemaViolation, "timeout"},
		{"eof a number", `{"type":"proc/write/req","id":"w6",` + head + `,"proc_id":"x","data":"","eof":1}`, "w6", proto.TypeError, proto.CodeSchemaViolation, "eof"},
		{"no such signal", `{"type":"proc/kill/req","id":"w7",` + head + `,"proc_id":"x","signal":"SIGSEGV"}`, "w7", proto.TypeError, proto.CodeSchemaViolation, "SIGSEGV"},
		{"no such stdin mode", `{"type":"proc/spawn/req","id":"w8",` + head + `,"cmd":["true"],"stdin_mode":"tty"}`, "w8", proto.TypeError, proto.CodeSchemaViolation, "tty"},
		{"no such limit", `{"type":"proc/spawn/req","id":"w9",` + head + `,"cmd":["true"],"limits":{"memroy":1}}`, "w9", proto.TypeError, proto.CodeSchemaViolation, "memroy"},
		{"no base64", `{"type":"proc/write/req","id":"wa",` + head + `,"proc_id":"x","data":"%%","encoding":"base64"}`, "wa", proto.TypeError, proto.CodeSchemaViolation, "base64"},
		{"empty cmd", `{"type":"proc/spawn/req","id":"e1",` + head + `,"cmd":[]}`, "e1", proto.TypeError, proto.CodeSchemaViolation, "cmd"},
		{"no cmd", `{"type":"proc/spawn/req","id":"e2",` + head + `}`, "e2", proto.TypeError, proto.CodeSchemaViolation, "cmd"},
		{"empty program", `{"type":"proc/spawn/req","id":"e3",` + head + `,"cmd":[""]}`, "e3", proto.TypeError, proto.CodeSchemaViolation, "cmd"},
		{"NUL in argv", `{"type":"proc/spawn/req","id":"n1",` + head + `,"cmd":["echo","a\u0000b"]}`, "n1", proto.TypeError, proto.CodeSchemaViolation, "NUL"},
		{"NUL in env", `{"type":"proc/spawn/req","id":"n2",` + head + `,"cmd":["true"],"env":{"A":"a\u0000b"}}`, "n2", proto.TypeError, proto.CodeSchemaViolation, "NUL"},
		{"= in a name of env", `{"type":"proc/spawn/req","id":"n3",` + head + `,"cmd":["true"],"env":{"A=B":"c"}}`, "n3", proto.TypeError, proto.CodeSchemaViolation, "A=B"},
		{"cwd outside", `{"type":"proc/spawn/req","id":"o1",` + head + `,"cmd":["true"],"cwd":"/etc"}`, "o1", proto.TypeSpawnResp, proto.CodeDenied, "/etc"},
		{"unknown profile", `{"type":"proc/spawn/req","id":"o2",` + head + `,"cmd":["true"],"profile":"nothing"}`, "o2", proto.TypeSpawnResp, proto.CodeDenied, "nothing"},
		{"another session", `{"type":"proc/spawn/req","id":"o3",` + head + `,"cmd":["true"],"session_id":"x"}`, "o3", proto.TypeSpawnResp, proto.CodeUnknownSession, "x"},
		{"a second handshake", `{"type":"handshake/req","id":"h2",` + head + `,"agent_caps":["proc"]}`, "h2", proto.TypeError, proto.CodeSchemaViolation, "handshake"},
		{"the handshake's id again", `{"type":"ping","id":"hello",` + head + `}`, "hello", proto.TypeError, proto.CodeSchemaViolation, "hello"},
		{"a used id", `{"type":"ping","id":"cat",` + head + `}`, "cat", proto.TypeError, proto.CodeSchemaViolation, "cat"},
	} {
		w.send(tt.line)
		f := w.next()
		text := f.raw
		if f.ReqID != tt.req || f.Type != tt.typ || f.Code != tt.code || !strings.Contains(text, tt.word) || f.OK {
			t.Errorf("%s: answer = %s; want %s of %q with code %s and %q in it", tt.name, clip(text), tt.typ, tt.req, tt.code, tt.word)
		}
		ping := fmt.Sprintf("after%d", i)
		w.ask("ping", ping, "")
		if f := w.next(); f.Type != proto.TypePong || f.ReqID != ping {
			t.Errorf("after %q: answer to ping = %s; want just one pong", tt.name, clip(f.raw))
		}
	}
	w.ask("proc/write/req", "write", `,"proc_id":"`+cat.ProcID+`","data":"still here\n","eof":true`)
	if f := w.until("its output", func(f frame) bool { return f.Type == proto.TypeReadEvent }); !strings.Contains(f.raw, "still here") {
		t.Errorf("output = %s; want the process untouched", f.raw)
	}
	w.until("the final event", func(f frame) bool { return len(f.Verdict) > 0 })
}

// TestAUsedIDHasNoSecondEffect: the second spawn is not started.
func TestAUsedIDHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "same", `,"cmd":["sleep","600"]`)
	w.ask("proc/spawn/req", "same", `,"cmd":["sleep","600"]`)
	var oks, errs int
	for range 2 {
		switch f := w.next(); {
		case f.Type == proto.TypeSpawnResp && f.OK:
			oks++
		case f.Type == proto.TypeError && f.Code == proto.CodeSchemaViolation:
			errs++
		}
	}
	w.ask("proc/status/req", "all", "")
	if f := w.answerTo("all"); oks != 1 || errs != 1 || f.Status != "1 running" {
		t.Errorf("two spawns of one id = %d started, %d refused, %s; want one of each", oks, errs, f.Status)
	}
}

// TestBeforeTheHandshake nothing is done for anybody.
func TestBeforeTheHandshake(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	for _, tt := range []struct {
		name, line string
		typ        proto.Type
		code       proto.Code
		reason     proto.Reason
	}{
		{"ping", `{"type":"ping","id":"p","version":"1.0","ts":1}`, proto.TypeError, proto.CodeUnauthorized, ""},
		{"spawn", `{"type":"proc/spawn/req","id":"p","version":"1.0","ts":1,"cmd":["true"]}`, proto.TypeError, proto.CodeUnauthorized, ""},
		{"spawn of another version", `{"type":"proc/spawn/req","id":"p","version":"9","ts":1,"cmd":["true"]}`, proto.TypeError, proto.CodeUnauthorized, ""},
		{"not JSON", `GET / HTTP/1.1`, proto.TypeError, proto.CodeParseError, ""},
		{"too long", strings.Repeat("x", proto.MaxFrame+1), proto.TypeError, proto.CodeFrameTooLarge, ""},
		{"another version", `{"type":"handshake/req","id":"p","version":"2.0","ts":1,"agent_caps":["proc"]}`, proto.TypeHandshakeResp, "", proto.ReasonVersionMismatch},
		{"other capabilities", `{"type":"handshake/req","id":"p","version":"1.0","ts":1,"agent_caps":["fs"]}`, proto.TypeHandshakeResp, "", proto.ReasonNoCaps},
	} {
		w := d.connect()
		w.send(tt.line)
		f := w.next()
		if f.Type != tt.typ || f.OK || (tt.code != "" && f.Code != tt.code) || f.Reason != string(tt.reason) {
			t.Errorf("%s: answer = %s; want %s with code %q, reason %q", tt.name, clip(f.raw), tt.typ, tt.code, tt.reason)
		}
		w.closed()
	}
	w := d.connect()
	w.send(`{"type":"handshake/req","id":"p","a2e":"1.0","ts":1,"agent_caps":["proc"]}`)
	if f := w.next(); !f.OK {
		t.Errorf("handshake with the older word for the version = %s; want ok", f.raw)
	}
}

// TestHalfALineIsNoMessage: a client that leaves in the middle of one, and one that
// sends it in pieces.
func TestHalfALineIsNoMessage(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	w.ask("proc/spawn/req", "s", `,"cmd":["cat"]`)
	f := w.answerTo("s")
	w.bytes([]byte(`{"type":"proc/kill/req","id":"k","version":"1.0","ts":1,"proc_id":"` + f.ProcID + `"}`)) // no newline
	if err := w.unix().CloseWrite(); err != nil {
		t.Fatal(err)
	}
	op := d.dial(proto.Handshake{Role: proto.RoleOperator})
	s, err := op.Status(soon(t), f.ProcID)
	if err != nil || s.Status != proto.StatusRunning {
		t.Errorf("Status() after half a kill = %+v, %v; want running", s, err)
	}
	slow := d.connect()
	for _, b := range []byte(`{"type":"handshake/req","id":"h","version":"1.0","ts":1,"agent_caps":["proc"]}` + "\n") {
		slow.bytes([]byte{b})
	}
	if f := slow.next(); !f.OK {
		t.Errorf("handshake byte by byte = %s; want ok", f.raw)
	}
}

// TestAConnectionInOtherHandsIsClosed: bytes of another uid over a connection that
// root has made and passed on.
func TestAConnectionInOtherHandsIsClosed(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	f, err := w.unix().File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	ask := func(uid uint32, line string) {
		cmd := exec.Command(program(t, "helper"))
		cmd.Env = []string{helperVar + "=write", helperArg + "=" + line + "\n"}
		cmd.ExtraFiles = []*os.File{f}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("helper = %v; want none\n%s", err, out)
		}
	}
	ask(0, `{"type":"ping","id":"same","version":"1.0","ts":1}`)
	if f := w.next(); f.ReqID != "same" || f.Type != proto.TypePong {
		t.Errorf("ping of another process of the same uid = %s; want pong", f.raw)
	}
	ask(65534, `{"type":"proc/spawn/req","id":"other","version":"1.0","ts":1,"cmd":["true"]}`)
	if f := w.next(); f.Type != proto.TypeError || f.Code != proto.CodeUnauthorized {
		t.Errorf("spawn by another uid = %s; want unauthorized", f.raw)
	}
	w.closed()
	if d.audited(func(e auditLine) bool { return e.Kind == "decision" }) {
		t.Errorf("a decision was made for bytes of another uid")
	}
}

// TestPassedDescriptorsAreClosed, and the frame they came with is taken.
func TestPassedDescriptorsAreClosed(t *testing.T) {
	t.Parallel()
	d := start(t, "")
	w := d.connect()
	w.hello("")
	before := openFiles(t, d.cmd.Process.Pid)
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for i := range 20 {
		line := fmt.Sprintf(`{"type":"ping","id":"p%d","version":"1.0","ts":1}`+"\n", i)
		if _, _, err := w.unix().WriteMsgUnix([]byte(line), syscall.UnixRights(int(p.Fd()), int(p.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		if f := w.next(); f.Type != proto.TypePong {
			t.Errorf("ping with descriptors = %s; want pong", f.raw)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("Read() of the pipe = %d, %v; want EOF: nobody else holds its other end", n, err)
	}
	if after := openFiles(t, d.cmd.Process.Pid); after > before+2 {
		t.Errorf("open files of the daemon = %d, then %d; want what was passed closed", before, after)
	}
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
