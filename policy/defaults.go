package policy

import (
	_ "embed" // the default policy
	"time"
)

//go:embed default.yaml
var defaultYAML string

// DefaultName is the name of the embedded policy in messages.
const DefaultName = "embedded:default.yaml"

// DefaultSource returns the policy that holds where none was written: every
// user gets a pen with common tools, no network and a workspace below its home
// or a scratch one.
func DefaultSource() Source { return Source{Name: DefaultName, Data: []byte(defaultYAML)} }

// Defaults of omitted keys, in the order of the reference.
const (
	defaultSessions  = 32
	defaultProcesses = 64
	defaultOutput    = 256 * MiB
	defaultDetach    = 30 * time.Second
	defaultRetention = time.Hour
	defaultTmpSize   = 256 * MiB
	defaultMemory    = 1 * GiB
	defaultPids      = 256
	defaultStart     = 5 * time.Second
	defaultStop      = 5 * time.Second
	defaultKeep      = 8 * MiB
	defaultNofile    = 4096
)

func defaultAudit() AuditSettings {
	return AuditSettings{Sync: SyncInterval, Interval: time.Second, OnFailure: FailureRefuse}
}

// defaultDynamic is a range that neither login.defs(5) nor the usual subuid(5)
// ranges nor systemd's dynamic users touch.
func defaultDynamic() DynamicRange { return DynamicRange{First: 1900000000, Count: 65536} }

// defaultRead is the base view.
func defaultRead() []string {
	return []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
		"/etc/ssl", "/etc/ca-certificates", "/etc/alternatives",
	}
}

func defaultWrite() []string { return []string{"${workspace}"} }

func defaultUnder() []string { return []string{"${home}"} }

func defaultRlimits() []Rlimit { return []Rlimit{{"core", 0}, {"nofile", defaultNofile}} }

// defaultLevel is how much a control is needed when the policy does not say.
func defaultLevel(c Control) Level {
	switch c {
	case ControlIO:
		return LevelBestEffort
	case ControlUserNS:
		return LevelOff
	case ControlMounts, ControlLandlock, ControlSeccomp, ControlCaps, ControlPidNS, ControlIPCNS, ControlNetNS,
		ControlMemory, ControlPids, ControlCPU, ControlRlimits:
		return LevelRequired
	}
	return LevelRequired
}

// searchPath is where bare names of programs are looked up, and the default of
// PATH inside. It is fixed: what a name means must not depend on the request.
func searchPath() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}
