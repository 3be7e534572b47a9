package session

import (
	"testing"
	"time"

	"pinfold/cgroup"
	"pinfold/proto"
	"pinfold/sandbox"
	"pinfold/supervisor/relay"
)

func TestVerdictCause(t *testing.T) {
	exit := func(code int) sandbox.Status { return sandbox.Status{Exited: true, Code: code} }
	sig := func(n int) sandbox.Status { return sandbox.Status{Signal: n} }
	oom := cgroup.Events{OOMKills: 1, OOMScope: cgroup.ScopeProcess}
	tests := []struct {
		name   string
		f      facts
		cause  proto.Cause
		code   int
		signal string
		scope  string
		stream proto.Stream
	}{
		{"exit 0", facts{end: ending{status: exit(0)}}, proto.CauseExited, 0, "", "", proto.Stdout},
		{"exit 3", facts{end: ending{status: exit(3)}}, proto.CauseExited, 3, "", "", proto.Stderr},
		{"exit 137 is no oom", facts{end: ending{status: exit(137), events: oom}}, proto.CauseExited, 137, "", "", proto.Stderr},
		{"own signal", facts{end: ending{status: sig(11)}}, proto.CauseSignaled, -11, "SIGSEGV", "", proto.Stderr},
		{"killed from outside without oom", facts{end: ending{status: sig(9)}}, proto.CauseSignaled, -9, "SIGKILL", "", proto.Stderr},
		{"oom by the kernel", facts{end: ending{status: sig(9), events: oom}}, proto.CauseOOM, -9, "SIGKILL", "process", proto.Stderr},
		{"oom seen first", facts{cause: proto.CauseOOM, scope: "caller", end: ending{status: sig(9), events: oom}}, proto.CauseOOM, -9, "SIGKILL", "caller", proto.Stderr},
		{"asked, then exit 0", facts{cause: proto.CauseKilled, by: "request", end: ending{status: exit(0)}}, proto.CauseKilled, 0, "", "", proto.Killed},
		{"timeout, then oom", facts{cause: proto.CauseTimeoutWall, by: "timer", scope: "process", end: ending{status: sig(9), events: oom}}, proto.CauseTimeoutWall, -9, "SIGKILL", "process", proto.Killed},
		{"no record", facts{end: ending{lost: true}}, proto.CauseLost, 0, "", "", proto.Killed},
		{"no record, oom", facts{end: ending{lost: true, events: oom}}, proto.CauseOOM, 0, "", "process", proto.Stderr},
		{"no record, our kill", facts{cause: proto.CauseKilled, end: ending{lost: true}}, proto.CauseKilled, 0, "", "", proto.Killed},
		{"real-time signal", facts{end: ending{status: sig(34)}}, proto.CauseSignaled, -34, "SIG34", "", proto.Stderr},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := verdict(tt.f)
			if v.Cause != tt.cause || v.Code != tt.code || v.Signal != tt.signal || v.Scope != tt.scope || v.Stream() != tt.stream {
				t.Errorf("verdict() = {%s %d %q scope %q} on %s; want {%s %d %q scope %q} on %s",
					v.Cause, v.Code, v.Signal, v.Scope, v.Stream(), tt.cause, tt.code, tt.signal, tt.scope, tt.stream)
			}
		})
	}
}

func TestVerdictFigures(t *testing.T) {
	start := time.Unix(1000, 0)
	v := verdict(facts{
		started: start,
		counts:  relay.Counts{Stdout: 5, Stderr: 7, Dropped: 2, Drained: true},
		end: ending{
			at:     start.Add(1500 * time.Millisecond),
			status: sandbox.Status{Exited: true, User: time.Second, MaxRSS: 4096, VolSwitches: 3, InvolSwitches: 4},
			usage:  cgroup.Usage{CPUUser: 2 * time.Second, CPUSystem: -1, MemoryPeak: 8192, IORead: -1, IOWritten: 9, Throttled: -1},
		},
	})
	want := proto.Usage{Wall: 1.5, User: 2, MemoryPeak: 8192, WriteBytes: 9, VoluntarySwitches: 3, InvoluntarySwitches: 4}
	if v.Usage != want {
		t.Errorf("usage = %+v; want %+v", v.Usage, want)
	}
	if o := (proto.OutputCount{Stdout: 5, Stderr: 7, Dropped: 2, Drained: true}); v.Output != o {
		t.Errorf("output = %+v; want %+v", v.Output, o)
	}
	if v.Survivors == nil {
		t.Error("survivors = nil; want an empty list, which the wire shows as []")
	}
}
