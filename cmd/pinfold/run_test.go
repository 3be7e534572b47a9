package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold/proto"
)

func TestRunStreamsAndCode(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		if spawn, ok := r.(*proto.SpawnReq); ok {
			return ended(spawn, "out\xff\x00", "err", &proto.Verdict{Cause: proto.CauseExited, Code: 3})
		}
		return nil
	})
	got := pinfold(t, "", "run", "--socket", d.socket, "--profile", "tools", "--env", "A=b=c", "--env", "EMPTY=", "--timeout", "1500ms",
		"--cwd", "/srv/x", "--label", "l", "--", "prog", "--flag", "")
	if want := (result{3, "out\xff\x00", "err"}); got != want {
		t.Errorf("run = %+v; want %+v", got, want)
	}
	spawns := requests[*proto.SpawnReq](d)
	if len(spawns) != 1 {
		t.Fatalf("run sent %d spawns; want 1", len(spawns))
	}
	s := spawns[0].Spawn
	if strings.Join(s.Cmd, "|") != "prog|--flag|" || s.Cwd != "/srv/x" || s.Profile != "tools" || s.Timeout != 2 ||
		s.Env["A"] != "b=c" || s.Env["EMPTY"] != "" || len(s.Env) != 2 || len(s.Labels) != 1 || s.PTY != nil {
		t.Errorf("run sent %+v; want the flags as given, the timeout rounded up", s)
	}
	if n := len(requests[*proto.Shutdown](d)); n != 1 {
		t.Errorf("run ended its session %d times; want once", n)
	}
}

// TestRunTellsTheWayBack: a run whose connection is lost says how to go on with its command.
func TestRunTellsTheWayBack(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		switch r := r.(type) {
		case *proto.Handshake:
			return []proto.Message{&proto.HandshakeResp{Reply: proto.Done(r), SessionID: "some-session", Resume: &proto.ResumeOffer{Token: "secret", TTLMS: 1000}}}
		case *proto.SpawnReq:
			return append(ended(r, "", "", &proto.Verdict{Cause: proto.CauseExited})[:1], nil)
		}
		return nil
	})
	token := filepath.Join(t.TempDir(), "token")
	got := pinfold(t, "", "run", "--socket", d.socket, "--token-file", token, "--", "cat")
	want := "\n  try: pinfold attach --session some-session --token-file " + token + " " + someID + "\n"
	if got.code != 125 || !strings.HasSuffix(got.stderr, want) {
		t.Errorf("run = %+v; want 125 and %q", got, want)
	}
	if got := pinfold(t, "", "run", "--socket", d.socket, "--", "cat"); !strings.HasSuffix(got.stderr, "\n  try: pinfold ps\n") {
		t.Errorf("run without a token = %+v; want no way back", got)
	}
}

func TestRunFeedsStandardInput(t *testing.T) {
	const input = "line\nbin\xff\xfe"
	var sent []byte
	d := serveFake(t, nil)
	var spawned *proto.SpawnReq
	d.answer = func(r proto.Request) []proto.Message {
		switch r := r.(type) {
		case *proto.SpawnReq:
			spawned = r
			return ended(r, "", "", &proto.Verdict{Cause: proto.CauseExited})[:1]
		case *proto.WriteReq:
			data, err := r.Bytes()
			if err != nil {
				t.Errorf("Bytes() = %v", err)
			}
			sent = append(sent, data...)
			done := []proto.Message{proto.Answer(r, proto.Done(r))}
			if r.EOF {
				done = append(done, ended(spawned, "", "", &proto.Verdict{Cause: proto.CauseExited})[1:]...)
			}
			return done
		}
		return nil
	}
	if got := pinfold(t, input, "run", "--socket", d.socket, "--", "cat"); got.code != 0 || got.stderr != "" {
		t.Errorf("run = %+v; want code 0", got)
	}
	if string(sent) != input {
		t.Errorf("run fed %q; want %q", sent, input)
	}
}

func TestRunRefusals(t *testing.T) {
	tests := []struct {
		code proto.Code
		exit int
	}{
		{proto.CodeDenied, 126},
		{proto.CodeNotFound, 127},
		{proto.CodeStartFailed, 125},
		{proto.CodeBusy, 125},
		{proto.CodeProcLimit, 125},
		{proto.CodeAuditUnavailable, 125},
	}
	for _, tt := range tests {
		d := serveFake(t, func(r proto.Request) []proto.Message {
			if r.Kind() != proto.TypeSpawnReq {
				return nil
			}
			return []proto.Message{proto.Answer(r, proto.Refused(r, tt.code, `cannot execute "x": no`, "allow it"))}
		})
		got := pinfold(t, "", "run", "--socket", d.socket, "--", "x")
		want := result{tt.exit, "", "pinfold run: cannot execute \"x\": no\n  try: allow it\n"}
		if got != want {
			t.Errorf("run refused with %s = %+v; want %+v", tt.code, got, want)
		}
	}
}

func TestRunHandshakeRefused(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		return []proto.Message{&proto.HandshakeResp{Reply: proto.Refused(r, proto.CodeUnauthorized, "no caller rule matches uid 7", ""), Reason: proto.ReasonAuthFailed}}
	})
	got := pinfold(t, "", "run", "--socket", d.socket, "--", "true")
	if got.code != 126 || !strings.Contains(got.stderr, "cannot open a session with "+d.socket+": no caller rule matches uid 7\n  try: ") {
		t.Errorf("run = %+v; want 126 and the reason", got)
	}
}

// A socket that is there and refuses is never gone around.
func TestRunNeverFallsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := pinfold(t, "", "run", "--socket", path, "--", "true")
	want := result{125, "", "pinfold run: cannot connect to " + path + ": connection refused\n  try: systemctl restart pinfoldd, or remove " + path + "\n"}
	if got != want {
		t.Errorf("run = %+v; want %+v", got, want)
	}
}

func TestRunJSON(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		if spawn, ok := r.(*proto.SpawnReq); ok {
			return ended(spawn, "hello\n", "", &proto.Verdict{Cause: proto.CauseExited})
		}
		return nil
	})
	got := pinfold(t, "", "run", "--json", "--socket", d.socket, "--", "x")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var types []string
	for _, line := range lines {
		var m struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("run --json printed %q: %v", line, err)
		}
		types = append(types, m.Type)
	}
	if strings.Join(types, ", ") != "proc/spawn/resp, proc/read/event, proc/read/event" || got.code != 0 {
		t.Errorf("run --json = %+v; want the answer and two events", got)
	}
}

func TestRunCode(t *testing.T) {
	tests := []struct {
		verdict *proto.Verdict
		want    int
	}{
		{nil, 125},
		{&proto.Verdict{Cause: proto.CauseExited}, 0},
		{&proto.Verdict{Cause: proto.CauseExited, Code: 42}, 42},
		{&proto.Verdict{Cause: proto.CauseSignaled, Code: -9}, 137},
		{&proto.Verdict{Cause: proto.CauseOOM, Code: -9}, 137},
		{&proto.Verdict{Cause: proto.CauseTimeoutWall, Code: -15}, 143},
		{&proto.Verdict{Cause: proto.CauseKilled, Code: 0}, 143},
		{&proto.Verdict{Cause: proto.CauseKilled, Code: 5}, 5},
		{&proto.Verdict{Cause: proto.CauseLost, Code: 0}, 125},
		{&proto.Verdict{Cause: proto.CauseStartFailed, Code: 0}, 125},
	}
	for _, tt := range tests {
		if got := runCode(tt.verdict); got != tt.want {
			t.Errorf("runCode(%+v) = %d; want %d", tt.verdict, got, tt.want)
		}
	}
}

func TestSpawnOfFlags(t *testing.T) {
	tests := []struct {
		name string
		r    request
		argv []string
		want string // part of the error
	}{
		{"no command", request{}, nil, "no command given"},
		{"negative timeout", request{timeout: -time.Second}, []string{"x"}, "cannot use --timeout -1s"},
		{"env without name", request{env: []string{"=x"}}, []string{"x"}, `cannot use --env "=x"`},
		{"env without value", request{env: []string{"X"}}, []string{"x"}, `cannot use --env "X"`},
	}
	for _, tt := range tests {
		if _, err := tt.r.spawn(tt.argv); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: spawn(%q) = %v; want an error with %q", tt.name, tt.argv, err, tt.want)
		}
	}
}
