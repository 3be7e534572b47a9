package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxName bounds the name of a session or process.
const maxName = 128

// Group is a caller or a session: a directory whose limits hold for all below it together.
type Group struct {
	base   *Base
	parent *Group // nil for callers/
	path   string // relative to the base

	mu      sync.Mutex
	limits  Limits
	below   map[string]*Group // children that were made and not removed
	dirs    []dir             // by hierarchy; made when first needed
	enabled map[string]bool   // controllers of the v2 tree switched on for the children
	applied []Setting
	oomFD   int    // eventfd of a v1 memory cgroup with a limit; −1: none
	oomSeen uint64 // what it counted until the last look
	removed bool
}

func newGroup(b *Base, parent *Group, path string, l Limits) *Group {
	g := &Group{base: b, parent: parent, path: path, limits: l, oomFD: -1, below: map[string]*Group{}, enabled: map[string]bool{}, dirs: make([]dir, len(b.hiers))}
	for i := range g.dirs {
		g.dirs[i].fd = -1
	}
	return g
}

// Path is the group's place below the base: callers/<uid> or callers/<uid>/<session>.
func (g *Group) Path() string {
	return g.path
}

// Session makes the group of a session, or finds the one that is there and sets its limits anew. id has 1 to 128 of
// A–Z a–z 0–9 _ and -.
func (g *Group) Session(id string, l Limits) (*Group, error) {
	return g.child(id, l)
}

// child makes or finds the group name below g and sets its limits. One directory has one Group, so that asking again costs no call.
func (g *Group) child(name string, l Limits) (*Group, error) {
	if err := errors.Join(checkName(name), l.check()); err != nil {
		return nil, err
	}
	c, fresh := g.find(name)
	if !fresh && c.Limits() == l {
		if _, ok := c.have(0); ok {
			return c, nil
		}
	}
	_, err := c.ensure(0)
	if err == nil {
		err = c.Set(l, Forced)
	}
	if err == nil {
		return c, nil
	}
	err = fmt.Errorf("cannot make cgroup %s: %w", c.path, err)
	if fresh {
		err = errors.Join(err, ignoreBusy(c.Remove()))
	}
	return nil, err
}

// find returns the child of that name, or a fresh one without directories.
func (g *Group) find(name string) (c *Group, fresh bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.below[name]; c != nil {
		return c, false
	}
	c = newGroup(g.base, g, filepath.Join(g.path, name), NoLimits())
	g.below[name] = c
	return c, true
}

// ensure makes the group's directory in a hierarchy, and those above it, when it is first needed.
func (g *Group) ensure(i int) (dir, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed {
		return dir{fd: -1}, fmt.Errorf("cannot use cgroup %s: %w", g.path, ErrGone)
	}
	if g.dirs[i].fd >= 0 {
		return g.dirs[i], nil
	}
	up := g.base.hiers[i].base
	if g.parent != nil {
		var err error
		if up, err = g.parent.ensure(i); err != nil {
			return dir{fd: -1}, err
		}
	}
	name := filepath.Base(g.path)
	if err := up.mkdir(name); err != nil && !errors.Is(err, os.ErrExist) {
		return dir{fd: -1}, err
	}
	d, err := up.open(name)
	if err != nil {
		return d, err
	}
	g.dirs[i] = d
	return d, nil
}

// have is the group's directory in a hierarchy, if it was made.
func (g *Group) have(i int) (dir, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dirs[i], g.dirs[i].fd >= 0
}

// enable switches controllers of the v2 tree on for the group's children, from the top down.
func (g *Group) enable(controllers []string) error {
	if g.parent != nil {
		if err := g.parent.enable(controllers); err != nil {
			return err
		}
	}
	d, err := g.ensure(0)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var more []string
	for _, c := range controllers {
		if !g.enabled[c] {
			more = append(more, "+"+c)
		}
	}
	if len(more) == 0 {
		return nil
	}
	if err := d.write("cgroup.subtree_control", strings.Join(more, " ")); err != nil {
		return err
	}
	for _, c := range controllers {
		g.enabled[c] = true
	}
	return nil
}

// Limits are the limits as last set.
func (g *Group) Limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits
}

// Set changes the group's limits. A limit that is no longer set is lifted. With Refuse and more in use than a new memory
// or pids limit allows it returns ErrInUse and changes nothing. A limit that this host cannot hold is no error: see Applied.
// On v1 a controller that had no limit before holds processes that start from then on.
func (g *Group) Set(l Limits, f Force) error {
	if err := l.check(); err != nil {
		return err
	}
	old := g.Limits()
	list := g.base.host.change(old, g.parent.clamp(l), partGroup)
	if err := g.room(list, f); err != nil {
		return err
	}
	if err := g.enableFor(g.parent, l, nil); err != nil {
		return err
	}
	applied := make([]Setting, 0, len(list))
	for _, s := range list {
		done := s
		if s.State != StateUnsupported {
			d, err := g.ensure(g.base.index(s.hierarchy()))
			if err != nil {
				return err
			}
			if done, err = apply(d, "", s); err != nil {
				return err
			}
		}
		if !s.lifted() {
			applied = append(applied, done)
		}
	}
	if l.Memory > 0 {
		if err := g.listenOOM(); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits, g.applied = l, applied
	return nil
}

// room refuses limits below present use.
func (g *Group) room(list []Setting, f Force) error {
	if f == Forced {
		return nil
	}
	for _, s := range list {
		d, ok := g.have(g.base.index(s.hierarchy()))
		if !ok || s.State == StateUnsupported {
			continue
		}
		if err := fits(d, "", s); err != nil {
			return err
		}
	}
	return nil
}

// enableFor switches on, for the children of up, those controllers of the v2 tree that limits l or accounting need.
func (g *Group) enableFor(up *Group, l Limits, accounting []string) error {
	var need []string
	for _, c := range g.base.controllers {
		if g.base.host.home[c] == homeV2 && (l.limited(c) || slices.Contains(accounting, c)) {
			need = append(need, c)
		}
	}
	if len(need) == 0 {
		return nil
	}
	return up.enable(need)
}

// clamp lowers a cpu limit to that of the levels above: a v1 hierarchy refuses a child with more than its parent.
func (g *Group) clamp(l Limits) Limits {
	for ; g != nil; g = g.parent {
		if up := g.Limits().CPU; up > 0 && l.CPU > up {
			l.CPU = up
		}
	}
	return l
}

// Applied are the group's limits as the kernel shows them.
func (g *Group) Applied() []Setting {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]Setting(nil), g.applied...)
}

// Usage is what the group and all below it used.
func (g *Group) Usage() (Usage, error) {
	return g.base.usage(func(controller string) (dir, string, bool) {
		d, ok := g.have(g.base.index(controller))
		return d, "", ok
	})
}

// Remove removes the group from all hierarchies. With members or children left it is ErrBusy and the group stays as it was; after
// success every use of it is ErrGone: ask for a new one.
func (g *Group) Remove() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for i := range g.dirs { // the v2 tree first: nobody has a directory elsewhere and none there
		if g.dirs[i].fd < 0 {
			continue
		}
		up := g.base.hiers[i].base
		if err := up.rmdir(g.path); err != nil {
			errs = append(errs, busy(err))
			break
		}
		errs = append(errs, g.dirs[i].close())
	}
	err := errors.Join(errs...)
	if err != nil {
		return err
	}
	if g.oomFD >= 0 {
		err = wrap(unix.Close(g.oomFD), g.base.hiers[0].base, "close", g.path)
		g.oomFD = -1
	}
	g.removed = true
	if g.parent != nil {
		g.parent.forget(g)
	}
	return err
}

// forget drops a child that was removed.
func (g *Group) forget(c *Group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if name := filepath.Base(c.path); g.below[name] == c {
		delete(g.below, name)
	}
}

// checkName refuses names that could leave the directory or meet a kernel file.
func checkName(name string) error {
	ok := name != "" && len(name) <= maxName
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	switch name {
	case "tasks", "notify_on_release", "release_agent", initDir, jobDir, daemonDir, callersDir:
		ok = false
	}
	if !ok {
		return fmt.Errorf("cannot name a cgroup %q: 1 to %d of A-Z a-z 0-9 _ - and no kernel file's name", name, maxName)
	}
	return nil
}
