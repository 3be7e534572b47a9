package policy

import (
	"fmt"
	"strings"
)

// Step is one question of a decision and its answer.
type Step struct {
	Question string
	Answer   string
	Passed   bool
	Rule     Rule
}

// Explanation is a decision with every step that led to it. Exactly one of
// Grant and Denied is set.
type Explanation struct {
	Steps  []Step
	Grant  *Grant
	Denied *Denied
}

// Allowed says whether the answer is yes.
func (e Explanation) Allowed() bool { return e.Denied == nil }

// Severity of a Finding.
type Severity string

// Severities.
const (
	SeverityInfo    Severity = "info"
	SeverityWarning Severity = "warning"
)

// Finding is something in a policy that loads but deserves a look.
type Finding struct {
	Pos      Pos
	Severity Severity
	Text     string
}

func (f Finding) String() string { return f.Pos.String() + ": " + string(f.Severity) + ": " + f.Text }

// Exposure says how much of the host a profile opens: 0 is nothing, 10 is all.
type Exposure struct {
	Profile string
	Score   float64
	Reasons []string
}

// String prints the answer, then every step on a line of its own.
func (e Explanation) String() string {
	var b strings.Builder
	if e.Denied != nil {
		b.WriteString("no: " + e.Denied.Error() + "\n")
		if advice := e.Denied.Advice(); advice != "" {
			b.WriteString("  " + advice + "\n")
		}
	} else if e.Grant != nil {
		fmt.Fprintf(&b, "yes: %s, by %s\n", e.Grant.Program.Path, e.Grant.Rule)
	}
	for _, s := range e.Steps {
		mark := "yes"
		if !s.Passed {
			mark = "no "
		}
		fmt.Fprintf(&b, "  %s  %s %s", mark, s.Question, s.Answer)
		if s.Rule.Text != "" {
			fmt.Fprintf(&b, "  [%s]", s.Rule)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Access is what a grant says about one path.
type Access struct {
	Read  bool
	Write bool
	Layer string // the layer that decides: mounts (not visible, or read-only), deny, hidden
	Rule  Rule
	Cause string
}

// Path says what the command may do with a path inside its view, as far as the
// policy decides: the host's own permissions come on top. The path is absolute
// and clean.
func (g *Grant) Path(name string) Access {
	for _, h := range g.Hidden {
		if atOrBelow(name, h) {
			return Access{Layer: "hidden", Cause: h + " is in the built-in list of secrets"}
		}
	}
	for _, d := range g.Deny {
		if atOrBelow(name, d.Path) {
			return Access{Layer: "deny", Rule: d.Rule, Cause: d.Path + " is denied"}
		}
	}
	best, out := -1, Access{Layer: "mounts", Cause: "no visible path holds it"}
	consider := func(dir string, a Access) {
		if len(dir) > best && atOrBelow(name, dir) {
			best, out = len(dir), a
		}
	}
	for _, r := range g.Read {
		consider(r.Path, Access{Read: true, Layer: "mounts", Rule: r.Rule, Cause: r.Path + " is read-only"})
	}
	for _, r := range g.Write {
		consider(r.Path, Access{Read: true, Write: true, Layer: "mounts", Rule: r.Rule, Cause: r.Path + " is writable"})
	}
	if g.Workspace.Read {
		consider(g.Workspace.Path, Access{Read: true, Write: g.Workspace.Write, Layer: "mounts", Rule: Rule{Text: "workspace"}, Cause: "it is in the workspace"})
	}
	consider("/tmp", Access{Read: true, Write: true, Layer: "mounts", Rule: Rule{Text: "fs.tmp"}, Cause: "/tmp is the command's own"})
	if g.Home.Kind != HomeNone {
		consider(g.Home.Path, Access{Read: true, Write: true, Layer: "mounts", Rule: Rule{Text: "fs.home"}, Cause: "the home is the session's own"})
	}
	if out.Write && within(name, g.Unwritable) {
		out.Write, out.Cause = false, "it is in the built-in list of what is never writable"
	}
	return out
}
