package cgroup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Sweep ends every process below callers/ and removes every cgroup there, whoever made it, but those of keep and the levels above
// them. keep has paths as Job.Path gives them; one that is not there keeps nothing. It returns when all else is gone, or with a
// LeftoverError at the end of ctx.
func (b *Base) Sweep(ctx context.Context, keep ...string) error {
	kept, err := b.kept(keep)
	if err != nil {
		return err
	}
	for _, rel := range b.doomed(kept) {
		if err := b.end(ctx, rel, kept); err != nil {
			return err
		}
	}
	for i := range b.hiers {
		below, err := b.below(i)
		if err != nil {
			return err
		}
		for _, rel := range below {
			if kept.holds(rel) {
				continue
			}
			if err := b.remove(ctx, i, rel); err != nil {
				return errors.Join(err, b.leftover(rel))
			}
		}
	}
	return b.callers.swept(kept)
}

// swept gives up the groups whose directories a sweep has removed: who asks again gets new ones.
func (g *Group) swept(k kept) error {
	g.mu.Lock()
	below := slices.Collect(maps.Values(g.below))
	g.mu.Unlock()
	var errs []error
	for _, c := range below {
		errs = append(errs, c.swept(k))
		if !k.holds(c.path) {
			errs = append(errs, c.giveUp())
		}
	}
	return errors.Join(errs...)
}

// giveUp closes what is open of a group that was removed.
func (g *Group) giveUp() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for i := range g.dirs {
		errs = append(errs, g.dirs[i].close())
	}
	if g.oomFD >= 0 {
		errs = append(errs, wrap(unix.Close(g.oomFD), g.base.hiers[0].base, "close", g.path))
		g.oomFD = -1
	}
	g.removed = true
	g.parent.forget(g)
	return errors.Join(errs...)
}

// kept are the paths of processes that are to stay.
type kept []string

// kept are those of paths that are there.
func (b *Base) kept(paths []string) (kept, error) {
	var out kept
	for _, p := range paths {
		if _, err := split(p); err != nil {
			return nil, err
		}
		if exists(b.hiers[0].Dir, p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// split takes the path of a process apart: caller, session and process.
func split(path string) ([]string, error) {
	names := strings.Split(path, "/")
	if len(names) != 4 || names[0] != callersDir {
		return nil, fmt.Errorf("cannot find a process at cgroup %q: not callers/UID/SESSION/PROCESS", path)
	}
	for _, n := range names[1:] {
		if err := checkName(n); err != nil {
			return nil, err
		}
	}
	return names[1:], nil
}

// holds says whether a cgroup is that of a kept process, below it or above it.
func (k kept) holds(rel string) bool {
	return k.above(rel) || slices.ContainsFunc(k, func(p string) bool { return rel == p || strings.HasPrefix(rel, p+"/") })
}

// above says whether a kept process lies below a cgroup.
func (k kept) above(rel string) bool {
	return slices.ContainsFunc(k, func(p string) bool { return strings.HasPrefix(p, rel+"/") })
}

// doomed lists the cgroups of the v2 tree whose members end: the outermost that hold nothing kept with all below them, and those above
// what is kept, whose own members are nobody's.
func (b *Base) doomed(k kept) []string {
	var out []string
	next := []string{callersDir}
	for len(next) > 0 {
		rel := next[0]
		next = next[1:]
		out = append(out, rel)
		if !k.above(rel) {
			continue
		}
		names, err := b.hiers[0].base.names(rel)
		if err != nil {
			continue // it is gone, or the kill says what is wrong
		}
		for _, n := range names {
			if below := filepath.Join(rel, n); !slices.Contains(k, below) {
				next = append(next, below)
			}
		}
	}
	return out
}

// end kills the members of a cgroup of the v2 tree and waits until none is left.
func (b *Base) end(ctx context.Context, rel string, k kept) error {
	root := b.hiers[0].base
	if k.above(rel) {
		return b.endStrays(ctx, rel)
	}
	err := kill(root, rel)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = waitEvent(ctx, root, rel, "populated", 0)
	}
	if err != nil && !errors.Is(err, ErrGone) {
		return errors.Join(err, b.leftover(rel))
	}
	return nil
}

// endStrays kills what is in a cgroup itself, where pens have none of theirs.
func (b *Base) endStrays(ctx context.Context, rel string) error {
	pids, err := b.hiers[0].base.pids(rel)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if _, err := killAndWait(ctx, pid); err != nil {
			return errors.Join(err, b.leftover(rel))
		}
	}
	return nil
}
