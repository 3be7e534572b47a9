package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// walk is one decision on its way. Every question that it asks is a Step.
type walk struct {
	p       *Policy
	c       Caller
	r       Request
	f       Facts
	looked  Candidates
	caller  *callerRule
	profile *profile
	steps   []Step
}

// Decide answers a request with what it may have; the error is a *Denied. It
// asks, in this order: is the request sound, who asks, which profile, which
// program, which arguments, as whom, in which workspace, with which environment.
func (p *Policy) Decide(c Caller, r Request, f Facts) (*Grant, error) {
	w := &walk{p: p, c: c, r: r, f: f}
	g, d := w.decide()
	if d != nil {
		return nil, d
	}
	return g, nil
}

// Explain is Decide that tells every step.
func (p *Policy) Explain(c Caller, r Request, f Facts) Explanation {
	w := &walk{p: p, c: c, r: r, f: f}
	g, d := w.decide()
	return Explanation{Steps: w.steps, Grant: g, Denied: d}
}

func (w *walk) decide() (*Grant, *Denied) {
	if d := w.r.valid(); d != nil {
		return nil, w.no("is the request sound?", d)
	}
	caller, notes := w.p.callerRule(w.c)
	if caller == nil {
		return nil, w.no("who asks?", w.p.unauthorized(w.c, notes))
	}
	w.caller = caller
	w.pass("who asks?", w.c.who()+" ("+w.c.facts()+")", caller.rule())
	w.looked = w.p.Candidates(w.c, w.r)
	tried, d := w.profiles()
	if d != nil {
		return nil, d
	}
	chosen, d := w.program(tried)
	if d != nil {
		return nil, d
	}
	g := &Grant{Caller: caller.name, Profile: w.profile.name, Quota: caller.quota.resolve(), PTY: w.r.PTY}
	g.Rule = w.profile.ruleAt(chosen.entry.pos, "commands: "+chosen.entry.name)
	g.Program, g.Argv = chosen.program, chosen.argv(w.r.Cmd)
	for _, step := range []func(*Grant) *Denied{w.runAs, w.workspace, w.files, w.replaceable, w.environ} {
		if d := step(g); d != nil {
			return nil, d
		}
	}
	w.limits(g)
	w.listed(g)
	return g, nil
}

// pass notes a question that was answered well.
func (w *walk) pass(question, answer string, rule Rule) {
	w.steps = append(w.steps, Step{question, answer, true, rule})
}

// no notes the question that was answered with a refusal, and completes it.
func (w *walk) no(question string, d *Denied) *Denied {
	if d.Who == "" && d.Code != CodeInvalid {
		d.Who = "root on this host can change the policy"
		if d.Rule.File != "" {
			d.Who = "root on this host can change " + d.Rule.File
		}
	}
	w.steps = append(w.steps, Step{question, d.Cause, false, d.Rule})
	return d
}

func (f *profile) rule(text string) Rule { return f.ruleAt(f.pos, text) }

func (f *profile) ruleAt(pos Pos, text string) Rule {
	return Rule{pos.File, pos.Line, fmt.Sprintf("profile %q: %s", f.name, text)}
}

// profiles are those that may decide, in order.
func (w *walk) profiles() ([]*profile, *Denied) {
	if w.r.Profile == "" {
		var out []*profile
		for _, name := range w.caller.profiles {
			out = append(out, w.p.profile(name.text))
		}
		return out, nil
	}
	own := texts(w.caller.profiles)
	if !slices.Contains(own, w.r.Profile) {
		near := nearest(w.r.Profile, own)
		return nil, w.no("which profile?", &Denied{
			Code: CodeUnknownProfile, Op: "use profile", Object: w.r.Profile,
			Cause: "it is not one of the caller's profiles", Rule: w.caller.rule(), Nearest: near,
			Hint: "profiles of this caller: " + strings.Join(own, ", "), Final: true,
		})
	}
	w.pass("which profile?", w.r.Profile+", as the request says", w.caller.rule())
	return []*profile{w.p.profile(w.r.Profile)}, nil
}

// runAs says whose ids the command has. Uid 0 never enters a pen.
func (w *walk) runAs(g *Grant) *Denied {
	name, pos := w.profile.runAs.or(string(RunAsCaller)), w.profile.runAs.pos
	if w.caller.runAs.set {
		name, pos = w.caller.runAs.v, w.caller.runAs.pos
	}
	if !w.profile.runAs.set && !w.caller.runAs.set {
		pos = w.profile.pos
	}
	rule := w.profile.ruleAt(pos, "run_as")
	switch name {
	case string(RunAsCaller):
		if w.c.UID == 0 || w.c.GID == 0 {
			g.RunAs = RunAs{Kind: RunAsDynamic, Name: "pen"}
			w.pass("as whom?", "a dynamic uid: uid and gid 0 never enter a pen", rule)
			break
		}
		g.RunAs = RunAs{RunAsCaller, w.c.who(), w.c.UID, w.c.GID}
		if w.c.Name == "" {
			g.RunAs.Name = fmt.Sprintf("u%d", w.c.UID)
		}
		w.pass("as whom?", "the caller", rule)
	case string(RunAsDynamic):
		g.RunAs = RunAs{Kind: RunAsDynamic, Name: "pen"}
		w.pass("as whom?", "a dynamic uid", rule)
	default:
		user, known := w.p.ids.Users[name]
		if !known || user.UID == 0 || user.GID == 0 {
			cause := "this host has no such user"
			if known {
				cause = "uid and gid 0 never enter a pen"
			}
			return w.no("as whom?", &Denied{Code: CodeDenied, Op: "run as", Object: name, Cause: cause, Rule: rule, Hint: "make the user, or change run_as", Final: true})
		}
		g.RunAs = RunAs{RunAsNamed, name, user.UID, user.GID}
		w.pass("as whom?", "user "+name, rule)
	}
	w.home(g)
	return nil
}

// home says what and where the home directory inside is.
func (w *walk) home(g *Grant) {
	g.Home = w.profile.fs.home.or(Home{Kind: HomePrivate})
	g.Home.Path = PenHome
	switch g.RunAs.Kind {
	case RunAsCaller:
		if goodHome(w.c.Home) {
			g.Home.Path = w.c.Home
		}
	case RunAsNamed:
		if home := w.p.ids.Users[g.RunAs.Name].Home; goodHome(home) {
			g.Home.Path = home
		}
	case RunAsDynamic:
	}
}

// goodHome says whether a home is a directory of somebody's own: the passwd of
// a host also gives /, /bin or /usr/sbin to its system users.
func goodHome(home string) bool {
	if !path.IsAbs(home) || path.Clean(home) != home || strings.ContainsRune(home, 0) {
		return false
	}
	return home != "/" && home != "/home" && home != "/var" && home != "/run" && home != "/tmp" && home != "/opt" && home != "/srv" && home != "/mnt" && home != "/media" &&
		!within(home, []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/dev", "/proc", "/sys", "/boot", "/root", ScratchPath})
}

// limits fills in what remains: the profile's, and what the request narrows.
func (w *walk) limits(g *Grant) {
	f := w.profile
	g.Net = f.net.or(NetNone)
	g.Seccomp = f.seccomp.or(Seccomp{Base: "default"})
	g.Pen = f.pen.or(PenProcess)
	g.Rlimits = f.resolvedRlimits()
	g.UserNS, g.AllowRoot = f.userns.or(false), f.allowRoot.or(false)
	g.Cgroup = f.resolvedCgroup()
	g.Timeout = f.resolvedTimeout()
	g.Linger = f.linger.or(0)
	g.Output = f.resolvedOutput()
	g.Controls = f.resolvedControls()
	g.Exec = f.exec.or(ExecAnything)
	g.Timeout.Wall = narrower(g.Timeout.Wall, w.r.Timeout)
	if l := w.r.Limits; l != nil {
		g.Cgroup.Memory = tighter(g.Cgroup.Memory, l.Memory)
		g.Cgroup.Pids = tighter(g.Cgroup.Pids, l.Pids)
		if l.CPU > 0 && (g.Cgroup.CPU == 0 || l.CPU < g.Cgroup.CPU) {
			g.Cgroup.CPU = max(l.CPU, 0.01)
		}
		g.Timeout.CPU = narrower(g.Timeout.CPU, l.CPUTime)
		g.Timeout.Idle = narrower(g.Timeout.Idle, l.Idle)
		g.Output.Limit = tighter(g.Output.Limit, l.Output)
	}
	w.pass("with which limits?", fmt.Sprintf("memory %s, pids %s, wall time %s", offBytes(g.Cgroup.Memory), offCount(g.Cgroup.Pids), offTime(g.Timeout.Wall)), f.rule("limits"))
}

// narrower is the shorter of two times of which 0 is none.
func narrower(policy, asked time.Duration) time.Duration {
	if asked > 0 && (policy == 0 || asked < policy) {
		return asked
	}
	return policy
}

// tighter is the smaller of a limit that may be Unset and one that may be 0, "not asked".
func tighter[T ~int64](policy, asked T) T {
	if asked > 0 && (policy == Unset || asked < policy) {
		return asked
	}
	return policy
}
