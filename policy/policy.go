// Package policy decides what a caller's command may do. It owns the policy
// file: its strict reading with positions, its defaults, the decision about one
// request, and every text that explains that decision. It is pure: it never
// opens a file, a socket or a process, never looks at the clock or the
// environment, and the same inputs always give the same answer. Facts about the
// host (which file a name is, which id a user has) come in as values.
//
// The walk of a decision: Parse makes a Policy from sources, Bind gives its
// names their ids, Admit says who may connect, Candidates says what has to be
// looked at for a request, Decide turns the request and the facts into a Grant
// or a *Denied. Nothing in a request widens what the policy gives.
package policy

import "time"

// Bytes is a size in bytes.
type Bytes int64

// Units of sizes as a policy file spells them.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// Unset is the value of a size or count that a policy leaves without a limit.
const Unset = -1

// ScratchPath is where a session's scratch workspace appears inside a view, and
// what ${workspace} stands for when a request names no working directory.
const ScratchPath = "/workspace"

// PenHome is the home directory inside a view for a run uid that has none of
// its own on the host.
const PenHome = "/home/pen"

// Source is one policy file: its name as messages show it, and its bytes.
type Source struct {
	Name string
	Data []byte
}

// Policy is a set of rules that was read without a problem. It is immutable but
// for Bind, and then safe for concurrent use.
type Policy struct {
	callers  []callerRule
	profiles []*profile
	audit    AuditSettings
	dynamic  DynamicRange
	ids      IDs
}

// AuditSync says when audit records are flushed to the disk.
type AuditSync string

// Ways to flush audit records.
const (
	SyncNone     AuditSync = "none"     // left to the kernel
	SyncInterval AuditSync = "interval" // fdatasync(2) every AuditSettings.Interval
	SyncEach     AuditSync = "each"     // fdatasync(2) after every record
)

// OnFailure says what happens to a spawn when its audit record cannot be written.
type OnFailure string

// Answers to an audit log that cannot be written.
const (
	FailureRefuse   OnFailure = "refuse"
	FailureContinue OnFailure = "continue"
)

// AuditSettings are the top-level key audit.
type AuditSettings struct {
	Sync      AuditSync
	Interval  time.Duration // between flushes with SyncInterval
	OnFailure OnFailure
}

// DynamicRange are the uids that run_as: dynamic takes from: Count of them from
// First on. The first is the one of every pen's PID 1.
type DynamicRange struct {
	First uint32
	Count uint32
}

// Audit returns the settings of the audit log.
func (p *Policy) Audit() AuditSettings { return p.audit }

// Dynamic returns the range of dynamic uids.
func (p *Policy) Dynamic() DynamicRange { return p.dynamic }

// Profiles returns the names of all profiles in the order of the sources.
func (p *Policy) Profiles() []string {
	names := make([]string, 0, len(p.profiles))
	for _, f := range p.profiles {
		names = append(names, f.name)
	}
	return names
}

// profile finds a resolved profile by name; nil if there is none.
func (p *Policy) profile(name string) *profile {
	for _, f := range p.profiles {
		if f.name == name {
			return f
		}
	}
	return nil
}
