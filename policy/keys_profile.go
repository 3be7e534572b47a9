package policy

import (
	"fmt"
	"strings"
)

func profileKeys() []key { return keysOf(profileFields()) }

func profileFields() []field[profile] {
	return append(profileWhatFields(), profileHowFields()...)
}

// profileWhatFields are the keys that say what is run and what it sees.
func profileWhatFields() []field[profile] {
	return []field[profile]{
		{key{"extends", plain(shapeWord), "", "none", "Name of a profile to start from. Lists (commands, paths, names) are added to its own, denies are never taken away, every other key given here replaces the inherited one. `pinfold policy show` prints the result."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.extends)(d.word(n))
		}},
		{key{"commands", listOf(either(plain(shapeWord), objectOf(commandKeys))), "", "", "Programs that may be started: a bare name, looked up in the standard path, or an absolute path. The resolved file decides, never shell text. Needed in every profile that a caller lists."}, func(d *decoder, n *node, t *profile) {
			t.commands = append(t.commands, d.commands(n)...)
		}},
		{key{"run_as", wordOf("caller", "dynamic", "NAME"), "", "caller", "Whose ids a command has: the caller's, a uid of its own from the dynamic range, or those of a named user. Uid 0 never enters a pen: root as a caller gets `dynamic` and a scratch workspace."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.runAs)(d.runAs(n))
		}},
		{key{"workspace", objectOf(workspaceKeys), "", "", "Which directory a request's `cwd` may name as its workspace."}, func(d *decoder, n *node, t *profile) {
			decodeMap(d, n, "workspace", workspaceFields(), t)
		}},
		{key{"env", objectOf(envKeys), "", "", "The environment."}, func(d *decoder, n *node, t *profile) {
			decodeMap(d, n, "env", envFields(), &t.env)
		}},
		{key{"fs", objectOf(fsKeys), "", "", "What of the host's files is visible. Paths are absolute or begin with `${home}` or `${workspace}`."}, func(d *decoder, n *node, t *profile) {
			decodeMap(d, n, "fs", fsFields(), &t.fs)
		}},
		{key{"net", wordOf("none", "host"), "", "none", "The network: an own one with a loopback device alone, or the host's. An allowlist is not yet supported, and refused."}, func(d *decoder, n *node, t *profile) {
			if n.kind == nodeMap {
				d.problem(n.pos, "net: a list of allowed hosts is not yet supported", "net: none or net: host")
				return
			}
			keep(n, &t.net)(enumOf(d, n, "network", NetNone, NetHost))
		}},
		{key{"exec", wordOf("anything", "listed"), "", "anything", "Which files may be executed inside: all that are visible, or only the listed programs with their interpreters, loaders and libraries. A module that an interpreter loads by itself (dlopen) is not among them and does not load. It governs files, not what a listed interpreter does by itself."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.exec)(enumOf(d, n, "exec", ExecAnything, ExecListed))
		}},
	}
}

// profileHowFields are the keys that say how tightly and how long it is held.
func profileHowFields() []field[profile] {
	return []field[profile]{
		{key{"seccomp", either(wordOf("default", "strict"), objectOf(seccompKeys)), "", "default", "The system call filter."}, func(d *decoder, n *node, t *profile) {
			readSeccomp(d, n, t)
		}},
		{key{"pen", wordOf("process"), "", "process", "How long namespaces, /tmp and /dev/shm live: for one process. `session` is not yet supported, and refused."}, func(d *decoder, n *node, t *profile) {
			if n.kind == nodeScalar && n.text == "session" {
				d.problem(n.pos, "pen: session is not yet supported", "pen: process")
				return
			}
			keep(n, &t.pen)(enumOf(d, n, "pen", PenProcess))
		}},
		{key{"rlimits", tableOf(plain(shapeText), rlimitNames()...), "", "core 0, nofile 4096", "Resource limits of setrlimit(2), soft and hard alike. Sizes for as, core, data, fsize, memlock, msgqueue, stack; times for cpu; counts for the rest. `nproc` is refused with `run_as: caller`: it counts the uid's processes on the whole host; use `cgroup.pids`."}, readRlimits},
		{key{"userns", wordOf("off", "on"), "", "off", "A user namespace of its own."}, func(d *decoder, n *node, t *profile) {
			if text, ok := d.enum(n, "value", "off", "on"); ok {
				t.userns = opt[bool]{text == "on", true, n.pos}
			}
		}},
		{key{"allow_root", plain(shapeSwitch), "", "false", "Show the run uid as 0 inside. Needs `userns: on`; on the host it is still the run uid."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.allowRoot)(d.boolean(n))
		}},
		{key{"cgroup", objectOf(cgroupKeys), "", "", "Limits of one process with all that it starts, by the kernel's cgroups."}, func(d *decoder, n *node, t *profile) {
			decodeMap(d, n, "cgroup", cgroupFields(), &t.cgroup)
		}},
		{key{"timeout", objectOf(timeoutKeys), "", "", "Times after which a command is ended."}, func(d *decoder, n *node, t *profile) {
			decodeMap(d, n, "timeout", timeoutFields(), &t.timeout)
		}},
		{key{"linger", plain(shapeTime), "time", "0s", "How long children may outlive the main process."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.linger)(d.time(n))
		}},
		{key{"output", objectOf(outputKeys), "", "", "Limits of each output stream."}, func(d *decoder, n *node, t *profile) {
			decodeMap(d, n, "output", outputFields(), &t.output)
		}},
		{key{"controls", tableOf(wordOf("required", "best_effort", "off"), controlNames()...), "", "required; cgroup.io best_effort; userns off", "How much each control is needed. A required control that the host cannot give refuses the spawn. `caps`, `ipcns`, `mounts`, `pidns` and `seccomp` cannot be off."}, readControls},
	}
}

// runAs reads whose ids a command has.
func (d *decoder) runAs(n *node) (string, bool) {
	text, ok := d.word(n)
	switch {
	case !ok:
		return "", false
	case text == "root" || text == "0":
		d.problem(n.pos, "run_as: root is never possible", "uid 0 does not enter a pen; allow_root shows the run uid as 0 inside")
		return "", false
	case !goodName(text):
		d.problem(n.pos, fmt.Sprintf("%q is neither caller nor dynamic nor the name of a user", text), "")
		return "", false
	case strings.Trim(text, "0123456789") == "":
		d.problem(n.pos, fmt.Sprintf("run_as takes a name, not the number %s", text), "caller, dynamic, or the name of a user")
		return "", false
	}
	return text, true
}

func workspaceKeys() []key { return keysOf(workspaceFields()) }

func workspaceFields() []field[profile] {
	return []field[profile]{
		{key{"under", listOf(plain(shapeText)), "", "[${home}]", "A `cwd` must be strictly below one of these directories, be the caller's own, and neither be nor hold its home. That subtree is then `${workspace}`."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.under)(d.paths(n, "${home}"))
		}},
		{key{"else", wordOf("scratch", "refuse"), "", "scratch", "What a request without `cwd` gets: a memory file system that the session keeps, or a refusal."}, func(d *decoder, n *node, t *profile) {
			keep(n, &t.scratch)(d.enum(n, "answer", "scratch", "refuse"))
		}},
	}
}

func envKeys() []key { return keysOf(envFields()) }

func envFields() []field[envRule] {
	return []field[envRule]{
		{key{"set", tableOf(plain(shapeText)), "", "see below", "Variables that every command gets, before those of the request. `${home}` and `${workspace}` are filled in."}, readEnvSet},
		{key{"allow", listOf(plain(shapeText)), "", "all but the built-in list", "Names that a request may set; a trailing `*` matches the rest. Listing a name of the built-in list below allows it."}, func(d *decoder, n *node, t *envRule) {
			t.allow = append(t.allow, d.envNames(n)...)
			t.given = t.given || n.kind == nodeList
		}},
		{key{"deny", listOf(plain(shapeText)), "", "[]", "Names that a request may not set; before `allow`."}, func(d *decoder, n *node, t *envRule) {
			t.deny = append(t.deny, d.envNames(n)...)
		}},
		{key{"envdir", plain(shapeText), "", "none", "A directory whose files become variables: the name of a file is the name, its content the value. Relative to the directory of the policy. For secrets: they are in no request and no record."}, func(d *decoder, n *node, t *envRule) {
			text, ok := d.word(n)
			if ok && (text == "" || strings.ContainsRune(text, 0) || !cleanPath(text)) {
				d.problem(n.pos, fmt.Sprintf("%q is not a clean path", text), "such as secrets/python")
				return
			}
			keep(n, &t.dir)(text, ok)
		}},
	}
}

func readEnvSet(d *decoder, n *node, t *envRule) {
	if !d.want(n, nodeMap, "set") {
		return
	}
	seen := make(map[string]Pos, len(n.pairs))
	for _, p := range n.pairs {
		if d.repeated(seen, p.key) {
			continue
		}
		if why := badEnvName(p.key.text); why != "" {
			d.problem(p.key.pos, fmt.Sprintf("%q: %s", p.key.text, why), "")
			continue
		}
		if p.value.kind == nodeNull {
			d.problem(p.key.pos, fmt.Sprintf("%s has no value", p.key.text), `write "" for an empty one`)
			continue
		}
		if text, ok := d.word(p.value); ok {
			if strings.ContainsRune(text, 0) {
				d.problem(p.value.pos, "a NUL byte in a value", "")
				continue
			}
			d.variables(p.value.pos, text, "${home}", "${workspace}")
			t.set = append(t.set, envSet{p.key.text, text, p.key.pos})
		}
	}
}

// envNames reads names of variables, each perhaps with a trailing star.
func (d *decoder) envNames(n *node) []word {
	list, _ := d.words(n)
	out := make([]word, 0, len(list))
	for _, w := range list {
		name := strings.TrimSuffix(w.text, "*")
		if why := badEnvName(name); why != "" && w.text != "*" {
			d.problem(w.pos, fmt.Sprintf("%q: %s", w.text, why), "such as LANG or LC_*")
			continue
		}
		if strings.Contains(name, "*") {
			d.problem(w.pos, fmt.Sprintf("%q: a star stands only at the end", w.text), "")
			continue
		}
		out = append(out, w)
	}
	return out
}

func seccompKeys() []key { return keysOf(seccompFields()) }

func seccompFields() []field[Seccomp] {
	return []field[Seccomp]{
		{key{"base", wordOf("default", "strict"), "", "default", "The filter that is added to or taken from."}, func(d *decoder, n *node, t *Seccomp) {
			if text, ok := d.enum(n, "filter", "default", "strict"); ok {
				t.Base = text
			}
		}},
		{key{"allow", listOf(plain(shapeWord)), "", "[]", "System calls that are allowed besides. What would break the pen stays refused."}, func(d *decoder, n *node, t *Seccomp) {
			t.Allow = d.syscalls(n)
		}},
		{key{"deny", listOf(plain(shapeWord)), "", "[]", "System calls that are refused; before `allow`."}, func(d *decoder, n *node, t *Seccomp) {
			t.Deny = d.syscalls(n)
		}},
	}
}

func readSeccomp(d *decoder, n *node, t *profile) {
	v := Seccomp{Base: "default"}
	if n.kind == nodeScalar {
		text, ok := d.enum(n, "filter", "default", "strict")
		keep(n, &t.seccomp)(Seccomp{Base: text}, ok)
		return
	}
	decodeMap(d, n, "seccomp", seccompFields(), &v)
	t.seccomp = opt[Seccomp]{v, true, n.pos}
}

func (d *decoder) syscalls(n *node) []string {
	list, _ := d.words(n)
	var out []string
	for _, w := range list {
		if w.text == "" || strings.Trim(w.text, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			d.problem(w.pos, fmt.Sprintf("%q is not the name of a system call", w.text), "")
			continue
		}
		out = append(out, w.text)
	}
	return out
}
