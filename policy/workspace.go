package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// variables are what stands for ${home} and ${workspace}.
type variables struct {
	home      string // empty: the caller has none, and rules that need it are left out
	workspace string
}

func (w *walk) variables(workspace string) variables {
	return variables{w.resolvedHome(), workspace}
}

// path expands a path of a policy; false: a variable has no value.
func (v variables) path(text string) (string, bool) {
	for _, one := range []struct{ name, value string }{{"${home}", v.home}, {"${workspace}", v.workspace}} {
		rest, found := strings.CutPrefix(text, one.name)
		if !found {
			continue
		}
		if one.name == "${home}" && !goodHome(one.value) || one.value == "" {
			return "", false
		}
		return path.Clean(one.value + rest), true
	}
	return text, true
}

// text expands variables anywhere in a value.
func (v variables) text(s string) string {
	return strings.NewReplacer("${home}", v.home, "${workspace}", v.workspace).Replace(s)
}

// resolvedHome is the caller's home without symbolic links where it was looked
// at: it is the last of Candidates.Under.
func (w *walk) resolvedHome() string {
	if !goodHome(w.c.Home) {
		return ""
	}
	last := len(w.looked.Under) - 1
	if last >= 0 && last < len(w.f.Under) && w.f.Under[last].Kind == KindDir && goodHome(w.f.Under[last].Path) {
		return w.f.Under[last].Path
	}
	return w.c.Home
}

// workspace finds the tree that the command works in: what cwd names, or the
// session's scratch workspace. Nothing else is ever chosen in silence.
func (w *walk) workspace(g *Grant) *Denied {
	rule := w.profile.rule("workspace")
	if w.profile.under.set {
		rule = w.profile.ruleAt(w.profile.under.pos, "workspace.under")
	}
	for _, r := range w.profile.resolvedWrite() {
		g.Workspace.Write = g.Workspace.Write || r.text == "${workspace}"
	}
	g.Workspace.Read = g.Workspace.Write
	for _, r := range w.profile.resolvedRead() {
		g.Workspace.Read = g.Workspace.Read || r.text == "${workspace}"
	}
	if w.r.Cwd == "" || inScratch(w.r.Cwd, w.profile.expandedUnder(w.c)) && w.looked.Dir == "" {
		return w.scratch(g, rule)
	}
	if d := w.namedDir(rule); d != nil {
		return d
	}
	g.Workspace.Path, g.Workspace.Cwd, g.Workspace.Dir = w.f.Dir.Path, w.f.Dir.Path, w.f.Dir
	w.pass("in which workspace?", w.f.Dir.Path, rule)
	return nil
}

func (w *walk) scratch(g *Grant, rule Rule) *Denied {
	if w.profile.scratch.or("scratch") != "scratch" {
		return w.no("in which workspace?", &Denied{
			Code: CodeDenied, Op: "work in", Object: w.r.Cwd, Cause: "the profile gives no scratch workspace", Rule: rule,
			Hint: "cwd names a directory strictly below " + strings.Join(texts(w.profile.resolvedUnder()), " or "), Final: true,
		})
	}
	g.Workspace.Path, g.Workspace.Cwd, g.Workspace.Scratch = ScratchPath, ScratchPath, true
	if w.r.Cwd != "" {
		g.Workspace.Cwd = path.Clean(w.r.Cwd)
	}
	w.pass("in which workspace?", "the session's scratch workspace", rule)
	return nil
}

// namedDir says why a request's cwd cannot be the workspace; nil: it can.
func (w *walk) namedDir(rule Rule) *Denied {
	const question = "in which workspace?"
	dir := w.f.Dir
	d := &Denied{Code: CodeDenied, Op: "work in", Object: w.r.Cwd, Rule: rule}
	under := texts(w.profile.resolvedUnder())
	switch {
	case !path.IsAbs(w.r.Cwd):
		d.Code, d.Cause, d.Hint, d.Final = CodeInvalid, "it is not an absolute path", "cwd is an absolute path, or empty for a scratch workspace", true
	case w.c.UID == 0:
		d.Cause, d.Hint, d.Final = "root works in a scratch workspace only: its files never enter a pen", "leave cwd empty", true
	case dir.Kind == KindNone:
		d.Code, d.Cause = absentCode(dir.Err), errnoText(dir.Err)
	case dir.Kind != KindDir || dir.Err != "":
		d.Code, d.Cause = CodeInvalid, "it is not a directory"
	case !path.IsAbs(dir.Path) || path.Clean(dir.Path) != dir.Path:
		d.Code, d.Cause = CodeInvalid, "it has no resolved path"
	case !w.belowUnder(dir):
		d.Cause, d.Final = "it is not strictly below an entry of workspace.under", true
		d.Nearest = strings.Join(under, ", ")
		d.Hint = "name a directory below " + strings.Join(under, " or ") + ", or leave cwd empty for a scratch workspace"
	case dir.UID != w.c.UID:
		d.Cause, d.Hint = fmt.Sprintf("it belongs to uid %d, not to the caller", dir.UID), "a workspace is the caller's own directory"
	case w.holdsHome(dir):
		d.Cause, d.Hint, d.Final = "it is or holds the caller's home", "name a directory below it", true
	case w.forbiddenDir(dir) != "":
		d.Cause, d.Final = "it lies in "+w.forbiddenDir(dir)+", which no pen may write (built-in list)", true
		d.Hint = "work in a directory of its own"
	default:
		return nil
	}
	if d.Hint == "" {
		d.Hint = "cwd names a directory strictly below " + strings.Join(under, " or ")
	}
	return w.no(question, d)
}

// absentCode tells what is not there apart from what the caller may not reach, and
// both from what is no name of a directory at all.
func absentCode(errno string) Code {
	switch errno {
	case "ENOENT":
		return CodeNotFound
	case "EACCES", "EPERM":
		return CodeDenied
	}
	return CodeInvalid
}

// belowUnder compares resolved paths, so that no symbolic link leads out.
func (w *walk) belowUnder(dir Fact) bool {
	own := w.profile.expandedUnder(w.c)
	for i, entry := range w.looked.Under {
		if i >= len(w.f.Under) || !slices.Contains(own, entry) {
			continue
		}
		u := w.f.Under[i]
		if u.Kind == KindDir && u.Err == "" && path.IsAbs(u.Path) && below(dir.Path, path.Clean(u.Path)) && (u.ID.Ino == 0 || u.ID != dir.ID) {
			return true
		}
	}
	return false
}

func (w *walk) holdsHome(dir Fact) bool {
	for _, home := range []string{w.c.Home, w.resolvedHome()} {
		if path.IsAbs(home) && atOrBelow(path.Clean(home), dir.Path) {
			return true
		}
	}
	last := len(w.looked.Under) - 1
	return goodHome(w.c.Home) && last >= 0 && last < len(w.f.Under) && w.f.Under[last].ID.Ino != 0 && w.f.Under[last].ID == dir.ID
}

// forbiddenDir is the built-in secret or unwritable path that holds dir; empty:
// none does.
func (w *walk) forbiddenDir(dir Fact) string {
	for _, list := range [][]string{secretPaths(), unwritablePaths()} {
		for _, p := range list {
			if atOrBelow(dir.Path, p) {
				return p
			}
		}
	}
	for _, home := range w.homes() {
		rest, found := strings.CutPrefix(dir.Path, home+"/")
		if !found {
			continue
		}
		for _, list := range [][]string{secretNames(), unwritableNames()} {
			for _, name := range list {
				if atOrBelow(rest, name) {
					return home + "/" + name
				}
			}
		}
	}
	return ""
}

// homes are the caller's home as passwd has it and without symbolic links.
func (w *walk) homes() []string {
	resolved := w.resolvedHome()
	if resolved == "" {
		return nil
	}
	return slices.Compact([]string{resolved, w.c.Home})
}

// inView are the built-in paths, and names below the caller's homes, that lie in
// one of the trees.
func (w *walk) inView(paths, names, trees []string) []string {
	var out []string
	keep := func(p string) {
		if within(p, trees) && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, p := range paths {
		keep(p)
	}
	for _, home := range w.homes() {
		all := slices.ContainsFunc(trees, func(t string) bool { return atOrBelow(home, t) })
		var below []string // trees in the home, relative to it
		for _, t := range trees {
			if rest, found := strings.CutPrefix(t, home+"/"); found {
				below = append(below, rest)
			}
		}
		for _, name := range names {
			if all || within(name, below) {
				keep(home + "/" + name)
			}
		}
	}
	return out
}

// files fills in what is visible, writable and denied.
func (w *walk) files(g *Grant) *Denied {
	f, vars := w.profile, w.variables(g.Workspace.Path)
	expand := func(list []word, key string) []PathRule {
		var out []PathRule
		for _, word := range list {
			// The workspace is Grant.Workspace, not a rule of its own.
			if p, ok := vars.path(word.text); ok && word.text != "${workspace}" {
				out = append(out, PathRule{p, f.ruleAt(word.pos, key)})
			}
		}
		return out
	}
	g.Read, g.Write = expand(f.resolvedRead(), "fs.read"), expand(f.resolvedWrite(), "fs.write")
	for _, r := range expand(f.fs.deny.v, "fs.deny") {
		g.Deny = append(g.Deny, DenyRule{r.Path, f.fs.absent.or(AbsentPlaceholder), r.Rule})
	}
	g.Missing = f.fs.missing.or(MissingSkip)
	g.Tmp = Tmp{f.fs.tmpSize.or(defaultTmpSize), f.fs.tmpExec.or(false)}
	visible := []string{}
	if g.Workspace.Read && !g.Workspace.Scratch {
		visible = append(visible, g.Workspace.Path)
	}
	writable := []string{}
	if g.Workspace.Write && !g.Workspace.Scratch {
		writable = append(writable, g.Workspace.Path)
	}
	for _, r := range g.Write {
		writable = append(writable, r.Path)
	}
	for _, r := range g.Read {
		visible = append(visible, r.Path)
	}
	g.Hidden = w.inView(secretPaths(), secretNames(), append(visible, writable...))
	g.Unwritable = w.inView(unwritablePaths(), unwritableNames(), writable)
	w.pass("which files?", fmt.Sprintf("%d readable and %d writable trees, %d denied paths", len(g.Read), len(g.Write)+1, len(g.Deny)+len(g.Hidden)), f.rule("fs"))
	return nil
}
