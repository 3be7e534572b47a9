package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Check looks for things that load but deserve a look: rules that can never
// matter, and openings that are wider than they seem.
func (p *Policy) Check() []Finding {
	c := &checker{p: p}
	c.callers()
	for _, f := range p.profiles {
		c.commands(f)
		c.denies(f)
		c.writes(f)
		c.network(f)
		c.loose(f)
	}
	return c.out
}

type checker struct {
	p   *Policy
	out []Finding
}

func (c *checker) warn(pos Pos, format string, args ...any) {
	c.out = append(c.out, Finding{pos, SeverityWarning, fmt.Sprintf(format, args...)})
}

func (c *checker) info(pos Pos, format string, args ...any) {
	c.out = append(c.out, Finding{pos, SeverityInfo, fmt.Sprintf(format, args...)})
}

// callers finds rules behind one that matches everybody they match, and
// profiles that nobody may use.
func (c *checker) callers() {
	if len(c.p.callers) == 0 && len(c.p.profiles) > 0 {
		c.warn(c.p.profiles[0].pos, "no callers: everybody is refused")
	}
	used := make(map[string]bool)
	for i, rule := range c.p.callers {
		for _, earlier := range c.p.callers[:i] {
			if earlier.match.covers(rule.match) {
				c.warn(rule.pos, "caller %q can never match: %s matches first", rule.name, earlier.rule())
				break
			}
		}
		for _, name := range rule.profiles {
			used[name.text] = true
		}
	}
	for _, f := range c.p.profiles {
		base := slices.ContainsFunc(c.p.profiles, func(g *profile) bool { return g.extends.set && g.extends.v == f.name })
		if !used[f.name] && !base && len(c.p.callers) > 0 {
			c.info(f.pos, "profile %q is used by no caller", f.name)
		}
	}
}

// covers says whether m matches everybody that other matches, as far as the
// rules themselves show it.
func (m matchRule) covers(other matchRule) bool {
	within := func(given string, own, others []word) bool {
		if !m.given[given] {
			return true
		}
		return other.given[given] && !slices.ContainsFunc(others, func(w word) bool {
			return !slices.ContainsFunc(own, func(o word) bool { return o.text == w.text })
		})
	}
	numbers := func(given string, own, others []uint32) bool {
		if !m.given[given] {
			return true
		}
		return other.given[given] && !slices.ContainsFunc(others, func(n uint32) bool { return !slices.Contains(own, n) })
	}
	return (m.any || within("users", m.users, other.users)) && within("groups", m.groups, other.groups) &&
		within("units", m.units, other.units) && numbers("uid", m.uids, other.uids) && numbers("gid", m.gids, other.gids)
}

// commands finds entries that another of the same profile makes pointless, and
// programs that the view does not hold.
func (c *checker) commands(f *profile) {
	for i, entry := range f.commands {
		for _, earlier := range f.commands[:i] {
			if earlier.name == entry.name && !earlier.given && len(entry.deny) == 0 {
				c.warn(entry.pos, "%s is listed with any arguments at line %d already", entry.name, earlier.pos.Line)
				break
			}
		}
		view := texts(joined(f.resolvedRead(), f.resolvedWrite()))
		if path.IsAbs(entry.name) && !within(entry.name, view) {
			c.warn(entry.pos, "%s lies in no path of fs.read or fs.write: it is not visible inside", entry.name)
		}
		if entry.given && interprets(entry.name) {
			c.info(entry.pos, "%s can run what its input says: rules for its arguments are guard-rails, the pen is the boundary", entry.name)
		}
	}
}

// interprets names programs that execute what they read.
func interprets(name string) bool {
	base := strings.TrimRight(path.Base(name), "0123456789.")
	return slices.Contains([]string{"sh", "bash", "dash", "zsh", "ksh", "busybox", "env", "xargs", "find", "awk", "gawk", "mawk", "sed", "perl", "python", "ruby", "node", "lua", "php", "make", "git", "ssh", "vim", "tar", "npm", "go", "cargo"}, base)
}

// denies finds denied paths that lie in nothing that is visible.
func (c *checker) denies(f *profile) {
	view := texts(joined(f.resolvedRead(), f.resolvedWrite()))
	// A workspace lies below these, so a deny there may come to matter.
	view = append(view, texts(f.resolvedUnder())...)
	for _, w := range f.fs.deny.v {
		if !within(w.text, view) {
			c.warn(w.pos, "deny %s can never match: no visible path holds it", w.text)
		}
		if slices.Contains(view, w.text) && w.text != "${home}" {
			c.warn(w.pos, "deny %s takes the whole of an allowed path: leave both out", w.text)
		}
	}
}

// writes finds writable trees in which something lies that steers the host.
func (c *checker) writes(f *profile) {
	for _, w := range f.resolvedWrite() {
		if !path.IsAbs(w.text) {
			if w.text == "${home}" {
				c.warn(w.pos, "write ${home}: the caller's whole home; start-up files and secrets stay protected, everything else does not")
			}
			continue
		}
		for _, steering := range joined(unwritablePaths(), secretPaths()) {
			if atOrBelow(steering, w.text) || atOrBelow(w.text, steering) {
				c.warn(w.pos, "write %s holds or lies in %s, which stays protected: a narrower path says what is meant", w.text, steering)
				break
			}
		}
		for _, tree := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/run", "/var/run"} {
			if atOrBelow(w.text, tree) || atOrBelow(tree, w.text) {
				c.warn(w.pos, "write %s: programs or sockets of the host lie in %s", w.text, tree)
				break
			}
		}
	}
	if f.exec.or(ExecAnything) == ExecAnything && !strings.Contains(strings.Join(texts(f.resolvedWrite()), " "), "${workspace}") && !f.fs.tmpExec.or(false) {
		return
	}
	if f.exec.set && f.exec.v == ExecAnything {
		c.info(f.exec.pos, "exec: anything: files that the pen writes can be executed; exec: listed forbids it")
	}
}

// network finds what the host's network or visible sockets open.
func (c *checker) network(f *profile) {
	if f.net.or(NetNone) == NetHost {
		c.warn(f.net.pos, "net: host: every service that listens on the host, also on loopback and abstract sockets, can be reached")
	}
	for _, w := range joined(f.resolvedRead(), f.resolvedWrite()) {
		for _, dir := range []string{"/run", "/var/run"} {
			if path.IsAbs(w.text) && (atOrBelow(w.text, dir) || atOrBelow(dir, w.text)) {
				c.warn(w.pos, "%s shows sockets of the host's daemons: neither read-only nor net: none stops a connection to one", w.text)
				break
			}
		}
	}
}

// loose finds limits that protect the host and are off.
func (c *checker) loose(f *profile) {
	if f.cgroup.memory.or(defaultMemory) == Unset {
		c.warn(f.cgroup.memory.pos, "cgroup.memory: off: one process can use all memory")
	}
	if f.cgroup.pids.or(defaultPids) == Unset {
		c.warn(f.cgroup.pids.pos, "cgroup.pids: off: a fork bomb is held by the caller's quota alone")
	}
	for _, n := range f.controls {
		if n.level == LevelOff && n.control != ControlIO && n.control != ControlUserNS && n.control != ControlNetNS {
			c.warn(n.pos, "controls: %s is off", n.control)
		}
		if n.level == LevelBestEffort && n.control != ControlIO {
			c.info(n.pos, "controls: %s is best effort: a host without it starts commands all the same", n.control)
		}
	}
	if i := slices.IndexFunc(f.env.allow, func(w word) bool {
		return w.text != "*" && slices.ContainsFunc(deniedEnv(), func(x string) bool { return matchName(x, strings.TrimSuffix(w.text, "*")) || x == w.text })
	}); i >= 0 {
		c.warn(f.env.allow[i].pos, "env.allow %s: a variable that makes programs load or run something else", f.env.allow[i].text)
	}
}
