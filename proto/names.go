package proto

import "slices"

// Type is the type of a message.
type Type string

// The types of messages. Requests come from the client.
const (
	TypeHandshakeReq  Type = "handshake/req"
	TypeHandshakeResp Type = "handshake/resp"
	TypePing          Type = "ping"
	TypePong          Type = "pong"
	TypeShutdown      Type = "shutdown"
	TypeError         Type = "error"
	TypeSpawnReq      Type = "proc/spawn/req"
	TypeSpawnResp     Type = "proc/spawn/resp"
	TypeWriteReq      Type = "proc/write/req"
	TypeWriteResp     Type = "proc/write/resp"
	TypeReadEvent     Type = "proc/read/event"
	TypeKillReq       Type = "proc/kill/req"
	TypeKillResp      Type = "proc/kill/resp"
	TypeStatusReq     Type = "proc/status/req"
	TypeStatusResp    Type = "proc/status/resp"
	TypeListReq       Type = "proc/list/req"
	TypeListResp      Type = "proc/list/resp"
	TypeWaitReq       Type = "proc/wait/req"
	TypeWaitResp      Type = "proc/wait/resp"
	TypeStatsReq      Type = "proc/stats/req"
	TypeStatsResp     Type = "proc/stats/resp"
	TypeExplainReq    Type = "proc/explain/req"
	TypeExplainResp   Type = "proc/explain/resp"
	TypeResizeReq     Type = "proc/resize/req"
	TypeResizeResp    Type = "proc/resize/resp"
	TypeOpsGetReq     Type = "ops/get/req"
	TypeOpsGetResp    Type = "ops/get/resp"
	TypeCancel        Type = "cancel"
	TypeCancelResp    Type = "cancel/resp"
	TypeAttachReq     Type = "proc/attach/req"
	TypeAttachResp    Type = "proc/attach/resp"
)

// Code is the stable name of a failure.
type Code string

// Codes of the error message: what arrived could not be understood or is not
// this connection's to ask.
const (
	CodeParseError      Code = "parse_error"      // no JSON object, duplicate name, invalid UTF-8, NUL, nested too deep
	CodeFrameTooLarge   Code = "frame_too_large"  // longer than MaxFrame
	CodeUnknownType     Code = "unknown_type"     // no message of that type comes from a client
	CodeSchemaViolation Code = "schema_violation" // a field is missing, of the wrong type or out of its range
	CodeVersionMismatch Code = "version_mismatch" // not version 1.0
	CodeUnauthorized    Code = "unauthorized"     // before the handshake, or from another uid
	CodeSessionTaken    Code = "session_taken"    // the session goes on over another connection
	CodeServerError     Code = "server_error"     // our own failure, not the request's
)

// Codes of a response with ok false.
const (
	CodeUnknownProc      Code = "unknown_proc"      // this session has no such process
	CodeProcDead         Code = "proc_dead"         // the process has ended
	CodeProcLimit        Code = "proc_limit"        // a quota is used up
	CodeUnknownReq       Code = "unknown_req"       // no request of this connection with that id waits for an answer
	CodeUnknownSession   Code = "unknown_session"   // session_id is not this connection's
	CodeDenied           Code = "denied"            // policy says no
	CodeNotFound         Code = "not_found"         // there is no such program or directory
	CodeStartFailed      Code = "start_failed"      // a step of the launch failed
	CodeUnsupported      Code = "unsupported"       // this host, or this process, lacks what was asked
	CodeBusy             Code = "busy"              // a queue is full: later
	CodeTimeout          Code = "timeout"           // the time given to the request itself is over
	CodeCancelled        Code = "cancelled"         // the client took the request back
	CodeOutcomeUnknown   Code = "outcome_unknown"   // it may or may not have been done, in part or whole
	CodeOutOfRange       Code = "out_of_range"      // an offset lies past the end of what was written
	CodeRejected         Code = "rejected"          // the same op_id came with other content
	CodeAuditUnavailable Code = "audit_unavailable" // nothing is started that could not be recorded
	CodeShuttingDown     Code = "shutting_down"     // the daemon or the session is ending
	CodeInternal         Code = "internal"          // our own failure
)

// Retryable tells whether the same request may succeed later without a change
// anywhere but in time.
func (c Code) Retryable() bool {
	return c == CodeBusy || c == CodeTimeout || c == CodeAuditUnavailable
}

// Cause is the kernel fact that ended a process.
type Cause string

// The causes.
const (
	CauseExited       Cause = "exited"        // by itself, with a code
	CauseSignaled     Cause = "signaled"      // by a signal that we did not send
	CauseKilled       Cause = "killed"        // by us, on request
	CauseTimeoutWall  Cause = "timeout_wall"  // by us: time since the start
	CauseTimeoutCPU   Cause = "timeout_cpu"   // by us: processor time
	CauseTimeoutIdle  Cause = "timeout_idle"  // by us: silence in both directions
	CauseOOM          Cause = "oom"           // by the kernel: memory limit of the verdict's scope
	CauseOutputLimit  Cause = "output_limit"  // by us: bytes written
	CauseQuota        Cause = "quota"         // by us: another quota
	CauseSessionEnded Cause = "session_ended" // by us: its session ended
	CauseStartFailed  Cause = "start_failed"  // it never ran; stage says where
	CauseLost         Cause = "lost"          // its pen went without leaving a record
)

// Causes lists every cause.
func Causes() []Cause {
	return []Cause{
		CauseExited, CauseSignaled, CauseKilled, CauseTimeoutWall, CauseTimeoutCPU, CauseTimeoutIdle, CauseOOM,
		CauseOutputLimit, CauseQuota, CauseSessionEnded, CauseStartFailed, CauseLost,
	}
}

// Outcome is what became of a named operation.
type Outcome string

// The outcomes. Applied and rejected are promises.
const (
	OutcomeApplied  Outcome = "applied"         // it was done, once
	OutcomeRejected Outcome = "rejected"        // nothing of it was done, nor will be
	OutcomeNotSent  Outcome = "not_sent"        // no request of that name was taken
	OutcomeUnknown  Outcome = "outcome_unknown" // it is under way, or may have been done in part or whole
)

// Stream is the stream_type of a read/event.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
	Killed Stream = "killed" // only of a final event
)

// Signal is the name of a signal in kill/req.
type Signal string

// Signals lists what kill/req can name, the spec's three first.
func Signals() []Signal {
	return []Signal{SigTerm, SigKill, SigInt, SigHup, SigQuit, SigUsr1, SigUsr2, SigCont, SigStop, SigWinch}
}

// The signals.
const (
	SigTerm  Signal = "SIGTERM"
	SigKill  Signal = "SIGKILL"
	SigInt   Signal = "SIGINT"
	SigHup   Signal = "SIGHUP"
	SigQuit  Signal = "SIGQUIT"
	SigUsr1  Signal = "SIGUSR1"
	SigUsr2  Signal = "SIGUSR2"
	SigCont  Signal = "SIGCONT"
	SigStop  Signal = "SIGSTOP"
	SigWinch Signal = "SIGWINCH"
)

// Ends tells whether the signal ends the process and kill/resp waits for that.
func (s Signal) Ends() bool { return s == SigTerm || s == SigKill }

// DataForm is how read/event carries its data.
type DataForm string

// The forms of data. Their content is the same.
const (
	DataString DataForm = "string" // a JSON object, encoded as a JSON string: what the spec says
	DataObject DataForm = "object" // the object itself
)

// StdinMode says what standard input of a spawn is.
type StdinMode string

// The modes of standard input.
const (
	StdinPipe StdinMode = "pipe"
	StdinNull StdinMode = "null"
)

// Encoding is how write/req carries its data.
type Encoding string

// The encodings. Empty is text.
const (
	EncodingText   Encoding = "utf-8"
	EncodingBase64 Encoding = "base64"
)

// Role is what a connection is for.
type Role string

// The roles. Empty is the agent's.
const (
	RoleAgent    Role = "agent"    // spawns and owns processes
	RoleOperator Role = "operator" // lists, waits for, reads and ends the processes of other sessions
)

// Reason is why a handshake was refused.
type Reason string

// The reasons.
const (
	ReasonAuthFailed      Reason = "auth_failed"
	ReasonVersionMismatch Reason = "version_mismatch"
	ReasonNoCaps          Reason = "no_caps"
	ReasonServerError     Reason = "server_error"
)

// Capability is the name under which all of this is announced.
const Capability = "proc"

// Extension is the name of an extension of the spec, as metadata.extensions
// announces it.
type Extension string

// The extensions that this package has messages for.
const (
	ExtList    Extension = "list"
	ExtWait    Extension = "wait"
	ExtPTY     Extension = "pty"
	ExtStats   Extension = "stats"
	ExtExplain Extension = "explain"
	ExtBatch   Extension = "batch"
	ExtOps     Extension = "ops"
	ExtCancel  Extension = "cancel"
	ExtAttach  Extension = "attach"
	ExtResume  Extension = "resume"
)

// Extensions lists them in the order in which they are announced.
func Extensions() []Extension {
	return []Extension{ExtList, ExtWait, ExtPTY, ExtStats, ExtExplain, ExtBatch, ExtOps, ExtCancel, ExtAttach, ExtResume}
}

// oneOf says that value must be one of a closed list.
func oneOf[T ~string](field string, value T, list ...T) *fault {
	if slices.Contains(list, value) {
		return nil
	}
	return violation(field, "cannot use %s %s: want one of %s", field, quote(string(value)), join(list))
}
