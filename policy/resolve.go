package policy

import (
	"fmt"
	"strings"
)

// Parse reads all sources, in order, as one policy. The error is a *Problems
// with everything that is wrong, each with its place.
func Parse(sources ...Source) (*Policy, error) {
	d := &decoder{}
	p := &Policy{audit: defaultAudit(), dynamic: defaultDynamic()}
	join := joiner{d: d, p: p, profiles: make(map[string]Pos), callers: make(map[string]Pos)}
	whole := true
	for _, s := range sources {
		unread := len(d.list)
		root := d.readYAML(s)
		if root == nil {
			whole = whole && len(d.list) == unread
			continue
		}
		var doc document
		before := len(d.list)
		decodeMap(d, root, "a policy", fileFields(), &doc)
		if !doc.version.set && len(d.list) == before {
			d.problem(root.pos, "no version", "begin with version: 1")
		}
		join.add(doc)
	}
	if len(sources) == 0 {
		d.problem(Pos{"policy", 1, 1}, "no source", "")
	}
	p.nameCallers()
	if whole { // else most of what does not fit would be the missing part's fault
		v := validator{d, p, make(map[string]bool)}
		v.extends()
		v.policy()
	}
	if len(d.list) > 0 {
		return nil, (&Problems{List: d.list}).sorted(sources)
	}
	return p, nil
}

// joiner puts sources together: callers one after another, profiles by name.
type joiner struct {
	d        *decoder
	p        *Policy
	profiles map[string]Pos
	callers  map[string]Pos
	audit    Pos
	dynamic  Pos
}

func (j *joiner) add(doc document) {
	for _, f := range doc.profiles {
		if first, twice := j.profiles[f.name]; twice {
			j.d.problem(f.pos, fmt.Sprintf("profile %q is there already", f.name), "first at "+first.String()+"; use extends")
			continue
		}
		j.profiles[f.name] = f.pos
		j.p.profiles = append(j.p.profiles, f)
	}
	for _, c := range doc.callers {
		if first, twice := j.callers[c.name]; twice && c.name != "" {
			j.d.problem(c.pos, fmt.Sprintf("caller %q is there already", c.name), "first at "+first.String())
		}
		j.callers[c.name] = c.pos
		j.p.callers = append(j.p.callers, c)
	}
	if doc.audit.set {
		j.once("audit", doc.audit.pos, &j.audit)
		j.p.audit = doc.audit.v
	}
	if doc.dynamic.set {
		j.once("dynamic", doc.dynamic.pos, &j.dynamic)
		j.p.dynamic = doc.dynamic.v
	}
}

func (j *joiner) once(name string, pos Pos, first *Pos) {
	if first.Line != 0 {
		j.d.problem(pos, name+" is there already", "first at "+first.String())
	}
	*first = pos
}

// nameCallers names those that the policy does not: each as no other, since records and
// quotas go by the name.
func (p *Policy) nameCallers() {
	taken := map[string]bool{}
	for _, c := range p.callers {
		taken[c.name] = true
	}
	for i := range p.callers {
		if p.callers[i].name != "" {
			continue
		}
		name := fmt.Sprintf("caller %d", i+1)
		for taken[name] {
			name = "unnamed " + name
		}
		p.callers[i].name, taken[name] = name, true
	}
}

// extends resolves inheritance: afterwards every profile stands for itself.
func (v *validator) extends() {
	const (
		unseen = iota
		open
		done
	)
	state := make(map[string]int, len(v.p.profiles))
	var chain []string
	var visit func(f *profile)
	visit = func(f *profile) {
		state[f.name] = open
		chain = append(chain, f.name)
		if f.extends.set {
			parent := v.p.profile(f.extends.v)
			v.extended[f.extends.v] = true
			switch {
			case parent == nil:
				v.d.problem(f.extends.pos, fmt.Sprintf("unknown profile %q", f.extends.v), nearestHint(f.extends.v, v.p.Profiles()))
			case state[parent.name] == open:
				v.d.problem(f.extends.pos, "a circle in extends: "+strings.Join(append(chain, parent.name), " → "), "")
			default:
				if state[parent.name] == unseen {
					visit(parent)
				}
				f.inherit(parent)
			}
		}
		chain = chain[:len(chain)-1]
		state[f.name] = done
	}
	for _, f := range v.p.profiles {
		if state[f.name] == unseen {
			visit(f)
		}
	}
}

// inherit adds what the parent has: its lists before the own, its other keys
// where there is no own.
func (f *profile) inherit(parent *profile) {
	f.commands = joined(parent.commands, f.commands)
	over(&f.runAs, parent.runAs)
	add(&f.under, parent.under)
	over(&f.scratch, parent.scratch)
	f.env.inherit(parent.env)
	f.fs.inherit(parent.fs)
	over(&f.net, parent.net)
	f.inheritSeccomp(parent)
	over(&f.pen, parent.pen)
	f.inheritRlimits(parent)
	over(&f.userns, parent.userns)
	over(&f.allowRoot, parent.allowRoot)
	over(&f.cgroup.memory, parent.cgroup.memory)
	over(&f.cgroup.swap, parent.cgroup.swap)
	over(&f.cgroup.pids, parent.cgroup.pids)
	over(&f.cgroup.cpu, parent.cgroup.cpu)
	over(&f.cgroup.ioWeight, parent.cgroup.ioWeight)
	over(&f.timeout.wall, parent.timeout.wall)
	over(&f.timeout.cpu, parent.timeout.cpu)
	over(&f.timeout.idle, parent.timeout.idle)
	over(&f.timeout.start, parent.timeout.start)
	over(&f.timeout.stop, parent.timeout.stop)
	over(&f.linger, parent.linger)
	over(&f.output.keep, parent.output.keep)
	over(&f.output.limit, parent.output.limit)
	over(&f.output.overflow, parent.output.overflow)
	f.inheritControls(parent)
	over(&f.exec, parent.exec)
}

func (e *envRule) inherit(parent envRule) {
	own := e.set
	e.set = nil
	for _, p := range parent.set {
		if !hasEnv(own, p.name) {
			e.set = append(e.set, p)
		}
	}
	e.set = append(e.set, own...)
	e.allow = joined(parent.allow, e.allow)
	e.given = e.given || parent.given
	e.deny = joined(parent.deny, e.deny)
	over(&e.dir, parent.dir)
}

func hasEnv(list []envSet, name string) bool {
	for _, e := range list {
		if e.name == name {
			return true
		}
	}
	return false
}

func (r *fsRule) inherit(parent fsRule) {
	add(&r.read, parent.read)
	add(&r.write, parent.write)
	add(&r.deny, parent.deny)
	over(&r.absent, parent.absent)
	over(&r.missing, parent.missing)
	over(&r.tmpSize, parent.tmpSize)
	over(&r.tmpExec, parent.tmpExec)
	over(&r.home, parent.home)
}

// inheritSeccomp keeps the parent's denies: nothing that extends gets them back.
func (f *profile) inheritSeccomp(parent *profile) {
	if !parent.seccomp.set {
		return
	}
	if !f.seccomp.set {
		f.seccomp = parent.seccomp
		return
	}
	f.seccomp.v.Allow = joined(parent.seccomp.v.Allow, f.seccomp.v.Allow)
	f.seccomp.v.Deny = joined(parent.seccomp.v.Deny, f.seccomp.v.Deny)
}

func (f *profile) inheritRlimits(parent *profile) {
	own := f.rlimits
	f.rlimits = nil
	for _, p := range parent.rlimits {
		if !hasRlimit(own, p.Name) {
			f.rlimits = append(f.rlimits, p)
		}
	}
	f.rlimits = append(f.rlimits, own...)
}

func hasRlimit(list []rlimitRule, name string) bool {
	for _, r := range list {
		if r.Name == name {
			return true
		}
	}
	return false
}

func (f *profile) inheritControls(parent *profile) {
	own := f.controls
	f.controls = nil
	for _, p := range parent.controls {
		if !hasControl(own, p.control) {
			f.controls = append(f.controls, p)
		}
	}
	f.controls = append(f.controls, own...)
}

func hasControl(list []controlRule, c Control) bool {
	for _, r := range list {
		if r.control == c {
			return true
		}
	}
	return false
}

// over takes the parent's value where there is no own.
func over[T any](own *opt[T], parent opt[T]) {
	if !own.set {
		*own = parent
	}
}

// add puts the parent's list before the own.
func add(own *opt[[]word], parent opt[[]word]) {
	if !parent.set {
		return
	}
	*own = opt[[]word]{joined(parent.v, own.v), true, parent.pos}
}

// joined is a new list of a and b; neither is changed, and nothing is shared.
func joined[T any](a, b []T) []T {
	if len(a)+len(b) == 0 {
		return nil
	}
	return append(append(make([]T, 0, len(a)+len(b)), a...), b...)
}
