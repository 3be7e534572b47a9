package sandbox

// State says whether a control is in force.
type State string

// States of a control.
const (
	StateEnforced    State = "enforced"    // proved, see ProvedBy
	StateOff         State = "off"         // the Spec asks for it to be off
	StateUnsupported State = "unsupported" // best effort, and this host cannot give it
)

// Proof says how a control was seen to be in force.
type Proof string

// Proofs.
const (
	ProofProc   Proof = "proc"   // read from /proc of the waiting process
	ProofCanary Proof = "canary" // an act that must be refused was refused
	ProofCgroup Proof = "cgroup" // read from the files of the cgroup
	ProofMount  Proof = "mount"  // read from the mount table of the waiting process
)

// ControlState is what the kernel showed of one control.
type ControlState struct {
	Control  Control `json:"control"`
	Level    Level   `json:"level"`
	State    State   `json:"state"`
	ProvedBy Proof   `json:"proved_by,omitzero"`
	Detail   string  `json:"detail,omitzero"`
}

// CapSets are the five capability sets as status in proc(5) prints them.
type CapSets struct {
	Inheritable uint64 `json:"inheritable"`
	Permitted   uint64 `json:"permitted"`
	Effective   uint64 `json:"effective"`
	Bounding    uint64 `json:"bounding"`
	Ambient     uint64 `json:"ambient"`
}

// SeccompState is the filter in force.
type SeccompState struct {
	Mode       int    `json:"mode"`        // 2: filter
	FilterHash string `json:"filter_hash"` // SHA-256 of the target's filter
}

// LandlockState is the ruleset in force.
type LandlockState struct {
	ABI     int    `json:"abi"`
	Handled uint64 `json:"handled"` // access bits that are denied unless a rule allows them
}

// DenyState is one denied path as it was found and masked.
type DenyState struct {
	Path   string `json:"path"`
	Layer  string `json:"layer"`           // what holds it: mount, or none when nothing is there to hold
	Absent Absent `json:"absent,omitzero"` // what was done because the path did not exist; empty: it exists
	Level  Level  `json:"level,omitzero"`  // best_effort: it is looked for after the end alone; empty: required
}

// DenyChange says what became of a denied path that did not exist.
type DenyChange string

// Changes of a denied path.
const (
	DenyAppeared DenyChange = "appeared" // AbsentCheck found it
	DenyRemoved  DenyChange = "removed"  // its placeholder is gone, by an act outside of the pen
	DenyReplaced DenyChange = "replaced" // something else is where its placeholder was, by an act outside of the pen
	DenyUnknown  DenyChange = "unknown"  // it could not be looked for
)

// DenyEvent is a denied path that did not stay as it was when its pen was made.
type DenyEvent struct {
	Path   string     `json:"path"`
	Change DenyChange `json:"change"`
}

// Enforcement is what the kernel showed of a pen while its target waited at the
// last gate, just before exec. The entries of cgroup controls are added by
// whoever owns the cgroup.
type Enforcement struct {
	Controls   []ControlState    `json:"controls"`
	Namespaces map[string]uint64 `json:"namespaces"` // name in /proc/PID/ns to inode
	UID        uint32            `json:"uid"`
	GID        uint32            `json:"gid"`
	Caps       CapSets           `json:"caps"`
	NoNewPrivs bool              `json:"no_new_privs"`
	Seccomp    SeccompState      `json:"seccomp"`
	Landlock   LandlockState     `json:"landlock"`
	Rlimits    []Rlimit          `json:"rlimits"`
	MountsHash string            `json:"mounts_hash"` // SHA-256 of mount points, roots, types and options
	Denies     []DenyState       `json:"denies"`
	Degraded   []string          `json:"degraded"` // what was asked for as best effort and is not there
}
