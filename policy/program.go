package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Candidates says what has to be looked at, with the caller's own rights, before
// Decide can answer. A request that is not sound or a caller that nothing
// matches has no candidates.
func (p *Policy) Candidates(c Caller, r Request) Candidates {
	caller, _ := p.callerRule(c)
	if caller == nil || r.valid() != nil {
		return Candidates{}
	}
	out := Candidates{Path: searchPath()}
	if !strings.Contains(r.Cmd[0], "/") || path.IsAbs(r.Cmd[0]) {
		out.Programs = p.programs(caller, r)
	}
	for _, name := range caller.profiles {
		if r.Profile != "" && r.Profile != name.text {
			continue
		}
		for _, dir := range p.profile(name.text).expandedUnder(c) {
			if !slices.Contains(out.Under, dir) {
				out.Under = append(out.Under, dir)
			}
		}
	}
	switch {
	case !path.IsAbs(r.Cwd) || inScratch(r.Cwd, out.Under):
		out.Under = nil
	default:
		out.Dir = r.Cwd
	}
	// The home last: its resolved path is what secrets and the workspace are compared with.
	if goodHome(c.Home) {
		out.Under = append(out.Under, c.Home)
	}
	return out
}

// inScratch says whether a cwd means the session's scratch workspace: the host
// has no such place that the policy opens.
func inScratch(cwd string, under []string) bool {
	clean := path.Clean(cwd)
	return atOrBelow(clean, ScratchPath) && !slices.ContainsFunc(under, func(u string) bool { return below(clean, u) })
}

// programs are argv[0] and the entries of the caller's profiles that may be the
// same file. Behind a profile that lists argv[0] by its name only entries that
// the name alone could mean are of interest.
func (p *Policy) programs(caller *callerRule, r Request) []string {
	out := []string{r.Cmd[0]}
	seen := map[string]bool{r.Cmd[0]: true}
	decided := false
	for _, name := range caller.profiles {
		if r.Profile != "" && r.Profile != name.text {
			continue
		}
		f := p.profile(name.text)
		for _, program := range f.candidates(r.Cmd[0]) {
			if decided && f.exec.or(ExecAnything) != ExecListed && path.Base(program) != r.Cmd[0] {
				continue
			}
			if !seen[program] {
				seen[program] = true
				out = append(out, program)
			}
		}
		decided = decided || f.lists(r.Cmd[0])
	}
	return out
}

func (f *profile) lists(name string) bool {
	return slices.ContainsFunc(f.commands, func(c command) bool { return c.name == name })
}

// candidates are the entries that may be the same file as argv0. A bare name
// that is listed as such needs no look at entries without rules for arguments:
// whichever of them is the same file, the answer is the same.
func (f *profile) candidates(argv0 string) []string {
	byName := f.lists(argv0)
	var out []string
	for _, c := range f.commands {
		rules := c.given || len(c.deny) > 0
		if byName && !rules && f.exec.or(ExecAnything) != ExecListed {
			continue
		}
		out = append(out, c.name)
	}
	return out
}

func (f *profile) expandedUnder(c Caller) []string {
	var out []string
	vars := variables{home: c.Home}
	for _, w := range f.resolvedUnder() {
		if dir, ok := vars.path(w.text); ok {
			out = append(out, dir)
		}
	}
	return out
}

// choice is an entry that matches and the file that it means.
type choice struct {
	entry   *command
	program Fact
	renamed bool // argv[0] is another name of the file
}

// argv keeps the arguments. Where the program was asked for by another name of
// the same file, argv[0] is the listed name: what a program with many names does
// must be what was listed.
func (c choice) argv(cmd []string) []string {
	out := slices.Clone(cmd)
	if c.renamed {
		out[0] = c.entry.name
	}
	return out
}

// program finds the profile and the entry that decide.
func (w *walk) program(tried []*profile) (choice, *Denied) {
	argv0 := w.r.Cmd[0]
	if strings.Contains(argv0, "/") && !path.IsAbs(argv0) {
		return choice{}, w.no("which program?", &Denied{
			Code: CodeDenied, Op: "execute", Object: argv0, Cause: "a relative path names no program",
			Rule: w.caller.rule(), Hint: "give a bare name or an absolute path; a script of the workspace runs as the argument of its interpreter", Final: true,
		})
	}
	var absent *Denied
	for _, f := range tried {
		found, missing := w.matching(f)
		if missing != nil && absent == nil {
			w.profile = f
			absent = missing
		}
		if len(found) == 0 {
			continue
		}
		w.profile = f
		return w.arguments(found)
	}
	if absent != nil {
		return choice{}, w.no("which program?", absent)
	}
	return choice{}, w.notListed(tried)
}

// matching are the entries of a profile that mean the file that was asked for.
// The second result tells of an entry that has the name but no file.
func (w *walk) matching(f *profile) ([]choice, *Denied) {
	argv0 := w.r.Cmd[0]
	asked := w.fact(argv0)
	var found []choice
	var missing *Denied
	for i := range f.commands {
		entry := &f.commands[i]
		named := entry.name == argv0
		if !named && path.IsAbs(entry.name) && !strings.Contains(argv0, "/") && path.Base(entry.name) == argv0 {
			// A bare name means the listed path of that name, wherever else one lies.
			if fact := w.fact(entry.name); fact.Kind != KindNone {
				found = append(found, choice{entry, fact, false})
				continue
			}
			named = asked.Kind == KindNone
		}
		switch {
		case asked.Kind != KindNone && (named || w.fact(entry.name).same(asked)):
			found = append(found, choice{entry, asked, path.Base(entry.name) != path.Base(argv0)})
		case named && missing == nil:
			missing = w.absent(f, entry)
		}
	}
	// An entry of the same name before one that is only the same file.
	slices.SortStableFunc(found, func(a, b choice) int { return rank(a.renamed) - rank(b.renamed) })
	return found, missing
}

func rank(renamed bool) int {
	if renamed {
		return 1
	}
	return 0
}

// fact is what was found at a name; nothing if it was not looked at.
func (w *walk) fact(name string) Fact {
	for i, asked := range w.looked.Programs {
		if asked == name && i < len(w.f.Programs) {
			return w.f.Programs[i]
		}
	}
	return Fact{Name: name}
}

// same says whether two facts are of one file.
func (f Fact) same(other Fact) bool {
	if f.Kind == KindNone || other.Kind == KindNone {
		return false
	}
	if f.Path != "" && f.Path == other.Path {
		return true
	}
	return f.ID.Ino != 0 && f.ID == other.ID
}

// arguments decides between the entries of one profile: a deny of any of them
// wins, then one that allows is enough. The answer is final.
func (w *walk) arguments(found []choice) (choice, *Denied) {
	args := w.r.Cmd[1:]
	argv0 := w.r.Cmd[0]
	for _, c := range found {
		for _, p := range c.entry.deny {
			if matchArgs(p.tokens, args) {
				return choice{}, w.no("with these arguments?", &Denied{
					Code: CodeDenied, Op: "execute", Object: commandLine(w.r.Cmd),
					Cause: fmt.Sprintf("args.deny has %q", p.text), Rule: w.profile.ruleAt(p.pos, "commands: "+c.entry.name+": args.deny"),
					Nearest: nearestCommand(argv0, args, found), Hint: allowedHint(found), Final: true,
				})
			}
		}
	}
	for _, c := range found {
		if !c.entry.allows(args) {
			continue
		}
		w.pass("which program?", c.program.Path+", by profile "+w.profile.name, w.profile.ruleAt(c.entry.pos, "commands: "+c.entry.name))
		if d := w.usable(c); d != nil {
			return choice{}, d
		}
		return c, nil
	}
	first := found[0].entry
	return choice{}, w.no("with these arguments?", &Denied{
		Code: CodeDenied, Op: "execute", Object: commandLine(w.r.Cmd), Cause: "args.allow has no pattern that matches",
		Rule: w.profile.ruleAt(first.pos, "commands: "+first.name+": args.allow"), Nearest: nearestCommand(argv0, args, found), Hint: allowedHint(found), Final: true,
	})
}

func (c *command) allows(args []string) bool {
	return !c.given || slices.ContainsFunc(c.allow, func(p pattern) bool { return matchArgs(p.tokens, args) })
}

// usable tells apart why a program that is there cannot be started.
func (w *walk) usable(c choice) *Denied {
	f := c.program
	d := &Denied{Code: CodeNotExecutable, Op: "execute", Object: f.Path, Rule: w.profile.ruleAt(c.entry.pos, "commands: "+c.entry.name)}
	switch {
	case f.Err != "" && f.Kind == KindScript:
		d.Code, d.Cause, d.Hint = CodeNotFound, fmt.Sprintf("its interpreter %s: %s", quoteObject(f.Interp), errnoText(f.Err)), "install the interpreter, or correct the first line of the script"
	case f.Err != "" && f.Kind == KindELF:
		d.Code, d.Cause, d.Hint = CodeNotFound, fmt.Sprintf("its loader %s: %s", quoteObject(f.Interp), errnoText(f.Err)), "install the C library that it was built for"
	case f.Err != "":
		d.Cause = errnoText(f.Err)
	case f.Kind == KindDir:
		d.Cause = "it is a directory"
	case f.Kind == KindOther:
		d.Cause = "it is not a regular file"
	case !f.Executable:
		d.Cause, d.Hint = "the caller may not execute it", "look at its mode and at the directories above it"
	case f.Kind == KindFile:
		d.Cause, d.Hint = "it is neither an ELF program nor a script that begins with #!", "run it as the argument of its interpreter"
	default:
		return nil
	}
	return w.no("can it be started?", d)
}

// absent is the refusal for a listed program that has no file.
func (w *walk) absent(f *profile, entry *command) *Denied {
	asked := w.fact(entry.name)
	d := &Denied{
		Code: CodeNotFound, Op: "execute", Object: w.r.Cmd[0], Rule: f.ruleAt(entry.pos, "commands: "+entry.name),
		Cause: "it is listed, but " + errnoText(asked.Err), Hint: "install it",
	}
	if !path.IsAbs(entry.name) {
		d.Hint = "install it in one of " + strings.Join(searchPath(), " ") + ", or list it by its path"
	}
	if asked.Err == "EACCES" || asked.Err == "EPERM" {
		d.Code, d.Hint = CodeNotExecutable, "look at the modes of the directories above it"
	}
	return d
}

// errnoText says in words what an errno of a look means.
func errnoText(name string) string {
	switch name {
	case "", "ENOENT":
		return "it is not there"
	case "EACCES", "EPERM":
		return "the caller may not reach it (" + name + ")"
	case "ELOOP":
		return "its path has too many symbolic links (ELOOP)"
	case "ENOTDIR":
		return "a part of its path is not a directory (ENOTDIR)"
	case "ENAMETOOLONG":
		return "its path is too long (ENAMETOOLONG)"
	case "ENOEXEC":
		return "it is not a program (ENOEXEC)"
	}
	return name
}

// notListed is the refusal for a program that no profile has.
func (w *walk) notListed(tried []*profile) *Denied {
	argv0 := w.r.Cmd[0]
	var known, profiles []string
	for _, f := range tried {
		profiles = append(profiles, f.name)
		for _, c := range f.commands {
			known = append(known, c.name)
		}
	}
	near := nearest(argv0, known)
	if near == "" {
		near = nearest(path.Base(argv0), append(bases(known), known...))
	}
	if i := slices.IndexFunc(known, func(k string) bool { return path.Base(k) == path.Base(argv0) }); i >= 0 {
		near = known[i] // the right name, another file
	}
	rule := w.caller.rule()
	if len(tried) > 0 {
		rule = tried[0].rule("commands")
	}
	code, cause := CodeDenied, "it is not among the commands of "+strings.Join(profiles, ", ")
	if f := w.fact(argv0); f.Kind == KindNone && f.Err == "ENOENT" {
		code, cause = CodeNotFound, "there is no such program, and "+cause
	}
	return w.no("which program?", &Denied{
		Code: code, Op: "execute", Object: argv0, Cause: cause,
		Rule: rule, Nearest: near, Hint: "`pinfold policy show " + profiles[0] + "` lists them", Final: true,
	})
}

func bases(paths []string) []string {
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		out = append(out, path.Base(p))
	}
	return out
}

// nearestCommand is the allowed pattern that is most like the arguments.
func nearestCommand(argv0 string, args []string, found []choice) string {
	var lines []string
	for _, c := range found {
		for _, p := range c.entry.allow {
			lines = append(lines, strings.TrimSpace(argv0+" "+p.text))
		}
	}
	if near := nearest(strings.Join(append([]string{argv0}, args...), " "), lines); near != "" {
		return near
	}
	for _, l := range lines {
		if len(args) > 0 && strings.HasPrefix(l, argv0+" "+args[0]) {
			return l
		}
	}
	return ""
}

func allowedHint(found []choice) string {
	var list []string
	for _, c := range found {
		for _, p := range c.entry.allow {
			list = append(list, fmt.Sprintf("%q", p.text))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "allowed arguments: " + strings.Join(list, ", ")
}

// commandLine shows a command in a message.
func commandLine(cmd []string) string { return strings.Join(cmd, " ") }

// replaceable refuses a program that the pen itself could have written: what was
// listed must be what runs.
func (w *walk) replaceable(g *Grant) *Denied {
	trees := []string{g.Workspace.Path}
	for _, r := range g.Write {
		trees = append(trees, r.Path)
	}
	i := slices.IndexFunc(trees, func(t string) bool { return t != "" && atOrBelow(g.Program.Path, t) })
	if i < 0 {
		return nil
	}
	return w.no("can the pen replace it?", &Denied{
		Code: CodeDenied, Op: "execute", Object: g.Program.Path, Cause: "it lies in " + trees[i] + ", which the pen may write",
		Rule: g.Rule, Hint: "install it outside of every writable tree", Final: true,
	})
}

// listed fills in all programs for exec: listed.
func (w *walk) listed(g *Grant) {
	if g.Exec != ExecListed {
		return
	}
	seen := make(map[string]bool)
	for _, c := range w.profile.commands {
		f := w.fact(c.name)
		if f.Kind != KindNone && f.Err == "" && f.Executable && !seen[f.Path] {
			seen[f.Path] = true
			g.Commands = append(g.Commands, f)
		}
	}
	if !seen[g.Program.Path] {
		g.Commands = append(g.Commands, g.Program)
	}
}
