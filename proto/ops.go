package proto

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/go-json-experiment/json"
)

// Named is a request that may name the operation that it asks for, so that the
// operation has at most one effect however often it is asked for (extension ops).
type Named interface {
	Request
	// Op is the request's op_id; empty: none.
	Op() string
	// content is all that the request asks for, in one form.
	content() any
}

// Op is the op_id.
func (s *SpawnReq) Op() string { return s.OpID }

// Op is the op_id.
func (w *WriteReq) Op() string { return w.OpID }

// Op is the op_id.
func (k *KillReq) Op() string { return k.OpID }

// content leaves out session_id, which can only be this session's.
func (s *SpawnReq) content() any {
	c := s.Spawn
	c.SessionID, c.OpID = "", ""
	if len(c.Labels) == 0 {
		c.Labels = nil
	}
	if c.Limits != nil && *c.Limits == (Limits{}) {
		c.Limits = nil
	}
	return c
}

// content has the bytes, whatever their encoding.
func (w *WriteReq) content() any {
	data, err := w.Bytes()
	if err != nil { // Decode has refused it
		data = []byte(w.Data)
	}
	return struct {
		ProcID string `json:"proc_id"`
		Data   []byte `json:"data"`
		EOF    bool   `json:"eof"`
	}{w.ProcID, data, w.EOF}
}

func (k *KillReq) content() any {
	return struct {
		ProcID string `json:"proc_id"`
		Signal Signal `json:"signal"`
	}{k.ProcID, k.Signal}
}

// Digest is the SHA-256 of what a named request asks for. It is text in JSON.
type Digest [sha256.Size]byte

// MarshalText writes hexadecimal digits.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText reads them.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("cannot read a digest of %d digits: want %d", len(text), hex.EncodedLen(len(d)))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// DigestOf is the digest of all fields that say what a request asks for: not of id,
// type, ts, version, op_id and session_id, nor of how bytes were encoded.
func DigestOf(r Named) (Digest, error) {
	text, err := json.Marshal(r.content(), json.Deterministic(true))
	if err != nil {
		return Digest{}, fmt.Errorf("cannot encode the content of %s: %w", r.Kind(), err)
	}
	return sha256.Sum256(text), nil
}

// OpsGetReq asks what became of a named operation of this session (ops/get/req,
// extension ops).
type OpsGetReq struct {
	base
	OpID string `json:"op_id"`
}

// Kind is ops/get/req.
func (*OpsGetReq) Kind() Type { return TypeOpsGetReq }

func (o *OpsGetReq) check() *fault {
	if o.OpID == "" {
		return violation("op_id", "cannot look for an operation without a name")
	}
	return longest("op_id", o.OpID, MaxID)
}

// OpsGetResp answers an OpsGetReq. OK says that there is an answer, Outcome what it
// is. The whole answer of an operation comes again for its request sent again.
type OpsGetResp struct {
	base
	Reply
	OpID      string     `json:"op_id"`
	Outcome   Outcome    `json:"outcome,omitzero"`
	Open      bool       `json:"open,omitzero"`      // under way now: ask again
	Horizon   Timestamp  `json:"horizon,omitzero"`   // with outcome_unknown: what was first sent after it and is not known was not taken
	Operation *Operation `json:"operation,omitzero"` // where more is known than the outcome
}

// Operation is what is known of a named operation: the essentials of its answer.
type Operation struct {
	Request Type      `json:"request"`          // of which type the request was
	At      Timestamp `json:"at"`               // when it was concluded; of an open one, when it was taken
	ProcID  string    `json:"proc_id,omitzero"` // of a spawn, the process that it started
	PID     int       `json:"pid,omitzero"`     // of a spawn and a write
	State   Status    `json:"state,omitzero"`   // of a kill
	Code    Code      `json:"code,omitzero"`    // of a refusal
	Error   string    `json:"error,omitzero"`   // of a refusal
}

// Kind is ops/get/resp.
func (*OpsGetResp) Kind() Type { return TypeOpsGetResp }

// Cancel takes an unanswered request of this connection back (cancel, extension
// cancel).
type Cancel struct {
	base
	ReqID string `json:"req_id"` // of the request
}

// Kind is cancel.
func (*Cancel) Kind() Type { return TypeCancel }

func (c *Cancel) check() *fault {
	if c.ReqID == "" {
		return violation("req_id", "cannot cancel a request without an id")
	}
	return longest("req_id", c.ReqID, MaxID)
}

// CancelResp answers a Cancel. OK says that the request was taken back: its own
// answer says how.
type CancelResp struct {
	base
	Reply
}

// Kind is cancel/resp.
func (*CancelResp) Kind() Type { return TypeCancelResp }
