package policy

import "time"

// opt is a value that a file may leave out.
type opt[T any] struct {
	v   T
	set bool
	pos Pos
}

// or returns the value, or def when it was left out.
func (o opt[T]) or(def T) T {
	if o.set {
		return o.v
	}
	return def
}

// word is a string with its place.
type word struct {
	text string
	pos  Pos
}

// callerRule is one entry of callers.
type callerRule struct {
	pos       Pos
	name      string
	match     matchRule
	profiles  []word
	quota     quotaRule
	detachTTL opt[time.Duration]
	retention opt[time.Duration]
	manage    opt[Manage]
	token     opt[string]
	runAs     opt[string]
}

// matchRule says whom a caller rule is for: every part given must match.
type matchRule struct {
	pos    Pos
	any    bool
	users  []word
	groups []word
	units  []word
	uids   []uint32
	gids   []uint32
	given  map[string]bool
}

type quotaRule struct {
	sessions, processes opt[int64]
	memory, output      opt[Bytes]
	cpu                 opt[float64]
	pids                opt[int64]
}

// command is one entry of commands.
type command struct {
	pos   Pos
	name  string // bare name or absolute path
	allow []pattern
	deny  []pattern
	given bool // args.allow is there
}

// pattern is one argument pattern.
type pattern struct {
	pos    Pos
	text   string
	tokens []string
}

// profile is one entry of profiles; after Parse its lists hold what it inherits
// too.
type profile struct {
	pos       Pos
	name      string
	extends   opt[string]
	commands  []command
	runAs     opt[string]
	under     opt[[]word]
	scratch   opt[string]
	env       envRule
	fs        fsRule
	net       opt[Net]
	seccomp   opt[Seccomp]
	pen       opt[Pen]
	rlimits   []rlimitRule
	userns    opt[bool]
	allowRoot opt[bool]
	cgroup    cgroupRule
	timeout   timeoutRule
	linger    opt[time.Duration]
	output    outputRule
	controls  []controlRule
	exec      opt[Exec]
}

type envRule struct {
	set   []envSet
	allow []word
	deny  []word
	dir   opt[string]
	given bool // allow is there
}

type envSet struct {
	name, value string
	pos         Pos
}

type fsRule struct {
	read, write, deny opt[[]word]
	absent            opt[Absent]
	missing           opt[Missing]
	tmpSize           opt[Bytes]
	tmpExec           opt[bool]
	home              opt[Home]
}

type rlimitRule struct {
	Rlimit
	pos Pos
}

type cgroupRule struct {
	memory, swap opt[Bytes]
	pids         opt[int64]
	cpu          opt[float64]
	ioWeight     opt[int64]
}

type timeoutRule struct {
	wall, cpu, idle, start, stop opt[time.Duration]
}

type outputRule struct {
	keep, limit opt[Bytes]
	overflow    opt[Overflow]
}

type controlRule struct {
	control Control
	level   Level
	pos     Pos
}
