package proto_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/proto"
)

// FuzzDecodeAnswer is a client before a daemon that says anything: what is read can be written, and then reads as the same. Each
// input is also read as a request: no line is both.
func FuzzDecodeAnswer(f *testing.F) {
	for _, line := range []string{
		`{"type":"pong","id":"a","version":"1.0","ts":1,"req_id":"r"}`,
		`{"type":"error","id":"a","version":"1.0","ts":1,"req_id":"r","code":"busy","message":"later"}`,
		`{"type":"ops/get/resp","id":"a","version":"1.0","ts":1,"req_id":"r","ok":true,"op_id":"o","outcome":"applied","operation":{"request":"proc/spawn/req","at":1,"proc_id":"p","pid":7}}`,
		`{"type":"cancel/resp","id":"a","version":"1.0","ts":1,"req_id":"r","ok":false,"error":"no","code":"unknown_req"}`,
		`{"type":"proc/read/event","id":"a","version":"1.0","ts":1,"proc_id":"p","stream_type":"stdout","data":"{\"text\":\"x\"}","req_id":"r","seq":1,"offset":0}`,
		specRead,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		m, err := proto.DecodeAnswer(line)
		if !bytes.Equal(line, before) {
			t.Fatalf("DecodeAnswer(%q) changed the line to %q", before, line)
		}
		if err != nil {
			if m != nil {
				t.Fatalf("DecodeAnswer(%q) = %T and %v; want one of them", line, m, err)
			}
			return
		}
		if req, bad := proto.Decode(line); bad == nil {
			t.Fatalf("Decode(%q) = %T, DecodeAnswer = %T; want a line to be one of them", line, req, m)
		}
		out, err := proto.Append(nil, m)
		if errors.Is(err, proto.ErrFrameTooLarge) {
			return // escapes have shorter forms
		}
		if err != nil {
			t.Fatalf("Append(DecodeAnswer(%q)) = %v; want a line", line, err)
		}
		if n := bytes.Count(out, []byte{'\n'}); n != 1 || out[len(out)-1] != '\n' {
			t.Fatalf("Append(DecodeAnswer(%q)) = %q; want one line", line, out)
		}
		stable(t, line, out)
	})
}

// stable reads what was written of a line and writes it again. The first writing may fill in a time and an id, the second nothing.
func stable(t *testing.T, line, out []byte) {
	t.Helper()
	again, err := proto.DecodeAnswer(out)
	if err != nil {
		t.Fatalf("DecodeAnswer(Append(DecodeAnswer(%q))) = %v for %q; want a message", line, err, out)
	}
	second, err := proto.Append(nil, again)
	if err != nil || !bytes.Equal(second, out) {
		t.Fatalf("line %q: written %q, read and written again %q, %v; want the same", line, out, second, err)
	}
}

// FuzzRequests builds requests of every kind in place of lines: each that Decode takes reads back as it was.
func FuzzRequests(f *testing.F) {
	f.Add(uint8(0), "id", "text", "more", int64(3), true)
	f.Add(uint8(1), "\u2028", "a\x1fb", "\"\\", int64(-1), false)
	f.Add(uint8(11), "id", "op", "more", int64(0), false)
	f.Add(uint8(12), "id", "req", "more", int64(0), false)
	f.Add(uint8(2), strings.Repeat("i", proto.MaxID), "\x7f", "é", int64(1)<<62, true)
	f.Fuzz(func(t *testing.T, kind uint8, id, text, more string, n int64, yes bool) {
		req := requestOf(kind, text, more, n, yes)
		req.Base().ID, req.Base().TS = id, 1
		out, err := proto.Append(nil, req)
		if err != nil {
			return // a request that cannot be written: too large, or no UTF-8
		}
		got, bad := proto.Decode(out)
		if bad != nil {
			if got != nil {
				t.Fatalf("Decode(%q) = %T and %s; want one of them", out, got, bad.Code)
			}
			return
		}
		second, err := proto.Append(nil, got)
		if err != nil {
			t.Fatalf("Append(Decode(%q)) = %v", out, err)
		}
		again, bad := proto.Decode(second)
		if bad != nil || !cmp.Equal(got, again, exported(), emptyAsNil()) {
			t.Fatalf("Decode(Append(Decode(%q))) = %+v, %+v; want %+v", out, again, bad, got)
		}
		third, err := proto.Append(nil, again)
		if err != nil || !bytes.Equal(second, third) {
			t.Fatalf("%q, then %q, %v; want the same line", second, third, err)
		}
	})
}

func requestOf(kind uint8, text, more string, n int64, yes bool) proto.Request {
	spawn := proto.Spawn{
		SessionID: more, Cmd: strings.Split(text, "\x1f"), Cwd: more, Env: map[string]string{text: more}, StdinMode: proto.StdinMode(more),
		Timeout: proto.WholeSeconds(n), Labels: []string{text}, OpID: text, Profile: more, Limits: &proto.Limits{TimeoutIdle: proto.WholeSeconds(n)},
	}
	if yes {
		spawn.Env, spawn.Labels, spawn.StdinMode, spawn.PTY = nil, nil, "", &proto.PTY{Rows: uint16(n), Cols: uint16(n >> 16)}
	}
	switch kind % 14 {
	case 0:
		return &proto.Handshake{AgentID: text, AgentCaps: []string{more}, AuthToken: more, Role: proto.Role(map[bool]string{true: "operator"}[yes])}
	case 1:
		return &proto.Ping{}
	case 2:
		return &proto.Shutdown{Timeout: proto.WholeSeconds(n)}
	case 3:
		return &proto.SpawnReq{Spawn: spawn}
	case 4:
		return &proto.WriteReq{ProcID: more, Data: text, EOF: yes}
	case 5:
		return &proto.KillReq{ProcID: text, Signal: proto.Signal(more)}
	case 6:
		return &proto.StatusReq{ProcID: text}
	case 7:
		return &proto.ListReq{Label: text}
	case 8:
		return &proto.WaitReq{ProcID: text, TimeoutMS: proto.Milliseconds(n)}
	case 9:
		return &proto.StatsReq{ProcID: text}
	case 10:
		return &proto.ExplainReq{Spawn: spawn}
	case 11:
		return &proto.OpsGetReq{OpID: text}
	case 12:
		return &proto.Cancel{ReqID: text}
	}
	return &proto.ResizeReq{ProcID: text, Rows: uint16(n), Cols: uint16(n >> 16)}
}
