package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Job is the cgroup of one process: its first process in init, the target and all it starts in job. A Job holds no
// descriptor of its own; it ends with Remove.
type Job struct {
	group  *Group
	id     string
	before []mark // counters of the levels above when the process began, inner to outer

	mu      sync.Mutex
	in      []bool // hierarchies in which the process has a directory
	limits  Limits
	applied []Setting
}

// mark is how often a level above had been out of memory.
type mark struct {
	scope Scope
	group *Group
	count uint64
}

// Process makes the cgroup of one process below a session, with its limits. id as in Session, and new: else
// ErrExists. On an error nothing is left behind. A limit that this host cannot hold is no error: see Applied.
func (g *Group) Process(id string, l Limits) (*Job, error) {
	if err := errors.Join(checkName(id), l.check()); err != nil {
		return nil, err
	}
	j := &Job{group: g, id: id, in: make([]bool, len(g.base.hiers)), limits: l}
	if err := j.make(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make cgroup %s: %w", j.Path(), err), j.undo())
	}
	return j, nil
}

// make does the work of Process in the order v2 directories, controllers, v1 directories, settings, marks.
func (j *Job) make() error {
	d, err := j.group.ensure(0)
	if err != nil {
		return err
	}
	if err := d.mkdir(j.id); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%w: %w", ErrExists, err)
		}
		return err
	}
	j.in[0] = true
	if err := j.enable(d); err != nil {
		return err
	}
	for _, leaf := range []string{initDir, jobDir} {
		if err := d.mkdir(filepath.Join(j.id, leaf)); err != nil {
			return err
		}
	}
	for i := 1; i < len(j.in); i++ {
		if err := j.makeV1(i); err != nil {
			return err
		}
	}
	for _, s := range j.group.base.host.settings(j.group.clamp(j.limits), partJob) {
		done, err := j.apply(s)
		if err != nil {
			return err
		}
		j.applied = append(j.applied, done)
	}
	return j.mark()
}

// enable switches controllers of the v2 tree on for init and job: those with a limit, and memory and pids for their figures.
func (j *Job) enable(d dir) error {
	g := j.group
	accounting := []string{ControllerMemory, ControllerPids}
	if err := g.enableFor(g, j.limits, accounting); err != nil {
		return err
	}
	var list []string
	for _, c := range g.base.controllers {
		if g.base.host.home[c] == homeV2 && (j.limits.limited(c) || slices.Contains(accounting, c)) {
			list = append(list, "+"+c)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return d.write(filepath.Join(j.id, "cgroup.subtree_control"), strings.Join(list, " "))
}

// makeV1 makes the process's directory in a v1 hierarchy where a limit or an account needs it: memory always (its peak), the others with
// a limit.
func (j *Job) makeV1(i int) error {
	c := j.group.base.hiers[i].Controller
	if c != ControllerMemory && !j.limits.limited(c) {
		return nil
	}
	d, err := j.group.ensure(i)
	if err != nil {
		return err
	}
	if err := d.mkdir(j.id); err != nil {
		return err
	}
	j.in[i] = true
	return nil
}

// apply writes one setting of the job.
func (j *Job) apply(s Setting) (Setting, error) {
	if s.State == StateUnsupported {
		return s, nil
	}
	d, name, ok := j.at(s.hierarchy())
	if !ok {
		return s, fmt.Errorf("cannot set %s: no directory in its hierarchy: this is a bug in pinfold, please report", s.File)
	}
	return apply(d, name, s)
}

// at is the open directory and the name below it of the job in a controller's hierarchy.
func (j *Job) at(controller string) (dir, string, bool) {
	i := j.group.base.index(controller)
	d, ok := j.group.have(i)
	if !ok || !j.inside(i) {
		return d, "", false
	}
	if i == 0 {
		return d, filepath.Join(j.id, jobDir), true
	}
	return d, j.id, true
}

// inside says whether the process has a directory in a hierarchy.
func (j *Job) inside(i int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.in[i]
}

// mark notes how often the levels above had been out of memory: those with a limit, and callers/ for all that lies beyond it.
func (j *Job) mark() error {
	scope := ScopeSession
	for g := j.group; g != nil; g = g.parent {
		if g.parent == nil {
			scope = ScopeHost
		}
		if g.parent == nil || g.Limits().Memory > 0 {
			n, err := g.oomCount()
			if err != nil {
				return err
			}
			j.before = append(j.before, mark{scope: scope, group: g, count: n})
		}
		scope = ScopeCaller
	}
	return nil
}

// Begin says that the process begins only now: what happened on the levels above since Process is no business of its.
func (j *Job) Begin() error {
	j.before = nil
	return j.mark()
}

// Path is the process's place below the base: callers/<uid>/<session>/<process>, with init and job below it on the v2 tree.
func (j *Job) Path() string {
	return filepath.Join(j.group.path, j.id)
}

// Join lists the files into which the target writes "0" to enter the job: cgroup.procs of job on the v2 tree first, then tasks of
// each v1 hierarchy in which the process, or a level above it, has a limit. (tasks takes one thread and no lock over all processes,
// cgroup.procs on v1 does: so it must be written while the target has one thread.)
func (j *Job) Join() []JoinFile {
	out := []JoinFile{{Path: filepath.Join(j.Path(), jobDir, "cgroup.procs")}}
	for i := 1; i < len(j.in); i++ {
		c := j.group.base.hiers[i].Controller
		if j.inside(i) {
			out = append(out, JoinFile{Controller: c, Path: filepath.Join(j.Path(), "tasks")})
			continue
		}
		for g := j.group; g.parent != nil; g = g.parent {
			if g.Limits().limited(c) {
				out = append(out, JoinFile{Controller: c, Path: filepath.Join(g.path, "tasks")})
				break
			}
		}
	}
	return out
}

// Applied are the job's limits as the kernel shows them, and those that this host cannot hold.
func (j *Job) Applied() []Setting {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]Setting(nil), j.applied...)
}

// Limits are the job's limits as last set.
func (j *Job) Limits() Limits {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.limits
}

// Freeze stops every task of the job and returns when all stand still: cgroup.freeze, Linux 5.2, cgroups(7).
func (j *Job) Freeze(ctx context.Context) error {
	return j.freeze(ctx, "1", 1)
}

// Thaw lets the job run on.
func (j *Job) Thaw(ctx context.Context) error {
	return j.freeze(ctx, "0", 0)
}

func (j *Job) freeze(ctx context.Context, value string, frozen int64) error {
	d, name, err := j.v2()
	if err != nil {
		return err
	}
	if err := d.write(filepath.Join(name, "cgroup.freeze"), value); err != nil {
		return err
	}
	return waitEvent(ctx, d, name, "frozen", frozen)
}

// v2 is the job's directory on the v2 tree.
func (j *Job) v2() (dir, string, error) {
	d, name, ok := j.at("")
	if !ok {
		return d, name, fmt.Errorf("cannot find cgroup %s: %w", j.Path(), os.ErrNotExist)
	}
	return d, name, nil
}

// Kill ends every task of the job at once; the first process in init lives on. It does not wait: see WaitEmpty.
// cgroup.kill: Linux 5.14; before that the job is frozen, each member killed, and thawed.
func (j *Job) Kill() error {
	d, name, err := j.v2()
	if err != nil {
		return err
	}
	return kill(d, name)
}

// KillAll ends the job and the first process too: for a pen that a new daemon does not adopt.
func (j *Job) KillAll() error {
	d, _, err := j.v2()
	if err != nil {
		return err
	}
	return kill(d, j.id)
}

// Pids are the processes of the job, as this process's pid namespace numbers them.
func (j *Job) Pids() ([]int, error) {
	d, name, err := j.v2()
	if err != nil {
		return nil, err
	}
	return d.pids(name)
}

// Empty reports whether no task is in the job now: then none comes into it any more but by Join.
func (j *Job) Empty() (bool, error) {
	d, name, err := j.v2()
	if err != nil {
		return false, err
	}
	text, err := d.read(filepath.Join(name, "cgroup.events"))
	populated, ok := fields(text)["populated"]
	return ok && populated == 0, err
}

// WaitEmpty returns when no task is left in the job, or with ctx's error.
func (j *Job) WaitEmpty(ctx context.Context) error {
	d, name, err := j.v2()
	if err != nil {
		return err
	}
	return waitEvent(ctx, d, name, "populated", 0)
}

// Set changes the job's limits as Group.Set does.
func (j *Job) Set(l Limits, f Force) error {
	if err := l.check(); err != nil {
		return err
	}
	list := j.group.base.host.change(j.Limits(), j.group.clamp(l), partJob)
	for _, s := range list {
		d, name, ok := j.at(s.hierarchy())
		if s.State == StateUnsupported || f == Forced {
			continue
		}
		if !ok {
			return fmt.Errorf("cannot set %s of a running process: it began without a limit of %s", s.File, s.Controller)
		}
		if err := fits(d, name, s); err != nil {
			return err
		}
	}
	applied := make([]Setting, 0, len(list))
	for _, s := range list {
		done, err := j.apply(s)
		if err != nil {
			return err
		}
		if !s.lifted() {
			applied = append(applied, done)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.limits, j.applied = l, applied
	return nil
}
