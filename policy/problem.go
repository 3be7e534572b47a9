package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in a source; lines and columns count from 1.
type Pos struct {
	File   string
	Line   int
	Column int
}

func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Problem is one thing that keeps a policy from loading.
type Problem struct {
	Pos  Pos
	Text string
	Hint string // the nearest known key, or the cure; empty: none
}

func (p Problem) String() string {
	if p.Hint == "" {
		return p.Pos.String() + ": " + p.Text
	}
	return p.Pos.String() + ": " + p.Text + " (" + p.Hint + ")"
}

// Problems are all problems of all sources, ordered by source, line and column.
type Problems struct { //nolint:errname // a list that is read as one, and an error as a whole
	List []Problem
}

func (p *Problems) Error() string {
	lines := make([]string, 0, len(p.List))
	for _, one := range p.List {
		lines = append(lines, one.String())
	}
	return strings.Join(lines, "\n")
}

// sorted orders problems as the sources were given.
func (p *Problems) sorted(sources []Source) *Problems {
	rank := make(map[string]int, len(sources))
	for i, s := range sources {
		rank[s.Name] = i
	}
	slices.SortStableFunc(p.List, func(a, b Problem) int {
		if d := rank[a.Pos.File] - rank[b.Pos.File]; d != 0 {
			return d
		}
		if d := a.Pos.Line - b.Pos.Line; d != 0 {
			return d
		}
		return a.Pos.Column - b.Pos.Column
	})
	p.List = slices.Compact(p.List)
	return p
}
