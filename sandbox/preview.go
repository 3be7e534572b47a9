package sandbox

import (
	"fmt"
	"slices"

	"pinfold/sandbox/internal/filter"
)

// Preview returns the Program of a profile as the stage compiles it on a host with
// these features, for people to read: fmt.Stringer prints it like strace(1). What
// only one launch knows is left out: denied paths that were found there, and
// attaches that are files. join are the cgroups that the target enters.
func Preview(p Profile, f Features, join ...Join) (fmt.Stringer, error) {
	b := Build{Join: join, Groups: On, LandlockABI: f.LandlockABI}
	if p.Exec == ExecListed && !p.UserNS && f.Has(FeatureMemfdNoexec) {
		b.MemfdNoexec = On
	}
	prog, err := filter.Compile(p.Seccomp.Base, p.Seccomp.Allow, p.Seccomp.Deny, FilterOptions(p, b.MemfdNoexec))
	if err != nil {
		return nil, err
	}
	b.Filter = prog.Insns
	return Compile(p, b)
}

// FilterOptions returns what the filter of a profile depends on besides names;
// noexec says whether PID 1 forbids anonymous executables by itself.
func FilterOptions(p Profile, noexec Switch) filter.Options {
	var o filter.Options
	if p.Exec == ExecListed && noexec == Off {
		o.Memfd = filter.MemfdRefused
	}
	if slices.Contains(p.Rlimits, NoCore()) {
		o.Core = filter.CoreNever
	}
	return o
}
