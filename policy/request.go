package policy

import "time"

// Request is what a client asks for. Every field is untrusted.
type Request struct {
	Cmd     []string
	Cwd     string            // absolute, or empty for the session's scratch workspace
	Env     map[string]string // added to the profile's environment
	Profile string            // one of the caller's profiles, or empty
	Timeout time.Duration     // wall time; 0: the policy's own. Clamped to it
	Limits  *Narrow           // nil: the policy's own
	PTY     bool
	Labels  []string
}

// Narrow holds limits that a request asks for. Zero means not asked for; a value
// above the policy's is clamped to it.
type Narrow struct {
	Memory  Bytes
	Pids    int64
	CPU     float64 // cores
	CPUTime time.Duration
	Idle    time.Duration
	Output  Bytes // of one stream, as output.limit
}

// Identity says which file a name is.
type Identity struct {
	Dev uint64
	Ino uint64
}

// Kind of a looked-at file.
type Kind string

// Kinds of file.
const (
	KindNone   Kind = ""       // does not exist or cannot be reached
	KindDir    Kind = "dir"    // directory
	KindELF    Kind = "elf"    // regular file, ELF
	KindScript Kind = "script" // regular file that starts with #!
	KindFile   Kind = "file"   // any other regular file
	KindOther  Kind = "other"  // device, socket, fifo
)

// Fact is what was found at a name, looked at with the caller's own rights.
type Fact struct {
	Name       string // as asked
	Path       string // resolved: absolute, no symlinks
	ID         Identity
	UID        uint32
	GID        uint32
	Mode       uint32 // permission and file type bits of stat(2)
	Size       int64
	MtimeNs    int64
	CtimeNs    int64
	Kind       Kind
	Interp     string // ELF loader, or the interpreter of a script
	Executable bool   // the caller may execute it
	Err        string // why there is nothing: an errno name such as ENOENT, EACCES, ELOOP
}

// Candidates are what has to be looked at before a request can be decided.
type Candidates struct {
	Programs []string // argv[0] first, then listed programs that might be the same file; absolute or a bare name
	Path     []string // directories searched for bare names, in order
	Dir      string   // working directory; empty: none asked for
	Under    []string // expanded entries of workspace.under
}

// Facts are the answers to Candidates, in the same order.
type Facts struct {
	Programs []Fact
	Dir      Fact
	Under    []Fact
}
