package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Events reads the kernel's counters of limits that the job ran into. Every figure is a counter of the kernel; nothing is
// inferred from an exit status.
func (j *Job) Events() (Events, error) {
	e := Events{OOMLimit: -1, MemoryPeak: -1, Throttled: -1, ThrottledRuns: -1}
	kills, err := j.oomKills()
	if err != nil {
		return e, err
	}
	e.OOMKills = kills
	if kills > 0 {
		if e.OOMScope, e.OOMLimit, err = j.oomScope(); err != nil {
			return e, err
		}
	}
	if e.PidsRefused, err = j.pidsRefused(); err != nil {
		return e, err
	}
	var u Usage
	b := j.group.base
	err = errors.Join(u.readMemory(b, j.at), u.readCPU(b, j.at))
	if _, _, ok := j.at(ControllerMemory); ok && b.host.home[ControllerMemory] != homeNone {
		e.MemoryPeak = u.MemoryPeak
	}
	if _, _, ok := j.at(ControllerCPU); ok && b.host.home[ControllerCPU] != homeNone {
		e.Throttled, e.ThrottledRuns = u.Throttled, u.ThrottledRuns
	}
	return e, err
}

// oomKills counts the job's tasks that the out-of-memory killer ended: oom_kill of memory.events (Linux 4.13) or, on v1, of
// memory.oom_control (Linux 4.13).
func (j *Job) oomKills() (int64, error) {
	d, name, ok := j.at(ControllerMemory)
	if !ok {
		return 0, nil
	}
	var file string
	switch j.group.base.host.home[ControllerMemory] {
	case homeV1:
		file = "memory.oom_control"
	case homeV2:
		file = "memory.events"
	case homeNone:
		return 0, nil
	}
	text, err := d.read(filepath.Join(name, file))
	return fields(text)["oom_kill"], err
}

// oomScope finds whose memory limit it was: the innermost level whose own limit was hit. v2 counts exactly that
// (oom in memory.events.local, Linux 5.2); on v1 a limit that was never hit has an unchanged memory.failcnt.
func (j *Job) oomScope() (Scope, Bytes, error) {
	d, name, _ := j.at(ControllerMemory)
	if j.limits.Memory > 0 {
		n, err := memoryHits(d, name, j.group.base.host.home[ControllerMemory])
		if err != nil {
			return ScopeNone, -1, err
		}
		if n > 0 {
			return ScopeProcess, j.limits.Memory, nil
		}
	}
	for _, m := range j.before {
		n, err := m.group.memoryHits()
		if err != nil {
			return ScopeNone, -1, err
		}
		if n > m.count {
			return m.scope, m.group.Limits().Memory, nil
		}
	}
	return ScopeHost, -1, nil
}

// memoryHits is how often the group's own memory limit was hit.
func (g *Group) memoryHits() (int64, error) {
	d, ok := g.have(g.base.index(ControllerMemory))
	if !ok {
		return 0, nil
	}
	return memoryHits(d, "", g.base.host.home[ControllerMemory])
}

func memoryHits(d dir, name string, h home) (int64, error) {
	switch h {
	case homeV1:
		swapToo, err := d.number(filepath.Join(name, "memory.memsw.failcnt"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		n, err := d.number(filepath.Join(name, "memory.failcnt"))
		return n + max(swapToo, 0), err
	case homeV2:
		text, err := d.read(filepath.Join(name, "memory.events.local"))
		if errors.Is(err, os.ErrNotExist) {
			text, err = d.read(filepath.Join(name, "memory.events"))
		}
		return fields(text)["oom"], err
	case homeNone:
	}
	return 0, nil
}

// pidsRefused counts forks that failed for a pids limit: max of pids.events (Linux 4.6).
func (j *Job) pidsRefused() (int64, error) {
	d, name, ok := j.at(ControllerPids)
	if !ok || j.group.base.host.home[ControllerPids] == homeNone {
		return 0, nil
	}
	text, err := optional(d, filepath.Join(name, "pids.events"))
	return fields(text)["max"], err
}

// WaitOOM returns nil once the out-of-memory killer has ended a task of the job; then Kill makes an end of the rest,
// which on v1 the kernel leaves alone. It returns ctx's error, ErrGone after Remove, or errors.ErrUnsupported without a memory
// controller. It blocks without a thread or a timer of its own: call it from a goroutine of the session.
func (j *Job) WaitOOM(ctx context.Context) error {
	d, name, ok := j.at(ControllerMemory)
	if !ok {
		return fmt.Errorf("cannot watch memory of %s: %w", j.Path(), errors.ErrUnsupported)
	}
	switch j.group.base.host.home[ControllerMemory] {
	case homeV1:
		return j.waitOOM1(ctx, d, name)
	case homeV2:
		_, err := watchFile(ctx, d, filepath.Join(name, "memory.events"), func(text string) bool { return fields(text)["oom_kill"] > 0 })
		return err
	case homeNone:
	}
	return fmt.Errorf("cannot watch memory of %s: %w: %s", j.Path(), errors.ErrUnsupported, j.group.base.host.why(ControllerMemory))
}

// waitOOM1 waits on an eventfd that v1 signals when this cgroup or one above it is out of memory, just before a task
// is chosen and killed, and at the removal of the cgroup: Documentation/admin-guide/cgroup-v1/memory.rst.
func (j *Job) waitOOM1(ctx context.Context, d dir, name string) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd2", err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	control, err := d.file(filepath.Join(name, "memory.oom_control"), unix.O_RDONLY)
	if err != nil {
		return errors.Join(gone(err), f.Close())
	}
	err = d.write(filepath.Join(name, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, control))
	err = errors.Join(gone(err), wrap(unix.Close(control), d, "close", name))
	n := int64(0)
	if err == nil {
		n, err = j.oomKills()
	}
	for killed := n > 0; !killed && err == nil; {
		if err = waitReadable(ctx, f, drainEventfd); err == nil {
			killed, err = j.killedSoon(ctx)
		}
	}
	return errors.Join(err, f.Close())
}

// drainEventfd takes the count of an eventfd; false: it has none.
func drainEventfd(fd uintptr) (bool, error) {
	var count [8]byte
	_, err := retry(func() (int, error) { return unix.Read(int(fd), count[:]) })
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	return true, os.NewSyscallError("read", err)
}

// killedSoon looks whether a task was killed, a few times with growing pauses (127 ms in all): the notification comes before
// the counter moves, and none comes after it.
func (j *Job) killedSoon(ctx context.Context) (bool, error) {
	for pause := time.Millisecond; ; pause *= 2 {
		n, err := j.oomKills()
		if n > 0 || err != nil {
			return n > 0, gone(err)
		}
		if pause > 64*time.Millisecond {
			return false, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		}
	}
}
