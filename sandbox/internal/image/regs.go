package image

import "strconv"

// Reg is one of the 64-bit registers that PID 1 and the target share.
type Reg uint8

// Registers. The first three are the interpreter's own: a sink for results that
// nobody asked for, and the record of a failed step, not 0 once a step failed.
const (
	RegSink   Reg = 0
	RegFail   Reg = 1
	regErrno  Reg = 2
	RegStatus Reg = 3 // FDStatus

	// The words of a command: read from the first gate by the target, in this order.
	RegPath Reg = 4 // address of the program's path
	RegDir  Reg = 5 // of the working directory's
	RegArgv Reg = 6
	RegEnvp Reg = 7
	RegAct  Reg = 8 // what to do with it

	// Received as one message on the status socket, in this order.
	RegUID     Reg = 9 // run uid and gid as the pen sees them
	RegGID     Reg = 10
	RegInitUID Reg = 11 // reserved uid and gid of PID 1
	RegInitGID Reg = 12
	RegWinsize Reg = 13 // struct winsize

	RegPid     Reg = 14 // the target
	RegReady   Reg = 15 // 1 once the target is to make its exec
	RegReaped  Reg = 16
	RegTemp    Reg = 17
	RegCommand Reg = 18 // command: kind and operand
	RegOperand Reg = 19

	// The records of a target at its gates: the kind, and which canaries were refused.
	RegWaiting  Reg = 20
	RegLandlock Reg = 21
	RegFilter   Reg = 22
	RegMemfd    Reg = 23

	numRegs = 32
)

// Received counts the registers of the message that PID 1 reads first, from
// RegUID on; each takes eight bytes.
const Received = 5

// Commanded counts the words of a command, from RegPath on.
const Commanded = 5

// What RegAct says.
const (
	ActOpen   = 0 // open program and directory, and wait at the last gate
	ActExec   = 1 // execute the program that is open
	ActScript = 2 // execute by path
)

func (r Reg) String() string {
	names := [numRegs]string{
		RegSink: "sink", RegFail: "fail", regErrno: "errno", RegStatus: "status", RegPath: "path", RegDir: "dir",
		RegArgv: "argv", RegEnvp: "envp", RegUID: "uid", RegGID: "gid", RegInitUID: "init_uid", RegInitGID: "init_gid",
		RegAct: "act", RegWinsize: "winsize", RegPid: "pid", RegReady: "ready", RegReaped: "reaped", RegTemp: "t",
		RegCommand: "command", RegOperand: "operand", RegWaiting: "waiting", RegLandlock: "landlock", RegFilter: "filter", RegMemfd: "memfd",
	}
	if r < numRegs && names[r] != "" {
		return "$" + names[r]
	}
	return "$" + strconv.Itoa(int(r))
}

// Layout of the image. The writable page holds registers and records; the target
// and PID 1 share it until the target's exec.
const (
	baseAddr   = 0x400000 // r-x: headers, interpreter, constants, steps
	regsAddr   = 0x500000 // rw-: registers
	startAddr  = regsAddr + 0x100
	endAddr    = regsAddr + 0x110
	pollAddr   = regsAddr + 0x1c0 // two struct pollfd
	spareAddr  = regsAddr + 0x200 // 256 bytes for what is read and dropped
	rwSize     = 0x300
	CommandAt  = 0x600000 // r--: what the registers of a command point to, mapped from FDCommand
	MaxCommand = 4 << 20  // bytes
	stepSize   = 64
	headerSize = 64 + 3*56
)

// Kinds of record on the status socket; the first 32 bits of each.
const (
	RecordStarted  = 1 // {1, pid inside the pen}
	RecordFailed   = 2 // {2, step, errno, 0}
	RecordEnded    = 3 // {3, wait status, struct rusage}
	RecordWaiting  = 4 // {4, 0}
	RecordConfined = 5 // {5, 0, and eight bytes each that are 1: Landlock, the filter, a memfd was refused}
)

// Sizes of the records in bytes.
const (
	StartedSize  = 8
	WaitingSize  = 8
	ConfinedSize = 8 + 3*8
	FailedSize   = 16
	EndedSize    = 8 + 144 // struct rusage is 144 bytes on 64-bit Linux: getrusage(2)
)

// Kinds of command on the status socket: two 64-bit numbers, kind and operand.
const (
	CommandClose   = 1 // close the descriptor that the operand names
	CommandRelease = 2 // exit
	CommandSize    = 16
)

// ExitFailed is the exit status of a process of which a step failed, and of PID 1
// when its target did not come to its exec.
const ExitFailed = 253
