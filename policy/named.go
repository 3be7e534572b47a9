package policy

import "slices"

// NamedUIDs returns the uids that a run_as names, sorted, each once. Uid 0 is
// never among them, nor is a user whom the host does not know.
func (p *Policy) NamedUIDs() []uint32 {
	var uids []uint32
	add := func(o opt[string]) {
		if !o.set || o.v == string(RunAsCaller) || o.v == string(RunAsDynamic) {
			return
		}
		if u, ok := p.ids.Users[o.v]; ok && u.UID != 0 {
			uids = append(uids, u.UID)
		}
	}
	for _, c := range p.callers {
		add(c.runAs)
	}
	for _, f := range p.profiles {
		add(f.runAs)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}
