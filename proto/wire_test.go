package proto_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pinfold/proto"

	"github.com/google/go-cmp/cmp"
)

// The wire examples of the capability's specification, as they stand there.
const (
	specSpawn     = `{"type":"proc/spawn/req","id":"p1","version":"1.0","ts":1716123456.789,"session_id":"s1","cmd":["python3","-i"],"cwd":"","env":{},"stdin_mode":"pipe","timeout":0}`
	specSpawnResp = `{"type":"proc/spawn/resp","id":"p2","version":"1.0","ts":1716123456.900,"req_id":"p1","proc_id":"proc_abc123","ok":true,"pid":12345,"error":""}`
	specWrite     = `{"type":"proc/write/req","id":"p3","version":"1.0","ts":1716123457.100,"proc_id":"proc_abc123","data":"print('hello')\n","eof":false}`
	specRead      = `{"type":"proc/read/event","id":"p4","version":"1.0","ts":1716123457.150,"proc_id":"proc_abc123","stream_type":"stdout","data":"{\"text\":\"hello\\n\"}","req_id":"p1"}`
	specKill      = `{"type":"proc/kill/req","id":"p5","version":"1.0","ts":1716123458.100,"proc_id":"proc_abc123","signal":"SIGTERM"}`
	specKillResp  = `{"type":"proc/kill/resp","id":"p6","version":"1.0","ts":1716123458.200,"req_id":"p5","ok":true,"state":"killed"}`
)

func members(t *testing.T, line string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatalf("json.Unmarshal(%s) = %v; want an object", line, err)
	}
	return m
}

func encode(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := proto.Append(nil, m)
	if err != nil {
		t.Fatalf("Append(%s) = %v; want no error", m.Kind(), err)
	}
	line, ok := strings.CutSuffix(string(b), "\n")
	if !ok || strings.Contains(line, "\n") {
		t.Fatalf("Append(%s) = %q; want one line", m.Kind(), b)
	}
	return line
}

func TestSpecRequestsDecodeAndEncodeAsTheyStand(t *testing.T) {
	for _, line := range []string{specSpawn, specWrite, specKill} {
		req, bad := proto.Decode([]byte(line))
		if bad != nil {
			t.Errorf("Decode(%s) = %s; want a request", line, bad.Message)
			continue
		}
		if diff := cmp.Diff(members(t, line), members(t, encode(t, req))); diff != "" {
			t.Errorf("Append(Decode(%s)) differs (-want +got):\n%s", line, diff)
		}
	}
}

func TestSpecAnswersDecodeAndEncodeWithAllTheirFields(t *testing.T) {
	for _, line := range []string{specSpawnResp, specRead, specKillResp} {
		m, err := proto.DecodeAnswer([]byte(line))
		if err != nil {
			t.Errorf("DecodeAnswer(%s) = %v; want a message", line, err)
			continue
		}
		got := members(t, encode(t, m))
		for name, want := range members(t, line) {
			if diff := cmp.Diff(want, got[name]); diff != "" {
				t.Errorf("Append(DecodeAnswer(%s)) member %s differs (-want +got):\n%s", line, name, diff)
			}
		}
	}
}

func TestDecodeGivesEveryField(t *testing.T) {
	base := func(typ proto.Type) string {
		return `{"type":"` + string(typ) + `","id":"i1","version":"1.0","ts":1716123456.5,`
	}
	spawn := proto.Spawn{
		SessionID: "s1", Cmd: []string{"a", ""}, Cwd: "/w", Env: map[string]string{"A": "b"}, StdinMode: "null", Timeout: 100000,
		Profile: "tools", Labels: []string{"x", "y"}, OpID: "o1", PTY: &proto.PTY{Rows: 24, Cols: 80},
		Limits: &proto.Limits{Memory: 1 << 30, Pids: 5, CPU: 1.5, Output: 10, TimeoutCPU: 3, TimeoutIdle: 4},
	}
	const spawnText = `"session_id":"s1","cmd":["a",""],"cwd":"/w","env":{"A":"b"},"stdin_mode":"null","timeout":100000,` +
		`"profile":"tools","labels":["x","y"],"op_id":"o1","pty":{"rows":24,"cols":80},` +
		`"limits":{"memory":1073741824,"pids":5,"cpu":1.5,"output":10,"timeout_cpu":3,"timeout_idle":4}}`
	for _, c := range []struct {
		text string
		want proto.Request
	}{
		{`"agent_id":"a","agent_caps":["proc","x"],"auth_token":"t","role":"operator","proc":{"data":"object","batch":true},"resume":{"session_id":"s","token":"k"}}`, &proto.Handshake{
			AgentID: "a", AgentCaps: []string{"proc", "x"}, AuthToken: "t", Role: proto.RoleOperator,
			Proc: proto.ProcOptions{Data: proto.DataObject, Batch: true}, Resume: proto.ResumeRequest{SessionID: "s", Token: "k"},
		}},
		{`"x":null}`, &proto.Handshake{Role: proto.RoleAgent, Proc: proto.ProcOptions{Data: proto.DataString}}},
		{`"x":1}`, &proto.Ping{}},
		{`"timeout":7}`, &proto.Shutdown{Timeout: 7}},
		{spawnText, &proto.SpawnReq{Spawn: spawn}},
		{`"cmd":["ls"]}`, &proto.SpawnReq{Spawn: proto.Spawn{Cmd: []string{"ls"}, StdinMode: proto.StdinPipe}}},
		{spawnText, &proto.ExplainReq{Spawn: spawn}},
		{`"proc_id":"p","data":"YQ==","eof":true,"encoding":"base64","op_id":"o"}`, &proto.WriteReq{ProcID: "p", Data: "YQ==", EOF: true, Encoding: "base64", OpID: "o"}},
		{`"proc_id":"p","data":"a\u0000b"}`, &proto.WriteReq{ProcID: "p", Data: "a\x00b"}},
		{`"proc_id":"p","signal":"SIGWINCH","op_id":"o"}`, &proto.KillReq{ProcID: "p", Signal: proto.SigWinch, OpID: "o"}},
		{`"proc_id":"p"}`, &proto.KillReq{ProcID: "p", Signal: proto.SigTerm}},
		{`"proc_id":"p"}`, &proto.StatusReq{ProcID: "p"}},
		{`"label":"x"}`, &proto.ListReq{Label: "x"}},
		{`"proc_id":"p","timeout_ms":1500}`, &proto.WaitReq{ProcID: "p", TimeoutMS: 1500}},
		{`"proc_id":"p"}`, &proto.StatsReq{ProcID: "p"}},
		{`"proc_id":"p","rows":1,"cols":65535}`, &proto.ResizeReq{ProcID: "p", Rows: 1, Cols: 65535}},
		{`"op_id":"o"}`, &proto.OpsGetReq{OpID: "o"}},
		{`"req_id":"w"}`, &proto.Cancel{ReqID: "w"}},
	} {
		line := base(c.want.Kind()) + c.text
		*c.want.Base() = proto.Base{Type: c.want.Kind(), ID: "i1", Version: "1.0", TS: 1716123456.5}
		got, bad := proto.Decode([]byte(line))
		if bad != nil {
			t.Errorf("Decode(%s) = %s; want a request", line, bad.Message)
			continue
		}
		if diff := cmp.Diff(c.want, got, exported()); diff != "" {
			t.Errorf("Decode(%s) differs (-want +got):\n%s", line, diff)
		}
		again, bad := proto.Decode([]byte(encode(t, got) + "\n"))
		if bad != nil || !cmp.Equal(got, again, exported(), emptyAsNil()) {
			t.Errorf("Decode(Append(%s)) = %+v, %+v; want the same request", line, again, bad)
		}
	}
}

func TestDecodeTakesTheOlderNameOfTheVersion(t *testing.T) {
	req, bad := proto.Decode([]byte(`{"a2e":"1.0","type":"ping","id":"x"}`))
	if bad != nil || req.Base().Version != proto.Version {
		t.Errorf("Decode(a2e 1.0) = %+v, %+v; want a ping of version 1.0", req, bad)
	}
}

func TestEveryAnswerHasItsStringsAndItsPID(t *testing.T) {
	needs := map[proto.Type][]string{
		proto.TypeHandshakeResp: {"req_id", "session_id", "accepted_caps", "max_parallel", "ok", "reason"},
		proto.TypeSpawnResp:     {"req_id", "proc_id", "ok", "pid", "error", "code"},
		proto.TypeWriteResp:     {"req_id", "proc_id", "ok", "pid", "error", "code"},
		proto.TypeKillResp:      {"req_id", "ok", "state", "error", "code"},
		proto.TypeStatusResp:    {"req_id", "proc_id", "status", "error", "code"},
		proto.TypeListResp:      {"req_id", "ok", "error", "code", "procs"},
		proto.TypeWaitResp:      {"req_id", "ok", "error", "code", "proc_id", "status"},
		proto.TypeStatsResp:     {"req_id", "ok", "error", "code", "proc_id"},
		proto.TypeExplainResp:   {"req_id", "ok", "error", "code", "allowed"},
		proto.TypeResizeResp:    {"req_id", "ok", "error", "code", "proc_id"},
		proto.TypeOpsGetResp:    {"req_id", "ok", "error", "code", "op_id"},
		proto.TypeCancelResp:    {"req_id", "ok", "error", "code"},
		proto.TypePong:          {"req_id", "uptime_seconds"},
		proto.TypeError:         {"req_id", "code", "message", "detail", "retryable", "capability_name"},
	}
	messages := []proto.Message{&proto.Pong{}, proto.NewError("", proto.CodeParseError, "no")}
	for _, req := range requests() {
		if a := proto.Answer(req, proto.Done(req)); a != nil {
			messages = append(messages, a)
		}
	}
	if len(messages) != len(needs) {
		t.Errorf("%d kinds of answers; want %d", len(messages), len(needs))
	}
	for _, m := range messages {
		line := encode(t, m)
		got := members(t, line)
		for _, name := range append(needs[m.Kind()], "type", "id", "version", "ts") {
			if v, ok := got[name]; !ok || v == nil {
				t.Errorf("Append(%s) = %s; want %s in it, and not null", m.Kind(), line, name)
			}
		}
		if got["type"] != string(m.Kind()) || got["id"] == "" || got["version"] != "1.0" || got["ts"] == 0.0 {
			t.Errorf("Append(%s) = %s; want its base fields filled in", m.Kind(), line)
		}
		back, err := proto.DecodeAnswer([]byte(line))
		if err != nil || !cmp.Equal(m, back, exported(), emptyAsNil()) {
			t.Errorf("DecodeAnswer(%s) = %+v, %v; want the same message", line, back, err)
		}
	}
}

// requests has one request of every type.
func requests() []proto.Request {
	all := []proto.Request{
		&proto.Handshake{}, &proto.Ping{}, &proto.Shutdown{},
		&proto.SpawnReq{Spawn: proto.Spawn{Cmd: []string{"ls"}}}, &proto.WriteReq{ProcID: "p"}, &proto.KillReq{ProcID: "p"},
		&proto.StatusReq{ProcID: "p"}, &proto.ListReq{}, &proto.WaitReq{ProcID: "p"}, &proto.StatsReq{ProcID: "p"},
		&proto.ExplainReq{Spawn: proto.Spawn{Cmd: []string{"ls"}}}, &proto.ResizeReq{ProcID: "p", Rows: 1, Cols: 1},
		&proto.OpsGetReq{OpID: "o"}, &proto.Cancel{ReqID: "w"},
	}
	for _, r := range all {
		r.Base().ID = "r1"
	}
	return all
}

func TestAnswerHasTheTypeOfItsRequest(t *testing.T) {
	for _, req := range requests() {
		name, ok := strings.CutSuffix(string(req.Kind()), "/req")
		ok = ok || req.Kind() == proto.TypeCancel // the one without the suffix that has a response
		a := proto.Answer(req, proto.Refused(req, proto.CodeBusy, "the queue is full", "wait"))
		switch {
		case !ok:
			if a != nil {
				t.Errorf("Answer(%s) = %s; want none", req.Kind(), a.Kind())
			}
		case a == nil || string(a.Kind()) != name+"/resp":
			t.Errorf("Answer(%s) = %v; want a %s/resp", req.Kind(), a, name)
		default:
			want := proto.Reply{ReqID: "r1", Error: "the queue is full", Code: proto.CodeBusy, Retryable: true, Hint: "wait"}
			if diff := cmp.Diff(want, *a.Result()); diff != "" {
				t.Errorf("Answer(%s).Result() differs (-want +got):\n%s", req.Kind(), diff)
			}
		}
	}
}

func TestUnknownProcIsTheSameForAllThatIsNotOnesOwn(t *testing.T) {
	req := &proto.StatusReq{ProcID: "p"}
	req.ID = "q"
	got := members(t, encode(t, proto.UnknownProc(req)))
	for name, want := range map[string]any{"status": "not_found", "code": "unknown_proc", "ok": false, "retryable": false, "proc_id": "p"} {
		if got[name] != want {
			t.Errorf("UnknownProc(status)[%q] = %v; want %v", name, got[name], want)
		}
	}
}

func TestAppendReplacesWhatIsNotUTF8(t *testing.T) {
	r := &proto.SpawnResp{Reply: proto.Reply{Error: "cannot find /a\xffb"}, Workspace: "\xc3\x28"}
	got := members(t, encode(t, r))
	if got["error"] != "cannot find /a\ufffdb" {
		t.Errorf("Append(error with 0xff) = %q; want a replacement character", got["error"])
	}
}

func TestAppendRefusesAFrameThatNobodyReads(t *testing.T) {
	dst := []byte("kept")
	got, err := proto.Append(dst, &proto.WriteReq{Data: strings.Repeat("x", proto.MaxFrame)})
	if err == nil || string(got) != "kept" {
		t.Errorf("Append(1 MiB of data) = %d bytes, %v; want the old bytes and an error", len(got), err)
	}
}

func TestCommandLine(t *testing.T) {
	for want, argv := range map[string][]string{
		`ls -l /tmp`:                    {"ls", "-l", "/tmp"},
		`sh -c 'echo $A; x'`:            {"sh", "-c", "echo $A; x"},
		`a '' 'it'\''s' 'ü' 'b` + "\n'": {"a", "", "it's", "ü", "b\n"},
		``:                              nil,
	} {
		if got := proto.CommandLine(argv); got != want {
			t.Errorf("CommandLine(%q) = %q; want %q", argv, got, want)
		}
	}
}
