package proto_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"pinfold/proto"

	"github.com/google/go-cmp/cmp"
)

func fullVerdict() *proto.Verdict {
	return &proto.Verdict{
		Cause: proto.CauseTimeoutWall, Code: -15, Signal: "SIGTERM", Core: true, Stage: "exec \"x\"\n", Scope: "process", By: "timer",
		Usage: proto.Usage{
			Wall: 1.25, User: 0.5, System: 0.000001, MemoryPeak: 1 << 40, ReadBytes: 1, WriteBytes: 2,
			VoluntarySwitches: 3, InvoluntarySwitches: 4, Throttled: 0.125,
		},
		Output:    proto.OutputCount{Stdout: 5, Stderr: 6, Dropped: 7, Drained: true},
		Survivors: []int{8, 9},
		Denies:    []proto.DenyEvent{{Path: "/proj/\"\n", Change: proto.DenyAppeared}, {Path: "/b", Change: proto.DenyRemoved}},
		StartedAt: 1716123456.789012, EndedAt: 1716123458,
	}
}

// The words of the specification for every end, as docs/protocol.md has them.
func TestStatusAndState(t *testing.T) {
	for _, c := range []struct {
		verdict *proto.Verdict
		status  proto.Status
		state   proto.ProcState
		stream  proto.Stream
		code    bool // exit_code is there
	}{
		{nil, "running", "running", "", false},
		{&proto.Verdict{Cause: proto.CauseExited, Code: 0}, "completed", "stopped", "stdout", true},
		{&proto.Verdict{Cause: proto.CauseExited, Code: 1}, "failed", "crashed", "stderr", true},
		{&proto.Verdict{Cause: proto.CauseExited, Code: 255}, "failed", "crashed", "stderr", true},
		{&proto.Verdict{Cause: proto.CauseSignaled, Code: -11}, "failed", "crashed", "stderr", true},
		{&proto.Verdict{Cause: proto.CauseOOM, Code: -9}, "failed", "crashed", "stderr", true},
		{&proto.Verdict{Cause: proto.CauseKilled, Code: -15}, "killed", "stopped", "killed", true},
		{&proto.Verdict{Cause: proto.CauseKilled, Code: 0}, "killed", "stopped", "killed", true},
		{&proto.Verdict{Cause: proto.CauseTimeoutWall, Code: -15}, "killed", "timedout", "killed", true},
		{&proto.Verdict{Cause: proto.CauseTimeoutCPU, Code: -9}, "killed", "timedout", "killed", true},
		{&proto.Verdict{Cause: proto.CauseTimeoutIdle, Code: -15}, "killed", "timedout", "killed", true},
		{&proto.Verdict{Cause: proto.CauseOutputLimit, Code: -9}, "killed", "stopped", "killed", true},
		{&proto.Verdict{Cause: proto.CauseQuota, Code: -9}, "killed", "stopped", "killed", true},
		{&proto.Verdict{Cause: proto.CauseSessionEnded, Code: -15}, "killed", "stopped", "killed", true},
		{&proto.Verdict{Cause: proto.CauseStartFailed, Code: 127}, "failed", "crashed", "stderr", false},
		{&proto.Verdict{Cause: proto.CauseLost}, "error", "crashed", "killed", false},
		{&proto.Verdict{Cause: "of another version"}, "error", "crashed", "killed", true},
	} {
		if got := c.verdict.Status(); got != c.status {
			t.Errorf("%+v Status() = %s; want %s", c.verdict, got, c.status)
		}
		if got := c.verdict.State(); got != c.state {
			t.Errorf("%+v State() = %s; want %s", c.verdict, got, c.state)
		}
		if got := c.verdict.ExitCode(); (got != nil) != c.code || got != nil && *got != c.verdict.Code {
			t.Errorf("%+v ExitCode() = %v; want one: %v", c.verdict, got, c.code)
		}
		if c.verdict != nil && c.verdict.Stream() != c.stream {
			t.Errorf("%+v Stream() = %s; want %s", c.verdict, c.verdict.Stream(), c.stream)
		}
	}
}

func TestEveryCauseHasAnEnd(t *testing.T) {
	for _, cause := range proto.Causes() {
		v := &proto.Verdict{Cause: cause, Code: 1}
		if v.Status() == proto.StatusRunning || v.Stream() == "" || v.State() == proto.StateRunning {
			t.Errorf("end of %s = %s, %s, %q; want no running end", cause, v.Status(), v.State(), v.Stream())
		}
	}
}

func TestFinalEventHasTheWholeVerdict(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Now())
	for _, v := range []*proto.Verdict{fullVerdict(), {Cause: proto.CauseExited}} {
		line := proto.AppendFinalEvent(nil, h, 1, v, proto.DataString)
		if got := eventOf(t, line).Verdict; !cmp.Equal(v, got, emptyAsNil()) {
			t.Errorf("verdict of AppendFinalEvent differs (-want +got):\n%s", cmp.Diff(v, got))
		}
		// The fast appender and the general encoder write the same bytes.
		general := encode(t, &proto.WaitResp{Verdict: v})
		_, verdict, _ := bytes.Cut(line, []byte(`"verdict":`))
		if want := bytes.TrimSuffix(verdict, []byte("}\n")); !bytes.Contains([]byte(general), want) {
			t.Errorf("AppendFinalEvent verdict = %s; want it as in %s", want, general)
		}
	}
}

func TestFinalEventIsJSONWhateverTheFigures(t *testing.T) {
	h := proto.NewEventHead("p", "r", time.Now())
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, math.Copysign(0, -1)} {
		v := &proto.Verdict{Cause: "a\xffb", By: "\x00\x1f", Usage: proto.Usage{Wall: proto.Seconds(f)}}
		e := eventOf(t, proto.AppendFinalEvent(nil, h, 1, v, proto.DataString))
		if e.Verdict.By != "\x00\x1f" || e.Verdict.Cause != "a\ufffdb" {
			t.Errorf("verdict = %+v; want its texts, with what is not UTF-8 replaced", e.Verdict)
		}
	}
}

func TestRunningStatus(t *testing.T) {
	if got := proto.RunningStatus(3); got != "3 running" {
		t.Errorf("RunningStatus(3) = %q; want %q", got, "3 running")
	}
}

func TestRetryable(t *testing.T) {
	for code, want := range map[proto.Code]bool{
		proto.CodeUnknownProc: false, proto.CodeProcDead: false, proto.CodeProcLimit: false, proto.CodeDenied: false,
		proto.CodeBusy: true, proto.CodeAuditUnavailable: true, proto.CodeTimeout: true, proto.CodeOutcomeUnknown: false,
	} {
		if got := code.Retryable(); got != want {
			t.Errorf("%s.Retryable() = %v; want %v", code, got, want)
		}
	}
}
