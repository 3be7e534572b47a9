package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Names returns the user and group names whose ids Bind needs.
func (p *Policy) Names() Names {
	users, groups := map[string]bool{}, map[string]bool{}
	for _, w := range p.mentioned() {
		if w.group {
			groups[w.text] = true
		} else {
			users[w.text] = true
		}
	}
	return Names{slices.Sorted(maps.Keys(users)), slices.Sorted(maps.Keys(groups))}
}

// mention is a name in a policy that needs an id.
type mention struct {
	word
	group bool
	run   bool // of run_as
}

func (p *Policy) mentioned() []mention {
	var out []mention
	run := func(o opt[string]) {
		if o.set && o.v != string(RunAsCaller) && o.v != string(RunAsDynamic) {
			out = append(out, mention{word{o.v, o.pos}, false, true})
		}
	}
	for _, c := range p.callers {
		for _, w := range c.match.users {
			if w.text != "*" {
				out = append(out, mention{w, false, false})
			}
		}
		for _, w := range c.match.groups {
			out = append(out, mention{w, true, false})
		}
		run(c.runAs)
	}
	for _, f := range p.profiles {
		run(f.runAs)
	}
	return out
}

// Bind gives the names of the policy their ids. A name without one matches
// nobody, and a warning says so. It is called once, before the policy is used.
func (p *Policy) Bind(ids IDs) []Warning {
	p.ids = IDs{Users: maps.Clone(ids.Users), Groups: maps.Clone(ids.Groups)}
	var out []Warning
	seen := make(map[Warning]bool)
	warn := func(pos Pos, text string) {
		w := Warning{pos, text}
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	for _, m := range p.mentioned() {
		if m.group {
			if _, known := ids.Groups[m.text]; !known {
				warn(m.pos, fmt.Sprintf("this host has no group %q; it matches nobody", m.text))
			}
			continue
		}
		user, known := ids.Users[m.text]
		switch {
		case !known && m.run:
			warn(m.pos, fmt.Sprintf("this host has no user %q; every spawn that runs as it is refused", m.text))
		case !known:
			warn(m.pos, fmt.Sprintf("this host has no user %q; it matches nobody", m.text))
		case m.run && (user.UID == 0 || user.GID == 0):
			warn(m.pos, fmt.Sprintf("user %q has uid or gid 0, which never enters a pen; every spawn that runs as it is refused", m.text))
		}
	}
	return out
}

// Admit finds the first caller rule that matches; the error is a *Denied.
func (p *Policy) Admit(c Caller) (*Admission, error) {
	rule, notes := p.callerRule(c)
	if rule == nil {
		return nil, p.unauthorized(c, notes)
	}
	return &Admission{
		Caller:        rule.name,
		Profiles:      texts(rule.profiles),
		Quota:         rule.quota.resolve(),
		DetachTTL:     rule.detachTTL.or(defaultDetach),
		Retention:     rule.retention.or(defaultRetention),
		Manage:        rule.manage.or(ManageOwn),
		AuthTokenFile: rule.token.or(""),
		RunAs:         rule.runAs.or(""),
		Rule:          rule.rule(),
		Notes:         notes,
	}, nil
}

func (c *callerRule) rule() Rule {
	return Rule{c.pos.File, c.pos.Line, fmt.Sprintf("caller %q", c.name)}
}

func (q quotaRule) resolve() Quota {
	return Quota{
		Sessions:  int(q.sessions.or(defaultSessions)),
		Processes: int(q.processes.or(defaultProcesses)),
		Memory:    q.memory.or(Unset),
		CPU:       q.cpu.or(0),
		Pids:      q.pids.or(Unset),
		Output:    q.output.or(defaultOutput),
	}
}

func texts(list []word) []string {
	out := make([]string, 0, len(list))
	for _, w := range list {
		out = append(out, w.text)
	}
	return out
}

// callerRule finds the first rule that matches, and says which might have.
func (p *Policy) callerRule(c Caller) (*callerRule, []string) {
	var notes []string
	for i := range p.callers {
		rule := &p.callers[i]
		if len(rule.match.given) == 0 || !p.matchesIDs(rule.match, c) {
			continue
		}
		if !rule.match.given["units"] {
			return rule, notes
		}
		if !c.UnitKnown {
			notes = append(notes, fmt.Sprintf("%s: does not match: the unit of the caller is not known", rule.rule()))
			continue
		}
		if slices.ContainsFunc(rule.match.units, func(w word) bool { return matchUnit(w.text, c.Unit) }) {
			return rule, notes
		}
	}
	return nil, notes
}

// matchesIDs compares everything of a rule but units.
func (p *Policy) matchesIDs(m matchRule, c Caller) bool {
	if m.given["users"] && !m.any && !slices.ContainsFunc(m.users, func(w word) bool {
		user, known := p.ids.Users[w.text]
		return known && user.UID == c.UID
	}) {
		return false
	}
	if m.given["groups"] && !slices.ContainsFunc(m.groups, func(w word) bool {
		gid, known := p.ids.Groups[w.text]
		return known && c.inGroup(gid)
	}) {
		return false
	}
	if m.given["uid"] && !slices.Contains(m.uids, c.UID) {
		return false
	}
	return !m.given["gid"] || slices.ContainsFunc(m.gids, c.inGroup)
}

func (c Caller) inGroup(gid uint32) bool { return c.GID == gid || slices.Contains(c.GIDs, gid) }

func (p *Policy) unauthorized(c Caller, notes []string) *Denied {
	d := &Denied{
		Code: CodeUnauthorized, Op: "connect", Object: c.who(),
		Cause: "no entry of callers matches", Hint: "the policy needs an entry of callers that matches " + c.facts(),
		Who: "root on this host can change the policy", Final: true,
	}
	if len(p.callers) == 0 {
		d.Cause = "the policy has no callers"
	}
	if len(notes) > 0 {
		d.Cause += "; " + strings.Join(notes, "; ")
	}
	return d
}

// who names a caller as people do.
func (c Caller) who() string {
	if c.Name != "" {
		return c.Name
	}
	return "uid " + strconv.FormatUint(uint64(c.UID), 10)
}

// facts are what rules can match.
func (c Caller) facts() string {
	out := fmt.Sprintf("uid %d, gid %d", c.UID, c.GID)
	if len(c.GIDs) > 0 {
		out += fmt.Sprintf(", groups %v", c.GIDs)
	}
	switch {
	case !c.UnitKnown:
		out += ", unit unknown"
	case c.Unit == "":
		out += ", no unit"
	default:
		out += ", unit " + c.Unit
	}
	return out
}
