package main

import (
	"strings"
	"testing"

	"pinfold/proto"
)

// writing is a daemon with a process that has written so much.
func writing(t *testing.T, status proto.Status, out string, more ...proto.Message) *fakeDaemon {
	t.Helper()
	return serveFake(t, func(r proto.Request) []proto.Message {
		switch r := r.(type) {
		case *proto.StatusReq:
			p := someProcess()
			p.Output = &proto.OutputCount{Stdout: proto.Size(len(out))}
			return []proto.Message{&proto.StatusResp{Reply: proto.Done(r), ProcID: someID, Status: status, Proc: &p}}
		case *proto.AttachReq:
			if r.ProcID != someID {
				return []proto.Message{proto.UnknownProc(r)}
			}
			resp := &proto.AttachResp{
				Reply: proto.Done(r), ProcID: someID, Status: status,
				Stdout: &proto.Range{To: proto.Size(len(out))}, Stderr: &proto.Range{To: 4},
			}
			return append([]proto.Message{
				resp,
				&proto.ReadEvent{ProcID: someID, StreamType: proto.Stdout, Offset: int64(r.StdoutFrom), Data: proto.Data{Text: []byte(out[r.StdoutFrom:])}},
				&proto.ReadEvent{ProcID: someID, StreamType: proto.Stderr, Data: proto.Data{Text: []byte("err\n")}},
			}, more...)
		}
		return nil
	})
}

// end is a final event.
func end(v *proto.Verdict) *proto.ReadEvent {
	e := &proto.ReadEvent{ProcID: someID, StreamType: v.Stream(), Verdict: v}
	if e.StreamType != proto.Killed {
		e.Data.Code = &v.Code
	}
	return e
}

func TestLogs(t *testing.T) {
	failed := end(&proto.Verdict{Cause: proto.CauseExited, Code: 3})
	later := &proto.ReadEvent{ProcID: someID, StreamType: proto.Stdout, Offset: 8, Data: proto.Data{Text: []byte("later\n")}}
	lost := &proto.ReadEvent{ProcID: someID, StreamType: proto.Stdout, Offset: 8, Gap: &proto.Gap{From: 8, To: 20}}
	for name, tt := range map[string]struct {
		status proto.Status
		out    string
		more   []proto.Message
		args   []string
		want   result
	}{
		"of one that runs":         {proto.StatusRunning, "one\ntwo\n", nil, nil, result{0, "one\ntwo\n", "err\n"}},
		"followed":                 {proto.StatusRunning, "one\ntwo\n", []proto.Message{later, failed}, []string{"-f"}, result{0, "one\ntwo\nlater\n", "err\n"}},
		"of one that ended":        {proto.StatusFailed, "one\ntwo\n", []proto.Message{failed}, nil, result{0, "one\ntwo\n", "err\n"}},
		"its stdout":               {proto.StatusRunning, "one\ntwo\n", nil, []string{"--stdout"}, result{0, "one\ntwo\n", ""}},
		"its stderr":               {proto.StatusRunning, "one\ntwo\n", nil, []string{"--stderr"}, result{0, "", "err\n"}},
		"both":                     {proto.StatusRunning, "one\ntwo\n", nil, []string{"--stderr", "--stdout"}, result{0, "one\ntwo\n", "err\n"}},
		"with a gap":               {proto.StatusFailed, "one\ntwo\n", []proto.Message{lost, failed}, nil, result{0, "one\ntwo\n", "err\npinfold logs: bytes 8 to 20 of stdout are gone\n"}},
		"its last line":            {proto.StatusRunning, "one\ntwo\n", nil, []string{"-n", "1"}, result{0, "", "err\n"}},
		"its last two lines":       {proto.StatusRunning, "one\ntwo\n", nil, []string{"--tail", "2"}, result{0, "two\n", "err\n"}},
		"no line, followed":        {proto.StatusRunning, "one\ntwo\n", []proto.Message{later, failed}, []string{"-f", "-n", "0"}, result{0, "later\n", ""}},
		"its last of stdout":       {proto.StatusFailed, "one\ntwo", []proto.Message{failed}, []string{"--stdout", "-n", "1"}, result{0, "two", ""}},
		"the last of few bytes":    {proto.StatusRunning, "a\nb\n", nil, []string{"--stdout", "-n", "1"}, result{0, "b\n", ""}},
		"half a character after":   {proto.StatusFailed, "a\nb\xc3", []proto.Message{failed}, []string{"--stdout", "-n", "1"}, result{0, "b\xc3", ""}},
		"more than there are":      {proto.StatusFailed, "one\n", []proto.Message{failed}, []string{"-n", "99"}, result{0, "one\n", "err\n"}},
		"raw where no terminal is": {proto.StatusRunning, "\x1b[2J\xff\n", nil, nil, result{0, "\x1b[2J\xff\n", "err\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := writing(t, tt.status, tt.out, tt.more...)
			if got := pinfold(t, "", append([]string{"logs", "--socket", d.socket, someID}, tt.args...)...); got != tt.want {
				t.Errorf("logs %v = %+v; want %+v", tt.args, got, tt.want)
			}
		})
	}
	d := writing(t, proto.StatusRunning, "")
	want := result{1, "", "pinfold logs: cannot read the output of x: there is no such process in this session\n  try: pinfold ps\n"}
	if got := pinfold(t, "", "logs", "--socket", d.socket, "x"); got != want {
		t.Errorf("logs x = %+v; want %+v", got, want)
	}
}

// TestLogsDoNotWaitForHalfACharacter: the daemon holds back what is not written whole.
func TestLogsDoNotWaitForHalfACharacter(t *testing.T) {
	d := serveFake(t, func(r proto.Request) []proto.Message {
		if a, ok := r.(*proto.AttachReq); ok {
			return []proto.Message{
				&proto.AttachResp{Reply: proto.Done(r), ProcID: a.ProcID, Status: proto.StatusRunning, Stdout: &proto.Range{To: 5}, Stderr: &proto.Range{}},
				&proto.ReadEvent{ProcID: a.ProcID, StreamType: proto.Stdout, Data: proto.Data{Text: []byte("abc")}},
			}
		}
		return nil
	})
	if got, want := pinfold(t, "", "logs", "--socket", d.socket, someID), (result{0, "abc", ""}); got != want {
		t.Errorf("logs = %+v; want %+v", got, want)
	}
}

func TestAttachWatches(t *testing.T) {
	lines := strings.Repeat("a line of some length, to fill a screen with\n", 100)
	killed := end(&proto.Verdict{Cause: proto.CauseKilled, Code: -15, Signal: "SIGTERM", Usage: proto.Usage{Wall: 2}})
	d := writing(t, proto.StatusRunning, lines, killed)
	got := pinfold(t, "typed", "attach", "--socket", d.socket, someID)
	if got.code != 128+15 || !strings.HasPrefix(got.stdout, "a line of") || len(got.stdout) > 24*80 || !strings.HasSuffix(lines, got.stdout) {
		t.Errorf("attach = %d, %d bytes that begin %.20q; want the last screenful in whole lines, and 143", got.code, len(got.stdout), got.stdout)
	}
	if want := "err\npinfold attach: the command was ended: killed, after 2.0s\n"; got.stderr != want {
		t.Errorf("attach says %q; want %q", got.stderr, want)
	}
	if len(requests[*proto.WriteReq](d)) > 0 {
		t.Error("attach as an operator has written; want it to watch")
	}
	if got := pinfold(t, "", "attach", "--from-start", "--socket", d.socket, someID); got.stdout != lines {
		t.Errorf("attach --from-start = %d bytes; want all %d", len(got.stdout), len(lines))
	}
	for _, args := range [][]string{{"--session", "s"}, {"--token-file", "f"}} {
		got := pinfold(t, "", append([]string{"attach", "--socket", d.socket, someID}, args...)...)
		if got.code != 125 || !strings.Contains(got.stderr, "--session and --token-file come together") {
			t.Errorf("attach %v = %+v; want a wrong command line", args, got)
		}
	}
}

func TestViewable(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":      "plain\ttext\n",
		"terminal\r\nline\r": "terminal\nline",
		"over\rwrite":        `over\rwrite`,
		"\x1b[31mred\x07":    `\x1b[31mred\a`,
		"\xff\u009b2Jü":      `\xff\u009b2Jü`,
		"\u202eevil":         `\u202eevil`,
	} {
		if got := viewable(in); got != want {
			t.Errorf("viewable(%q) = %q; want %q", in, got, want)
		}
	}
}
