// Package record owns what the next daemon finds of this one's sessions and processes:
// one small file for each, in memory that outlives the daemon and not the host. It
// stores and reads; it never decides what becomes of what a record names, and never
// opens anything but its own directory.
//
//	DIR/daemon.json       where the daemon's cgroups are
//	DIR/session/ID.json   written when a session opens, and when what it has changes
//	DIR/process/ID.json   written before the last gate of its pen opens, and when its life moves
//	DIR/ops/ID.json       the operations of a session; another package writes it
//	DIR/broken/           records that could not be read, for a person to look at
//
// A record is written whole under another name and renamed (rename(2) is atomic), so
// that whoever is killed in the middle leaves the old one. No disk is waited for.
package record

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Version of the format that this build writes. It grows with every change of a type of
// this package, of what session, sandbox and proto put into its raw values, and of what
// ops writes beside them.
//
// To change the format: 1 keep the old types beside the new in a file of their own, 2 a
// row in readers that turns them into the new, 3 Version, 4 golden files of the new
// version (go test -update); those of old versions stay and are read by the tests.
const Version = 1

// Limits of records.
const (
	maxRecord = 256 << 10 // bytes of one; a usual one has 2 KiB
	maxAside  = 16        // broken records that are kept to be looked at
	maxName   = 128       // bytes of an id
)

// Daemon is what is known of the daemon.
type Daemon struct {
	Boot        string      `json:"boot"` // boot id of the host, random(4)
	Hierarchies []Hierarchy `json:"hierarchies"`
}

// Hierarchy is a directory in which the daemon has its cgroups.
type Hierarchy struct {
	Controller string `json:"controller"` // empty: cgroup v2
	Dir        string `json:"dir"`
}

// Session is what is known of a session.
type Session struct {
	ID        string         `json:"id"`
	Boot      string         `json:"boot"` // boot id of the host, random(4)
	Opened    Instant        `json:"opened"`
	Caller    Caller         `json:"caller"`
	Admission Admission      `json:"admission"`
	Role      string         `json:"role,omitzero"`
	Form      string         `json:"form,omitzero"` // of the data of events
	Batch     bool           `json:"batch,omitzero"`
	RunUID    uint32         `json:"run_uid,omitzero"` // its dynamic uid; 0: none taken
	Scratch   []Scratch      `json:"scratch,omitzero"`
	Left      Instant        `json:"left,omitzero"` // when its client left; zero: it is there
	Over      bool           `json:"over,omitzero"` // it ends
	Grace     Nanos          `json:"grace_ns,omitzero"`
	Tokens    jsontext.Value `json:"tokens,omitzero"` // hashes of what resumes it
}

// Caller is who opened a session.
type Caller struct {
	UID       uint32   `json:"uid"`
	GID       uint32   `json:"gid"`
	GIDs      []uint32 `json:"gids,omitzero"`
	Name      string   `json:"name,omitzero"`
	Home      string   `json:"home,omitzero"`
	Unit      string   `json:"unit,omitzero"`
	UnitKnown bool     `json:"unit_known,omitzero"`
}

// Admission is what policy gave the caller when the session was opened.
type Admission struct {
	Caller    string   `json:"caller"` // name of the rule
	Rule      Rule     `json:"rule"`
	Profiles  []string `json:"profiles,omitzero"`
	Manage    string   `json:"manage,omitzero"`
	RunAs     string   `json:"run_as,omitzero"`
	DetachTTL Nanos    `json:"detach_ttl_ns"`
	Retention Nanos    `json:"retention_ns"`
	Sessions  int      `json:"sessions"`  // of the caller; 0: no limit
	Processes int      `json:"processes"` // likewise
}

// Rule is a place in a policy file.
type Rule struct {
	File string `json:"file,omitzero"`
	Line int    `json:"line,omitzero"`
	Text string `json:"text"`
}

// Scratch is a memory file system of a session.
type Scratch struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

// Process is what is known of a process from its last gate to the end of its retention.
type Process struct {
	ID        string         `json:"id"`
	Session   string         `json:"session"`
	Boot      string         `json:"boot"`
	Mark      jsontext.Value `json:"mark"` // what finds the pen again
	Cgroup    string         `json:"cgroup"`
	PID       int            `json:"pid"`
	Request   string         `json:"request"`     // id of the spawn; its events carry it
	Op        string         `json:"op,omitzero"` // op_id of the spawn
	Rule      string         `json:"rule"`        // that allowed it
	Argv      []string       `json:"argv"`        // as answers show it
	Labels    []string       `json:"labels,omitzero"`
	PTY       bool           `json:"pty,omitzero"`
	Stdin     bool           `json:"stdin,omitzero"` // it was started with a pipe there
	Profile   string         `json:"profile"`
	Workspace string         `json:"workspace"`
	Asked     Instant        `json:"asked"`
	Begun     Instant        `json:"begun"`
	Timeout   Timeout        `json:"timeout"`
	Linger    Nanos          `json:"linger_ns,omitzero"`
	Output    Output         `json:"output"`
	Stop      Stop           `json:"stop,omitzero"`
	Exited    Instant        `json:"exited,omitzero"`  // when its end was seen; zero: it was not
	Verdict   jsontext.Value `json:"verdict,omitzero"` // once it stands
	Audited   bool           `json:"audited,omitzero"` // the audit record has it
	Told      bool           `json:"told,omitzero"`    // the final event was sent to its owner
}

// Timeout are the times after which a process is ended; 0 is off.
type Timeout struct {
	Wall Nanos `json:"wall_ns,omitzero"`
	CPU  Nanos `json:"cpu_ns,omitzero"`
	Idle Nanos `json:"idle_ns,omitzero"`
	Stop Nanos `json:"stop_ns,omitzero"`
}

// Output are the limits of the output streams.
type Output struct {
	Keep     int64  `json:"keep"`
	Limit    int64  `json:"limit"`
	Overflow string `json:"overflow"`
	Quota    int64  `json:"quota"` // of the caller, for all spools
}

// Stop says why and how far a process is being ended by us; its zero value: it is not.
type Stop struct {
	Cause string  `json:"cause,omitzero"`
	By    string  `json:"by,omitzero"`
	Scope string  `json:"scope,omitzero"`
	Due   Instant `json:"due,omitzero"`  // end of its grace period; zero: it has none
	Told  bool    `json:"told,omitzero"` // SIGTERM was sent
	Kill  bool    `json:"kill,omitzero"` // its cgroup is to be killed
}

// Nanos is a time.Duration as a record has it: a number.
type Nanos int64

// header is what every version has.
type header struct {
	Version int `json:"version"`
}

// sessionFile and processFile are records as they lie on disk.
type sessionFile struct {
	header
	Session
}

type daemonFile struct {
	header
	Daemon
}

type processFile struct {
	header
	Process
}

// NewerError is a record of a version that this build does not know.
type NewerError struct {
	File    string
	Kind    string // as Broken has it
	ID      string
	Version int
}

// Error names the file, both versions and the cure.
func (e *NewerError) Error() string {
	return fmt.Sprintf("cannot read record %q: it has version %d, and this pinfoldd knows versions up to %d: start the pinfoldd that wrote it, or a later one; or end what runs with pinfoldd --sweep", e.File, e.Version, Version)
}

// versionOf reads the version of a record of any version.
func versionOf(b []byte) (int, error) {
	var h header
	if err := json.Unmarshal(b, &h); err != nil {
		return 0, err
	}
	if h.Version < 1 {
		return 0, fmt.Errorf("it has version %d", h.Version)
	}
	return h.Version, nil
}

// decodeSession reads a session of any version up to ours. Names that the version does
// not have, duplicates and invalid UTF-8 are refused.
func decodeSession(version int, b []byte) (Session, error) {
	switch version {
	case Version:
		var f sessionFile
		err := strictly(b, &f)
		return f.Session, err
	default:
		return Session{}, fmt.Errorf("no reader of version %d", version)
	}
}

// decodeProcess is decodeSession for a process.
func decodeProcess(version int, b []byte) (Process, error) {
	switch version {
	case Version:
		var f processFile
		err := strictly(b, &f)
		return f.Process, err
	default:
		return Process{}, fmt.Errorf("no reader of version %d", version)
	}
}

// decodeDaemon is decodeSession for the daemon.
func decodeDaemon(version int, b []byte) (Daemon, error) {
	switch version {
	case Version:
		var f daemonFile
		err := strictly(b, &f)
		return f.Daemon, err
	default:
		return Daemon{}, fmt.Errorf("no reader of version %d", version)
	}
}

func strictly(b []byte, to any) error {
	return json.Unmarshal(b, to, json.RejectUnknownMembers(true))
}

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true)) // an argument is any bytes
	if err == nil && len(b) > maxRecord {
		err = fmt.Errorf("it has %d bytes; a record has at most %d", len(b), maxRecord)
	}
	return b, err
}

// checkID refuses names that could leave the directory.
func checkID(id string) error {
	ok := id != "" && len(id) <= maxName
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if !ok {
		return errors.New("the id is not 1 to 128 of A-Z a-z 0-9 _ -")
	}
	return nil
}
