package proto

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// first is the first fault of a list, or nil.
func first(faults ...*fault) *fault {
	for _, f := range faults {
		if f != nil {
			return f
		}
	}
	return nil
}

func longest(field, value string, limit int) *fault {
	if len(value) > limit {
		f := violation(field, "cannot use a %s of %d bytes: the limit is %d", field, len(value), limit)
		f.detail.Limit = int64(limit)
		return f
	}
	return nil
}

func notNegative[T ~int64](field string, value T) *fault {
	if value < 0 {
		return violation(field, "cannot use %d for %s: want 0 or more", int64(value), quote(field))
	}
	return nil
}

func (h *Handshake) check() *fault {
	if len(h.AgentCaps) > MaxCaps {
		return violation("agent_caps", "cannot use %d agent_caps: the limit is %d", len(h.AgentCaps), MaxCaps)
	}
	if h.Role == "" {
		h.Role = RoleAgent
	}
	if h.Proc.Data == "" {
		h.Proc.Data = DataString
	}
	return first(
		longest("agent_id", h.AgentID, MaxName),
		longest("auth_token", h.AuthToken, MaxToken),
		longest("resume/token", h.Resume.Token, MaxToken),
		longest("resume/session_id", h.Resume.SessionID, MaxID),
		oneOf("role", h.Role, RoleAgent, RoleOperator),
		oneOf("proc/data", h.Proc.Data, DataString, DataObject),
	)
}

func (*Ping) check() *fault { return nil }

func (s *Shutdown) check() *fault { return notNegative("timeout", s.Timeout) }

func (s *Spawn) check() *fault {
	if len(s.Cmd) == 0 || s.Cmd[0] == "" {
		return violation("cmd", "cannot spawn an empty cmd: want a program and its arguments")
	}
	if s.StdinMode == "" {
		s.StdinMode = StdinPipe
	}
	return first(
		longest("session_id", s.SessionID, MaxID),
		longest("profile", s.Profile, MaxName),
		longest("op_id", s.OpID, MaxID),
		oneOf("stdin_mode", s.StdinMode, StdinPipe, StdinNull),
		notNegative("timeout", s.Timeout),
		checkLabels(s.Labels),
		checkEnv(s.Env),
		s.PTY.check(),
		s.Limits.check(),
	)
}

func checkLabels(labels []string) *fault {
	if len(labels) > MaxLabels {
		f := violation("labels", "cannot use %d labels: the limit is %d", len(labels), MaxLabels)
		f.detail.Limit = MaxLabels
		return f
	}
	for i, l := range labels {
		if l == "" || len(l) > MaxLabel {
			f := violation(fmt.Sprintf("labels/%d", i), "cannot use a label of %d bytes: want 1 to %d", len(l), MaxLabel)
			f.detail.Limit = MaxLabel
			return f
		}
	}
	return nil
}

// checkEnv refuses names that no environment can have: execve(2) has NAME=value.
func checkEnv(env map[string]string) *fault {
	for name := range env {
		if name == "" || strings.Contains(name, "=") {
			return violation("env", "cannot use %s as a name in env: it is empty or has a =", quote(name))
		}
	}
	return nil
}

func (p *PTY) check() *fault {
	if p != nil && (p.Rows == 0 || p.Cols == 0) {
		return violation("pty", "cannot make a terminal of %d rows and %d cols: want 1 to 65535", p.Rows, p.Cols)
	}
	return nil
}

func (l *Limits) check() *fault {
	if l == nil {
		return nil
	}
	if l.CPU < 0 || math.IsInf(l.CPU, 0) || math.IsNaN(l.CPU) {
		return violation("limits/cpu", "cannot use %g for %s: want 0 or more", l.CPU, quote("limits/cpu"))
	}
	return first(
		notNegative("limits/memory", l.Memory),
		notNegative("limits/pids", l.Pids),
		notNegative("limits/output", l.Output),
		notNegative("limits/timeout_cpu", l.TimeoutCPU),
		notNegative("limits/timeout_idle", l.TimeoutIdle),
	)
}

// UnmarshalJSONFrom refuses names that are no limit: a limit must not be overlooked.
func (l *Limits) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain Limits
	return json.UnmarshalDecode(dec, (*plain)(l), json.RejectUnknownMembers(true))
}

func (w *WriteReq) check() *fault {
	f := first(
		longest("proc_id", w.ProcID, MaxID),
		longest("op_id", w.OpID, MaxID),
		oneOf("encoding", w.Encoding, "", EncodingText, EncodingBase64),
	)
	if f != nil {
		return f
	}
	if _, err := w.Bytes(); err != nil {
		return violation("data", "cannot read data as base64: %v", err)
	}
	return nil
}

// Bytes is what is to be written. After Decode there is no error.
func (w *WriteReq) Bytes() ([]byte, error) {
	if w.Encoding != EncodingBase64 {
		return []byte(w.Data), nil
	}
	return base64.StdEncoding.Strict().DecodeString(w.Data)
}

// NewBinaryWrite is a request to write bytes that need not be text.
func NewBinaryWrite(procID string, data []byte) *WriteReq {
	return &WriteReq{ProcID: procID, Data: base64.StdEncoding.EncodeToString(data), Encoding: EncodingBase64}
}

func (k *KillReq) check() *fault {
	if k.Signal == "" {
		k.Signal = SigTerm
	}
	return first(
		longest("proc_id", k.ProcID, MaxID),
		longest("op_id", k.OpID, MaxID),
		oneOf("signal", k.Signal, Signals()...),
	)
}

func (s *StatusReq) check() *fault { return longest("proc_id", s.ProcID, MaxID) }

func (l *ListReq) check() *fault { return longest("label", l.Label, MaxLabel) }

func (w *WaitReq) check() *fault {
	return first(longest("proc_id", w.ProcID, MaxID), notNegative("timeout_ms", w.TimeoutMS))
}

func (s *StatsReq) check() *fault { return longest("proc_id", s.ProcID, MaxID) }

func (r *ResizeReq) check() *fault {
	return first(longest("proc_id", r.ProcID, MaxID), (&PTY{Rows: r.Rows, Cols: r.Cols}).check())
}

func (a *AttachReq) check() *fault {
	return first(longest("proc_id", a.ProcID, MaxID), notNegative("stdout_from", a.StdoutFrom), notNegative("stderr_from", a.StderrFrom))
}

// UnmarshalJSONFrom reads data in either form: an object, or a string that has
// one in it.
func (d *Data) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	raw, err := dec.ReadValue()
	if err != nil {
		return err
	}
	d.Form = DataObject
	if raw.Kind() == '"' {
		d.Form = DataString
		if raw, err = jsontext.AppendUnquote(nil, raw); err != nil {
			return err
		}
	}
	var content struct {
		Text *string `json:"text"`
		B64  *[]byte `json:"b64"`
		Code *int    `json:"code"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(raw), &content); err != nil {
		return fmt.Errorf("cannot read data of %s: %w", TypeReadEvent, err)
	}
	d.Code = content.Code
	switch {
	case content.B64 != nil:
		d.Text = *content.B64
	case content.Text != nil:
		d.Text = []byte(*content.Text)
	}
	return nil
}
