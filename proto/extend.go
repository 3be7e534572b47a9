package proto

import "github.com/go-json-experiment/json/jsontext"

// ListReq asks for all processes of the session, live and retained
// (proc/list/req, extension list); for operators of all sessions they may see.
type ListReq struct {
	base
	Label string `json:"label,omitzero"` // only those with this label
}

// Kind is proc/list/req.
func (*ListReq) Kind() Type { return TypeListReq }

// ListResp answers a ListReq, oldest first.
type ListResp struct {
	base
	Reply
	Procs   []ProcStatus `json:"procs"`
	Omitted int          `json:"omitted,omitzero"` // processes that a frame has no room for: finished and oldest first
}

// Kind is proc/list/resp.
func (*ListResp) Kind() Type { return TypeListResp }

// WaitReq asks to be answered when a process has ended (proc/wait/req, extension
// wait).
type WaitReq struct {
	base
	ProcID    string       `json:"proc_id"`
	TimeoutMS Milliseconds `json:"timeout_ms"` // 0: as long as it takes
}

// Kind is proc/wait/req.
func (*WaitReq) Kind() Type { return TypeWaitReq }

// WaitResp answers a WaitReq: with the verdict, or after timeout_ms with OK
// false, code timeout and status running.
type WaitResp struct {
	base
	Reply
	ProcID  string   `json:"proc_id"`
	Status  Status   `json:"status"`
	Verdict *Verdict `json:"verdict,omitzero"`
}

// Kind is proc/wait/resp.
func (*WaitResp) Kind() Type { return TypeWaitResp }

// StatsReq asks for live figures of a process (proc/stats/req, extension stats).
type StatsReq struct {
	base
	ProcID string `json:"proc_id"`
}

// Kind is proc/stats/req.
func (*StatsReq) Kind() Type { return TypeStatsReq }

// StatsResp answers a StatsReq.
type StatsResp struct {
	base
	Reply
	ProcID string `json:"proc_id"`
	Status Status `json:"status"`
	Stats  *Stats `json:"stats,omitzero"`
}

// Kind is proc/stats/resp.
func (*StatsResp) Kind() Type { return TypeStatsResp }

// Stats are live cgroup and I/O figures.
type Stats struct {
	Usage         Usage       `json:"usage"`
	MemoryCurrent Size        `json:"memory_current"`
	MemoryLimit   Size        `json:"memory_limit,omitzero"` // 0: none
	PidsCurrent   int64       `json:"pids_current"`
	PidsLimit     int64       `json:"pids_limit,omitzero"` // 0: none
	OOMKills      int64       `json:"oom_kills"`
	PidsRefused   int64       `json:"pids_refused"` // forks that the pids limit refused
	Output        OutputCount `json:"output"`
	Delivered     Size        `json:"delivered"`   // bytes of output that the owner has got
	StdinBytes    Size        `json:"stdin_bytes"` // bytes that the kernel took for the process
	StdinQueued   Size        `json:"stdin_queued"`
}

// ExplainReq asks what would be decided of a spawn, and why; nothing is started
// (proc/explain/req, extension explain).
type ExplainReq struct {
	base
	Spawn
}

// Kind is proc/explain/req.
func (*ExplainReq) Kind() Type { return TypeExplainReq }

// ExplainResp answers an ExplainReq. OK says that there is an answer, Allowed
// what it is.
type ExplainResp struct {
	base
	Reply
	Allowed     bool           `json:"allowed"`
	Profile     string         `json:"profile,omitzero"`
	Workspace   string         `json:"workspace,omitzero"`
	Rule        string         `json:"rule,omitzero"`
	Denial      *Denial        `json:"denial,omitzero"`
	Text        string         `json:"text,omitzero"`        // for people
	Explanation jsontext.Value `json:"explanation,omitzero"` // for programs: the policy's own record
}

// Kind is proc/explain/resp.
func (*ExplainResp) Kind() Type { return TypeExplainResp }

// ResizeReq sets the size of a process's terminal (proc/resize/req, extension
// pty).
type ResizeReq struct {
	base
	ProcID string `json:"proc_id"`
	Rows   uint16 `json:"rows"`
	Cols   uint16 `json:"cols"`
}

// Kind is proc/resize/req.
func (*ResizeReq) Kind() Type { return TypeResizeReq }

// ResizeResp answers a ResizeReq.
type ResizeResp struct {
	base
	Reply
	ProcID string `json:"proc_id"`
}

// Kind is proc/resize/resp.
func (*ResizeResp) Kind() Type { return TypeResizeResp }

// AttachReq asks for the output of a process from these offsets on, and then live
// (proc/attach/req, extension attach). By the process's own session it moves the one
// stream of its owner; by an operator it begins a reader beside it.
type AttachReq struct {
	base
	ProcID     string `json:"proc_id"`
	StdoutFrom Size   `json:"stdout_from"` // byte offset; 0: the beginning
	StderrFrom Size   `json:"stderr_from"`
}

// Kind is proc/attach/req.
func (*AttachReq) Kind() Type { return TypeAttachReq }

// AttachResp answers an AttachReq, before the first event of it.
type AttachResp struct {
	base
	Reply
	ProcID string `json:"proc_id"`
	PID    int    `json:"pid"` // 0: none
	Status Status `json:"status"`
	Owner  bool   `json:"owner"`           // this session may write to the process
	PTY    bool   `json:"pty"`             // it has a terminal: all its output is stdout
	Stdout *Range `json:"stdout,omitzero"` // what can be read now
	Stderr *Range `json:"stderr,omitzero"`
}

// Range is a part of a stream: from From up to, not including, To.
type Range struct {
	From Size `json:"from"`
	To   Size `json:"to"`
}

// Kind is proc/attach/resp.
func (*AttachResp) Kind() Type { return TypeAttachResp }
