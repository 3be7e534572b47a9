package audit

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Version of the record format. It grows when a field changes its meaning or goes; new fields do not change it.
const Version = 1

// Kind names the type of an event on disk.
type Kind string

// Kinds of event.
const (
	KindDaemonStarted  Kind = "daemon_started"
	KindDaemonStopped  Kind = "daemon_stopped"
	KindPolicyLoaded   Kind = "policy_loaded"
	KindRefused        Kind = "refused"
	KindSessionOpened  Kind = "session_opened"
	KindSessionResumed Kind = "session_resumed"
	KindSessionClosed  Kind = "session_closed"
	KindDecision       Kind = "decision"
	KindStarted        Kind = "started"
	KindStartFailed    Kind = "start_failed"
	KindEnded          Kind = "ended"
	KindOperatorUse    Kind = "operator_use"
	KindProgram        Kind = "program"
	KindFlood          Kind = "flood"
	KindGap            Kind = "gap"
	KindSessionAdopted Kind = "session_adopted"
	KindAdopted        Kind = "adopted"
	KindSetAside       Kind = "set_aside"
	KindNotUpgraded    Kind = "not_upgraded"
	KindSealed         Kind = "sealed"
	KindContinued      Kind = "continued"
)

// Kinds are all kinds of event, in the order of the reference.
func Kinds() []Kind {
	return []Kind{
		KindDaemonStarted, KindDaemonStopped, KindPolicyLoaded, KindRefused, KindSessionOpened, KindSessionResumed, KindSessionClosed, KindDecision, KindStarted,
		KindStartFailed, KindEnded, KindOperatorUse, KindProgram, KindFlood, KindGap, KindSessionAdopted, KindAdopted, KindSetAside, KindNotUpgraded, KindSealed, KindContinued,
	}
}

// Event is one of this package's event types.
//
// To add an event: 1 a Kind, 2 a type with kind (and redact if it has words of the caller), 3 a row in Kinds and in newEvent, 4 the table in
// docs/audit.md, 5 a row in the round-trip test.
type Event interface {
	kind() Kind
}

// redacter is an event with words of a caller, who may have put secrets into them.
type redacter interface {
	redact() Event
}

// Subject says on whose behalf an event is: the zero value is the daemon itself.
type Subject struct {
	Session string `json:"session,omitzero"`
	Caller  string `json:"caller,omitzero"` // name of the rule under callers: that admitted them
	UID     uint32 `json:"uid"`
}

// DaemonStarted begins each run of a daemon.
type DaemonStarted struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	BootID  string `json:"boot_id,omitzero"`
	Backend string `json:"cgroup_backend,omitzero"`

	// What an earlier daemon has left, which did not stop: each is told of by an event of its own.
	Sessions  int `json:"sessions_found,omitzero"`
	Processes int `json:"processes_found,omitzero"`
}

// DaemonStopped ends it.
type DaemonStopped struct {
	Reason string `json:"reason"`
}

// PolicyLoaded says which policy is in force from here on.
type PolicyLoaded struct {
	Files  []string `json:"files"`
	SHA256 string   `json:"sha256"`
}

// Refused is a connection that was not admitted.
type Refused struct {
	PID    int    `json:"pid"`
	Unit   string `json:"unit,omitzero"`
	Code   string `json:"code"`
	Reason string `json:"reason"`
}

// SessionOpened is an admitted connection.
type SessionOpened struct {
	Role string `json:"role"`
	PID  int    `json:"pid,omitzero"`
	Unit string `json:"unit,omitzero"`
	Rule string `json:"rule,omitzero"`
}

// SessionResumed is a session that goes on over another connection.
type SessionResumed struct {
	PID  int    `json:"pid"`
	Unit string `json:"unit,omitzero"`
}

// SessionClosed is its end.
type SessionClosed struct {
	Reason string `json:"reason,omitzero"`
}

// FileID says which content of which file: a change of any part is another program.
type FileID struct {
	Dev     uint64 `json:"dev"`
	Ino     uint64 `json:"ino"`
	Size    int64  `json:"size"`
	MtimeNs int64  `json:"mtime_ns"`
	CtimeNs int64  `json:"ctime_ns"`
}

// File is a program that was looked at. SHA256 is empty until the hash is known: then a Program event with the same ID has it.
type File struct {
	Path   string `json:"path"`
	ID     FileID `json:"id"`
	SHA256 string `json:"sha256,omitzero"`
}

// Decision is what policy said to a request. Argv, Env and Cwd are redacted and bounded when the event is written.
type Decision struct {
	Process   string   `json:"process,omitzero"`
	Request   string   `json:"request,omitzero"`
	Allowed   bool     `json:"allowed"`
	Code      string   `json:"code,omitzero"` // of a refusal, as on the wire
	Rule      string   `json:"rule"`
	RuleFile  string   `json:"rule_file,omitzero"`
	RuleLine  int      `json:"rule_line,omitzero"`
	Profile   string   `json:"profile,omitzero"` // as asked, or as found
	Argv      []string `json:"argv"`
	Env       []string `json:"env,omitzero"` // what the caller asked for
	Cwd       string   `json:"cwd,omitzero"`
	Program   File     `json:"program,omitzero"`
	TimeoutMs int64    `json:"timeout_ms,omitzero"`
	GIDs      []uint32 `json:"gids,omitzero"` // of the caller: what a replay needs besides the subject
}

// Started is a pen that waits at its last gate: its target has not run an instruction yet.
type Started struct {
	Process     string         `json:"process"`
	PID         int            `json:"pid"` // of the target, on the host
	Profile     string         `json:"profile"`
	Program     File           `json:"program,omitzero"`
	RunUID      uint32         `json:"run_uid"`
	Workspace   string         `json:"workspace,omitzero"`
	Cgroup      string         `json:"cgroup,omitzero"`
	Enforcement jsontext.Value `json:"enforcement,omitzero"` // what the kernel showed
}

// StartFailed is a spawn that was allowed and did not come to run.
type StartFailed struct {
	Process string `json:"process"`
	Code    string `json:"code"`
	Step    string `json:"step,omitzero"`
	Errno   string `json:"errno,omitzero"`
	Reason  string `json:"reason"`
}

// Ended is the end of a process, after all its cgroup was ended.
type Ended struct {
	Process string  `json:"process"`
	Verdict Verdict `json:"verdict"`
}

// Verdict is the verdict as on the wire. Times of use are in seconds, sizes in bytes, −1 where the host does not tell.
type Verdict struct {
	Cause     string    `json:"cause"`
	Code      int       `json:"code"`
	Signal    string    `json:"signal,omitzero"`
	Core      bool      `json:"core,omitzero"`
	Stage     string    `json:"stage,omitzero"`
	Scope     string    `json:"scope,omitzero"`
	By        string    `json:"by,omitzero"`
	Usage     Usage     `json:"usage"`
	Output    Output    `json:"output"`
	Survivors []int     `json:"survivors,omitzero"`
	Denies    []Deny    `json:"denies,omitzero"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
}

// Deny is a denied path that did not exist at the start and did not stay so.
type Deny struct {
	Path   string `json:"path"`
	Change string `json:"change"` // appeared, removed, replaced or unknown
}

// Usage is what a process and its descendants used.
type Usage struct {
	Wall                float64 `json:"wall"`
	User                float64 `json:"user"`
	System              float64 `json:"system"`
	MemoryPeak          int64   `json:"memory_peak"`
	ReadBytes           int64   `json:"read_bytes"`
	WriteBytes          int64   `json:"write_bytes"`
	VoluntarySwitches   int64   `json:"voluntary_switches"`
	InvoluntarySwitches int64   `json:"involuntary_switches"`
	Throttled           float64 `json:"throttled"`
}

// Output counts bytes of output.
type Output struct {
	Stdout  int64 `json:"stdout"`
	Stderr  int64 `json:"stderr"`
	Dropped int64 `json:"dropped"`
	Drained bool  `json:"drained"`
}

// OperatorUse is a use of the operator role on another's session.
type OperatorUse struct {
	Action  string `json:"action"` // the message type
	Target  string `json:"target,omitzero"`
	Process string `json:"process,omitzero"`
	Signal  string `json:"signal,omitzero"`
}

// Program is the hash of a program that an earlier event names by the same ID, or why there is none.
type Program struct {
	File
	Err string `json:"err,omitzero"`
}

// FloodOf is what a Flood counts.
type FloodOf string

// What floods are of.
const (
	FloodRefused FloodOf = "refused" // connections that were not admitted, beyond the first
	FloodBroken  FloodOf = "broken"  // connections that ended before they were admitted or refused, beyond the first
	FloodDenied  FloodOf = "denied"  // spawns that were answered busy, unlooked at, since policy denied too many of the uid's
)

// Flood counts events of one uid, or with ManyUIDs of several, that have no record of their own.
type Flood struct {
	Of    FloodOf   `json:"of"`
	Count int64     `json:"count"`
	Since time.Time `json:"since"` // of the first of them; the last is at most a second before the record
}

// Gap says that something is missing at this place: it is written by the log itself, at Open and once writing works again.
type Gap struct {
	Reason string    `json:"reason"`          // torn: the last write did not end in a whole line; unavailable: writing failed
	Offset int64     `json:"offset"`          // in this file, where the torn bytes began
	Bytes  int64     `json:"bytes"`           // how many were set aside
	SHA256 string    `json:"sha256,omitzero"` // their hash
	File   string    `json:"file,omitzero"`   // where they are now, in Dir; empty: in this file still, before this record
	Lost   int64     `json:"lost,omitzero"`   // events that were refused with ErrUnavailable
	Since  time.Time `json:"since,omitzero"`  // when the first of them was
	Cause  string    `json:"cause,omitzero"`  // the kernel's word
}

// SessionAdopted is a session that went on without a daemon, and has one again.
type SessionAdopted struct {
	OpenedAt  time.Time `json:"opened_at"`
	Processes int       `json:"processes"` // that it has
}

// Adopted is a process of a session that was adopted.
type Adopted struct {
	Process string `json:"process"`
	PID     int    `json:"pid"`
	Cgroup  string `json:"cgroup"`
	State   string `json:"state"`           // as the daemon takes it up: running, stopping, killing; lost: its PID 1 is gone; kept: its verdict stood
	Reason  string `json:"reason,omitzero"` // why it is lost
}

// SetAside is a record of a session or a process that could not be read, so that what it names was ended.
type SetAside struct {
	File   string `json:"file"`
	Now    string `json:"now"` // where it lies now
	Reason string `json:"reason"`
}

// NotUpgraded is a successor that did not take over; this daemon goes on.
type NotUpgraded struct {
	Reason string `json:"reason"`
}

// Sealed closes a file. What it counts is chained to it by prev.
type Sealed struct {
	Records uint64 `json:"records"` // in this file, without this one
	First   uint64 `json:"first"`   // seq of the first of them
	Last    uint64 `json:"last"`    // and of the last
}

// Continued goes on after a Sealed record: it is the first of the next file.
type Continued struct {
	File string `json:"file,omitzero"` // that was closed, in Dir; empty: it could not be closed, and goes on
}

func (DaemonStarted) kind() Kind  { return KindDaemonStarted }
func (DaemonStopped) kind() Kind  { return KindDaemonStopped }
func (PolicyLoaded) kind() Kind   { return KindPolicyLoaded }
func (Refused) kind() Kind        { return KindRefused }
func (SessionOpened) kind() Kind  { return KindSessionOpened }
func (SessionResumed) kind() Kind { return KindSessionResumed }
func (SessionClosed) kind() Kind  { return KindSessionClosed }
func (Decision) kind() Kind       { return KindDecision }
func (Started) kind() Kind        { return KindStarted }
func (StartFailed) kind() Kind    { return KindStartFailed }
func (Ended) kind() Kind          { return KindEnded }
func (OperatorUse) kind() Kind    { return KindOperatorUse }
func (Program) kind() Kind        { return KindProgram }
func (Flood) kind() Kind          { return KindFlood }
func (Gap) kind() Kind            { return KindGap }
func (SessionAdopted) kind() Kind { return KindSessionAdopted }
func (Adopted) kind() Kind        { return KindAdopted }
func (SetAside) kind() Kind       { return KindSetAside }
func (NotUpgraded) kind() Kind    { return KindNotUpgraded }
func (Sealed) kind() Kind         { return KindSealed }
func (Continued) kind() Kind      { return KindContinued }

func (d Decision) redact() Event {
	most := maxTotal
	if !d.Allowed { // it costs the caller nothing
		most = maxDenied
	}
	d.Argv, d.Env, d.Cwd = redactArgs(d.Argv, most), redactEnv(d.Env, most), RedactText(d.Cwd)
	return d
}

func (s StartFailed) redact() Event {
	s.Reason = RedactText(s.Reason)
	return s
}

func (r Refused) redact() Event {
	r.Reason = RedactText(r.Reason)
	return r
}

// newEvent is an empty event of a kind for the decoder; nil for a kind that this version does not know.
func newEvent(k Kind) any {
	switch k { //nolint:exhaustive // newOwnEvent has the others
	case KindDaemonStarted:
		return new(DaemonStarted)
	case KindDaemonStopped:
		return new(DaemonStopped)
	case KindPolicyLoaded:
		return new(PolicyLoaded)
	case KindRefused:
		return new(Refused)
	case KindSessionOpened:
		return new(SessionOpened)
	case KindSessionResumed:
		return new(SessionResumed)
	case KindSessionClosed:
		return new(SessionClosed)
	case KindDecision:
		return new(Decision)
	case KindStarted:
		return new(Started)
	case KindStartFailed:
		return new(StartFailed)
	case KindEnded:
		return new(Ended)
	case KindOperatorUse:
		return new(OperatorUse)
	case KindProgram:
		return new(Program)
	case KindSessionAdopted:
		return new(SessionAdopted)
	case KindAdopted:
		return new(Adopted)
	}
	return newOwnEvent(k)
}

// newOwnEvent is newEvent for what the log says of itself.
func newOwnEvent(k Kind) any {
	switch k { //nolint:exhaustive // newEvent has the others
	case KindFlood:
		return new(Flood)
	case KindGap:
		return new(Gap)
	case KindSetAside:
		return new(SetAside)
	case KindNotUpgraded:
		return new(NotUpgraded)
	case KindSealed:
		return new(Sealed)
	case KindContinued:
		return new(Continued)
	}
	return nil
}
