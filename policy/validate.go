package policy

import (
	"fmt"
	"path"
	"slices"
)

// validator finds what no single key shows.
type validator struct {
	d        *decoder
	p        *Policy
	extended map[string]bool // profiles that another extends
}

func (v *validator) policy() {
	listed := make(map[string]bool)
	for _, c := range v.p.callers {
		v.caller(c, listed)
	}
	for _, f := range v.p.profiles {
		v.profile(f, listed[f.name])
	}
}

func (v *validator) caller(c callerRule, listed map[string]bool) {
	seen := make(map[string]bool, len(c.profiles))
	for _, w := range c.profiles {
		f := v.p.profile(w.text)
		switch {
		case seen[w.text]:
			v.d.problem(w.pos, fmt.Sprintf("profile %q is listed twice", w.text), "")
		case f == nil:
			v.d.problem(w.pos, fmt.Sprintf("unknown profile %q", w.text), nearestHint(w.text, v.p.Profiles()))
		default:
			listed[w.text] = true
			v.callerRunAs(c, f)
		}
		seen[w.text] = true
	}
}

// callerRunAs finds a caller's run_as that makes a profile's nproc count on the
// whole host.
func (v *validator) callerRunAs(c callerRule, f *profile) {
	if c.runAs.set && c.runAs.v == string(RunAsCaller) && f.runAs.or(string(RunAsCaller)) != string(RunAsCaller) && hasRlimit(f.rlimits, "nproc") {
		v.d.problem(c.runAs.pos, fmt.Sprintf("run_as: caller with the nproc of profile %q", f.name), "nproc counts the uid's processes on the whole host; use cgroup.pids")
	}
}

func (v *validator) profile(f *profile, listed bool) {
	if len(f.commands) == 0 && (listed || !v.extended[f.name]) {
		v.d.problem(f.pos, fmt.Sprintf("profile %q has no commands", f.name), "it can start nothing; list programs under commands")
	}
	v.rlimits(f)
	v.root(f)
	v.exec(f)
	v.controls(f)
	v.visible(f)
	v.writable(f)
	v.output(f)
}

func (v *validator) rlimits(f *profile) {
	if f.runAs.or(string(RunAsCaller)) != string(RunAsCaller) {
		return
	}
	for _, r := range f.rlimits {
		if r.Name == "nproc" {
			v.d.problem(r.pos, "nproc with run_as: caller", "it counts the uid's processes on the whole host; use cgroup.pids")
		}
	}
}

func (v *validator) root(f *profile) {
	if f.allowRoot.or(false) && !f.userns.or(false) {
		v.d.problem(f.allowRoot.pos, "allow_root without a user namespace", "userns: on")
	}
}

func (v *validator) exec(f *profile) {
	if f.exec.or(ExecAnything) != ExecListed {
		return
	}
	if f.fs.tmpExec.or(false) {
		v.d.problem(f.fs.tmpExec.pos, "tmp: exec: true with exec: listed", "a file made in /tmp is not a listed program; exec: anything or tmp: { exec: false }")
	}
	for _, c := range f.controls {
		if c.level == LevelOff && c.control == ControlLandlock {
			v.d.problem(c.pos, "exec: listed with landlock off", "it rests on Landlock's right to execute")
		}
	}
}

func (v *validator) controls(f *profile) {
	for _, c := range f.controls {
		switch {
		case c.control == ControlUserNS && c.level == LevelOff && f.userns.or(false):
			v.d.problem(c.pos, "userns: on with controls: userns: off", "")
		case c.control == ControlUserNS && c.level != LevelOff && !f.userns.or(false):
			v.d.problem(c.pos, "controls: userns without userns: on", "userns: on")
		case c.control == ControlNetNS && c.level != LevelOff && f.net.or(NetNone) == NetHost:
			v.d.problem(c.pos, "net: host has no network namespace", "leave controls: netns out")
		case c.control == ControlNetNS && c.level == LevelOff && f.net.or(NetNone) == NetNone:
			v.d.problem(c.pos, "net: none rests on the network namespace", "required or best_effort; or net: host")
		}
	}
}

// visible finds a workspace that nobody could work in.
func (v *validator) visible(f *profile) {
	if !f.fs.write.set {
		return // the default has it
	}
	for _, w := range joined(f.fs.read.v, f.fs.write.v) {
		if w.text == "${workspace}" {
			return
		}
	}
	v.d.problem(f.fs.write.pos, "the workspace is not visible", `add "${workspace}" to fs.write, or to fs.read for one that cannot be changed`)
}

// writable finds listed programs that the pen itself may replace.
func (v *validator) writable(f *profile) {
	trees := []string{"/tmp", "/dev/shm", ScratchPath}
	for _, w := range f.fs.write.v {
		if path.IsAbs(w.text) {
			trees = append(trees, w.text)
		}
	}
	for _, w := range f.under.v {
		if path.IsAbs(w.text) {
			trees = append(trees, w.text)
		}
	}
	for _, c := range f.commands {
		i := slices.IndexFunc(trees, func(t string) bool { return path.IsAbs(c.name) && atOrBelow(c.name, t) })
		if i >= 0 {
			v.d.problem(c.pos, fmt.Sprintf("%s lies in %s, which the pen may write (profile %q)", c.name, trees[i], f.name),
				"what is listed must not be replaceable from inside; install it elsewhere")
		}
	}
}

func (v *validator) output(f *profile) {
	limit := f.output.limit.or(Unset)
	if limit != Unset && f.output.keep.or(defaultKeep) > limit && f.output.keep.set {
		v.d.problem(f.output.keep.pos, "output: keep is more than output: limit", "at most "+limit.String())
	}
}
