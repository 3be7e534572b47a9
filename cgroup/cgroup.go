// Package cgroup owns one subtree of control groups: it turns limits into a list of file=value
// settings, applies them and reads them back, freezes, kills, waits for emptiness, and tells what was used and which limit
// was hit. It never talks to systemd, never starts a process and moves none but its own.
//
// Below the base the tree is
//
//	daemon                                    the calling process, where the hierarchy needs that
//	callers/<uid>/<session>/<process>/init    the pen's first process: no limits of its own
//	callers/<uid>/<session>/<process>/job     the target and all it starts: the limits
//
// Two back ends stand behind one interface. With *unified* every controller is on the cgroup v2 tree. With
// *hybrid* memory, pids and cpu are v1 hierarchies with directories down to <process> only (no init and job), while the v2 tree has
// membership, freeze, kill and the notification of emptiness. See cgroups(7).
package cgroup

import (
	"errors"
	"time"
)

// Bytes is a size in bytes; −1 means "no limit" in Limits and "not known" in Usage.
type Bytes int64

// Controllers that carry limits. Swap and, on v1, buffers of sockets are parts of memory, with files of their own that a host may lack.
const (
	ControllerMemory  = "memory"
	ControllerSwap    = "swap"
	ControllerSockets = "sockets"
	ControllerPids    = "pids"
	ControllerCPU     = "cpu"
	ControllerIO      = "io"
)

// Backend says how the host carries its controllers.
type Backend string

// Back ends.
const (
	BackendUnified Backend = "unified" // cgroup v2 alone
	BackendHybrid  Backend = "hybrid"  // v1 for limits, v2 for membership
)

// Errors that callers tell apart.
var (
	ErrNoBase = errors.New("no control group of our own") // nowhere to put the subtree; the text names the cure
	ErrInUse  = errors.New("more is in use than the new limit allows")
	ErrExists = errors.New("already exists")
	ErrBusy   = errors.New("still has members")
	ErrGone   = errors.New("the cgroup was removed")
)

// Limits of one level. The zero value sets swap to zero: begin with NoLimits.
type Limits struct {
	Memory   Bytes   // ≤ 0: not set
	Swap     Bytes   // < 0: not set; 0: none
	Pids     int64   // tasks; ≤ 0: not set
	CPU      float64 // cores; ≤ 0: not set
	IOWeight int     // 1 to 10000, the kernel's default is 100; ≤ 0: not set
}

// NoLimits sets nothing.
func NoLimits() Limits {
	return Limits{Memory: -1, Swap: -1}
}

// Force says what Set does when more is in use than a new limit allows.
type Force int

// Answers to a limit below present use.
const (
	Refuse Force = iota // ErrInUse, nothing is written
	Forced              // written all the same: the kernel reclaims or kills
)

// Hierarchy is one mounted tree that the base has a directory in.
type Hierarchy struct {
	Controller string // memory, pids or cpu on v1; empty for the v2 tree
	Dir        string // absolute directory of the base in this hierarchy
}

// JoinFile is a file into which the target writes "0" to enter its cgroup.
type JoinFile struct {
	Controller string // as in Hierarchy
	Path       string // relative to that hierarchy's Dir
}

// State says what became of a Setting.
type State string

// States of a Setting.
const (
	StateApplied     State = "applied"     // written and read back
	StateUnsupported State = "unsupported" // this host lacks the file or the controller; Why says it
)

// Setting is one limit as a file and its value.
type Setting struct {
	Controller string // memory, swap, pids, cpu, io
	File       string // file name, such as memory.max; empty where no file of this host would take it
	Value      string // as asked while planned, as read back once applied
	State      State
	Why        string // for StateUnsupported: cause and cure
}

// Usage is what a cgroup and its descendants used. Figures that the host does not give are −1.
type Usage struct {
	CPUUser       time.Duration
	CPUSystem     time.Duration
	Throttled     time.Duration // time for which tasks were held back by the cpu limit
	ThrottledRuns int64         // periods in which that happened
	Memory        Bytes         // now
	MemoryPeak    Bytes         // highest since the start
	Swap          Bytes         // now
	Pids          int64         // tasks now
	IORead        Bytes
	IOWritten     Bytes
}

// Scope says whose limit was hit.
type Scope string

// Scopes, inner to outer.
const (
	ScopeNone    Scope = ""
	ScopeProcess Scope = "process"
	ScopeSession Scope = "session"
	ScopeCaller  Scope = "caller"
	ScopeHost    Scope = "host" // a limit outside the base, or the machine's memory
)

// Events are the kernel's counters of limits that were hit, for one process.
type Events struct {
	OOMKills      int64 // tasks of this job that the out-of-memory killer ended
	OOMScope      Scope // whose memory limit that was; ScopeNone without a kill
	OOMLimit      Bytes // that limit; −1 with ScopeHost
	MemoryPeak    Bytes // of the job; −1 when not known
	PidsRefused   int64 // forks refused by a pids limit (v1: any level's; v2: this job's own)
	Throttled     time.Duration
	ThrottledRuns int64
}
