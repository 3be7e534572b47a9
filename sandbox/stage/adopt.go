package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"pinfold/sandbox"
	"pinfold/sandbox/internal/linux"
	"pinfold/sandbox/internal/stagewire"
)

// Adoption: a pen outlives the stage that made it. Its PID 1 holds what a daemon needs
// of it, and a later stage takes second descriptors of that. Nothing of a stage that is
// gone is needed by a pen but the placeholders of its denied paths: its mounts, its
// user namespaces and its rules are its own.

// mark says what finds the pen again.
func (l *launcher) mark() (sandbox.Mark, error) {
	m := sandbox.Mark{
		Boot: l.s.host.boot, Cgroup: l.site.Cgroup,
		Init: sandbox.ProcessMark{Pid: l.pid}, Target: sandbox.ProcessMark{Pid: l.target},
	}
	for _, p := range []*sandbox.ProcessMark{&m.Init, &m.Target} {
		start, err := linux.StartTime(p.Pid)
		if err != nil {
			return m, err
		}
		p.Start = start
	}
	l.pen.watching.Lock()
	defer l.pen.watching.Unlock()
	for _, w := range l.pen.watches {
		k, err := w.mark(l.p.View)
		if err != nil {
			return m, err
		}
		if k.Root != "" {
			m.Watches = append(m.Watches, k)
		}
	}
	return m, nil
}

// mark says where a path is looked for by names of the host. It has no Root where the
// path lies in memory of the view's own: nothing can appear there.
func (w *watch) mark(view []sandbox.Entry) (k sandbox.Watch, err error) {
	k = sandbox.Watch{Path: w.path, Rel: w.rel, UID: w.peer.UID, GID: w.peer.GID, Groups: w.peer.Groups, Placeholder: w.id}
	root := w.root
	if w.seen == "" {
		k.Root, err = linux.PathOf(root)
	} else if root, k.Root, k.Rel, err = boundAt(view, w.seen); root != nil {
		defer linux.CloseAll(root)
	}
	if err != nil || k.Root == "" {
		return k, err
	}
	st, err := linux.Stat(root)
	k.RootID = idOf(st)
	return k, err
}

// boundAt finds the directory of the host that a view shows around a path, and the path
// below it.
func boundAt(view []sandbox.Entry, seen string) (f *os.File, root, rel string, err error) {
	var e sandbox.Entry
	for _, v := range view {
		if sandbox.Below(seen, v.Path) && seen != v.Path && len(v.Path) > len(e.Path) {
			e = v
		}
	}
	if e.Kind != sandbox.EntryBind {
		return nil, "", "", nil
	}
	f, err = (*owners)(nil).openFollowed(e.Source)
	return f, e.Source, strings.TrimPrefix(strings.TrimPrefix(seen, e.Path), "/"), err
}

// adopt answers a request to take over a pen.
func (s *server) adopt(ctx context.Context, raw []byte) (any, []int, error) {
	var m sandbox.Mark
	if err := stagewire.Unmarshal(raw, &m); err != nil {
		return nil, nil, refused("cannot read the mark: %w", err)
	}
	if s.pens.full() {
		return nil, nil, errBusy
	}
	h, err := s.find(ctx, &m)
	if err != nil {
		return nil, nil, err
	}
	defer h.close()
	p, err := s.takeOver(h, &m)
	if err != nil {
		return nil, nil, err
	}
	a := sandbox.Launched{Pen: p.id, InitPid: m.Init.Pid, Pid: m.Target.Pid}
	var out []int
	for _, d := range h.held {
		n, err := linux.DupNumber(d.file)
		if err != nil { // the pen stays known, and lives on
			linux.CloseNumbers(out...)
			return nil, nil, err
		}
		a.Files, out = append(a.Files, d.name), append(out, n)
	}
	return a, out, nil
}

// find finds a pen where the rights to it are.
func (s *server) find(ctx context.Context, m *sandbox.Mark) (*found, error) {
	if s.rootless != nil {
		return s.trees.owners.find(m)
	}
	return (&finder{config: &s.config, boot: s.host.boot, uid: s.initUID()}).find(ctx, m)
}

// takeOver makes a pen that was found one of this stage's, with the shares in
// placeholders that it needs.
func (s *server) takeOver(h *found, m *sandbox.Mark) (*pen, error) {
	d, err := linux.Dup(h.init)
	if err == nil {
		d, err = linux.Pollable(d)
	}
	if err != nil {
		return nil, err
	}
	p := &pen{pidfd: d, adopted: true, gone: make(chan struct{})}
	for _, k := range m.Watches {
		p.watches = append(p.watches, s.watchAgain(k))
		if k.Placeholder == (sandbox.Identity{}) {
			continue
		}
		if made := s.places.again(k.Placeholder); made != nil {
			p.made = append(p.made, made)
		}
	}
	s.pens.add(p)
	go s.reap(p)
	return p, nil
}

// watchAgain looks for a path again as its mark says. Where the directory is another by
// now, nothing can be said of the path.
func (s *server) watchAgain(k sandbox.Watch) *watch {
	peer := linux.Peer{UID: k.UID, GID: k.GID, Groups: k.Groups}
	root, err := s.trees.owners.openFollowed(k.Root)
	if err == nil {
		st, err := linux.Stat(root)
		if err == nil && idOf(st) == k.RootID {
			if w, err := newWatch(k.Path, root, k.Rel, peer, k.Placeholder); err == nil {
				linux.CloseAll(root)
				return w
			}
		}
		linux.CloseAll(root)
	}
	return &watch{path: k.Path, rel: k.Rel, peer: peer, id: k.Placeholder}
}

// bootID names this boot of the host: random(4).
func bootID() (string, error) {
	b, err := linux.ReadProc("/proc/sys/kernel/random/boot_id", maxProcFile)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", errors.New("cannot tell this boot of the host: boot_id is empty")
	}
	return id, nil
}

// noPen says why there is nothing to adopt.
func noPen(format string, args ...any) error { return gonePenError(fmt.Sprintf(format, args...)) }

// gonePenError is a text that is sandbox.ErrGone to those who branch on it.
type gonePenError string

// Error returns the reason alone: the daemon's side says what it is a reason for.
func (g gonePenError) Error() string { return string(g) }

// Unwrap returns sandbox.ErrGone.
func (gonePenError) Unwrap() error { return sandbox.ErrGone }
