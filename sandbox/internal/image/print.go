package image

import (
	"fmt"
	"slices"
	"strings"
)

// Len returns the number of steps.
func (p *Program) Len() int { return len(p.steps) }

// Step returns step i as String prints it, or "?" when there is none.
func (p *Program) Step(i int) string {
	if i < 0 || i >= len(p.lines) {
		return "?"
	}
	return p.lines[i].text
}

// Where returns whose step i is, as In was told, or "" when there is none.
func (p *Program) Where(i int) string {
	if i < 0 || i >= len(p.lines) {
		return ""
	}
	return p.lines[i].where
}

// String prints the Program in the manner of strace(1): a number and a call a
// line, with what becomes of its result. Folded steps share a line.
func (p *Program) String() string {
	at := map[int][]string{}
	for l, i := range p.labels {
		at[i] = append(at[i], l)
	}
	var b strings.Builder
	where := ""
	for i := 0; i < len(p.lines); i++ {
		l := p.lines[i]
		if l.where != where {
			where = l.where
			fmt.Fprintf(&b, "# %s\n", where)
		}
		names := at[i]
		slices.Sort(names)
		for _, n := range names {
			fmt.Fprintf(&b, "%s:\n", n)
		}
		if l.fold == "" {
			fmt.Fprintf(&b, "%5d %s\n", i, l.text)
			continue
		}
		first := i
		for i+1 < len(p.lines) && p.lines[i+1].fold == l.fold {
			i++
		}
		fmt.Fprintf(&b, "%5d-%d %s\n", first, i, l.fold)
	}
	return b.String()
}

// Raw prints each step as strace -e raw=all does, with * for what a register
// holds; a step that is no system call is printed as String does.
func (p *Program) Raw() string {
	var b strings.Builder
	for i, s := range p.steps {
		l := p.lines[i]
		if l.call == nil {
			fmt.Fprintf(&b, "%d %s\n", i, l.text)
			continue
		}
		t := make([]string, l.args)
		for j := range t {
			switch {
			case s.Take&(1<<j) != 0:
				t[j] = "*"
			case s.Args[j] == 0:
				t[j] = "0"
			default:
				t[j] = fmt.Sprintf("%#x", s.Args[j])
			}
		}
		fmt.Fprintf(&b, "%d %s(%s)\n", i, l.call.name, strings.Join(t, ", "))
	}
	return b.String()
}
