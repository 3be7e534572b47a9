package policy

import "time"

// Caller is who asks, as the kernel says it: never anything from a message.
type Caller struct {
	UID       uint32
	GID       uint32
	GIDs      []uint32 // supplementary groups, SO_PEERGROUPS (Linux 4.13, socket(7))
	Name      string   // login name of UID; empty if it has none
	Home      string   // home directory of UID; empty if it has none
	Unit      string   // system unit as sd_pid_get_unit(3) finds it; empty if it runs in none
	UnitKnown bool     // false: the unit could not be found out, and rules on units do not match
}

// Manage says what an operator's connection may see and end.
type Manage string

// Reaches of an operator.
const (
	ManageNone Manage = "none"
	ManageOwn  Manage = "own" // the processes of all sessions of the same uid
	ManageAll  Manage = "all"
)

// Quota is what all sessions of one caller may use together.
type Quota struct {
	Sessions  int     // open sessions
	Processes int     // live processes over all sessions
	Memory    Bytes   // of the caller's cgroup; Unset: no limit
	CPU       float64 // cores of the caller's cgroup; 0: no limit
	Pids      int64   // of the caller's cgroup; Unset: no limit
	Output    Bytes   // spool bytes, live and retained; Unset: no limit
}

// Admission is what a caller gets before it asks for anything.
type Admission struct {
	Caller        string   // name of the caller rule
	Profiles      []string // in the order in which they are tried
	Quota         Quota
	DetachTTL     time.Duration // how long a session waits for its client to come back; 0: not at all
	Retention     time.Duration // how long a finished process is kept; 0: not at all
	Manage        Manage
	AuthTokenFile string // absolute path of a file that holds the token; empty: none is asked for
	RunAs         string // as whom this caller runs whatever the profile says; empty: the profile decides
	Rule          Rule
	Notes         []string // why earlier rules did not match although they might have (an unknown unit)
}

// User is a host user.
type User struct {
	UID  uint32
	GID  uint32
	Home string
}

// IDs are the ids of names that a policy mentions.
type IDs struct {
	Users  map[string]User
	Groups map[string]uint32
}

// Names are the user and group names that a policy mentions, sorted, each once.
type Names struct {
	Users  []string
	Groups []string
}

// Warning is something about a policy or a host that does not stop it from loading.
type Warning struct {
	Pos  Pos
	Text string
}

func (w Warning) String() string { return w.Pos.String() + ": " + w.Text }
