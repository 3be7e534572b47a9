package session

import (
	"fmt"
	"time"

	"pinfold/cgroup"
	"pinfold/proto"
	"pinfold/supervisor/relay"
)

// facts are what a verdict is made of: each was told by the kernel or is an
// action of our own.
type facts struct {
	cause   proto.Cause // why we ended it; empty: we did not
	by      string
	scope   string
	started time.Time
	shown   time.Time // started, as the clock on the wall had it
	end     ending
	counts  relay.Counts
}

// verdict says how a process ended. What we did before its end was seen comes
// first; then what the kernel says of memory; then the wait status.
func verdict(f facts) *proto.Verdict {
	v := &proto.Verdict{
		Cause: f.cause, By: f.by, Scope: f.scope,
		Usage:     usage(f.end, f.started),
		Output:    output(f.counts),
		Survivors: f.end.survivors,
		StartedAt: proto.TimestampOf(f.shown), EndedAt: proto.TimestampOf(f.end.at),
	}
	for _, d := range f.end.denies {
		v.Denies = append(v.Denies, proto.DenyEvent{Path: d.Path, Change: proto.DenyChange(d.Change)})
	}
	if v.Survivors == nil {
		v.Survivors = []int{}
	}
	st := f.end.status
	if !f.end.lost {
		v.Code = st.Code
		if !st.Exited {
			v.Code, v.Signal, v.Core = -st.Signal, signalName(st.Signal), st.Core
		}
	}
	oom := f.end.events.OOMKills > 0
	switch {
	case v.Cause == proto.CauseOOM && v.Scope == "", v.Cause == "" && oom && (f.end.lost || !st.Exited && st.Signal == sigKill):
		v.Cause, v.By, v.Scope = proto.CauseOOM, "kernel", string(f.end.events.OOMScope)
	case v.Cause != "":
	case f.end.lost:
		v.Cause, v.By = proto.CauseLost, "unknown"
	case st.Exited:
		v.Cause = proto.CauseExited
	default:
		v.Cause = proto.CauseSignaled
	}
	return v
}

func usage(e ending, started time.Time) proto.Usage {
	u := proto.Usage{
		Wall:                proto.SecondsOf(e.at.Sub(started)),
		User:                proto.SecondsOf(max(e.usage.CPUUser, e.status.User)),
		System:              proto.SecondsOf(max(e.usage.CPUSystem, e.status.System)),
		MemoryPeak:          known(max(e.usage.MemoryPeak, cgroup.Bytes(e.status.MaxRSS))),
		ReadBytes:           known(e.usage.IORead),
		WriteBytes:          known(e.usage.IOWritten),
		VoluntarySwitches:   e.status.VolSwitches,
		InvoluntarySwitches: e.status.InvolSwitches,
		Throttled:           proto.SecondsOf(max(e.usage.Throttled, 0)),
	}
	if e.usage.MemoryPeak > 0 {
		u.MemoryPeak = known(e.usage.MemoryPeak)
	}
	return u
}

// known is a figure as the wire has it: 0 where the host does not give it.
func known(b cgroup.Bytes) proto.Size { return proto.Size(max(b, 0)) }

func output(c relay.Counts) proto.OutputCount {
	return proto.OutputCount{Stdout: proto.Size(c.Stdout), Stderr: proto.Size(c.Stderr), Dropped: proto.Size(c.Dropped), Drained: c.Drained}
}

// Numbers of signals, signal(7).
const (
	sigKill    = 9
	lastSignal = 31 // that has a name
)

// signalName returns the name of a signal as the wire has it, or its number for a
// real-time signal.
func signalName(n int) string {
	names := [...]string{
		1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
		9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
		16: "SIGSTKFLT", 17: "SIGCHLD", 18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU",
		23: "SIGURG", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 28: "SIGWINCH", 29: "SIGIO",
		30: "SIGPWR", 31: "SIGSYS",
	}
	if n > 0 && n < len(names) {
		return names[n]
	}
	return fmt.Sprintf("SIG%d", n)
}
