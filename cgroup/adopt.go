package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Reopen opens the base of an earlier daemon where that had it, which Hierarchies told. Open would find another where this daemon was
// started in another cgroup, from another login for example, and miss what lives in the old one. ErrGone: it is not there.
func Reopen(hiers []Hierarchy) (*Base, error) {
	f, err := readFacts()
	if err != nil {
		return nil, err
	}
	own, err := f.v2.dirOf(f.own[""])
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %s", ErrNoBase, err, delegateCure)
	}
	at := place{own: own, dirs: map[string]string{}}
	for _, h := range hiers {
		if h.Controller == "" {
			at.v2 = h.Dir
		} else {
			at.dirs[h.Controller] = h.Dir
		}
	}
	if at.v2 == "" || !strings.HasPrefix(at.v2, f.v2.mount+"/") || !exists(at.v2, callersDir) {
		return nil, fmt.Errorf("cannot use the cgroups of an earlier daemon: %w: there is no base at %q", ErrGone, at.v2)
	}
	at.found = own == at.v2 || own == filepath.Dir(at.v2) || filepath.Dir(own) == at.v2
	b, err := openAt(f, at, controllersV2())
	if err != nil || at.found {
		return b, err
	}
	if err := b.hiers[0].base.rmdir(daemonDir); err != nil && !errors.Is(busy(err), ErrBusy) {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Adopt opens the cgroup of a process that an earlier daemon made, with the groups of its caller and its session; path is as
// Job.Path gave it. ErrGone: it is not there, or was not finished; a Sweep that does not keep it removes the rest.
//
// Limits are read back from the kernel, and so are all counters; Caller, Session and Set put others in force as ever. What does
// not survive a daemon is which level above had been out of memory before the process began. So where a task of the job was killed
// for memory before it was adopted, Events names the level whose count, on v1 whose peak, shows that it was at its limit.
func (b *Base) Adopt(path string) (*Job, error) {
	names, err := split(path)
	if err != nil {
		return nil, err
	}
	for _, leaf := range []string{initDir, jobDir} { // before a level above it becomes known, which Sweep may then remove
		if !exists(b.hiers[0].Dir, filepath.Join(path, leaf)) {
			return nil, fmt.Errorf("cannot adopt cgroup %s: %w: there is no %s", path, ErrGone, leaf)
		}
	}
	g, err := b.adoptGroups(names[:2])
	if err != nil {
		return nil, fmt.Errorf("cannot adopt cgroup %s: %w", path, err)
	}
	j := &Job{group: g, id: names[2], in: make([]bool, len(b.hiers))}
	if err := j.adopt(); err != nil {
		return nil, fmt.Errorf("cannot adopt cgroup %s: %w", path, err)
	}
	return j, nil
}

// Groups are the cgroups of the process's session and caller.
func (j *Job) Groups() []*Group { return []*Group{j.group, j.group.parent} }

// adoptGroups finds the group of a caller and a session. Whoever finds one that is known finds it whole.
func (b *Base) adoptGroups(names []string) (g *Group, err error) {
	b.adopting.Lock()
	defer b.adopting.Unlock()
	g = b.callers
	for _, n := range names {
		if g, err = g.adopt(n); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// adopt finds the group name below g in every hierarchy. One that is known already stays as it is.
func (g *Group) adopt(name string) (*Group, error) {
	if !exists(g.base.hiers[0].Dir, filepath.Join(g.path, name)) {
		return nil, fmt.Errorf("%w: there is no %s", ErrGone, filepath.Join(g.path, name))
	}
	c, fresh := g.find(name)
	if !fresh {
		return c, nil
	}
	err := c.reopen()
	if err == nil && c.Limits().Memory > 0 {
		err = errors.Join(c.listenOOM(), c.suspect())
	}
	if err != nil {
		g.forget(c)
		return nil, err
	}
	return c, nil
}

// reopen opens the directories of a group that are there and reads back its limits.
func (g *Group) reopen() error {
	for i, h := range g.base.hiers {
		if !exists(h.Dir, g.path) {
			continue
		}
		if _, err := g.ensure(i); err != nil {
			return err
		}
	}
	at := func(controller string) (dir, string, bool) {
		d, ok := g.have(g.base.index(controller))
		return d, "", ok
	}
	l, applied, err := g.base.inForce(at, partGroup)
	if err != nil {
		return err
	}
	d, _ := g.have(0)
	on, err := d.read("cgroup.subtree_control")
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits, g.applied = l, applied
	for c := range strings.FieldsSeq(on) {
		g.enabled[c] = true
	}
	return nil
}

// adopt does the work of Base.Adopt below the session.
func (j *Job) adopt() error {
	b := j.group.base
	for i, h := range b.hiers {
		j.in[i] = exists(h.Dir, j.Path())
	}
	var err error
	if j.limits, j.applied, err = b.inForce(j.at, partJob); err != nil {
		return err
	}
	if err := j.mark(); err != nil {
		return err
	}
	kills, err := j.oomKills()
	if err != nil || kills == 0 {
		return err
	}
	for i := range j.before { // whatever a level above counts may have been this
		j.before[i].count = 0
	}
	return nil
}

// suspect counts a group of v1 as out of memory whose peak shows that it was: nobody took the notification.
func (g *Group) suspect() error {
	l := g.Limits().Memory
	d, ok := g.have(g.base.index(ControllerMemory))
	if !ok || l <= 0 || g.base.host.home[ControllerMemory] != homeV1 {
		return nil
	}
	peak, err := d.number("memory.max_usage_in_bytes")
	if err != nil || Bytes(peak) < l-Bytes(chargeBatch*os.Getpagesize()) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.oomSeen++
	return nil
}

// noLimit is what v1 shows at least where memory has no limit: the largest number of pages.
const noLimit = 1 << 60

// inForce reads the limits of a directory back from the kernel.
func (b *Base) inForce(at find, p part) (Limits, []Setting, error) {
	l := NoLimits()
	var errs []error
	read := func(controller, file string) string {
		d, name, ok := at(controller)
		if !ok {
			return ""
		}
		text, err := optional(d, filepath.Join(name, file))
		errs = append(errs, err)
		return text
	}
	switch b.host.home[ControllerMemory] {
	case homeV2:
		l.Memory, l.Swap = size(read(ControllerMemory, "memory.max")), size(read(ControllerMemory, "memory.swap.max"))
	case homeV1:
		l.Memory = size(read(ControllerMemory, "memory.limit_in_bytes"))
		if both := size(read(ControllerMemory, "memory.memsw.limit_in_bytes")); both >= 0 {
			l.Swap = both - l.Memory
		}
	case homeNone:
	}
	if b.host.home[ControllerPids] != homeNone {
		l.Pids = int64(size(read(ControllerPids, "pids.max")))
	}
	switch b.host.home[ControllerCPU] {
	case homeV2:
		l.CPU = share(read(ControllerCPU, "cpu.max"))
	case homeV1:
		l.CPU = share(read(ControllerCPU, "cpu.cfs_quota_us") + " " + read(ControllerCPU, "cpu.cfs_period_us"))
	case homeNone:
	}
	if b.host.home[ControllerIO] == homeV2 {
		if n, ok := fields(read(ControllerIO, "io.weight"))["default"]; ok && n != kernelWeight {
			l.IOWeight = int(n)
		}
	}
	applied, err := b.shown(at, l, p)
	return l, applied, errors.Join(append(errs, err)...)
}

// kernelWeight is the weight of a cgroup that was given none.
const kernelWeight = 100

// size reads a limit; −1: none.
func size(text string) Bytes {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n >= noLimit { // "max", or a file that this host lacks
		return -1
	}
	return Bytes(n)
}

// share reads "quota period" as a number of cores; 0: no limit.
func share(text string) float64 {
	f := strings.Fields(text)
	if len(f) != 2 {
		return 0
	}
	quota, err1 := strconv.ParseFloat(f[0], 64)
	period, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || quota <= 0 || period <= 0 {
		return 0
	}
	return quota / period
}

// shown lists limits as the kernel shows them.
func (b *Base) shown(at find, l Limits, p part) ([]Setting, error) {
	list := b.host.settings(l, p)
	for i := range list {
		s := &list[i]
		d, name, ok := at(s.hierarchy())
		if s.State == StateUnsupported || !ok {
			continue
		}
		got, err := d.read(filepath.Join(name, s.File))
		switch {
		case errors.Is(err, os.ErrNotExist):
			s.State, s.Why = StateUnsupported, fmt.Sprintf("this kernel has no %s here", s.File)
		case err != nil:
			return nil, err
		default:
			s.State, s.Value = StateApplied, got
		}
	}
	return slices.DeleteFunc(list, func(s Setting) bool { return s.State == "" }), nil
}
