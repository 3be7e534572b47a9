package cgroup

import (
	"context"
	"encoding/binary"
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
	var u Usage
	b := j.group.base
	if err := errors.Join(u.readMemory(b, j.at), u.readCPU(b, j.at)); err != nil {
		return Events{}, err
	}
	return j.events(&u)
}

// Figures is Usage and Events at once of a job in which nothing runs any more: without what is used at the moment.
func (j *Job) Figures() (Usage, Events, error) {
	u, b := noUsage(), j.group.base
	if err := errors.Join(u.readCPU(b, j.at), u.readPeak(b, j.at), u.readIO(b, j.at)); err != nil {
		return u, Events{}, err
	}
	e, err := j.events(&u)
	return u, e, err
}

// events takes from u what the kernel has already been asked for.
func (j *Job) events(u *Usage) (Events, error) {
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
	b := j.group.base
	if _, _, ok := j.at(ControllerMemory); ok && b.host.home[ControllerMemory] != homeNone {
		e.MemoryPeak = u.MemoryPeak
	}
	if _, _, ok := j.at(ControllerCPU); ok && b.host.home[ControllerCPU] != homeNone {
		e.Throttled, e.ThrottledRuns = u.Throttled, u.ThrottledRuns
	}
	return e, nil
}

// oomKills counts the job's tasks that the out-of-memory killer ended: oom_kill of memory.events (Linux 4.13) or, on v1, of
// memory.oom_control (Linux 4.13).
func (j *Job) oomKills() (int64, error) {
	d, name, ok := j.at(ControllerMemory)
	if !ok {
		return 0, nil
	}
	return oomKills(d, name, j.group.base.host.home[ControllerMemory])
}

func oomKills(d dir, name string, h home) (int64, error) {
	var file string
	switch h {
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

// chargeBatch is how far below a limit usage may have stayed when that limit was hit: the kernel charges up to 64 pages at once.
const chargeBatch = 64

// oomScope finds whose memory limit it was. v2 counts that exactly: oom in memory.events.local (Linux 5.2). v1 notifies the
// cgroup whose limit was hit and all below it: so it was the process's own if its peak stands at its limit, else
// the outermost level that was notified since the process began; and the machine's memory if none was.
// (memory.failcnt of v1 would not do: it stays 0 where the limit with swap is the same.)
func (j *Job) oomScope() (Scope, Bytes, error) {
	own, err := j.hitOwn()
	if own > 0 || err != nil {
		return ScopeProcess, own, err
	}
	inherits := j.group.base.host.home[ControllerMemory] == homeV1
	scope, limit := ScopeHost, Bytes(-1)
	for _, m := range j.before {
		n, err := m.group.oomCount()
		if err != nil {
			return ScopeNone, -1, err
		}
		if n <= m.count {
			continue
		}
		scope, limit = m.scope, m.group.Limits().Memory
		if !inherits {
			break
		}
	}
	return scope, limit, nil
}

// hitOwn is the job's own memory limit if that was hit, else −1.
func (j *Job) hitOwn() (Bytes, error) {
	l := j.Limits()
	d, name, ok := j.at(ControllerMemory)
	if !ok || l.Memory <= 0 {
		return -1, nil
	}
	if j.group.base.host.home[ControllerMemory] == homeV2 {
		n, err := localOOM(d, name)
		if n == 0 {
			return -1, err
		}
		return l.Memory, err
	}
	peak, err := d.number(filepath.Join(name, "memory.max_usage_in_bytes"))
	if err != nil || Bytes(peak) < l.Memory-Bytes(chargeBatch*os.Getpagesize()) {
		return -1, err
	}
	return l.Memory, nil
}

// oomCount is how often the group was notified of an out-of-memory state since it was made: on v2 of its own limit, on v1 also of a limit above.
func (g *Group) oomCount() (uint64, error) {
	d, ok := g.have(g.base.index(ControllerMemory))
	if !ok {
		return 0, nil
	}
	switch g.base.host.home[ControllerMemory] {
	case homeV1:
		return g.drainOOM()
	case homeV2:
		return localOOM(d, "")
	case homeNone:
	}
	return 0, nil
}

func localOOM(d dir, name string) (uint64, error) {
	text, err := d.read(filepath.Join(name, "memory.events.local"))
	if errors.Is(err, os.ErrNotExist) {
		text, err = d.read(filepath.Join(name, "memory.events"))
	}
	return uint64(max(fields(text)["oom"], 0)), err
}

// listenOOM registers an eventfd for the group's out-of-memory state, once, on v1.
func (g *Group) listenOOM() error {
	if g.base.host.home[ControllerMemory] != homeV1 {
		return nil
	}
	d, err := g.ensure(g.base.index(ControllerMemory))
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.oomFD >= 0 {
		return nil
	}
	g.oomFD, err = registerOOM(d, "")
	return err
}

// drainOOM adds what the eventfd counted since the last look.
func (g *Group) drainOOM() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.oomFD < 0 {
		return g.oomSeen, nil
	}
	n, _, err := drainEventfd(g.oomFD)
	g.oomSeen += n
	return g.oomSeen, err
}

// registerOOM asks a v1 cgroup to signal a new eventfd when it, or one above it, is out of memory: cgroup.event_control,
// Documentation/admin-guide/cgroup-v1/memory.rst. It is signalled once more when the cgroup is removed.
func registerOOM(d dir, name string) (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, os.NewSyscallError("eventfd2", err)
	}
	control, err := d.file(filepath.Join(name, "memory.oom_control"), unix.O_RDONLY)
	if err == nil {
		err = errors.Join(d.write(filepath.Join(name, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, control)),
			wrap(unix.Close(control), d, "close", name))
	}
	if err != nil {
		return -1, errors.Join(gone(err), wrap(unix.Close(fd), d, "close", name))
	}
	return fd, nil
}

// drainEventfd takes the count of an eventfd; false: it has none.
func drainEventfd(fd int) (uint64, bool, error) {
	var count [8]byte
	_, err := retry(func() (int, error) { return unix.Read(fd, count[:]) })
	if errors.Is(err, unix.EAGAIN) {
		return 0, false, nil
	}
	return binary.NativeEndian.Uint64(count[:]), true, os.NewSyscallError("read", err)
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
		return waitOOM1(ctx, d, name)
	case homeV2:
		return watchFile(ctx, d, filepath.Join(name, "memory.events"), func(text string) bool { return fields(text)["oom_kill"] > 0 })
	case homeNone:
	}
	return fmt.Errorf("cannot watch memory of %s: %w: %s", j.Path(), errors.ErrUnsupported, j.group.base.host.why(ControllerMemory))
}

// waitOOM1 waits on the notification of v1, which comes just before a task is chosen and killed.
func waitOOM1(ctx context.Context, d dir, name string) error {
	fd, err := registerOOM(d, name)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	n, err := oomKills(d, name, homeV1)
	err = gone(err)
	for killed := n > 0; !killed && err == nil; {
		err = waitReadable(ctx, f, func(fd uintptr) (bool, error) {
			_, some, err := drainEventfd(int(fd))
			return some, err
		})
		if err == nil {
			killed, err = killedSoon(ctx, d, name)
		}
	}
	return errors.Join(err, f.Close())
}

// killedSoon looks whether a task was killed, a few times with growing pauses (127 ms in all): the notification comes before
// the counter moves, and none comes after it.
func killedSoon(ctx context.Context, d dir, name string) (bool, error) {
	for pause := time.Millisecond; ; pause *= 2 {
		n, err := oomKills(d, name, homeV1)
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
