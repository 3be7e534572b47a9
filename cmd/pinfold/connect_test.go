package main

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestReceiveFramesWaitsWhileSomethingComes(t *testing.T) {
	const limit, pause, lines = 500 * time.Millisecond, 200 * time.Millisecond, 8 // in all longer than the limit
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ours, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: ln.Addr().String(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	go func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for range lines {
			<-tick.C
			if _, err := theirs.Write([]byte("frame\n")); err != nil {
				t.Errorf("Write() = %v; want nil", err)
				return
			}
		}
	}()
	sent := make(chan error, 1)
	sent <- nil // the input has ended
	var out bytes.Buffer
	if err := receiveFrames(&out, ours, sent, limit); err != nil || strings.Count(out.String(), "\n") != lines {
		t.Errorf("receiveFrames() = %q, %v; want all %d frames", out.String(), err, lines)
	}
}
