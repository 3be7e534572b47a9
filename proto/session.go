package proto

// Handshake is the first message of a connection (handshake/req).
type Handshake struct {
	base
	AgentID   string        `json:"agent_id"`
	AgentCaps []string      `json:"agent_caps"`
	AuthToken string        `json:"auth_token"`      // a secret: never logged, never in an error
	Role      Role          `json:"role,omitzero"`   // empty: agent
	Proc      ProcOptions   `json:"proc,omitzero"`   // how read/event is to come
	Resume    ResumeRequest `json:"resume,omitzero"` // go on with a session
}

// ProcOptions chooses how a connection gets its output.
type ProcOptions struct {
	Data  DataForm `json:"data,omitzero"`  // empty: string
	Batch bool     `json:"batch,omitzero"` // many lines in one read/event
}

// ResumeRequest names a session to go on with.
type ResumeRequest struct {
	SessionID string `json:"session_id"`
	Token     string `json:"token"` // a secret: never logged, never in an error
}

// Kind is handshake/req.
func (*Handshake) Kind() Type { return TypeHandshakeReq }

// HandshakeResp answers a Handshake. With OK false, Reason says why, and the
// connection closes.
type HandshakeResp struct {
	base
	Reply
	SessionID    string        `json:"session_id"`
	AcceptedCaps []AcceptedCap `json:"accepted_caps"`
	MaxParallel  int           `json:"max_parallel"` // processes at a time
	Reason       Reason        `json:"reason"`
	Resume       *ResumeOffer  `json:"resume,omitzero"` // nil: the session ends with its connection
}

// ResumeOffer is how a client comes back to its session. A token stays good until its
// successor has been used, or for 10 minutes after that one was given out.
type ResumeOffer struct {
	Token string       `json:"token"`  // a secret: never logged, never in an error
	TTLMS Milliseconds `json:"ttl_ms"` // how long the session outlives its connection
}

// AcceptedCap is one capability that both sides have.
type AcceptedCap struct {
	Capability string   `json:"capability"`
	Enabled    bool     `json:"enabled"`
	Metadata   Metadata `json:"metadata"`
}

// Metadata is what a client may want to know of this daemon.
type Metadata struct {
	Server     string      `json:"server,omitzero"` // name and version of the daemon
	Versions   []string    `json:"versions"`        // protocol versions
	Extensions []Extension `json:"extensions"`
	Signals    []Signal    `json:"signals"`
	Profiles   []string    `json:"profiles,omitzero"` // that this caller may name
	MaxFrame   Size        `json:"max_frame"`
	MaxNesting int         `json:"max_nesting"`
	MaxID      int         `json:"max_id"`
	MaxLabels  int         `json:"max_labels"`
	MaxLabel   int         `json:"max_label"`
	Data       DataForm    `json:"data"` // in force on this connection
	Batch      bool        `json:"batch"`
	Role       Role        `json:"role"`
}

// NewMetadata is the metadata of this package's limits and of what a handshake
// asked for; Server and Profiles are the caller's to fill.
func NewMetadata(h *Handshake) Metadata {
	return Metadata{
		Versions: []string{Version}, Extensions: Extensions(), Signals: Signals(),
		MaxFrame: MaxFrame, MaxNesting: MaxNesting, MaxID: MaxID, MaxLabels: MaxLabels, MaxLabel: MaxLabel,
		Data: h.Proc.Data, Batch: h.Proc.Batch, Role: h.Role,
	}
}

// Kind is handshake/resp.
func (*HandshakeResp) Kind() Type { return TypeHandshakeResp }

// Ping asks whether anybody is there.
type Ping struct{ base }

// Kind is ping.
func (*Ping) Kind() Type { return TypePing }

// Pong answers a Ping. It has no ok: that it comes is the answer.
type Pong struct {
	base
	ReqID         string  `json:"req_id"`
	UptimeSeconds Seconds `json:"uptime_seconds"` // of the daemon
}

// Kind is pong.
func (*Pong) Kind() Type { return TypePong }

// Shutdown ends the session with all its processes, as by SIGTERM, grace and
// kill. There is no response: the connection closes when all has ended.
type Shutdown struct {
	base
	Timeout WholeSeconds `json:"timeout"` // grace; 0: the profiles' own, above it clamped
}

// Kind is shutdown.
func (*Shutdown) Kind() Type { return TypeShutdown }

// ErrorMsg is the error message: the answer to what could not be understood.
type ErrorMsg struct {
	base
	ReqID          string `json:"req_id"` // id of what failed, if it could be read
	Code           Code   `json:"code"`
	Message        string `json:"message"`
	Detail         Detail `json:"detail"`
	Retryable      bool   `json:"retryable"`
	CapabilityName string `json:"capability_name"`
}

// Detail is the machine-readable part of an ErrorMsg; empty is {}.
type Detail struct {
	Field  string `json:"field,omitzero"`  // name, or JSON pointer, of what is wrong
	Offset Size   `json:"offset,omitzero"` // byte of the line near which it is wrong
	Limit  int64  `json:"limit,omitzero"`  // the limit that was passed
	Given  string `json:"given,omitzero"`  // the unknown type or version, shortened
}

// NewError is an error message; reqID may be empty.
func NewError(reqID string, code Code, message string) *ErrorMsg {
	return &ErrorMsg{ReqID: reqID, Code: code, Message: message, Retryable: code.Retryable(), CapabilityName: Capability}
}

// Kind is error.
func (*ErrorMsg) Kind() Type { return TypeError }
