// Package stagewire carries the messages between the daemon and its stage: one
// JSON object a SOCK_SEQPACKET datagram, descriptors with the message that speaks
// of them. It owns framing and limits, and never looks into a body.
//
//	daemon → stage  {"id":7,"op":"launch","body":{…}}          + descriptors
//	stage  → daemon {"id":7,"body":{…}} or {"id":7,"error":{…}} + descriptors
//
// The first message is the stage's own hello with id 0. Requests are answered in
// any order. A message above MaxInline travels in a sealed memfd that is the
// first descriptor, and the datagram is then {"id":7,"large":SIZE}.
package stagewire

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/go-json-experiment/json/jsontext"

	"pinfold/sandbox/internal/linux"
)

// Limits of a message.
const (
	MaxInline = 64 << 10 // bytes of one datagram; larger ones travel in a memfd
	MaxLarge  = 4 << 20  // bytes of one message in a memfd
)

// Op names what a request asks for.
type Op string

// The requests.
const (
	OpHello       Op = "hello"        // stage's first message: Features
	OpLook        Op = "look"         // sandbox.LookRequest + the caller's connection
	OpScratch     Op = "scratch"      // Scratch
	OpDropScratch Op = "drop_scratch" // Scratch with Name alone
	OpLaunch      Op = "launch"       // Launch + the caller's connection + attaches
	OpPrepare     Op = "prepare"      // Launch without Command + the caller's connection + attaches; the answer is that of a launch without a target
	OpAhead       Op = "ahead"        // Ahead + the caller's connection: look whether a command of a prepared pen may rest on what was seen, for the command that names the look; without id, and answered only where it is no request
	OpCommand     Op = "command"      // Command + the caller's connection: what a prepared pen executes; the answer is that of a launch
	OpAbort       Op = "abort"        // Pen: end it before its start
	OpReaped      Op = "reaped"       // Pen: answered once its PID 1 is gone and cleaned up after
	OpStep        Op = "step"         // Pen and Step: the printed text of a step
	OpDenies      Op = "denies"       // Pen: what became of denied paths that did not exist
	OpAdopt       Op = "adopt"        // sandbox.Mark: take over a pen; the answer is that of a launch
	OpSettle      Op = "settle"       // all that is to be adopted was: remove what nobody needs
	OpSucceed     Op = "succeed"      // nothing + the listening socket and a pipe: start the daemon's successor; the answer is Succeeded and its pidfd
)

// Message is one request or answer.
type Message struct {
	ID    uint64         `json:"id"`
	Op    Op             `json:"op,omitzero"`
	Large int            `json:"large,omitzero"`
	Body  jsontext.Value `json:"body,omitzero"`
	Error *Failure       `json:"error,omitzero"`
}

// Kind says what sort of failure an answer tells.
type Kind string

// Kinds of failure.
const (
	KindBusy    Kind = "busy"    // try again later
	KindRefused Kind = "refused" // a floor or the validation said no
	KindStep    Kind = "step"    // a step of a launch failed
	KindKernel  Kind = "kernel"  // a call failed outside of a launch
	KindLack    Kind = "lack"    // this host cannot do it
	KindForgot  Kind = "forgot"  // the profile that is only named is not known: send it
	KindStale   Kind = "stale"   // the prepared pen is not what would be built now: launch another
	KindGone    Kind = "gone"    // the pen to adopt has ended, or another process is there
)

// Failure is an answer that is no.
type Failure struct {
	Kind  Kind   `json:"kind"`
	Say   string `json:"say"`
	Errno int    `json:"errno,omitzero"`
	Step  int    `json:"step,omitzero"`  // with KindStep
	Text  string `json:"text,omitzero"`  // with KindStep
	Where string `json:"where,omitzero"` // with KindStep
	Hint  string `json:"hint,omitzero"`
}

// Pen names a pen, and with OpStep a step of its Program.
type Pen struct {
	Pen  uint64 `json:"pen"`
	Step int    `json:"step,omitzero"`
}

// Launch asks for a launch. A profile that was launched before is named alone.
type Launch struct {
	Key     string         `json:"key,omitzero"`     // ProfileKey of one that the stage should know
	Profile jsontext.Value `json:"profile,omitzero"` // sandbox.Profile, without Key
	Site    jsontext.Value `json:"site"`             // sandbox.Site
	Command jsontext.Value `json:"command,omitzero"` // sandbox.Command
	Opening jsontext.Value `json:"opening,omitzero"` // with OpPrepare: sandbox.Opening, what a command is likely to need
	Seen    jsontext.Value `json:"seen,omitzero"`    // with OpPrepare: sandbox.Seen, on which a command may rest
}

// Command gives a prepared pen its command.
type Command struct {
	Pen     uint64         `json:"pen"`
	Command jsontext.Value `json:"command"`        // sandbox.Command
	Rests   bool           `json:"rests,omitzero"` // on what was seen before: nobody has looked for it yet
	Look    uint64         `json:"look,omitzero"`  // number of the Ahead that was asked for it; 0: none
}

// Ahead asks for a look ahead of a command.
type Ahead struct {
	Pen  uint64 `json:"pen"`
	Look uint64 `json:"look"` // which the command will name; from 1
}

// ProfileKey names a profile by its JSON, byte for byte.
func ProfileKey(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Text is the answer to OpStep.
type Text struct {
	Text  string `json:"text"`
	Where string `json:"where"`
}

// Scratch asks for a memory file system mounted below the state directory.
type Scratch struct {
	Name   string `json:"name"`
	Size   int64  `json:"size,omitzero"` // bytes
	Inodes int64  `json:"inodes,omitzero"`
	UID    uint32 `json:"uid,omitzero"`
	GID    uint32 `json:"gid,omitzero"`
	Mode   uint32 `json:"mode,omitzero"`
}

// Send sends m with files on the pollable socket s. The caller keeps the files.
func Send(s *os.File, m Message, files ...*os.File) error {
	return SendNumbers(s, m, linux.Numbers(files)...)
}

// SendNumbers is Send with bare descriptors, which the caller keeps too.
func SendNumbers(s *os.File, m Message, fds ...int) error {
	b, err := Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode message %d: %w", m.ID, err)
	}
	if len(b) <= MaxInline {
		return linux.SendNumbers(s, b, fds...)
	}
	if len(b) > MaxLarge {
		return fmt.Errorf("cannot send message %d: %d bytes are more than %d", m.ID, len(b), MaxLarge)
	}
	large, err := linux.SealedFile("pinfold-message", b)
	if err != nil {
		return fmt.Errorf("cannot send message %d: %w", m.ID, err)
	}
	defer linux.CloseAll(large)
	head, err := Marshal(Message{ID: m.ID, Large: len(b)})
	if err != nil {
		return err
	}
	return linux.SendNumbers(s, head, append([]int{linux.FD(large)}, fds...)...)
}

// Receive takes one message from s. buf must hold MaxInline bytes; the message
// does not point into it, and nothing of it stays there: argv and env may hold secrets.
// The caller closes the descriptors. Any error but a *BadMessageError ends the connection.
func Receive(s *os.File, buf []byte) (Message, []int, error) {
	got, err := linux.Receive(s, buf)
	if err != nil {
		return Message{}, nil, err
	}
	m, fds, err := decode(got.Data, got.FDs)
	clear(got.Data)
	if err != nil {
		linux.CloseNumbers(got.FDs...)
		return m, nil, &BadMessageError{ID: m.ID, Err: err}
	}
	return m, fds, nil
}

// BadMessageError is what Receive answers for bytes that are no message.
type BadMessageError struct {
	ID  uint64 // 0 when it could not be read
	Err error
}

// Error says why the message is bad.
func (e *BadMessageError) Error() string { return "cannot decode message: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *BadMessageError) Unwrap() error { return e.Err }

func decode(data []byte, fds []int) (Message, []int, error) {
	var m Message
	if err := Unmarshal(data, &m); err != nil {
		return Message{}, nil, err
	}
	if m.Large == 0 {
		return m, fds, nil
	}
	id := m.ID
	if m.Large < 0 || m.Large > MaxLarge || len(fds) == 0 {
		return m, nil, fmt.Errorf("large message of %d bytes with %d descriptors", m.Large, len(fds))
	}
	if !linux.IsSealed(fds[0]) {
		return m, nil, fmt.Errorf("large message in a file that can still be changed")
	}
	b := make([]byte, m.Large)
	if err := linux.PreadNumber(fds[0], b); err != nil {
		return m, nil, err
	}
	m = Message{}
	if err := Unmarshal(b, &m); err != nil {
		return Message{ID: id}, nil, err
	}
	if m.ID != id || m.Large != 0 {
		return Message{ID: id}, nil, fmt.Errorf("large message with another id")
	}
	linux.CloseNumbers(fds[0])
	return m, fds[1:], nil
}
