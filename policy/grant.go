package policy

import "time"

// Grant is everything that one command may have: the answer yes.
type Grant struct {
	Caller  string // name of the caller rule
	Profile string
	Rule    Rule // the command entry that allowed it
	Program Fact // what is executed
	Argv    []string
	Env     []string // NAME=value, sorted by name
	EnvDir  string   // directory of files that become variables; a relative one is taken from its policy file's directory; empty: none
	PTY     bool
	RunAs   RunAs

	Workspace  Workspace
	Read       []PathRule // visible read-only
	Write      []PathRule // visible and writable
	Deny       []DenyRule // inside an allow
	Hidden     []string   // built-in secret paths that exist in no view
	Unwritable []string   // built-in paths that are never writable, also inside a write tree
	Missing    Missing    // what happens when a Read or Write path is absent
	Tmp        Tmp
	Home       Home

	Net       Net
	Seccomp   Seccomp
	Pen       Pen
	Rlimits   []Rlimit
	UserNS    bool
	AllowRoot bool
	Cgroup    Cgroup
	Timeout   Timeout
	Linger    time.Duration // how long children may outlive the main process
	Output    Output
	Controls  []Need // every control once, in the order of Controls
	Exec      Exec
	Commands  []Fact // all listed programs that were found; complete with ExecListed, else empty
	Quota     Quota
}

// RunAsKind says whose ids a command has.
type RunAsKind string

// Kinds of run_as.
const (
	RunAsCaller  RunAsKind = "caller"
	RunAsDynamic RunAsKind = "dynamic" // a uid from the policy's dynamic range, the session's own
	RunAsNamed   RunAsKind = "named"
)

// RunAs says whose ids a command has. UID and GID are 0 with RunAsDynamic: the
// session takes them from its range.
type RunAs struct {
	Kind RunAsKind
	Name string // the user of RunAsNamed
	UID  uint32
	GID  uint32
}

// Workspace is the tree that a command works in.
type Workspace struct {
	Path    string // on the host and inside the view; ScratchPath for a scratch workspace
	Scratch bool   // a tmpfs of the session
	Cwd     string // working directory inside the view, at or below Path
	Dir     Fact   // what was found at Path; zero for a scratch workspace
	Write   bool   // ${workspace} is in fs.write
	Read    bool   // ${workspace} is in fs.read or fs.write
}

// PathRule is one expanded path of fs.read or fs.write.
type PathRule struct {
	Path string
	Rule Rule
}

// DenyRule is one expanded path of fs.deny.
type DenyRule struct {
	Path   string
	Absent Absent
	Rule   Rule
}

// Absent says what a denied path that does not exist leads to.
type Absent string

// Answers to an absent denied path.
const (
	AbsentPlaceholder Absent = "placeholder"
	AbsentRefuse      Absent = "refuse"
	AbsentCheck       Absent = "check"
)

// Missing says what an allowed path that does not exist leads to.
type Missing string

// Answers to a missing allowed path.
const (
	MissingSkip   Missing = "skip"
	MissingFail   Missing = "fail"
	MissingCreate Missing = "create"
)

// Tmp is the private /tmp.
type Tmp struct {
	Size Bytes
	Exec bool
}

// HomeKind says what the home directory inside a pen is.
type HomeKind string

// Kinds of home.
const (
	HomePrivate HomeKind = "private" // empty, the session's own
	HomeCache   HomeKind = "cache"   // kept per caller under a name
	HomeNone    HomeKind = "none"    // there is no home directory
)

// Home is the home directory inside a pen.
type Home struct {
	Kind HomeKind
	Name string // of HomeCache
	Path string // inside the view; also the value of HOME unless the kind is HomeNone
}

// Net is what a pen sees of the network.
type Net string

// Network modes.
const (
	NetNone Net = "none"
	NetHost Net = "host"
)

// Seccomp names the system call filter: a base, and what is added or taken away.
type Seccomp struct {
	Base  string // default or strict
	Allow []string
	Deny  []string
}

// Pen says how long the namespaces of a command live.
type Pen string

// PenProcess gives each spawn namespaces of its own.
const PenProcess Pen = "process"

// Exec says which files may be executed inside.
type Exec string

// Exec modes.
const (
	ExecAnything Exec = "anything"
	ExecListed   Exec = "listed"
)

// Rlimit is one resource limit, soft and hard alike.
type Rlimit struct {
	Name  string // setrlimit(2) without RLIMIT_, lower case
	Value uint64 // bytes, seconds or a count, as setrlimit(2) says
}

// Cgroup are the limits of one process's cgroup.
type Cgroup struct {
	Memory   Bytes   // Unset: no limit
	Swap     Bytes   // Unset: no limit
	Pids     int64   // Unset: no limit
	CPU      float64 // cores; 0: no limit
	IOWeight int     // 1 to 10000; 0: not set
}

// Timeout are the times after which a command is ended; 0 is off.
type Timeout struct {
	Wall  time.Duration
	CPU   time.Duration
	Idle  time.Duration
	Start time.Duration // from the request to the command's first instruction
	Stop  time.Duration // from SIGTERM to SIGKILL; 0: at once
}

// Overflow says what happens to output that nobody takes.
type Overflow string

// Answers to an overflow.
const (
	OverflowBlock Overflow = "block"
	OverflowDrop  Overflow = "drop"
)

// Output are the limits of each output stream.
type Output struct {
	Keep     Bytes // stays readable, and the process blocks when its owner is so far behind
	Limit    Bytes // the process is ended beyond it; Unset: no limit
	Overflow Overflow
}

// Control names one thing that confines a process. The list is closed.
type Control string

// The controls.
const (
	ControlMounts   Control = "mounts"
	ControlLandlock Control = "landlock"
	ControlSeccomp  Control = "seccomp"
	ControlCaps     Control = "caps"
	ControlUserNS   Control = "userns"
	ControlPidNS    Control = "pidns"
	ControlIPCNS    Control = "ipcns"
	ControlNetNS    Control = "netns"
	ControlMemory   Control = "cgroup.memory"
	ControlPids     Control = "cgroup.pids"
	ControlCPU      Control = "cgroup.cpu"
	ControlIO       Control = "cgroup.io"
	ControlRlimits  Control = "rlimits"
)

// Controls lists every control in the order in which records show them.
func Controls() []Control {
	return []Control{
		ControlMounts, ControlLandlock, ControlSeccomp, ControlCaps, ControlUserNS, ControlPidNS, ControlIPCNS,
		ControlNetNS, ControlMemory, ControlPids, ControlCPU, ControlIO, ControlRlimits,
	}
}

// Level says how much a control is needed.
type Level string

// Levels of need.
const (
	LevelRequired   Level = "required"
	LevelBestEffort Level = "best_effort"
	LevelOff        Level = "off"
)

// Need is one control and how much it is needed.
type Need struct {
	Control Control
	Level   Level
	Set     bool // the policy names it; false: the default of Control
}
