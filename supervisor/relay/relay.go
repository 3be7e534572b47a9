// Package relay owns the bytes of a process on their way: what it writes goes from
// its pipes into spool files and from there to the owner as read/event lines; what
// the owner writes goes into its stdin in order. It never decides who may read,
// never starts or ends a process, and never keeps in memory what the spool has.
//
//	pipe ──splice(2)──▶ spool file ──ReadAt──▶ cut into pieces ──▶ Sink
//	      Output.Serve                Output.Deliver
//
// The size of a spool file is the cursor of its stream: the kernel moves it in the
// same call that takes the bytes out of the pipe, so a daemon killed at any instant
// loses nothing and repeats nothing.
//
// # The lives of an Output
//
//	NewOutput ─▶ Serve, End ─▶ Retain ─▶ Close       of one daemon
//	   ▲            │ Detach, or a kill    ▲
//	   └────────────┘                      │ ReopenOutput
//	next daemon, same Dir, same pipes      next daemon, files alone
//
// All that must survive lies in OutputConfig.Dir and is exact at any instant: two
// spools, and the file marks with what they do not say by themselves. Whoever keeps
// records of processes stores nothing of an Output but what made its OutputConfig.
//
// The owner is one reader at a time: Deliver. One that comes back, on whatever
// connection, names the offsets it has come to (SetCursor), may want another Format
// (SetFormat), and is sent the rest by a new Deliver. Others read beside it: Follow.
// All may do so until Close, whether the process lives or is finished.
//
// # What stays
//
// Of each stream the last Keep bytes stay, delivered or not. Under Block so does all
// that the owner has not got, and 2.25 MiB before that: what a sink took may lie in a
// socket whose client never reads it. Two things shorten this, and a reader is always
// told by a gap event with the range: a Budget that is used up, and a finished output
// that makes way for others. What a live process wrote and its owner was not sent is
// never dropped under Block: the process waits.
//
// # Numbers of events
//
// The owner's events are numbered from 1, over all its connections and all daemons, each
// by one more than the last. Numbers are skipped where nobody can know which were seen:
// after a write that failed, and after a daemon was killed. None is given twice. A
// reader of Follow counts its own events. What a byte is, says its offset alone.
package relay

import (
	"errors"
	"os"
	"time"

	"pinfold/proto"
)

// Limits of one process's relay. What a caller can make grow has a name here.
const (
	// MaxPiece is the longest text of one event in bytes: a longer line is cut.
	// Escaped twice (7 bytes for a NUL) it still fits a frame of 1 MiB.
	MaxPiece = 64 << 10
	// MinKeep is the least Keep: less than a piece could never become one.
	MinKeep = MaxPiece
	// DefaultQuiet is how long a stream is silent before a partial line is sent.
	DefaultQuiet = 20 * time.Millisecond
	// MaxWrites is how many writes may wait for one process's stdin.
	MaxWrites = 1024

	flushAt   = 128 << 10    // events collected for one Sink.Write before it is made
	outBuffer = 256 << 10    // capacity of the event buffer; one event may pass flushAt
	inBuffer  = 2 * MaxPiece // bytes of one stream in memory while pieces are cut
	spliceMax = 1 << 20      // bytes asked of one splice; a pipe holds 64 KiB to 1 MiB
	drainMax  = 1 << 20      // bytes taken above Keep once the process is gone: what a pipe can hold
	leastRoom = 4 << 10      // bytes that a stream with nothing to deliver may take whatever its caller's budget
	punchStep = 256 << 10    // old bytes are freed in steps of this, at least
	inFlight  = 9 << 18      // bytes that a sink took and its client may not have read: see Output.old
	seqStep   = 1 << 16      // numbers of events that are reserved at once
	hungRetry = 100 * time.Millisecond
)

// Errors that a caller tells apart.
var (
	// ErrDead says that nothing of a write was taken: the process, or the reading end
	// of its stdin, is gone.
	ErrDead = errors.New("stdin has no reader")
	// ErrUnknown says that a part of a write was taken when the reader went or the
	// write was given up; how much of it was read nobody can know.
	ErrUnknown = errors.New("stdin took a part of the write")
	// ErrTakenBack says that a write was taken back. Nothing was taken.
	ErrTakenBack = errors.New("the write was taken back")
	// ErrBusy says that the queue of writes is full. Nothing was taken.
	ErrBusy = errors.New("the queue of stdin is full")
	// ErrEOF says that an earlier write has closed stdin. Nothing was taken.
	ErrEOF = errors.New("stdin was closed by an earlier write")
	// ErrDelivering says that another Deliver or SetCursor of this output is going on.
	ErrDelivering = errors.New("output is being delivered")
	// ErrRange says that an offset lies past the end of the stream.
	ErrRange = errors.New("offset is past the end of the stream")
	// ErrForgotten says that the output was closed, or left to another daemon.
	ErrForgotten = errors.New("output is not kept any more")
)

// Sink takes finished events: complete NDJSON lines, one or many a call. It blocks
// while its client is slow; an error means that the client is gone. frames is valid
// during the call only.
type Sink interface {
	Write(frames []byte) error
}

// Overflow says what happens when the owner is Keep bytes behind.
type Overflow int

// The ways of Overflow.
const (
	Block Overflow = iota // the pipe is not read: the process waits
	Drop                  // the oldest bytes go, counted and told in a gap event
)

// Grouping says how many lines one event may carry.
type Grouping int

// The ways of Grouping.
const (
	Lines Grouping = iota // one line an event
	Batch                 // as many lines as fit MaxPiece
)

// Format is how events look to one client.
type Format struct {
	Form     proto.DataForm // "": proto.DataString
	Grouping Grouping
}

// Cursor is how far an owner has come: byte offsets in each stream (all before them
// are delivered) and the number of the last event sent.
type Cursor struct {
	Stdout, Stderr int64
	Seq            uint64
}

// Counts is what an Output has seen so far.
type Counts struct {
	Stdout, Stderr int64 // bytes taken from each pipe
	Dropped        int64 // bytes that the owner never got, both streams
	Drained        bool  // every byte written before the end was taken
	Full           bool  // the spool's file system is full: the process waits for room
}

// OutputConfig is what an Output is made of.
type OutputConfig struct {
	Dir    string // spool directory of this process; exists, and nobody else writes there
	ProcID string // of the events
	ReqID  string // of the events: the spawn's id

	// Stdout and Stderr are reading ends of pipes, nonblocking. Stderr is nil for a
	// PTY. The caller closes them, after Serve has returned.
	Stdout, Stderr *os.File
	// PTY is the master of a terminal, nonblocking, or nil. With it Stdout and Relay
	// are the two ends of one pipe that PID 1 of the pen holds too: bytes go master,
	// pipe, spool, and are never in the daemon's memory alone.
	PTY, Relay *os.File

	Keep     int64         // bytes per stream that stay readable; at least MinKeep
	Limit    int64         // bytes of both streams together that may be taken; 0: no limit
	Overflow Overflow      // what happens when the owner is Keep behind
	Format   Format        // of the owner's events
	Quiet    time.Duration // 0: DefaultQuiet

	// Budget bounds what the spools of one caller hold together; nil: no bound.
	Budget *Budget
	// Warn is told, from any goroutine, why old bytes cannot be freed now; nil: nobody is.
	Warn func(error)
	// Buffers is shared by the outputs of a daemon; nil: one of its own.
	Buffers *Buffers
}
