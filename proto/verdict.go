package proto

import (
	"fmt"
	"strconv"
)

// Verdict says how a process ended: kernel facts, never guesses.
type Verdict struct {
	Cause     Cause       `json:"cause"`
	Code      int         `json:"code"`   // exit status; -N after signal N
	Signal    string      `json:"signal"` // name, or empty
	Core      bool        `json:"core"`
	Stage     string      `json:"stage"` // of a failed start
	Scope     string      `json:"scope"` // whose limit: process, session, caller, host
	By        string      `json:"by"`    // who ended it: request, timer, kernel, …
	Usage     Usage       `json:"usage"`
	Output    OutputCount `json:"output"`
	Survivors []int       `json:"survivors"`        // pids that outlived the main process and were ended with the cgroup
	Denies    []DenyEvent `json:"denies,omitempty"` // denied paths that did not stay as they were made; by path
	StartedAt Timestamp   `json:"started_at"`
	EndedAt   Timestamp   `json:"ended_at"`
}

// DenyEvent says what happened to a denied path that did not exist at the start.
type DenyEvent struct {
	Path   string     `json:"path"` // as the pen sees it
	Change DenyChange `json:"change"`
}

// DenyChange is the word of a DenyEvent.
type DenyChange string

// The changes.
const (
	DenyAppeared DenyChange = "appeared" // absent: check found it after the end
	DenyRemoved  DenyChange = "removed"  // its placeholder is gone, by an act outside of the pen
	DenyReplaced DenyChange = "replaced" // something else stands where its placeholder was, by an act outside of the pen
	DenyUnknown  DenyChange = "unknown"  // it could not be looked for
)

// DenyChanges are all of them.
func DenyChanges() []DenyChange {
	return []DenyChange{DenyAppeared, DenyRemoved, DenyReplaced, DenyUnknown}
}

// Usage is what a process and its descendants used.
type Usage struct {
	Wall                Seconds `json:"wall"`
	User                Seconds `json:"user"`
	System              Seconds `json:"system"`
	MemoryPeak          Size    `json:"memory_peak"`
	ReadBytes           Size    `json:"read_bytes"`  // from block devices
	WriteBytes          Size    `json:"write_bytes"` // to block devices
	VoluntarySwitches   int64   `json:"voluntary_switches"`
	InvoluntarySwitches int64   `json:"involuntary_switches"`
	Throttled           Seconds `json:"throttled"` // kept waiting by the cpu limit
}

// OutputCount counts bytes of output.
type OutputCount struct {
	Stdout  Size `json:"stdout"`
	Stderr  Size `json:"stderr"`
	Dropped Size `json:"dropped"`
	Drained bool `json:"drained"` // false: the pipe had to be cut before its end
}

// Status is the word of status/resp and kill/resp.
type Status string

// The statuses.
const (
	StatusRunning   Status = "running"
	StatusCompleted Status = "completed" // exited with 0
	StatusFailed    Status = "failed"    // any other end by itself, or by the kernel
	StatusKilled    Status = "killed"    // ended by us
	StatusNotFound  Status = "not_found"
	StatusError     Status = "error" // our own failure
)

// RunningStatus is the status of a request about all processes: "N running".
func RunningStatus(n int) Status { return Status(fmt.Sprintf("%d running", n)) }

// ProcState is the word of ProcStatus.
type ProcState string

// The states.
const (
	StateRunning  ProcState = "running"
	StateStopped  ProcState = "stopped"  // exited with 0, or ended by us on purpose
	StateCrashed  ProcState = "crashed"  // any other end
	StateTimedout ProcState = "timedout" // any timeout
)

// outcome is one row of the table of ends.
type outcome struct {
	status Status
	state  ProcState
	stream Stream // of the final event; of ends by itself the stream of code 0
}

// outcomeOf is the table: for each cause, the spec's words. An end by itself is
// told further by its code; see Verdict.outcome.
func outcomeOf(c Cause) outcome {
	switch c {
	case CauseExited:
		return outcome{StatusCompleted, StateStopped, Stdout}
	case CauseSignaled, CauseOOM, CauseStartFailed:
		return outcome{StatusFailed, StateCrashed, Stderr}
	case CauseKilled, CauseOutputLimit, CauseQuota, CauseSessionEnded:
		return outcome{StatusKilled, StateStopped, Killed}
	case CauseTimeoutWall, CauseTimeoutCPU, CauseTimeoutIdle:
		return outcome{StatusKilled, StateTimedout, Killed}
	case CauseLost:
		return outcome{StatusError, StateCrashed, Killed}
	}
	return outcome{StatusError, StateCrashed, Killed}
}

// outcome is the row of a verdict: exit with another code than 0 is a failure.
func (v *Verdict) outcome() outcome {
	if v.Cause == CauseExited && v.Code != 0 {
		return outcomeOf(CauseSignaled)
	}
	return outcomeOf(v.Cause)
}

// Status is the word of status/resp, wait/resp and kill/resp; running for nil.
func (v *Verdict) Status() Status {
	if v == nil {
		return StatusRunning
	}
	return v.outcome().status
}

// State is the word of ProcStatus; running for nil.
func (v *Verdict) State() ProcState {
	if v == nil {
		return StateRunning
	}
	return v.outcome().state
}

// Stream is the stream_type of the final event.
func (v *Verdict) Stream() Stream { return v.outcome().stream }

// ExitCode is the exit_code of ProcStatus: nil while it runs (nil verdict) and
// for an end that left no wait status.
func (v *Verdict) ExitCode() *int {
	if v == nil || v.Cause == CauseLost || v.Cause == CauseStartFailed {
		return nil
	}
	code := v.Code
	return &code
}

// appendVerdict appends a verdict as json.Marshal would, without allocating.
func appendVerdict(dst []byte, v *Verdict) []byte {
	dst = appendQuoted(append(dst, `{"cause":`...), string(v.Cause))
	dst = strconv.AppendInt(append(dst, `,"code":`...), int64(v.Code), 10)
	dst = appendQuoted(append(dst, `,"signal":`...), v.Signal)
	dst = strconv.AppendBool(append(dst, `,"core":`...), v.Core)
	dst = appendQuoted(append(dst, `,"stage":`...), v.Stage)
	dst = appendQuoted(append(dst, `,"scope":`...), v.Scope)
	dst = appendQuoted(append(dst, `,"by":`...), v.By)
	dst = appendUsage(append(dst, `,"usage":`...), &v.Usage)
	dst = strconv.AppendInt(append(dst, `,"output":{"stdout":`...), int64(v.Output.Stdout), 10)
	dst = strconv.AppendInt(append(dst, `,"stderr":`...), int64(v.Output.Stderr), 10)
	dst = strconv.AppendInt(append(dst, `,"dropped":`...), int64(v.Output.Dropped), 10)
	dst = strconv.AppendBool(append(dst, `,"drained":`...), v.Output.Drained)
	dst = append(dst, `},"survivors":[`...)
	for i, pid := range v.Survivors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(pid), 10)
	}
	dst = appendDenies(append(dst, ']'), v.Denies)
	dst = appendFloat(append(dst, `,"started_at":`...), float64(v.StartedAt))
	dst = appendFloat(append(dst, `,"ended_at":`...), float64(v.EndedAt))
	return append(dst, '}')
}

func appendDenies(dst []byte, all []DenyEvent) []byte {
	for i, d := range all {
		if i == 0 {
			dst = append(dst, `,"denies":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = appendQuoted(append(dst, `{"path":`...), d.Path)
		dst = append(appendQuoted(append(dst, `,"change":`...), string(d.Change)), '}')
	}
	if len(all) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

func appendUsage(dst []byte, u *Usage) []byte {
	dst = appendFloat(append(dst, `{"wall":`...), float64(u.Wall))
	dst = appendFloat(append(dst, `,"user":`...), float64(u.User))
	dst = appendFloat(append(dst, `,"system":`...), float64(u.System))
	dst = strconv.AppendInt(append(dst, `,"memory_peak":`...), int64(u.MemoryPeak), 10)
	dst = strconv.AppendInt(append(dst, `,"read_bytes":`...), int64(u.ReadBytes), 10)
	dst = strconv.AppendInt(append(dst, `,"write_bytes":`...), int64(u.WriteBytes), 10)
	dst = strconv.AppendInt(append(dst, `,"voluntary_switches":`...), u.VoluntarySwitches, 10)
	dst = strconv.AppendInt(append(dst, `,"involuntary_switches":`...), u.InvoluntarySwitches, 10)
	dst = appendFloat(append(dst, `,"throttled":`...), float64(u.Throttled))
	return append(dst, '}')
}
