package policy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Limits of what a request may bring, below the kernel's own: execve(2).
const (
	maxArgs   = 65536
	maxArg    = 128<<10 - 1 // MAX_ARG_STRLEN without its NUL
	maxArgAll = 2 << 20     // argv and envp together, the usual ARG_MAX
	maxEnv    = 4096
	maxLabels = 16
	maxLabel  = 64 // bytes
)

func badEnvName(name string) string {
	switch {
	case name == "":
		return "the name of a variable is empty"
	case strings.ContainsRune(name, 0):
		return "the name of a variable holds a NUL byte"
	case strings.ContainsRune(name, '='):
		return "the name of a variable holds ="
	case strings.ContainsAny(name, " \t\r\n"):
		return "the name of a variable holds white space"
	}
	return ""
}

// valid refuses what cannot be carried out whatever the policy says.
func (r Request) valid() *Denied {
	bad := func(op, object, cause, hint string) *Denied {
		return &Denied{Code: CodeInvalid, Op: op, Object: object, Cause: cause, Hint: hint, Final: true}
	}
	if len(r.Cmd) == 0 || r.Cmd[0] == "" {
		return bad("execute", "", "the command is empty", `cmd is a list such as ["ls", "-l"]`)
	}
	if len(r.Cmd) > maxArgs {
		return bad("execute", r.Cmd[0], fmt.Sprintf("%d arguments, more than %d", len(r.Cmd), maxArgs), "")
	}
	total := 0
	for i, a := range r.Cmd {
		if strings.ContainsRune(a, 0) {
			return bad("execute", r.Cmd[0], fmt.Sprintf("argument %d holds a NUL byte", i), "")
		}
		if len(a) > maxArg {
			return bad("execute", r.Cmd[0], fmt.Sprintf("argument %d has %d bytes, more than %d", i, len(a), maxArg), "send long data to standard input")
		}
		total += len(a) + 1
	}
	if len(r.Env) > maxEnv {
		return bad("set", "env", fmt.Sprintf("%d variables, more than %d", len(r.Env), maxEnv), "")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		if why := badEnvName(name); why != "" {
			return bad("set", name, why, "")
		}
		value := r.Env[name]
		if strings.ContainsRune(value, 0) {
			return bad("set", name, "the value holds a NUL byte", "")
		}
		if len(name)+1+len(value) > maxArg {
			return bad("set", name, fmt.Sprintf("the value has %d bytes, too many", len(value)), "")
		}
		total += len(name) + len(value) + 2
	}
	if total > maxArgAll {
		return bad("execute", r.Cmd[0], fmt.Sprintf("arguments and environment have %d bytes, more than %d", total, maxArgAll), "send long data to standard input")
	}
	if strings.ContainsRune(r.Cwd, 0) {
		return bad("work in", r.Cwd, "the path holds a NUL byte", "")
	}
	if len(r.Labels) > maxLabels || slices.ContainsFunc(r.Labels, func(l string) bool { return len(l) > maxLabel }) {
		return bad("set", "labels", fmt.Sprintf("more than %d labels, or one of more than %d bytes", maxLabels, maxLabel), "")
	}
	return r.validLimits()
}

func (r Request) validLimits() *Denied {
	bad := func(object string) *Denied {
		return &Denied{Code: CodeInvalid, Op: "set", Object: object, Cause: "a limit cannot be negative", Hint: "leave it out for the policy's own", Final: true}
	}
	if r.Timeout < 0 {
		return bad("timeout")
	}
	l := r.Limits
	switch {
	case l == nil:
		return nil
	case l.Memory < 0:
		return bad("limits.memory")
	case l.Pids < 0:
		return bad("limits.pids")
	case !(l.CPU >= 0): // also not a number
		return bad("limits.cpu")
	case l.CPUTime < 0:
		return bad("limits.cpu_time")
	case l.Idle < 0:
		return bad("limits.idle")
	case l.Output < 0:
		return bad("limits.output")
	}
	return nil
}

// presets are the variables that every command gets before env.set.
func (g *Grant) presets() map[string]string {
	out := map[string]string{
		"PATH": strings.Join(searchPath(), ":"), "USER": g.RunAs.Name, "LOGNAME": g.RunAs.Name,
		"SHELL": "/bin/sh", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PAGER": "cat", "GIT_TERMINAL_PROMPT": "0",
	}
	if g.Home.Kind != HomeNone {
		out["HOME"] = g.Home.Path
	}
	if g.PTY {
		out["TERM"] = "xterm-256color"
	}
	return out
}

// presetNames are the names of presets, for explanations and the reference.
func presetNames() []string {
	g := Grant{PTY: true, Home: Home{Kind: HomePrivate}}
	return slices.Sorted(maps.Keys(g.presets()))
}

// environ fills in Grant.Env from the presets, the profile and the request.
func (w *walk) environ(g *Grant) *Denied {
	env := g.presets()
	vars := w.variables(g.Workspace.Path)
	for _, e := range w.profile.env.set {
		env[e.name] = vars.text(e.value)
	}
	for _, name := range slices.Sorted(maps.Keys(w.r.Env)) {
		value := w.r.Env[name]
		if preset, there := env[name]; there && preset == value {
			continue // no change, whatever the rules say
		}
		if d := w.mayset(name); d != nil {
			return d
		}
		env[name] = value
	}
	if len(w.r.Env) > 0 {
		w.pass("may the request set its variables?", "yes", w.profile.rule("env"))
	}
	g.Env = make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		g.Env = append(g.Env, name+"="+env[name])
	}
	g.EnvDir = w.profile.env.dir.or("")
	if g.EnvDir != "" && !path.IsAbs(g.EnvDir) {
		g.EnvDir = path.Join(path.Dir(w.profile.env.dir.pos.File), g.EnvDir)
	}
	return nil
}

// mayset says whether a request may set a variable: denies first, then the
// profile's own list, then the built-in one.
func (w *walk) mayset(name string) *Denied {
	env := w.profile.env
	d := &Denied{Code: CodeDenied, Op: "set", Object: name, Hint: "leave it out of env", Final: true}
	if i := slices.IndexFunc(env.deny, func(x word) bool { return matchName(x.text, name) }); i >= 0 {
		d.Cause = fmt.Sprintf("env.deny has %s", env.deny[i].text)
		d.Rule = w.profile.ruleAt(env.deny[i].pos, "env.deny")
		return w.no("may the request set "+name+"?", d)
	}
	listed := func(x word) bool { return matchName(x.text, name) }
	if env.given && !slices.ContainsFunc(env.allow, listed) {
		d.Cause = "env.allow does not have it"
		d.Rule = w.profile.rule("env.allow")
		d.Nearest = nearest(name, texts(env.allow))
		return w.no("may the request set "+name+"?", d)
	}
	builtin := deniedEnv()
	i := slices.IndexFunc(builtin, func(x string) bool { return matchName(x, name) })
	// A lone star is no statement about a variable that runs code.
	if i >= 0 && !slices.ContainsFunc(env.allow, func(x word) bool { return x.text != "*" && listed(x) }) {
		d.Cause = fmt.Sprintf("it makes programs load or run something else (built-in list: %s)", builtin[i])
		d.Rule = w.profile.rule("env.allow")
		d.Hint = "leave it out of env, or have it listed in env.allow"
		return w.no("may the request set "+name+"?", d)
	}
	return nil
}
