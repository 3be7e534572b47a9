package sandbox

import "errors"

// ErrGone says that the pen of a Mark is not there any more: it has ended, the host
// has booted since, or another process has its number.
var ErrGone = errors.New("the pen is gone")

// Mark is what finds a pen again that has outlived its daemon or its stage: plain
// data, to be stored before the pen's last gate opens and given to Stage.Adopt.
// Whoever changes it finds nothing that is not a pen of that stage's.
type Mark struct {
	Boot        string      `json:"boot"`             // of the host: random(4)
	Init        ProcessMark `json:"init"`             // PID 1 of the pen, which holds its descriptors
	Target      ProcessMark `json:"target"`           // the main process
	Cgroup      string      `json:"cgroup"`           // Site.Cgroup
	Watches     []Watch     `json:"watches,omitzero"` // for Process.Denies
	Enforcement Enforcement `json:"enforcement"`      // what was read back at the last gate
}

// ProcessMark tells a process from any other of the same boot.
type ProcessMark struct {
	Pid   int    `json:"pid"`   // as the daemon sees it
	Start uint64 `json:"start"` // clock ticks since the boot: starttime in proc_pid_stat(5)
}

// Watch is a denied path that did not exist when its pen was made, and where it is
// looked for.
type Watch struct {
	Path        string   `json:"path"` // as the profile has it
	Root        string   `json:"root"` // directory of the host; empty: it has no path there
	RootID      Identity `json:"root_id"`
	Rel         string   `json:"rel"` // below Root
	UID         uint32   `json:"uid"` // with whose rights it is looked for where root may not
	GID         uint32   `json:"gid"`
	Groups      []uint32 `json:"groups,omitzero"`
	Placeholder Identity `json:"placeholder"` // zero: nothing was put there
}

// Mark returns what finds the pen again once it is started. A pen whose last gate was
// not opened ends with its daemon.
func (p *Pen) Mark() Mark {
	m := p.mark
	m.Enforcement = p.Enforcement
	return m
}

// Mark returns what finds the pen of the process again.
func (p *Process) Mark() Mark {
	m := p.mark
	m.Enforcement = p.Enforcement
	return m
}
