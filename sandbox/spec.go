// Package sandbox builds pens: it turns a Spec into the exact list of system
// calls that confines a command, starts it, and reads back from the kernel what
// is in force. It never decides what a command may do and never moves its bytes.
package sandbox

import (
	"slices"
	"time"
)

// Bytes is a size in bytes.
type Bytes int64

// Spec says what one pen is: plain data, the same on every machine. Everything
// that depends on this kernel happens in Launch.
type Spec struct {
	Profile Profile `json:"profile"` // shared by all spawns of one grant; compiled once and cached by content
	Site    Site    `json:"site"`    // where, and as whom, this pen is built
	Command Command `json:"command"` // what is executed in it
}

// Profile is the part of a Spec that spawns share.
type Profile struct {
	Name     string    `json:"name"`
	Hostname string    `json:"hostname"`
	View     []Entry   `json:"view"`    // the root file system, built from nothing; parents before children
	Attach   []Attach  `json:"attach"`  // trees mounted from descriptors that come with each Site
	Private  []Tmpfs   `json:"private"` // memory file systems of this pen alone (/tmp, /dev/shm, a private home)
	Deny     []Deny    `json:"deny"`    // paths that exist in the view and must be neither read nor written
	Proc     ProcView  `json:"proc"`    // how much of /proc is shown
	Net      NetMode   `json:"net"`     // none or host
	UserNS   bool      `json:"userns"`  // own user namespace
	RootMap  bool      `json:"rootmap"` // show the run uid as 0 inside (policy: allow_root; needs UserNS)
	Exec     ExecMode  `json:"exec"`    // anything or listed
	PTY      bool      `json:"pty"`     // standard streams are a terminal of the pen
	Stdin    StdinMode `json:"stdin"`   // pipe or null; ignored with PTY
	Seccomp  Filter    `json:"seccomp"`
	Landlock Rules     `json:"landlock"`
	Rlimits  []Rlimit  `json:"rlimits"`
	Controls []Need    `json:"controls"` // every control once, in the order of Controls()
}

// EntryKind says what an Entry puts into the view.
type EntryKind string

// Kinds of Entry.
const (
	EntryBind    EntryKind = "bind"    // Source of the host, a file or a directory; a symlink on the host stays the same symlink
	EntryFile    EntryKind = "file"    // a small read-only file with Data
	EntrySymlink EntryKind = "symlink" // a symbolic link to Source
	EntryDir     EntryKind = "dir"     // an empty directory
	EntryDevice  EntryKind = "device"  // a device node of the host, bound without nodev
)

// Missing says what happens when a Source is absent.
type Missing string

// Answers to a missing source.
const (
	MissingFail   Missing = "fail"
	MissingSkip   Missing = "skip"
	MissingCreate Missing = "create"
)

// Entry is one thing in the view.
type Entry struct {
	Kind     EntryKind `json:"kind"`
	Path     string    `json:"path"` // absolute and clean, inside the view
	Source   string    `json:"source,omitzero"`
	Data     string    `json:"data,omitzero"`
	Writable bool      `json:"writable,omitzero"`
	NoExec   bool      `json:"noexec,omitzero"`
	Follow   bool      `json:"follow,omitzero"`  // bind what a symlink Source leads to, at Path
	Copy     bool      `json:"copy,omitzero"`    // a small file that all may read may be a copy, made anew when the file has changed by a later start
	Missing  Missing   `json:"missing,omitzero"` // empty: fail
}

// Attach is a mount of a looked-at descriptor: Site.Attach has its facts, in
// the same order, and Files.Attach the descriptors.
type Attach struct {
	Path     string `json:"path"`
	Writable bool   `json:"writable,omitzero"`
	NoExec   bool   `json:"noexec,omitzero"`
	IDMap    bool   `json:"idmap,omitzero"` // map the on-disk owner (the caller) to the run uid
}

// Tmpfs is a memory file system made for one pen.
type Tmpfs struct {
	Path   string `json:"path"`
	Size   Bytes  `json:"size"`
	Inodes int64  `json:"inodes"`
	Mode   uint32 `json:"mode"` // permission bits; owner is the run uid unless the sticky bit is set
	NoExec bool   `json:"noexec,omitzero"`
}

// Absent says what a Deny does when its path does not exist.
type Absent string

// Answers to an absent denied path.
const (
	AbsentPlaceholder Absent = "placeholder"
	AbsentRefuse      Absent = "refuse"
	AbsentCheck       Absent = "check"
	AbsentSkip        Absent = "skip" // only for the built-in list of secret paths in read-only views
)

// Deny is a path inside the view that is masked and whose parents, up to the
// mount that holds it, are pinned.
type Deny struct {
	Path     string `json:"path"`
	Absent   Absent `json:"absent"`
	Readable bool   `json:"readable,omitzero"` // only writing is denied: bound onto itself read-only
}

// ProcView says how much of /proc is shown.
type ProcView string

// Views of /proc.
const (
	ProcMasked ProcView = "masked" // whole, with the host's knobs and secrets masked
	ProcPids   ProcView = "pids"   // subset=pid
)

// NetMode is what the pen sees of the network.
type NetMode string

// Network modes.
const (
	NetNone NetMode = "none" // own network namespace, lo up
	NetHost NetMode = "host"
)

// ExecMode says which files may be executed or mapped as code.
type ExecMode string

// Exec modes.
const (
	ExecAnything ExecMode = "anything"
	ExecListed   ExecMode = "listed"
)

// StdinMode says what standard input is.
type StdinMode string

// Stdin modes.
const (
	StdinPipe StdinMode = "pipe"
	StdinNull StdinMode = "null"
)

// Filter names the seccomp filter: a base and what policy added or took away.
// Names are of system calls.
type Filter struct {
	Base  string   `json:"base"` // default or strict
	Allow []string `json:"allow,omitzero"`
	Deny  []string `json:"deny,omitzero"`
}

// Access is a set of things a Rule allows.
type Access string

// Access letters of a Rule.
const (
	AccessRead  = "r" // read files, list directories
	AccessWrite = "w" // write, make, remove, rename
	AccessExec  = "x" // execute
	AccessList  = "l" // list directories, nothing else
)

// Rules is the Landlock ruleset: what is not allowed by a Rule is denied.
type Rules struct {
	Rules []Rule `json:"rules"`
}

// Rule allows Access (letters r, w, x) below Path, a path in the view.
type Rule struct {
	Path   string `json:"path"`
	Access Access `json:"access"`
}

// Rlimit is one resource limit; soft and hard are the same.
type Rlimit struct {
	Name  string `json:"name"`  // nofile, fsize, core, cpu, stack, memlock, nproc, …: setrlimit(2) without RLIMIT_, lower case
	Value uint64 `json:"value"` // bytes, seconds or a count, as setrlimit(2) says
}

// NoCore is the limit with which nothing is dumped, neither to a file nor to a
// program that the host has for that: one byte. The kernel takes 0 for files alone,
// and the program gets the dump as root on the host: core(5).
func NoCore() Rlimit { return Rlimit{Name: "core", Value: 1} }

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
	Control Control `json:"control"`
	Level   Level   `json:"level"`
}

// Identity says which file a descriptor or a path is.
type Identity struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// Site is the part of a Spec that one pen alone has, and all that is known of it
// before its command is.
type Site struct {
	UID     uint32     `json:"uid"` // run uid on the host
	GID     uint32     `json:"gid"`
	DiskUID uint32     `json:"disk_uid"` // owner of idmapped attaches on disk
	DiskGID uint32     `json:"disk_gid"`
	Attach  []Identity `json:"attach"` // facts of the descriptors of Profile.Attach
	Cgroup  string     `json:"cgroup"` // process cgroup, relative to the base that the stage was started with
	Join    []JoinFile `json:"join"`   // cgroup v1 directories that the target enters beside Cgroup, in order
	Rows    uint16     `json:"rows"`   // terminal size with PTY
	Cols    uint16     `json:"cols"`
}

// Command is what a pen executes.
type Command struct {
	Program   string   `json:"program"` // path inside the view
	ProgramID Identity `json:"program_id"`
	Script    bool     `json:"script"` // starts with #!: executed by its path, not by descriptor
	Argv      []string `json:"argv"`
	Env       []string `json:"env"` // NAME=value
	Dir       string   `json:"dir"` // working directory inside the view
	DirID     Identity `json:"dir_id"`
	Timed     bool     `json:"timed,omitzero"` // the answer has the laps of the launch
}

// JoinFile is a file of a cgroup v1 hierarchy through which the target enters a
// cgroup by writing "0": tasks or cgroup.procs, below our base there.
type JoinFile struct {
	Controller string `json:"controller"` // names the hierarchy: one of those the stage was started with
	Path       string `json:"path"`       // relative to our base in that hierarchy
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

// Fact is what look found at a name.
type Fact struct {
	Name       string   `json:"name"` // as asked
	Path       string   `json:"path"` // resolved: absolute, no symlinks
	ID         Identity `json:"id"`
	UID        uint32   `json:"uid"`
	GID        uint32   `json:"gid"`
	Mode       uint32   `json:"mode"` // permission and file type bits of stat(2)
	Size       int64    `json:"size"`
	MtimeNs    int64    `json:"mtime_ns"`
	CtimeNs    int64    `json:"ctime_ns"`
	Kind       Kind     `json:"kind"`
	Interp     string   `json:"interp,omitzero"` // ELF loader, or the interpreter of a script
	Executable bool     `json:"executable"`      // the caller may execute it
	Err        string   `json:"err,omitzero"`    // why there is nothing: an errno name such as ENOENT, EACCES, ELOOP; with KindELF and KindScript: why Interp cannot be executed
}

// LookRequest names what step 3 looks at, with the caller's file-system ids.
type LookRequest struct {
	Programs []string `json:"programs"` // each absolute, or a bare name looked up in Path; order is kept
	Path     []string `json:"path"`     // directories searched for bare names
	Dir      string   `json:"dir"`      // working directory; empty: none
	Under    []string `json:"under"`    // entries of workspace.under; resolved so that "strictly below" can be decided
}

// Looked is the answer to a LookRequest; files are in the same order as asked.
type Looked struct {
	Programs []Fact `json:"programs"`
	Dir      Fact   `json:"dir"`
	Under    []Fact `json:"under"`
}

// Same reports whether two looks found the same.
func (l Looked) Same(o Looked) bool {
	return l.Dir.same(o.Dir) && slices.EqualFunc(l.Programs, o.Programs, Fact.same) && slices.EqualFunc(l.Under, o.Under, Fact.same)
}

// same leaves out what changes in a directory with each name that comes or goes there:
// nothing rests on it.
func (f Fact) same(o Fact) bool {
	if f.Kind == KindDir && o.Kind == KindDir {
		f.Size, f.MtimeNs, f.CtimeNs = o.Size, o.MtimeNs, o.CtimeNs
	}
	return f == o
}

// Seen is what an earlier look found. A command that rests on it goes to a prepared pen
// only if a look finds the same once more.
type Seen struct {
	Request LookRequest `json:"request"`
	Looked  Looked      `json:"looked"`
	Mount   MountFacts  `json:"mount"` // of Looked.Dir, where it was found
}

// Opening is what the target opens for a command before the last gate.
type Opening struct {
	Program   string   `json:"program"` // path inside the view
	ProgramID Identity `json:"program_id"`
	Dir       string   `json:"dir"` // working directory inside the view
	DirID     Identity `json:"dir_id"`
}

// Opening is what the target opens for c.
func (c *Command) Opening() Opening {
	return Opening{Program: c.Program, ProgramID: c.ProgramID, Dir: c.Dir, DirID: c.DirID}
}

// Known says whether both files were looked at: only then two Openings that are equal are of
// the same files.
func (o Opening) Known() bool { return o.ProgramID != (Identity{}) && o.DirID != (Identity{}) }

// Status is what PID 1 of a pen reports at the end of its target.
type Status struct {
	Exited                                        bool          `json:"exited"` // false: killed by Signal
	Code                                          int           `json:"code"`   // exit status when Exited
	Signal                                        int           `json:"signal"` // number of the signal otherwise
	Core                                          bool          `json:"core"`
	User                                          time.Duration `json:"user"` // of the target and the children it waited for: getrusage(2)
	System                                        time.Duration `json:"system"`
	MaxRSS                                        Bytes         `json:"max_rss"`
	InBlock, OutBlock, VolSwitches, InvolSwitches int64
}
