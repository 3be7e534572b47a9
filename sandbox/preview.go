package sandbox

import (
	"fmt"

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
	var o filter.Options
	if p.Exec == ExecListed && b.MemfdNoexec == Off {
		o.Memfd = filter.MemfdRefused
	}
	prog, err := filter.Compile(p.Seccomp.Base, p.Seccomp.Allow, p.Seccomp.Deny, o)
	if err != nil {
		return nil, err
	}
	b.Filter = prog.Insns
	return Compile(p, b)
}
