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

// Raw prints each step as strace -e raw=all does, with $N for register N, and what
// becomes of its result: save=, ignore=, want=, if= and unless= with the number of
// the step that follows behind @. A step that is no system call is named set.
func (p *Program) Raw() string {
	var b strings.Builder
	for i, s := range p.steps {
		name, args := "set", 1
		if l := p.lines[i]; l.call != nil {
			name, args = l.call.name, l.args
		}
		t := make([]string, args)
		for j := range t {
			switch {
			case s.Take&(1<<j) != 0:
				t[j] = fmt.Sprintf("$%d", s.Args[j])
			case s.Args[j] == 0:
				t[j] = "0"
			default:
				t[j] = fmt.Sprintf("%#x", s.Args[j])
			}
		}
		fmt.Fprintf(&b, "%d %s(%s)%s\n", i, name, strings.Join(t, ", "), s.results(i))
	}
	return b.String()
}

// results prints what becomes of the result of step i.
func (s Step) results(i int) string {
	var b strings.Builder
	if s.Save != RegSink {
		fmt.Fprintf(&b, " save=%d", s.Save)
	}
	if s.Ignore != 0 {
		fmt.Fprintf(&b, " ignore=%d", s.Ignore)
	}
	x := fmt.Sprint(s.X)
	if s.Flags&flagReg != 0 {
		x = "$" + x
	}
	to := i + int(s.Jump)/stepSize
	switch {
	case s.Flags&flagWant != 0:
		fmt.Fprintf(&b, " want=%s", x)
	case s.Flags&flagEqual != 0:
		fmt.Fprintf(&b, " if=%s@%d", x, to)
	case s.Flags&flagDiffer != 0:
		fmt.Fprintf(&b, " unless=%s@%d", x, to)
	}
	return b.String()
}
