// Package proto owns the wire: the type of every message, its limits, its
// codes, strict decoding of what arrives and encoding of what is sent. It never
// opens a socket, never decides and never keeps state between messages.
//
// One message is one compact JSON object on one line. docs/protocol.md is the
// reference for people; its examples are checked against this package.
package proto

import (
	"fmt"
	"time"
)

// Limits of the wire. Each is checked by Decode; MaxFrame also by whoever reads
// lines, so that no more than this is ever buffered.
const (
	MaxFrame     = 1 << 20   // bytes of one line, without the newline
	MaxNesting   = 64        // depth of objects and arrays in one line
	MaxID        = 128       // bytes of id, proc_id, session_id, op_id
	MaxLabels    = 16        // labels of one spawn
	MaxLabel     = 64        // bytes of one label
	MaxName      = 128       // bytes of a profile name, a role, an agent_id
	MaxToken     = 4096      // bytes of auth_token and of a resume token
	MaxCaps      = 64        // entries of agent_caps
	MaxEventText = 128 << 10 // bytes of output in one read/event: seven bytes on the wire each at worst, so below MaxFrame
	Version      = "1.0"     // the one protocol version
)

// Base is what every message has. An empty field is filled in by Append.
type Base struct {
	Type    Type      `json:"type"`
	ID      string    `json:"id"`      // 1 to MaxID bytes; ours are UUIDs
	Version string    `json:"version"` // "1.0"
	TS      Timestamp `json:"ts"`      // when it was sent
}

// Base gives access to the base fields of any message.
func (b *Base) Base() *Base { return b }

// base is embedded by every message: under this name its fields and its method
// are both promoted (a field named Base would hide the method).
type base = Base

// Message is any message, always a pointer to one of the types of this package.
type Message interface {
	Base() *Base
	// Kind is the message's type on the wire, whatever Base says.
	Kind() Type
}

// Request is a message that a client sends and Decode returns.
//
// New request: 1 its Type, 2 its struct with Kind and check, 3 a row in
// requests(), 4 a case in Answer, 5 its section and example in docs/protocol.md.
type Request interface {
	Message
	// check says what JSON types cannot: ranges, lengths, closed lists.
	check() *fault
}

// Response is a message that answers one Request.
type Response interface {
	Message
	// Result gives access to what every response has.
	Result() *Reply
}

// Reply is what every response has beside the base fields. Error is a sentence
// and Code its stable name, both empty when OK.
type Reply struct {
	ReqID     string `json:"req_id"`
	OK        bool   `json:"ok"`
	Error     string `json:"error"`
	Code      Code   `json:"code"`
	Retryable bool   `json:"retryable"`
	Hint      string `json:"hint,omitzero"`     // what to do about it, where that is known
	Repeated  bool   `json:"repeated,omitzero"` // the answer to an earlier request with the same op_id
}

// Result gives access to the reply of any response.
func (r *Reply) Result() *Reply { return r }

// Done is the reply to a request that succeeded.
func Done(req Request) Reply { return Reply{ReqID: req.Base().ID, OK: true} }

// Refused is the reply to a request that was understood and not done. message is
// a sentence; hint may be empty. Whether it is retryable follows from the code.
func Refused(req Request, code Code, message, hint string) Reply {
	return Reply{ReqID: req.Base().ID, Error: message, Code: code, Retryable: code.Retryable(), Hint: hint}
}

// Timestamp is a moment as the wire has it: seconds since the epoch, to the
// microsecond.
type Timestamp float64

// TimestampOf converts a time.
func TimestampOf(t time.Time) Timestamp { return Timestamp(float64(t.UnixMicro()) / 1e6) }

// Time converts back, to the microsecond.
func (t Timestamp) Time() time.Time { return time.UnixMicro(int64(float64(t)*1e6 + 0.5)) }

// Seconds is a span of time as the wire has it where fractions matter.
type Seconds float64

// SecondsOf converts a duration.
func SecondsOf(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// WholeSeconds is a span of time in whole seconds, never negative.
type WholeSeconds int64

// Duration converts, and stops at the longest duration there is (292 years).
func (s WholeSeconds) Duration() time.Duration { return saturate(int64(s), time.Second) }

// Milliseconds is a span of time in whole milliseconds, never negative.
type Milliseconds int64

// Duration converts, and stops at the longest duration there is (292 years).
func (m Milliseconds) Duration() time.Duration { return saturate(int64(m), time.Millisecond) }

func saturate(n int64, unit time.Duration) time.Duration {
	const longest = time.Duration(1<<63 - 1)
	if n > int64(longest/unit) {
		return longest
	}
	return time.Duration(n) * unit
}

// Size is a number of bytes, never negative on the wire.
type Size int64

// fault is why a message is refused: the field (a JSON pointer, empty for the
// whole message) and a sentence.
type fault struct {
	code   Code
	detail Detail
	text   string
}

func violation(field, format string, args ...any) *fault {
	return &fault{code: CodeSchemaViolation, detail: Detail{Field: field}, text: fmt.Sprintf(format, args...)}
}
