package proto

import "github.com/go-json-experiment/json/jsontext"

// SpawnReq starts a process (proc/spawn/req).
type SpawnReq struct {
	base
	Spawn
}

// Spawn is what a spawn asks for; explain/req has the same fields.
type Spawn struct {
	SessionID string            `json:"session_id"` // empty, or this connection's
	Cmd       []string          `json:"cmd"`        // program and arguments; not empty
	Cwd       string            `json:"cwd"`
	Env       map[string]string `json:"env"`
	StdinMode StdinMode         `json:"stdin_mode"`       // never empty after Decode
	Timeout   WholeSeconds      `json:"timeout"`          // 0: the policy's own
	Profile   string            `json:"profile,omitzero"` // empty: policy chooses
	Labels    []string          `json:"labels,omitzero"`
	OpID      string            `json:"op_id,omitzero"`
	PTY       *PTY              `json:"pty,omitzero"` // nil: no terminal
	Limits    *Limits           `json:"limits,omitzero"`
}

// PTY is the size of a terminal in characters.
type PTY struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Limits narrows what the profile allows; 0 leaves the profile's own. An unknown
// name in it is refused: a limit must not be overlooked.
type Limits struct {
	Memory      Size         `json:"memory,omitzero"`       // bytes
	Pids        int64        `json:"pids,omitzero"`         // processes and threads
	CPU         float64      `json:"cpu,omitzero"`          // cores
	Output      Size         `json:"output,omitzero"`       // bytes of both streams
	TimeoutCPU  WholeSeconds `json:"timeout_cpu,omitzero"`  // processor time
	TimeoutIdle WholeSeconds `json:"timeout_idle,omitzero"` // silence in both directions
}

// Kind is proc/spawn/req.
func (*SpawnReq) Kind() Type { return TypeSpawnReq }

// SpawnResp answers a SpawnReq, before the first event of the process.
type SpawnResp struct {
	base
	Reply
	ProcID      string         `json:"proc_id"`
	PID         int            `json:"pid"` // 0: none
	Profile     string         `json:"profile,omitzero"`
	Workspace   string         `json:"workspace,omitzero"`   // path that the process sees as its workspace
	Enforcement jsontext.Value `json:"enforcement,omitzero"` // what the kernel showed at the gate
	Rule        string         `json:"rule,omitzero"`        // the rule that decided, with file and line
	Stage       string         `json:"stage,omitzero"`       // the step that failed with start_failed
	Denial      *Denial        `json:"denial,omitzero"`      // with denied
}

// Denial says what was refused, by what, and what would have passed.
type Denial struct {
	Operation string `json:"operation"` // exec, chdir, env, profile, limits, …
	Object    string `json:"object"`    // the program, path or name
	Layer     string `json:"layer"`     // policy, landlock, seccomp, mounts, …
	Rule      string `json:"rule"`
	File      string `json:"file,omitzero"`
	Line      int    `json:"line,omitzero"`
	Nearest   string `json:"nearest,omitzero"` // the nearest allowed thing
	Who       string `json:"who,omitzero"`     // who can change the rule
	Count     int    `json:"count,omitzero"`   // how often this session got this refusal
	Final     bool   `json:"final"`            // asking again will not help
}

// Kind is proc/spawn/resp.
func (*SpawnResp) Kind() Type { return TypeSpawnResp }

// WriteReq feeds standard input (proc/write/req). Bytes gives its content.
type WriteReq struct {
	base
	ProcID   string   `json:"proc_id"`
	Data     string   `json:"data"`
	EOF      bool     `json:"eof"`
	Encoding Encoding `json:"encoding,omitzero"` // empty: text
	OpID     string   `json:"op_id,omitzero"`
}

// Kind is proc/write/req.
func (*WriteReq) Kind() Type { return TypeWriteReq }

// WriteResp answers a WriteReq when the kernel has taken every byte.
type WriteResp struct {
	base
	Reply
	ProcID string `json:"proc_id"`
	PID    int    `json:"pid"` // 0: none
}

// Kind is proc/write/resp.
func (*WriteResp) Kind() Type { return TypeWriteResp }

// KillReq signals a process (proc/kill/req).
type KillReq struct {
	base
	ProcID string `json:"proc_id"`
	Signal Signal `json:"signal"` // never empty after Decode
	OpID   string `json:"op_id,omitzero"`
}

// Kind is proc/kill/req.
func (*KillReq) Kind() Type { return TypeKillReq }

// KillResp answers a KillReq: after SIGTERM and SIGKILL with the outcome, after
// any other signal at once.
type KillResp struct {
	base
	Reply
	State Status `json:"state"`
}

// Kind is proc/kill/resp.
func (*KillResp) Kind() Type { return TypeKillResp }

// StatusReq asks about one process, or all of the session (proc/status/req).
type StatusReq struct {
	base
	ProcID string `json:"proc_id"` // empty: all
}

// Kind is proc/status/req.
func (*StatusReq) Kind() Type { return TypeStatusReq }

// StatusResp answers a StatusReq: Proc for one process, Procs for all.
type StatusResp struct {
	base
	Reply
	ProcID  string       `json:"proc_id"`
	Status  Status       `json:"status"` // for all: "N running"
	Proc    *ProcStatus  `json:"proc,omitzero"`
	Procs   []ProcStatus `json:"procs,omitzero"`
	Omitted int          `json:"omitted,omitzero"` // as in ListResp
}

// Kind is proc/status/resp.
func (*StatusResp) Kind() Type { return TypeStatusResp }

// ProcStatus is what is known of one process.
type ProcStatus struct {
	ProcID    string       `json:"proc_id"`
	Cmd       string       `json:"cmd"`   // as CommandLine makes it
	State     ProcState    `json:"state"` // one of four
	PID       int          `json:"pid"`
	ExitCode  *int         `json:"exit_code"` // null while it runs and when there is none
	StartedAt Timestamp    `json:"started_at"`
	Status    Status       `json:"status,omitzero"`
	Argv      []string     `json:"argv,omitzero"`
	Profile   string       `json:"profile,omitzero"`
	Labels    []string     `json:"labels,omitzero"`
	Age       Seconds      `json:"age,omitzero"`        // since the start
	SessionID string       `json:"session_id,omitzero"` // for operators
	UID       *uint32      `json:"uid,omitzero"`        // the caller's, for operators
	Usage     *Usage       `json:"usage,omitzero"`
	Output    *OutputCount `json:"output,omitzero"`
	Verdict   *Verdict     `json:"verdict,omitzero"` // once it has ended
}

// ReadEvent is output, or the end, of a process (proc/read/event). The daemon
// writes it with AppendReadEvent and its like; this type is for reading.
type ReadEvent struct {
	base
	ProcID     string   `json:"proc_id"`
	StreamType Stream   `json:"stream_type"`
	Data       Data     `json:"data"`
	ReqID      string   `json:"req_id"`
	Seq        uint64   `json:"seq,omitzero"`    // per process, from 1
	Offset     int64    `json:"offset,omitzero"` // of the first byte in its stream
	Gap        *Gap     `json:"gap,omitzero"`    // bytes of this stream that were dropped
	Verdict    *Verdict `json:"verdict,omitzero"`
}

// Gap is a range of bytes of a stream that was dropped: from From up to, not
// including, To.
type Gap struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Kind is proc/read/event.
func (*ReadEvent) Kind() Type { return TypeReadEvent }

// Data is the content of read/event: bytes of output, or the code of a final
// event, or neither (killed).
type Data struct {
	Text []byte   // the bytes, whether they came as text or as b64
	Code *int     // exit code of a final event
	Form DataForm // how it came, and how it is sent; empty: string
}

// Final tells whether this is the last event of its process.
func (e *ReadEvent) Final() bool { return e.StreamType == Killed || e.Data.Code != nil }
