package main

import (
	"strings"
	"testing"

	"pinfold/proto"
)

const someID = "11111111-2222-4333-8444-555555555555"

// someProcess is running, with a command that tries to write to the terminal.
func someProcess() proto.ProcStatus {
	uid := uint32(1000)
	return proto.ProcStatus{
		ProcID: someID, Cmd: "sh -c \x1b[2J", Argv: []string{"sh", "-c", "\x1b[2J"}, State: proto.StateRunning, PID: 42,
		Status: proto.StatusRunning, Profile: "tools", Age: 3725, UID: &uid,
		Usage: &proto.Usage{User: 1.5, MemoryPeak: 3 << 20}, Output: &proto.OutputCount{Stdout: 10, Stderr: 2},
	}
}

func operatorDaemon(t *testing.T) *fakeDaemon {
	t.Helper()
	return serveFake(t, func(r proto.Request) []proto.Message {
		switch r := r.(type) {
		case *proto.ListReq:
			return []proto.Message{&proto.ListResp{Reply: proto.Done(r), Procs: []proto.ProcStatus{someProcess()}}}
		case *proto.StatusReq:
			if r.ProcID != someID {
				return []proto.Message{proto.Answer(r, proto.Refused(r, proto.CodeUnknownProc, "there is no such process", ""))}
			}
			p := someProcess()
			return []proto.Message{&proto.StatusResp{Reply: proto.Done(r), ProcID: someID, Status: proto.StatusRunning, Proc: &p}}
		case *proto.KillReq:
			if r.ProcID != someID {
				return []proto.Message{proto.Answer(r, proto.Refused(r, proto.CodeUnknownProc, "there is no such process", ""))}
			}
			return []proto.Message{&proto.KillResp{Reply: proto.Done(r), State: proto.StatusKilled}}
		case *proto.Ping:
			return []proto.Message{&proto.Pong{ReqID: r.ID, UptimeSeconds: 90}}
		}
		return nil
	})
}

func TestPs(t *testing.T) {
	d := operatorDaemon(t)
	got := pinfold(t, "", "ps", "--socket", d.socket, "--label", "l")
	want := "PROC                                  UID   PID  STATE    AGE   PROFILE  COMMAND\n" +
		someID + "  1000  42   running  1h2m  tools    \"sh -c \\x1b[2J\"\n"
	if got.code != 0 || got.stdout != want {
		t.Errorf("ps = %d\n%s%s\nwant\n%s", got.code, got.stdout, got.stderr, want)
	}
	if hands := requests[*proto.Handshake](d); len(hands) != 1 || hands[0].Role != proto.RoleOperator {
		t.Errorf("ps sent %+v; want an operator's handshake", hands)
	}
	if lists := requests[*proto.ListReq](d); len(lists) != 1 || lists[0].Label != "l" {
		t.Errorf("ps sent %+v; want the label", lists)
	}
	asJSON := pinfold(t, "", "ps", "--json", "--socket", d.socket)
	if asJSON.code != 0 || strings.Count(asJSON.stdout, "\n") != 1 || !strings.Contains(asJSON.stdout, `"proc_id":"`+someID+`"`) {
		t.Errorf("ps --json = %+v; want one line", asJSON)
	}
}

func TestKill(t *testing.T) {
	d := operatorDaemon(t)
	if got, want := pinfold(t, "", "kill", "--socket", d.socket, "-s", "kill", someID), (result{0, someID + " killed\n", ""}); got != want {
		t.Errorf("kill = %+v; want %+v", got, want)
	}
	if kills := requests[*proto.KillReq](d); len(kills) != 1 || kills[0].Signal != proto.SigKill {
		t.Errorf("kill sent %+v; want SIGKILL", kills)
	}
	got := pinfold(t, "", "kill", "--socket", d.socket, "nobody", someID)
	want := result{1, someID + " killed\n", "pinfold kill: cannot kill nobody: there is no such process\n  try: pinfold ps\n"}
	if got != want {
		t.Errorf("kill = %+v; want %+v", got, want)
	}
}

func TestStatus(t *testing.T) {
	d := operatorDaemon(t)
	got := pinfold(t, "", "status", "--socket", d.socket, someID)
	for _, want := range []string{"status   running\n", `sh -c "\x1b[2J"`, "1.50s user", "3.0 MiB at most", "10 bytes, 2 of errors, 0 dropped"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("status = %d\n%s\nwant %q in it", got.code, got.stdout, want)
		}
	}
	if got, want := pinfold(t, "", "status", "--socket", d.socket), (result{0, "up 1m30s\n1 running, 1 in all\n", ""}); got != want {
		t.Errorf("status = %+v; want %+v", got, want)
	}
	want := result{1, "", "pinfold status: cannot show x: there is no such process\n  try: pinfold ps\n"}
	if got := pinfold(t, "", "status", "--socket", d.socket, "x"); got != want {
		t.Errorf("status x = %+v; want %+v", got, want)
	}
}

func TestExplain(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		e, ok := r.(*proto.ExplainReq)
		if !ok {
			return nil
		}
		if e.Cmd[0] == "ls" {
			return []proto.Message{&proto.ExplainResp{Reply: proto.Done(r), Allowed: true, Profile: "tools", Rule: "p.yaml:7", Text: "step by step"}}
		}
		return []proto.Message{&proto.ExplainResp{
			Reply: proto.Done(r), Rule: "p.yaml:9",
			Denial: &proto.Denial{Object: "/bin/mount", Nearest: "mkdir", Who: "root, in p.yaml"},
		}}
	})
	got := pinfold(t, "", "explain", "--socket", d.socket, "--", "ls")
	if want := (result{0, "yes, by profile tools\n  rule  p.yaml:7\nstep by step\n", ""}); got != want {
		t.Errorf("explain ls = %+v; want %+v", got, want)
	}
	got = pinfold(t, "", "explain", "--socket", d.socket, "--", "mount")
	want := result{1, "no\n  rule               p.yaml:9\n  object             /bin/mount\n  nearest            mkdir\n  who can change it  root, in p.yaml\n", ""}
	if got != want {
		t.Errorf("explain mount = %+v; want %+v", got, want)
	}
}

func TestAgeText(t *testing.T) {
	tests := []struct {
		in   proto.Seconds
		want string
	}{{0, "0s"}, {0.4, "0s"}, {59, "59s"}, {90, "1m30s"}, {3600, "1h0m"}, {90061, "25h1m"}}
	for _, tt := range tests {
		if got := ageText(tt.in); got != tt.want {
			t.Errorf("ageText(%v) = %s; want %s", tt.in, got, tt.want)
		}
	}
}
