package proto_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pinfold/proto"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// exported compares messages with the base that they embed.
func exported() cmp.Option {
	return cmp.Exporter(func(t reflectType) bool { return strings.HasPrefix(t.PkgPath(), "pinfold/proto") })
}

func emptyAsNil() cmp.Option { return cmpopts.EquateEmpty() }

func TestDecodeRefuses(t *testing.T) {
	const (
		parse   = proto.CodeParseError
		schema  = proto.CodeSchemaViolation
		unknown = proto.CodeUnknownType
		version = proto.CodeVersionMismatch
	)
	spawn := func(rest string) string {
		return `{"type":"proc/spawn/req","id":"r","version":"1.0","ts":1,` + rest + `}`
	}
	deep := strings.Repeat("[", proto.MaxNesting) + strings.Repeat("]", proto.MaxNesting)
	longID := strings.Repeat("i", proto.MaxID+1)
	for _, c := range []struct {
		line  string
		code  proto.Code
		reqID string
		field string
		text  string // part of the message
	}{
		// Not a JSON object.
		{"", parse, "", "", "empty"},
		{"\n", parse, "", "", "empty"},
		{"hello", parse, "", "", "not JSON"},
		{"[]", parse, "", "", "no JSON object"},
		{"null", parse, "", "", "no JSON object"},
		{`"x"`, parse, "", "", "no JSON object"},
		{`{"id":"r"`, parse, "r", "", "ends within"},
		{`{"id":"r",}`, parse, "r", "", "not JSON"},
		{`{"id":"r","type":"ping","version":"1.0"} {}`, parse, "r", "", "more after"},
		{`{"id":"r","type":"ping","version":"1.0"}]`, parse, "r", "", "not JSON"},
		{`{'id':'r'}`, parse, "", "", "not JSON"},
		// Bytes that a line cannot have.
		{"{\"id\":\"r\",\"x\":\"\xff\"}", parse, "r", "", "UTF-8"},
		{"{\"id\":\"r\",\"x\":\"\xc0\x80\"}", parse, "r", "", "UTF-8"},
		{"{\"id\":\"r\",\"x\":\"\xed\xa0\x80\"}", parse, "r", "", "UTF-8"},
		{`{"id":"r","x":"\ud800"}`, parse, "r", "x", "surrogate"},
		{"{\"id\":\"r\"\x00}", parse, "", "", "NUL"},
		{"{\"id\":\"r\",\"x\":\"a\tb\"}", parse, "r", "x", "not JSON"},
		// Names given twice, at any depth, and also by escapes.
		{`{"id":"r","type":"ping","type":"ping"}`, parse, "r", "type", "twice"},
		{`{"id":"r","id":"s","type":"ping"}`, parse, "", "id", "twice"},
		{`{"id":"r","typ\u0065":"ping","type":"ping"}`, parse, "r", "type", "twice"},
		{`{"id":"r","x":{"a":1,"a":2}}`, parse, "r", "x/a", "twice"},
		{spawn(`"cmd":["a"],"env":{"A":"1","A":"2"}`), parse, "r", "env/A", "twice"},
		// Depth; the id may come after.
		{`{"x":` + deep + `,"id":"r","type":"ping","version":"1.0"}`, parse, "r", "x", "too deep"},
		{`{"x":` + strings.Repeat(`{"a":`, 20000), parse, "", "x", "too deep"},
		// Base fields.
		{`{"type":"ping","version":"1.0"}`, schema, "", "id", "needs an id"},
		{`{"type":"ping","id":"","version":"1.0"}`, schema, "", "id", "needs an id"},
		{`{"type":"ping","id":7,"version":"1.0"}`, schema, "", "id", "a number"},
		{`{"type":"ping","id":null,"version":"1.0"}`, schema, "", "id", "null"},
		{`{"type":"ping","id":"a\u0000","version":"1.0"}`, schema, "", "id", "NUL"},
		{`{"type":"ping","id":"` + longID + `","version":"1.0"}`, schema, "", "id", "129 bytes"},
		{`{"id":"r","version":"1.0"}`, schema, "r", "type", "needs a type"},
		{`{"id":"r","type":{},"version":"1.0"}`, schema, "r", "type", "an object"},
		{`{"id":"r","type":"ping"}`, schema, "r", "version", "needs version"},
		{`{"id":"r","type":"ping","version":1.0}`, schema, "r", "version", "a number"},
		{`{"id":"r","type":"ping","version":"1.0","ts":"now"}`, schema, "r", "ts", "a string"},
		{`{"id":"r","type":"ping","version":"1.0","ts":1e999}`, schema, "r", "ts", "1e999"},
		{`{"ID":"r","type":"ping","version":"1.0"}`, schema, "", "id", "needs an id"},
		{`{"id":"r","Type":"ping","version":"1.0"}`, schema, "r", "type", "needs a type"},
		// Version.
		{`{"id":"r","type":"ping","version":"2.0"}`, version, "r", "version", `"2.0"`},
		{`{"id":"r","type":"ping","a2e":"0.9"}`, version, "r", "version", `"0.9"`},
		{`{"id":"r","type":"ping","version":"1.0","a2e":"2"}`, version, "r", "version", `"2"`},
		{`{"id":"r","type":"new/req","version":"3"}`, version, "r", "version", `"3"`},
		// Types that no client sends.
		{`{"id":"r","type":"","version":"1.0"}`, unknown, "r", "", `""`},
		{`{"id":"r","type":"proc/fly/req","version":"1.0"}`, unknown, "r", "", "proc/fly/req"},
		{`{"id":"r","type":"proc/spawn/resp","version":"1.0"}`, unknown, "r", "", "proc/spawn/resp"},
		{`{"id":"r","type":"proc/read/event","version":"1.0"}`, unknown, "r", "", "proc/read/event"},
		{`{"id":"r","type":"PING","version":"1.0"}`, unknown, "r", "", "PING"},
		// Fields: missing, of the wrong type, out of range.
		{spawn(`"cwd":"/"`), schema, "r", "cmd", "needs cmd"},
		{spawn(`"Cmd":["ls"]`), schema, "r", "cmd", "needs cmd"},
		{spawn(`"cmd":[]`), schema, "r", "cmd", "empty cmd"},
		{spawn(`"cmd":[""]`), schema, "r", "cmd", "empty cmd"},
		{spawn(`"cmd":"ls"`), schema, "r", "cmd", "want a list"},
		{spawn(`"cmd":["ls",7]`), schema, "r", "cmd/1", "want a string"},
		{spawn(`"cmd":["ls",null]`), schema, "r", "cmd/1", "null"},
		{spawn(`"cmd":null`), schema, "r", "cmd", "null"},
		{spawn(`"cmd":["a\u0000b"]`), schema, "r", "cmd", "NUL"},
		{spawn(`"cmd":["a"],"env":{"A":"b\u0000"}`), schema, "r", "env", "NUL"},
		{spawn(`"cmd":["a"],"env":{"A\u0000":"b"}`), schema, "r", "env", "NUL"},
		{spawn(`"cmd":["a"],"env":{"A=":"b"}`), schema, "r", "env", `"A="`},
		{spawn(`"cmd":["a"],"env":{"":"b"}`), schema, "r", "env", `""`},
		{spawn(`"cmd":["a"],"env":{"A":1}`), schema, "r", "env/A", "want a string"},
		{spawn(`"cmd":["a"],"env":[]`), schema, "r", "env", "want an object"},
		{spawn(`"cmd":["a"],"cwd":"/\u0000"`), schema, "r", "cwd", "NUL"},
		{spawn(`"cmd":["a"],"x\u0000":1`), schema, "r", "x\x00", "NUL"},
		{spawn(`"cmd":["a"],"stdin_mode":"file"`), schema, "r", "stdin_mode", "pipe, null"},
		{spawn(`"cmd":["a"],"timeout":-1`), schema, "r", "timeout", "0 or more"},
		{spawn(`"cmd":["a"],"timeout":1.5`), schema, "r", "timeout", "integer"},
		{spawn(`"cmd":["a"],"timeout":1e3`), schema, "r", "timeout", "integer"},
		{spawn(`"cmd":["a"],"timeout":99999999999999999999`), schema, "r", "timeout", "integer"},
		{spawn(`"cmd":["a"],"timeout":"5"`), schema, "r", "timeout", "integer"},
		{spawn(`"cmd":["a"],"timeout":null`), schema, "r", "timeout", "null"},
		{spawn(`"cmd":["a"],"labels":["` + strings.Repeat("l", proto.MaxLabel+1) + `"]`), schema, "r", "labels/0", "65 bytes"},
		{spawn(`"cmd":["a"],"labels":[""]`), schema, "r", "labels/0", "0 bytes"},
		{spawn(`"cmd":["a"],"labels":["a"` + strings.Repeat(`,"a"`, proto.MaxLabels) + `]`), schema, "r", "labels", "17 labels"},
		{spawn(`"cmd":["a"],"profile":"` + strings.Repeat("p", proto.MaxName+1) + `"`), schema, "r", "profile", "129 bytes"},
		{spawn(`"cmd":["a"],"op_id":"` + longID + `"`), schema, "r", "op_id", "129 bytes"},
		{spawn(`"cmd":["a"],"session_id":"` + longID + `"`), schema, "r", "session_id", "129 bytes"},
		{spawn(`"cmd":["a"],"pty":{"rows":0,"cols":80}`), schema, "r", "pty", "0 rows"},
		{spawn(`"cmd":["a"],"pty":{"rows":70000,"cols":80}`), schema, "r", "pty/rows", "65535"},
		{spawn(`"cmd":["a"],"pty":true`), schema, "r", "pty", "want an object"},
		{spawn(`"cmd":["a"],"limits":{"memory":-1}`), schema, "r", "limits/memory", "0 or more"},
		{spawn(`"cmd":["a"],"limits":{"cpu":-0.5}`), schema, "r", "limits/cpu", "0 or more"},
		{spawn(`"cmd":["a"],"limits":{"memroy":1}`), schema, "r", "limits/memroy", "no such field"},
		{`{"id":"r","type":"proc/explain/req","version":"1.0"}`, schema, "r", "cmd", "needs cmd"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","data":""}`, schema, "r", "proc_id", "needs proc_id"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p"}`, schema, "r", "data", "needs data"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p","data":{"a":"\u0000"}}`, schema, "r", "data", "NUL"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p","data":7}`, schema, "r", "data", "want a string"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p","data":"","eof":"yes"}`, schema, "r", "eof", "true or false"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p","data":"x","encoding":"hex"}`, schema, "r", "encoding", "base64"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p","data":"a","encoding":"base64"}`, schema, "r", "data", "base64"},
		{`{"id":"r","type":"proc/write/req","version":"1.0","proc_id":"p","data":"YR==","encoding":"base64"}`, schema, "r", "data", "base64"},
		{`{"id":"r","type":"proc/kill/req","version":"1.0"}`, schema, "r", "proc_id", "needs proc_id"},
		{`{"id":"r","type":"proc/kill/req","version":"1.0","proc_id":"p","signal":"SIGSEGV"}`, schema, "r", "signal", "SIGTERM, SIGKILL, SIGINT"},
		{`{"id":"r","type":"proc/kill/req","version":"1.0","proc_id":"p","signal":9}`, schema, "r", "signal", "want a string"},
		{`{"id":"r","type":"proc/status/req","version":"1.0","proc_id":"` + longID + `"}`, schema, "r", "proc_id", "129 bytes"},
		{`{"id":"r","type":"proc/list/req","version":"1.0","label":[]}`, schema, "r", "label", "want a string"},
		{`{"id":"r","type":"proc/wait/req","version":"1.0"}`, schema, "r", "proc_id", "needs proc_id"},
		{`{"id":"r","type":"proc/wait/req","version":"1.0","proc_id":"p","timeout_ms":-5}`, schema, "r", "timeout_ms", "0 or more"},
		{`{"id":"r","type":"proc/stats/req","version":"1.0"}`, schema, "r", "proc_id", "needs proc_id"},
		{`{"id":"r","type":"ops/get/req","version":"1.0"}`, schema, "r", "op_id", "needs op_id"},
		{`{"id":"r","type":"ops/get/req","version":"1.0","op_id":""}`, schema, "r", "op_id", "without a name"},
		{`{"id":"r","type":"ops/get/req","version":"1.0","op_id":"` + longID + `"}`, schema, "r", "op_id", "129 bytes"},
		{`{"id":"r","type":"cancel","version":"1.0"}`, schema, "r", "req_id", "needs req_id"},
		{`{"id":"r","type":"cancel","version":"1.0","req_id":""}`, schema, "r", "req_id", "without an id"},
		{`{"id":"r","type":"cancel","version":"1.0","req_id":"` + longID + `"}`, schema, "r", "req_id", "129 bytes"},
		{`{"id":"r","type":"proc/resize/req","version":"1.0","proc_id":"p","rows":5}`, schema, "r", "cols", "needs cols"},
		{`{"id":"r","type":"proc/resize/req","version":"1.0","proc_id":"p","rows":5,"cols":0}`, schema, "r", "pty", "0 cols"},
		{`{"id":"r","type":"proc/resize/req","version":"1.0","proc_id":"p","rows":-5,"cols":1}`, schema, "r", "rows", "65535"},
		{`{"id":"r","type":"shutdown","version":"1.0","timeout":-5}`, schema, "r", "timeout", "0 or more"},
		{`{"id":"r","type":"handshake/req","version":"1.0","role":"root"}`, schema, "r", "role", "agent, operator"},
		{`{"id":"r","type":"handshake/req","version":"1.0","proc":{"data":"xml"}}`, schema, "r", "proc/data", "string, object"},
		{`{"id":"r","type":"handshake/req","version":"1.0","proc":"object"}`, schema, "r", "proc", "want an object"},
		{`{"id":"r","type":"handshake/req","version":"1.0","agent_caps":{"proc":true}}`, schema, "r", "agent_caps", "want a list"},
	} {
		req, bad := proto.Decode([]byte(c.line))
		name := c.line
		if len(name) > 200 {
			name = name[:200] + "…"
		}
		if req != nil || bad == nil {
			t.Errorf("Decode(%s) = %+v; want %s", name, req, c.code)
			continue
		}
		if bad.Code != c.code || bad.ReqID != c.reqID || bad.Detail.Field != c.field || !strings.Contains(bad.Message, c.text) {
			t.Errorf("Decode(%s) = %s req_id %q field %q: %s; want %s req_id %q field %q: …%s…",
				name, bad.Code, bad.ReqID, bad.Detail.Field, bad.Message, c.code, c.reqID, c.field, c.text)
		}
		if bad.CapabilityName != proto.Capability || bad.Retryable {
			t.Errorf("Decode(%s) = %+v; want capability proc, not retryable", name, bad)
		}
	}
}

func TestDecodeGivesAHandshakeOfAnotherVersionBesideTheError(t *testing.T) {
	req, bad := proto.Decode([]byte(`{"type":"handshake/req","id":"h","version":"9.9"}`))
	h, ok := req.(*proto.Handshake)
	if !ok || h.ID != "h" || h.Version != "9.9" || bad == nil || bad.Code != proto.CodeVersionMismatch || bad.ReqID != "h" {
		t.Errorf("Decode(handshake 9.9) = %+v, %+v; want the handshake and version_mismatch", req, bad)
	}
}

func TestDecodeNeverRepeatsASecret(t *testing.T) {
	const secret = `hunter2`
	for _, line := range []string{
		`{"type":"handshake/req","id":"h","version":"1.0","auth_token":["` + secret + `"]}`,
		`{"type":"handshake/req","id":"h","version":"1.0","auth_token":"` + secret + `\ud800` + secret + `"}`,
		`{"type":"handshake/req","id":"h","version":"1.0","auth_token":"` + secret + `\u0000"}`,
		`{"type":"handshake/req","id":"h","version":"1.0","auth_token":"` + secret + strings.Repeat("x", proto.MaxToken) + `"}`,
		`{"type":"handshake/req","id":"h","version":"1.0","auth_token":"\` + secret + `"}`,
		`{"type":"handshake/req","id":"h","version":"1.0","resume":{"session_id":"s","token":{"a":"` + secret + `"}}}`,
	} {
		_, bad := proto.Decode([]byte(line))
		if bad == nil {
			t.Errorf("Decode(%.120s) = nil; want an error", line)
			continue
		}
		if out := encode(t, bad); strings.Contains(out, secret) || strings.Contains(out, secret[1:]) {
			t.Errorf("Decode(%.120s) = %s; want the secret not in it", line, out)
		}
	}
	_, bad := proto.Decode([]byte(`{"type":"handshake/req","id":"h","version":"1.0","auth_token":4711}`))
	if bad == nil || strings.Contains(bad.Message, "4711") {
		t.Errorf("Decode(auth_token 4711) = %+v; want an error without the number", bad)
	}
}

func TestDecodeLimits(t *testing.T) {
	fixed := len(`{"type":"ping","id":"r","version":"1.0","x":""}`)
	line := func(n int) []byte {
		return []byte(`{"type":"ping","id":"r","version":"1.0","x":"` + strings.Repeat("x", n-fixed) + `"}`)
	}
	if _, bad := proto.Decode(line(proto.MaxFrame)); bad != nil {
		t.Errorf("Decode(1 MiB) = %s; want a ping", bad.Message)
	}
	if _, bad := proto.Decode(append(line(proto.MaxFrame), '\n')); bad != nil {
		t.Errorf("Decode(1 MiB and newline) = %s; want a ping", bad.Message)
	}
	_, bad := proto.Decode(line(proto.MaxFrame + 1))
	if bad == nil || bad.Code != proto.CodeFrameTooLarge || bad.Detail.Limit != proto.MaxFrame {
		t.Errorf("Decode(1 MiB + 1) = %+v; want frame_too_large with the limit", bad)
	}
	if diff := cmp.Diff(proto.TooLarge(), bad, exported()); diff != "" {
		t.Errorf("TooLarge() differs from what Decode says (-want +got):\n%s", diff)
	}
	for depth, want := range map[int]proto.Code{proto.MaxNesting - 1: "", proto.MaxNesting: proto.CodeParseError} {
		x := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		_, bad := proto.Decode(fmt.Appendf(nil, `{"type":"ping","id":"r","version":"1.0","x":%s}`, x))
		if got := codeOf(bad); got != want {
			t.Errorf("Decode(depth %d) = %q; want %q", depth+1, got, want)
		}
	}
	for n, want := range map[int]proto.Code{proto.MaxID: "", proto.MaxID + 1: proto.CodeSchemaViolation} {
		_, bad := proto.Decode(fmt.Appendf(nil, `{"type":"ping","id":"%s","version":"1.0"}`, strings.Repeat("i", n)))
		if got := codeOf(bad); got != want {
			t.Errorf("Decode(id of %d bytes) = %q; want %q", n, got, want)
		}
	}
}

func codeOf(m *proto.ErrorMsg) proto.Code {
	if m == nil {
		return ""
	}
	return m.Code
}

func TestWriteReqBytes(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	w := proto.NewBinaryWrite("p", all)
	req, bad := proto.Decode([]byte(encode(t, w)))
	if bad != nil {
		t.Fatalf("Decode(binary write) = %s; want a request", bad.Message)
	}
	write, ok := req.(*proto.WriteReq)
	if !ok {
		t.Fatalf("Decode(binary write) = %T; want *WriteReq", req)
	}
	got, err := write.Bytes()
	if err != nil || string(got) != string(all) {
		t.Errorf("Bytes() = %q, %v; want all 256 bytes", got, err)
	}
}

func TestTimesSaturate(t *testing.T) {
	for s, want := range map[proto.WholeSeconds]time.Duration{0: 0, 5: 5 * time.Second, 100000: 100000 * time.Second, math.MaxInt64: math.MaxInt64} {
		if got := s.Duration(); got != want {
			t.Errorf("WholeSeconds(%d).Duration() = %d; want %d", s, got, want)
		}
	}
	for ms, want := range map[proto.Milliseconds]time.Duration{1500: 1500 * time.Millisecond, math.MaxInt64: math.MaxInt64} {
		if got := ms.Duration(); got != want {
			t.Errorf("Milliseconds(%d).Duration() = %d; want %d", ms, got, want)
		}
	}
	now := time.UnixMicro(1716123456789012)
	if got := proto.TimestampOf(now).Time(); !got.Equal(now) {
		t.Errorf("TimestampOf(%v).Time() = %v; want the same", now, got)
	}
}

func TestDecodeAnswerRefuses(t *testing.T) {
	for _, line := range []string{
		``, `[]`, `{"type":"pong","type":"pong"}`, "{\"type\":\"pong\",\"req_id\":\"\xff\"}", `{"type":"pong","req_id":7}`,
		`{"type":"proc/read/event","data":7}`, `{"type":"proc/read/event","data":"no json"}`, `{"type":"proc/read/event","data":{"b64":"?"}}`,
		`{"type":"proc/spawn/req"}`, `{"type":"proc/later/event"}`, `{"type":"pong","x":"` + strings.Repeat("x", proto.MaxFrame) + `"}`,
	} {
		if m, err := proto.DecodeAnswer([]byte(line)); err == nil {
			t.Errorf("DecodeAnswer(%.80s) = %+v; want an error", line, m)
		}
	}
}

func BenchmarkDecodeWrite(b *testing.B) {
	line := []byte(specWrite)
	b.ReportAllocs()
	for b.Loop() {
		if _, bad := proto.Decode(line); bad != nil {
			b.Fatal(bad.Message)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, line := range []string{specSpawn, specWrite, specKill, specRead, `{"a2e":"1.0","type":"ping","id":"x"}`, `{"id":"r","id":"s"}`, `{"x":[[[[]]]],"id":"\u0000"}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		req, bad := proto.Decode(line)
		switch {
		case bad != nil:
			if _, ok := req.(*proto.Handshake); req != nil && (!ok || bad.Code != proto.CodeVersionMismatch) {
				t.Fatalf("Decode(%q) = %T and %s; want one of them", line, req, bad.Code)
			}
			encode(t, bad)
			if len(bad.ReqID) > proto.MaxID {
				t.Fatalf("Decode(%q) echoes an id of %d bytes; want at most %d", line, len(bad.ReqID), proto.MaxID)
			}
			return
		case req == nil:
			t.Fatalf("Decode(%q) = nil, nil; want one of them", line)
		}
		b := req.Base()
		if b.ID == "" || len(b.ID) > proto.MaxID || b.Version != proto.Version || b.Type != req.Kind() {
			t.Fatalf("Decode(%q).Base() = %+v; want it complete", line, *b)
		}
		if b.TS == 0 {
			return // Append would give it the present time
		}
		out, err := proto.Append(nil, req)
		if err != nil {
			return // it grew above the limit: numbers and escapes have shorter forms
		}
		again, bad := proto.Decode(out)
		if bad != nil || !cmp.Equal(req, again, exported(), emptyAsNil()) {
			t.Fatalf("Decode(Append(Decode(%q))) = %+v, %+v; want %+v", line, again, bad, req)
		}
	})
}
