package main

import (
	"strings"
	"testing"

	"pinfold/proto"
)

func TestWithDataForm(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", `{"type":"handshake/req","id":"h"}`, `{"id":"h","proc":{"data":"object"},"type":"handshake/req"}`},
		{"other options", `{"type":"handshake/req","proc":{"batch":true}}`, `{"proc":{"batch":true,"data":"object"},"type":"handshake/req"}`},
		{"own choice", `{"type":"handshake/req","proc":{"data":"string"}}`, ""},
		{"numbers as they are", `{"ts":1716123456.789000,"type":"handshake/req"}`, `{"proc":{"data":"object"},"ts":1716123456.789000,"type":"handshake/req"}`},
		{"no handshake", `{"type":"ping","id":"p"}`, ""},
		{"not an object", `[1]`, ""},
		{"no JSON", `hello`, ""},
		{"duplicate names", `{"type":"handshake/req","type":"ping"}`, ""},
		{"options are no object", `{"type":"handshake/req","proc":7}`, ""},
		{"options are null", `{"type":"handshake/req","proc":null}`, ""},
	}
	for _, tt := range tests {
		in := tt.in + "\n"
		want := tt.want + "\n"
		if tt.want == "" {
			want = in
		}
		if got := string(withDataForm([]byte(in), proto.DataObject)); got != want {
			t.Errorf("%s: withDataForm(%s) = %s; want %s", tt.name, in, got, want)
		}
	}
}

func FuzzWithDataForm(f *testing.F) {
	f.Add([]byte(`{"type":"handshake/req","proc":{"batch":true}}` + "\n"))
	f.Add([]byte(`{"type":"handshake/req"}` + "\n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		out := withDataForm(line, proto.DataObject)
		if len(out) > 0 && strings.Count(string(out), "\n") > strings.Count(string(line), "\n")+1 {
			t.Errorf("withDataForm(%q) = %q; want one frame", line, out)
		}
	})
}

func TestConnect(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		if r.Kind() == proto.TypePing {
			return []proto.Message{&proto.Pong{ReqID: r.Base().ID}}
		}
		return nil
	})
	in := `{"type":"handshake/req","id":"h1","version":"1.0","ts":1,"agent_id":"","agent_caps":["proc"],"auth_token":""}` + "\n" +
		`{"type":"ping","id":"p1","version":"1.0","ts":1}` + "\n"
	got := pinfold(t, in, "connect", "--socket", d.socket)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != 0 || got.stderr != "" || len(lines) != 2 || !strings.Contains(lines[1], `"pong"`) {
		t.Errorf("connect = %+v; want a handshake's answer and a pong", got)
	}
	hands := requests[*proto.Handshake](d)
	if len(hands) != 1 || hands[0].Proc.Data != proto.DataObject {
		t.Errorf("connect sent %+v; want a handshake that asks for objects", hands)
	}
}
