package proto

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Answer is the response of a request's own type with a reply, for an answer that
// has nothing else to say, such as a refusal. A Ping or a Shutdown has none: nil.
func Answer(req Request, r Reply) Response {
	switch q := req.(type) {
	case *Handshake:
		return &HandshakeResp{Reply: r, AcceptedCaps: []AcceptedCap{}}
	case *SpawnReq:
		return &SpawnResp{Reply: r}
	case *WriteReq:
		return &WriteResp{Reply: r, ProcID: q.ProcID}
	case *KillReq:
		return &KillResp{Reply: r, State: r.status()}
	case *StatusReq:
		return &StatusResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	case *ListReq:
		return &ListResp{Reply: r}
	case *WaitReq:
		return &WaitResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	case *StatsReq:
		return &StatsResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	case *ExplainReq:
		return &ExplainResp{Reply: r}
	case *ResizeReq:
		return &ResizeResp{Reply: r, ProcID: q.ProcID}
	case *OpsGetReq:
		return &OpsGetResp{Reply: r, OpID: q.OpID}
	case *Cancel:
		return &CancelResp{Reply: r}
	case *AttachReq:
		return &AttachResp{Reply: r, ProcID: q.ProcID, Status: r.status()}
	}
	return nil
}

// UnknownProc is the answer to a request about a process that this session does
// not have, whether or not there is one elsewhere: always the same.
func UnknownProc(req Request) Response {
	return Answer(req, Refused(req, CodeUnknownProc, "there is no such process in this session", ""))
}

// status is the status word that goes with a refusal.
func (r *Reply) status() Status {
	switch {
	case r.OK:
		return ""
	case r.Code == CodeUnknownProc:
		return StatusNotFound
	}
	return StatusError
}

// ErrUnknownType is returned by DecodeAnswer for a message that this package does
// not know. A client goes on without it.
var ErrUnknownType = errors.New("unknown type of message")

// newAnswer is a new, empty message of a type that a daemon sends, or nil.
func newAnswer(t Type) Message {
	switch t {
	case TypeHandshakeResp:
		return &HandshakeResp{}
	case TypePong:
		return &Pong{}
	case TypeError:
		return &ErrorMsg{}
	case TypeSpawnResp:
		return &SpawnResp{}
	case TypeWriteResp:
		return &WriteResp{}
	case TypeReadEvent:
		return &ReadEvent{}
	case TypeKillResp:
		return &KillResp{}
	case TypeStatusResp:
		return &StatusResp{}
	case TypeListResp:
		return &ListResp{}
	case TypeWaitResp:
		return &WaitResp{}
	case TypeStatsResp:
		return &StatsResp{}
	case TypeExplainResp:
		return &ExplainResp{}
	case TypeResizeResp:
		return &ResizeResp{}
	case TypeAttachResp:
		return &AttachResp{}
	case TypeOpsGetResp:
		return &OpsGetResp{}
	case TypeCancelResp:
		return &CancelResp{}
	case TypeHandshakeReq, TypePing, TypeShutdown, TypeSpawnReq, TypeWriteReq, TypeKillReq, TypeStatusReq,
		TypeListReq, TypeWaitReq, TypeStatsReq, TypeExplainReq, TypeResizeReq, TypeOpsGetReq, TypeCancel, TypeAttachReq:
		return nil
	}
	return nil
}

// DecodeAnswer reads one line from a daemon: a response, an event, a pong or an
// error. It is as strict as Decode about JSON, and takes null for an absent
// value. A type that it does not know gives ErrUnknownType.
func DecodeAnswer(line []byte) (Message, error) {
	if len(bytes.TrimSuffix(line, []byte{'\n'})) > MaxFrame {
		return nil, fmt.Errorf("cannot read a line of %d bytes: %w", len(line), ErrFrameTooLarge)
	}
	t, err := typeOf(line)
	if err != nil {
		return nil, fmt.Errorf("cannot read a line: %w", err)
	}
	m := newAnswer(t)
	if m == nil {
		return nil, fmt.Errorf("cannot read a message of type %s: %w", quote(string(t)), ErrUnknownType)
	}
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", t, err)
	}
	return m, nil
}

// typeOf reads a line as far as its type, which a daemon writes first. The rest is not
// looked at.
func typeOf(line []byte) (Type, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(line))
	start, err := d.ReadToken()
	if err != nil {
		return "", err
	}
	if start.Kind() != '{' {
		return "", fmt.Errorf("it is %s, not an object", start.Kind())
	}
	for {
		name, err := d.ReadToken()
		if err != nil || name.Kind() == '}' {
			return "", err
		}
		if name.String() == "type" {
			var t Type
			err := json.UnmarshalDecode(d, &t)
			return t, err
		}
		if err := d.SkipValue(); err != nil {
			return "", err
		}
	}
}
