package launch

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"unsafe"

	"pinfold/sandbox/internal/image"
)

// Record is what PID 1 or the target says on the status socket: Confined, Waiting,
// Started, Failed or Ended.
type Record interface{ record() }

// Confined says that all that confines the target is in force, that it is about to read
// its command, and which of the acts that must be refused were. Sent by the target
// itself, so that SCM_CREDENTIALS of unix(7) tell its pid.
type Confined struct {
	Landlock bool // reading a file that no rule covers
	Filter   bool // a system call that the filter refuses
	Memfd    bool // making a file in memory that can be executed
}

// Waiting says that the target has opened its program and directory and is about to
// read from its last gate. Sent by the target itself.
type Waiting struct{}

// Started says that the target's exec is done and PID 1 has given up what it does
// not need.
type Started struct {
	Pid int32 // of the target inside the pen
}

// Failed says that a step failed; whoever made it is gone. Without a Started
// before it the pen is gone too.
type Failed struct {
	Step  int
	Errno syscall.Errno // EPROTO: the kernel did what must be refused, or the gate was closed
}

// Ended says that the target ended, and what it and the children that it waited
// for used. PID 1 stays until it is released.
type Ended struct {
	Status syscall.WaitStatus
	Usage  syscall.Rusage
}

func (Confined) record() {}
func (Waiting) record()  {}
func (Started) record()  {}
func (Failed) record()   {}
func (Ended) record()    {}

// DecodeRecord reads one message of the status socket. A message of another size
// or kind is an error.
func DecodeRecord(b []byte) (Record, error) {
	le := binary.LittleEndian
	if len(b) < 8 {
		return nil, fmt.Errorf("cannot read record: %d bytes", len(b))
	}
	switch kind := le.Uint32(b); {
	case kind == image.RecordWaiting && len(b) == image.WaitingSize:
		return Waiting{}, nil
	case kind == image.RecordConfined && len(b) == image.ConfinedSize:
		return Confined{Landlock: le.Uint64(b[8:]) == 1, Filter: le.Uint64(b[16:]) == 1, Memfd: le.Uint64(b[24:]) == 1}, nil
	case kind == image.RecordStarted && len(b) == image.StartedSize:
		return Started{Pid: int32(le.Uint32(b[4:]))}, nil
	case kind == image.RecordFailed && len(b) == image.FailedSize:
		return Failed{Step: int(le.Uint32(b[4:])), Errno: syscall.Errno(le.Uint32(b[8:]))}, nil
	case kind == image.RecordEnded && len(b) == image.EndedSize:
		e := Ended{Status: syscall.WaitStatus(le.Uint32(b[4:]))}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&e.Usage)), unsafe.Sizeof(e.Usage)), b[8:])
		return e, nil
	default:
		return nil, fmt.Errorf("cannot read record: kind %d with %d bytes", kind, len(b))
	}
}

// MaxRecord is the size in bytes of the longest record.
const MaxRecord = image.EndedSize

// CloseFD is the command to close a held descriptor (image.FDHeld…) of PID 1; it
// is no error when that is closed already.
func CloseFD(n int) []byte { return command(image.CommandClose, uint64(n)) }

// Release is the command to exit, with which the pen ends.
func Release() []byte { return command(image.CommandRelease, 0) }

func command(kind, operand uint64) []byte {
	b := make([]byte, 0, image.CommandSize)
	b = binary.LittleEndian.AppendUint64(b, kind)
	return binary.LittleEndian.AppendUint64(b, operand)
}

// Registers are what a launch alone has: the first message that PID 1 reads.
type Registers struct {
	UID, GID         uint32 // run ids as the pen's user namespace shows them
	InitUID, InitGID uint32 // reserved ids of PID 1, likewise
	Rows, Cols       uint16 // terminal size with PTY
}

// Encode returns the message.
func (r Registers) Encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, 8*image.Received)
	for _, v := range []uint64{uint64(r.UID), uint64(r.GID), uint64(r.InitUID), uint64(r.InitGID)} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint16(b, r.Rows)
	b = le.AppendUint16(b, r.Cols)
	return le.AppendUint32(b, 0)
}
