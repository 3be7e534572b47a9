package image

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"syscall"
)

// Arg is one argument of a system call.
type Arg struct {
	value uint64
	reg   bool
	data  []byte // constant that value is to be the address of
	text  string
}

// Int is a number.
func Int(v int) Arg { return Arg{value: uint64(v), text: strconv.Itoa(v)} }

// Named is a number that is printed as text.
func Named(v int, text string) Arg { return Arg{value: uint64(v), text: text} }

// Value is the content of a register.
func Value(r Reg) Arg { return Arg{value: uint64(r), reg: true, text: r.String()} }

// Address is where a register lies; registers that follow lie behind it.
func Address(r Reg) Arg { return Arg{value: regsAddr + 8*uint64(r), text: "&" + r.String()} }

// Text is the address of a constant string that ends in NUL.
func Text(s string) Arg {
	return Arg{data: append([]byte(s), 0), text: strconv.Quote(s)}
}

// Data is the address of constant bytes.
func Data(b []byte, text string) Arg { return Arg{data: append([]byte{}, b...), text: text} }

// Words is the address of constant 32-bit words.
func Words(text string, w ...uint32) Arg {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return Data(b, text)
}

// Quads is the address of constant 64-bit words.
func Quads(text string, w ...uint64) Arg {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return Data(b, text)
}

// Null is the null pointer.
func Null() Arg { return Arg{text: "NULL"} }

// StartedRecord is the address of the record of the target's exec, with its kind
// filled in.
func StartedRecord() Arg { return Arg{value: startAddr, text: "&started"} }

// StartedAddress is the address of the pid in StartedRecord, for clone3.
const StartedAddress = startAddr + 4

// PidAddress is the address of RegPid, for clone3.
const PidAddress = regsAddr + 8*uint64(RegPid)

// StartedPid is the address of the pid in StartedRecord.
func StartedPid() Arg { return Arg{value: StartedAddress, text: "&started.pid"} }

// EndedRecord is the address of the record of the target's end.
func EndedRecord() Arg { return Arg{value: endAddr, text: "&ended"} }

// EndedStatus is the address of the wait status in EndedRecord.
func EndedStatus() Arg { return Arg{value: endAddr + 4, text: "&ended.status"} }

// EndedUsage is the address of the struct rusage in EndedRecord.
func EndedUsage() Arg { return Arg{value: endAddr + 8, text: "&ended.rusage"} }

// Polled is the address of two struct pollfd: FDStatus and FDSignals, both for
// reading.
func Polled() Arg { return Arg{value: pollAddr, text: "[{status, POLLIN}, {signals, POLLIN}]"} }

// CommandArea is the address at which FDCommand is mapped.
func CommandArea() Arg { return Arg{value: CommandAt, text: "&command"} }

// Spare is the address of 256 bytes for what is read and dropped.
func Spare() Arg { return Arg{value: spareAddr, text: "&spare"} }

// Opt says what becomes of a step's result.
type Opt struct {
	apply func(*Step)
	label string
	text  string
}

// Save keeps the result in a register.
func Save(r Reg) Opt {
	return Opt{apply: func(s *Step) { s.Save = r }, text: " -> " + r.String()}
}

// Or takes an errno for the result 0; every other one fails the step.
func Or(e syscall.Errno) Opt {
	return Opt{apply: func(s *Step) { s.Ignore = uint8(e) }, text: " or " + errnoName(e)}
}

// Want fails the step with EPROTO unless the result is n.
func Want(n int) Opt {
	return Opt{apply: func(s *Step) { s.Flags |= flagWant; s.X = int32(n) }, text: " = " + strconv.Itoa(n)}
}

// Refused fails the step unless the kernel refuses it with this errno.
func Refused(e syscall.Errno) Opt {
	return Opt{
		apply: func(s *Step) { s.Flags |= flagWant; s.Ignore = uint8(e) },
		text:  " refused with " + errnoName(e),
	}
}

// If goes to a label when the result is n.
func If(n int, label string) Opt {
	return Opt{
		apply: func(s *Step) { s.Flags |= flagEqual; s.X = int32(n) },
		label: label, text: fmt.Sprintf("; if %d goto %s", n, label),
	}
}

// Unless goes to a label when the result is not n.
func Unless(n int, label string) Opt {
	return Opt{
		apply: func(s *Step) { s.Flags |= flagDiffer; s.X = int32(n) },
		label: label, text: fmt.Sprintf("; unless %d goto %s", n, label),
	}
}

// UnlessValue goes to a label when the result is not what a register holds.
func UnlessValue(r Reg, label string) Opt {
	return Opt{
		apply: func(s *Step) { s.Flags |= flagDiffer | flagReg; s.X = int32(r) },
		label: label, text: fmt.Sprintf("; unless %s goto %s", r, label),
	}
}
